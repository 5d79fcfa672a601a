"""
A Kubernetes of one's own whose control planes lose their power on hosts that really boot: in the middle of joining, while it is in use and
back again, and for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hosts_kit, stand_ins_kit
from tests.e2e.rack import Metal, done, key_pair
from tests.e2e.test_broken_boots import deployed
from tests.e2e.test_own_kubernetes_hosts import READY, free, names, objects, order, owner, running
from tests.e2e.test_own_kubernetes_replace import voters
from tests.e2e.test_own_kubernetes_slow import PATIENCE_S, nodes
from tests.factories.processes import until
from tests.hosts_kit import Host, Lab
from tests.kubernetes_kit import UNTIDY, KubernetesKit
from tests.slurm_kit import SLOW
from tests.stand_ins.machine import HOLD, HOLDS

__all__ = ["objects"]
pytestmark = [UNTIDY, *SLOW[1:], pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Five hosts whose image has the stand-ins."""
    with stand_ins_kit.image(), hosts_kit.running_lab(5) as made:
        yield made


def says(lab: Lab, host: Host, command: str) -> str:
    """What a command printed on the host; empty where it has no power or the command fails."""
    try:
        return lab.on(host, f"{command} && hostname")
    except AssertionError:
        return ""


def caught(objects: KubernetesKit, lab: Lab) -> str:
    """The name of a control plane that is without power since the middle of joining; hosts go on from here."""
    hold = f"{HOLDS}/{HOLD}"

    def held() -> str:
        return str(objects.ask("GET", hold)["data"].get("host", ""))

    until(lambda: held() != "", "one is joining", within_s=PATIENCE_S)
    name = held()
    lab.run("power", machine(lab, name).name, "off")
    objects.ask("DELETE", hold)
    return name


def state(metal: Metal, path: str) -> str:
    """Of the cluster."""
    return str(done(metal.tenant.get(path))["status"]["state"])


def machine(lab: Lab, name: str) -> Host:
    """The host that calls itself so."""
    (found,) = (one for one in lab.hosts if says(lab, one, f"[ $(hostname) = {name} ]"))
    return found


@pytest.mark.parametrize("distribution", ["kubeadm", "k3s"])
def test_power_lost_while_a_control_plane_joins_costs_nothing(
    metal: Metal, objects: KubernetesKit, lab: Lab, tmp_path: Path, distribution: str
) -> None:
    """
    A control plane loses its power behind the moment when etcd knows it. Nobody switches it on: we do, its script goes on where it was, no
    machine is deployed twice or held, and there is one cluster of three.
    """
    hosts = free(metal, 4, PATIENCE_S)
    objects.ask("POST", HOLDS, {"metadata": {"name": HOLD}, "data": {}}, "application/json")
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1, distribution, leads=3)
    name = caught(objects, lab)
    running(metal, path, PATIENCE_S)
    own = names(metal, path)
    assert name in own["cp"]
    kube, _ = owner(metal, path, tmp_path)
    assert set(kube.says("get", "nodes", "-o", f"jsonpath={READY}").split()) == {
        f"{one}=True" for one in (*own["cp"], *own["workers"])
    }
    assert voters(objects) == (set(own["cp"]) if distribution == "kubeadm" else set())
    for one in hosts:
        assert len(deployed(metal, one)) == 1
        assert done(metal.operator.get(f"/v1/admin/nodes/{one}"))["holds"] == []


def test_a_control_plane_in_use_loses_its_power(metal: Metal, objects: KubernetesKit, lab: Lab, tmp_path: Path) -> None:
    """
    The first of three is dark, by which we come in: the cluster is degraded and says so, as its API is asked at another; with its power
    back all is well. Another one stays dark: its owner has it replaced, and it is out of etcd before the new one joins.
    """
    free(metal, 5, PATIENCE_S)
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1, leads=3)
    running(metal, path, PATIENCE_S)
    before = names(metal, path)
    first, *_, last = sorted(before["cp"])
    dark = machine(lab, first)
    lab.run("power", dark.name, "off")
    until(lambda: state(metal, path) == "degraded", "the loss is seen", within_s=PATIENCE_S)
    issues = [one["code"] for one in done(metal.tenant.get(path))["status"]["issues"]]
    assert issues == ["members_unhealthy"]
    lab.run("power", dark.name, "on")
    until(lambda: state(metal, path) == "running", "all is well", within_s=PATIENCE_S)
    assert (names(metal, path), voters(objects)) == (before, set(before["cp"]))
    lab.run("power", machine(lab, last).name, "off")
    until(lambda: state(metal, path) == "degraded", "the loss is seen", within_s=PATIENCE_S)
    done(metal.tenant.post(f"{path}/instances/{last.replace('-', '_')}/actions/replace", headers={"If-Match": "*"}))
    running(metal, path, PATIENCE_S)
    after = names(metal, path)
    assert (len(after["cp"]), set(before["cp"]) - set(after["cp"]), after["workers"]) == (3, {last}, before["workers"])
    assert voters(objects) == set(after["cp"])
    kube, _ = owner(metal, path, tmp_path)
    assert nodes(kube) == {*after["cp"], *after["workers"]}
