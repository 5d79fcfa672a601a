"""
Plans of dedicated Kubernetes clusters: two real shapes, and keys.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from controlplane.rendering.kubernetes.keys import ClusterKeys, new_keys
from controlplane.rendering.kubernetes.plan import Addons, Chart, Host, KubernetesPlan, Position, Shape, Worker

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
HGX = Shape("hgx-h100-8", 8, "H100-SXM5-80GB", ("ens1f0np0", "ens1f1np1"))
PLAIN = Shape("cpu-64")


@cache
def keys() -> ClusterKeys:
    """
    Keys of one cluster, the same for a whole run of the tests.
    """
    return new_keys(NOW)


def three() -> KubernetesPlan:
    """
    By kubeadm: three control planes, workers of two shapes, charts from a mirror.
    """
    charts = {
        "gpu-operator": Chart("oci://registry.example.org/charts/gpu-operator", "v25.3.4"),
        "kueue": Chart("/opt/charts/kueue-0.14.1.tgz", "0.14.1"),
        "network-operator": Chart("/opt/charts/network-operator-25.7.0.tgz", "25.7.0"),
        "nvidia-dra-driver-gpu": Chart("/opt/charts/nvidia-dra-driver-gpu-25.8.0.tgz", "25.8.0"),
    }
    return KubernetesPlan(
        cluster="clu-01k5x7p3r8w2v6t9q4n0m1c2d3",
        distribution="kubeadm",
        version="1.36.2",
        control_planes=tuple(Host(f"ins-c{number}", f"10.20.0.{number + 1}") for number in (1, 2, 3)),
        workers=(
            Worker("ins-w1", "10.20.0.11", HGX.name, Position("b1", "l1", "r1")),
            Worker("ins-w2", "10.20.0.12", HGX.name, Position("b1", "l1", "r1"), "leaves"),
            Worker("ins-w3", "10.20.0.13", PLAIN.name),
            Worker("ins-w4", "10.20.0.14", PLAIN.name, standing="gone"),
        ),
        shapes=(HGX, PLAIN),
        addons=Addons(charts=charts),
        registry="registry.example.org/mirror",
    )


def plain() -> KubernetesPlan:
    """
    By kubeadm: one control plane, our own add-ons.
    """
    return KubernetesPlan(
        cluster="clu-01k5x7p3r8w2v6t9q4n0m1c2d4",
        distribution="kubeadm",
        version="1.34.1",
        control_planes=(Host("ins-c1", "10.20.0.2"),),
        workers=(Worker("ins-w1", "10.20.0.11", HGX.name, Position("b1", "l1", "r1", "d1")),),
        shapes=(HGX,),
    )


def light() -> KubernetesPlan:
    """
    By k3s: one control plane, our own add-ons.
    """
    return KubernetesPlan(
        cluster="clu-01k5x7p3r8w2v6t9q4n0m1c2d5",
        distribution="k3s",
        version="1.36.1",
        control_planes=(Host("ins-c1", "10.20.0.2"),),
        workers=(Worker("ins-w1", "10.20.0.11", HGX.name), Worker("ins-w2", "10.20.0.12", HGX.name)),
        shapes=(HGX,),
    )
