"""
kubeadm's documents. All control planes get the same, and all workers of a shape: names and addresses are what the host itself says.

Source: kubernetes.io, "kubeadm Configuration (v1beta4)", "Kubelet Configuration (v1beta1)", "kube-proxy Configuration (v1alpha1)".
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any

from controlplane.rendering.kubernetes import layout
from controlplane.rendering.kubernetes.files import RenderedFile, yaml_text
from controlplane.rendering.kubernetes.keys import ClusterKeys
from controlplane.rendering.kubernetes.plan import API_PORT, KubernetesPlan, Shape

API = "kubeadm.k8s.io/v1beta4"
SOCKET = "unix:///run/containerd/containerd.sock"
LEAVES_VALID = "26280h0m0s"
"""Three years: certificates of control planes are renewed by an upgrade, and one comes sooner than that."""
GPU_LABEL = "controlplane.internal/gpus"
"""On nodes with GPUs, set by the kubelet itself when it registers."""


def key_files(keys: ClusterKeys) -> tuple[RenderedFile, ...]:
    """
    The authorities, as kubeadm looks for them: what it finds it does not make, and a control plane that joins needs nothing of another.
    """
    made = {
        "ca": keys.cluster,
        "front-proxy-ca": keys.front_proxy,
        "etcd/ca": keys.etcd,
    }
    files = [_secret(f"{layout.PKI}/{name}.crt", one.certificate, 0o644) for name, one in made.items()]
    files += [_secret(f"{layout.PKI}/{name}.key", one.key) for name, one in made.items()]
    files += [
        _secret(f"{layout.PKI}/sa.key", keys.accounts),
        _secret(f"{layout.PKI}/sa.pub", keys.accounts_public, 0o644),
    ]
    return tuple(files)


def init_file(plan: KubernetesPlan, keys: ClusterKeys) -> RenderedFile:
    """
    What founds the cluster; it does not depend on who its members are.
    """
    document = {
        "apiVersion": API,
        "kind": "InitConfiguration",
        "bootstrapTokens": [
            {
                "token": keys.bootstrap,
                "description": "Workers of this cluster.",
                # never: a worker that replaces another years later has the same files
                "ttl": "0s",
                "usages": ["signing", "authentication"],
                "groups": ["system:bootstrappers:kubeadm:default-node-token"],
            }
        ],
        "nodeRegistration": _registration(plan, {}),
    }
    return _secret(layout.INIT, yaml_text(document))


def join_file(plan: KubernetesPlan, keys: ClusterKeys, shape: str) -> RenderedFile:
    """
    What makes a worker of this shape join.
    """
    wanted = plan.shape(shape)
    return join_with(plan, keys.bootstrap, keys.cluster.pin, wanted)


def join_with(plan: KubernetesPlan, token: str, pin: str, shape: Shape) -> RenderedFile:
    """
    What makes a worker of this shape join by the token, where the authority has that pin.
    """
    labels = {"node.kubernetes.io/instance-type": shape.name}
    if shape.gpus:
        labels |= {GPU_LABEL: "true"}
    return _secret(layout.JOIN, yaml_text(_join(plan, token, pin, labels)))


def join_control_plane_file(plan: KubernetesPlan, keys: ClusterKeys) -> RenderedFile:
    """
    What makes a control plane join that does not found the cluster.
    """
    document = {**_join(plan, keys.bootstrap, keys.cluster.pin, {}), "controlPlane": {"localAPIEndpoint": {"bindPort": API_PORT}}}
    return _secret(layout.JOIN_CONTROL_PLANE, yaml_text(document))


def cluster_file(plan: KubernetesPlan) -> RenderedFile:
    """
    What the cluster is, and how its kubelets and proxies run.
    """
    return RenderedFile(layout.CLUSTER, yaml_text(_cluster(plan), _kubelet(plan), _proxy(plan)), 0o600)


def _cluster(plan: KubernetesPlan) -> Mapping[str, Any]:
    # the certificate of each API server is good for all of them, and for the name that stands for them
    names = [plan.api_name, *(one.address for one in plan.founders)]
    mirror = {"imageRepository": plan.registry, "dns": {"imageRepository": f"{plan.registry}/coredns"}} if plan.registry else {}
    return {
        "apiVersion": API,
        "kind": "ClusterConfiguration",
        "clusterName": plan.cluster,
        "kubernetesVersion": f"v{plan.version}",
        "controlPlaneEndpoint": f"{plan.api_name}:{API_PORT}",
        "certificatesDir": layout.PKI,
        "encryptionAlgorithm": "ECDSA-P256",
        "certificateValidityPeriod": LEAVES_VALID,
        **mirror,
        "networking": {
            "podSubnet": plan.networks.pods,
            "serviceSubnet": plan.networks.services,
            "dnsDomain": plan.networks.domain,
        },
        "apiServer": {
            "certSANs": names,
            "extraArgs": [
                {"name": "enable-admission-plugins", "value": "NodeRestriction"},
                {"name": "profiling", "value": "false"},
            ],
        },
        "controllerManager": {"extraArgs": [{"name": "profiling", "value": "false"}]},
        "scheduler": {"extraArgs": [{"name": "profiling", "value": "false"}]},
    }


def _kubelet(plan: KubernetesPlan) -> Mapping[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "clusterDNS": [name_server(plan)],
        "clusterDomain": plan.networks.domain,
        "rotateCertificates": True,
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": False}},
        "containerLogMaxSize": "50Mi",
        "containerLogMaxFiles": 5,
        "systemReserved": {"cpu": "500m", "memory": "2Gi"},
        "evictionHard": {"memory.available": "1Gi", "nodefs.available": "10%", "imagefs.available": "10%"},
        "shutdownGracePeriod": "60s",
        "shutdownGracePeriodCriticalPods": "20s",
    }


def _proxy(plan: KubernetesPlan) -> Mapping[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clusterCIDR": plan.networks.pods,
        "mode": "nftables",  # stable since 1.33, the oldest release that is taken
    }


def _join(plan: KubernetesPlan, token: str, pin: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "JoinConfiguration",
        "nodeRegistration": _registration(plan, labels),
        "discovery": {
            "bootstrapToken": {
                "token": token,
                "apiServerEndpoint": plan.api_at,
                "caCertHashes": [pin],
            }
        },
    }


def _registration(plan: KubernetesPlan, labels: Mapping[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = {"criSocket": SOCKET, "imagePullPolicy": "Never" if plan.has_images else "IfNotPresent"}
    if labels:
        shown = ",".join(f"{name}={value}" for name, value in labels.items())
        told["kubeletExtraArgs"] = [{"name": "node-labels", "value": shown}]
    return told


def name_server(plan: KubernetesPlan) -> str:
    """
    Address of the cluster's name server: the tenth of the Services', as kubeadm and k3s count.
    """
    return str(IPv4Network(plan.networks.services)[10])


def _secret(path: str, content: str, mode: int = 0o600) -> RenderedFile:
    return RenderedFile(path, content, mode, secret=True)
