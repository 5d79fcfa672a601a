"""
What an operator may say about dedicated Kubernetes clusters.
"""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.rendering.kubernetes.checking import BadPlan
from controlplane.rendering.kubernetes.offer import Offer, plan_of, read_offer
from controlplane.rendering.kubernetes.plan import Chart, Host, Networks, Shape, Worker

OFFER: dict[str, Any] = {
    "versions": {"kubeadm": "1.36.2", "k3s": "1.36.1"},
    "shapes": {"hgx-h100-8": {"gpus": 8, "gpu_model": "H100-SXM5-80GB"}, "cpu-64": {}},
    "networks": {"pods": "10.192.0.0/12"},
    "charts": {"kueue": {"source": "/opt/charts/kueue-0.14.1.tgz", "version": "0.14.1"}},
    "registry": "registry.example.org/mirror",
}


def offered(**changes: Any) -> Offer | None:
    """The offer with these changes."""
    return read_offer({"kubernetes": {**OFFER, **changes}})


def test_an_offer_becomes_a_plan_of_what_was_ordered() -> None:
    """The distribution's version, the shapes that are used, and all that holds for each cluster."""
    offer = offered()
    assert offer is not None
    worker = Worker("ins-w1", "10.20.0.11", "hgx-h100-8")
    plan = plan_of(offer, "k3s", "clu_1", ["hgx-h100-8"], (Host("ins-c1", "10.20.0.2"),), (worker,))
    assert (plan.cluster, plan.version, plan.registry) == ("clu-1", "1.36.1", "registry.example.org/mirror")
    assert plan.shapes == (Shape("hgx-h100-8", 8, "H100-SXM5-80GB"),)
    assert plan.networks == Networks(pods="10.192.0.0/12")
    assert plan.addons.charts == {"kueue": Chart("/opt/charts/kueue-0.14.1.tgz", "0.14.1")}
    with pytest.raises(KeyError):
        plan_of(offer, "k3s", "clu_1", ["other"], plan.control_planes, ())


def test_nobody_has_to_offer_it() -> None:
    """No offer is none, and one without words of its own is our defaults."""
    assert read_offer({}) is None
    plain = read_offer({"kubernetes": {"versions": {"kubeadm": "1.36.2"}, "shapes": {"cpu-64": {}}}})
    assert plain is not None
    assert not plain.charts


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"versions": {}}, "kubernetes.versions"),
        ({"versions": {"other": "1.36.2"}}, "kubernetes.versions.other.[key]"),
        ({"versions": {"kubeadm": "1.29.0"}}, "version"),
        ({"versions": {"kubeadm": "latest"}}, "version"),
        ({"shapes": {"cpu-64": {"gpus": 8}}}, "shapes.gpu_model"),
        ({"shapes": {"cpu 64": {}}}, "shapes.name"),
        ({"networks": {"pods": "10.96.0.0/12"}}, "networks.services"),
        ({"charts": {"other": {"source": "/opt/x.tgz", "version": "1.0.0"}}}, "addons.charts"),
        ({"charts": {"kueue": {"source": "https://x", "version": "1.0.0"}}}, "addons.charts.kueue.source"),
        ({"registry": "a b"}, "registry"),
        ({"more": 1}, "kubernetes.more"),
    ],
)
def test_a_wrong_offer_is_told_by_its_field(changes: dict[str, Any], field: str) -> None:
    """When it is made, not when somebody orders."""
    with pytest.raises(BadPlan) as caught:
        offered(**changes)
    assert field in {one.field for one in caught.value.errors}
