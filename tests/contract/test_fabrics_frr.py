"""
The frr-evpn adapter on a real fabric: who reaches whom, what a crash leaves, and what somebody else did to the switches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.errors import AuthFailed, NotFound, NotSent, ProviderError, Refused, Unknown
from controlplane.providers.fabrics import NetworkSpec, PortRef, PortView
from tests.contract.fabric_harnesses import FrrFabric, frr_fabric
from tests.fabric_lab import BMC_ADDRESS, MACHINES, FabricLab, running_lab, until

A = NetworkSpec("net-a", "ten_a", 100)
B = NetworkSpec("net-b", "ten_b", 200)
M11, M12, M21, M22 = (PortRef(one.switch, one.port) for one in MACHINES)
LEAF_ADDRESSES = ("10.97.9.1", "10.97.0.1", "10.97.1.1")
DYING = """#!/bin/sh
count=$(($(cat {folder}/count) + 1))
echo $count >{folder}/count
if [ $count -eq $(cat {folder}/fatal) ]; then
  kill -9 $PPID
  exit 1
fi
exec {real} "$@"
"""

ANOTHER_TUNNEL = """
ip link del cpx100
ip link add cpx100 type vxlan id 300 local 10.97.0.1 dstport 4789 nolearning
ip link set cpx100 alias controlplane:lab:net-a master cpb100 up
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[FabricLab]:
    """One lab for all tests of this file."""
    with running_lab() as running:
        yield running


@pytest.fixture
def fabric(lab: FabricLab) -> Iterator[FrrFabric]:
    """The lab with bare ports, before and after."""
    with frr_fabric(lab) as harness:
        yield harness


@pytest.fixture
def tenants(fabric: FrrFabric) -> FrrFabric:
    """Two tenants with a machine on each leaf; both use 10.50.0.1 and 10.50.0.2."""
    for ref, network in ((M11, A), (M21, A), (M12, B), (M22, B)):
        fabric.adapter.attach(ref, network)
    for one in MACHINES:
        fabric.lab.address(one.name, f"10.50.0.{one.switch[1]}")
    for machine in ("m11", "m12"):
        _meets(fabric.lab, machine, "10.50.0.2")
    return fabric


def _meets(lab: FabricLab, machine: str, address: str) -> str:
    """Who answers the machine there; somebody has to, before long."""
    return until(partial(lab.asked, machine, address), bool)


def _shown(fabric: FrrFabric, ref: PortRef) -> PortView:
    return fabric.adapter.observe_port(ref)


def test_tenants_reach_their_own_and_nobody_else(tenants: FrrFabric) -> None:
    """Across leaves each machine meets its tenant's other one, although both tenants use the same addresses."""
    lab = tenants.lab
    assert [_meets(lab, one, "10.50.0.2") for one in ("m11", "m12")] == ["m21", "m22"]
    assert [_meets(lab, one, "10.50.0.1") for one in ("m21", "m22")] == ["m11", "m12"]
    lab.address("m12", "10.50.0.7")
    assert _meets(lab, "m22", "10.50.0.7") == "m12"
    assert [lab.asked(one, "10.50.0.7") for one in ("m11", "m21")] == ["", ""]
    assert [one.strange for one in tenants.adapter.observe_fabric().ports] == [""] * 4


def test_a_machine_moves_to_the_other_tenant_and_back(tenants: FrrFabric) -> None:
    """Detached it reaches nobody; attached to the other tenant it meets that one's machines only; and the way back."""
    lab, adapter = tenants.lab, tenants.adapter
    lab.address("m11", "10.50.0.7")
    adapter.detach(M11)
    assert lab.asked("m11", "10.50.0.2") == ""
    adapter.attach(M11, B)
    assert _meets(lab, "m11", "10.50.0.2") == "m22"
    assert lab.asked("m21", "10.50.0.7") == ""
    adapter.detach(M11)
    adapter.attach(M11, A)
    assert _meets(lab, "m11", "10.50.0.2") == "m21"
    assert lab.asked("m22", "10.50.0.7") == ""


def test_management_is_never_reached_from_a_tenant(tenants: FrrFabric) -> None:
    """Neither the controller nor the leaf hears a machine that knows their addresses and the leaf's MAC; without the wall both do."""
    lab = tenants.lab
    lab.address("m11", "10.50.0.1", "10.97.0.0/16")
    assert [lab.asked("m11", address, within_s=0.2) for address in (BMC_ADDRESS, *LEAF_ADDRESSES)] == [""] * 4
    mac = lab.on("l1", "cat", "/sys/class/net/cpb100/address").strip()
    for address in (BMC_ADDRESS, *LEAF_ADDRESSES):
        lab.on("m11", "ip", "neigh", "replace", address, "lladdr", mac, "dev", "eth0")
    with lab.hearing("oob") as at_controller, lab.hearing("l1") as at_leaf:
        for address in (BMC_ADDRESS, *LEAF_ADDRESSES):
            lab.send("m11", address)
        assert (at_controller(), at_leaf()) == ([], [])
        lower = "cd /proc/sys/net/ipv4/conf/cpb100 && echo 1 >forwarding && echo 0 >rp_filter"
        lab.on("l1", "sh", "-c", lower)
        for address in (BMC_ADDRESS, LEAF_ADDRESSES[0]):
            lab.send("m11", address)
        assert (until(at_controller, bool), until(at_leaf, bool)) == (["m11"], ["m11"])
    assert "the switch itself can be reached" in _shown(tenants, M11).strange
    tenants.adapter.attach(M11, A)
    tenants.settled(M11, A.segment)


def test_a_repeat_does_not_disturb_a_running_machine(tenants: FrrFabric) -> None:
    """Nothing is made anew and no link goes down when what is there is right."""
    facts = "cat /sys/class/net/p1/carrier_changes /sys/class/net/cpb100/ifindex /sys/class/net/cpx100/ifindex"
    before = tenants.lab.on("l1", "sh", "-c", facts)
    for _ in range(3):
        tenants.adapter.attach(M11, A)
    assert tenants.lab.on("l1", "sh", "-c", facts) == before


def test_a_detached_machine_does_not_reach_the_switch(fabric: FrrFabric) -> None:
    """The port of a machine in no network is switched off, so that the switch's own stack does not hear it."""
    fabric.adapter.attach(M11, A)
    fabric.adapter.detach(M11)
    assert "UP" not in fabric.lab.on("l1", "ip", "-o", "link", "show", "dev", "p1").partition("<")[2].partition(">")[0].split(",")
    fabric.lab.on("l1", "ip", "link", "set", "dev", "p1", "up")
    assert _shown(fabric, M11).strange == "it is switched on and in no network"
    fabric.adapter.detach(M11)
    fabric.settled(M11, None)


def _dying(fabric: FrrFabric, folder: Path) -> Any:
    """An adapter whose script is killed on the switch before the command whose number stands in the folder's `fatal`."""
    for program in ("ip", "bridge"):
        fake = folder / program
        fake.write_text(DYING.format(folder=folder, real=f"/usr/sbin/{program}"), encoding="utf-8")
        fake.chmod(0o755)
    config = fabric.lab.config()
    prefix = config["switches"]["l1"]["reach"]["argv_prefix"]
    prefix += ["env", f"PATH={folder}:/usr/sbin:/usr/bin:/sbin:/bin"]
    return fabric.lab.adapter(config)


def _dies_at(folder: Path, number: int) -> None:
    (folder / "count").write_text("0", encoding="utf-8")
    (folder / "fatal").write_text(str(number), encoding="utf-8")


def test_a_crash_between_any_two_commands_is_repaired_by_the_same_call(fabric: FrrFabric, tmp_path: Path) -> None:
    """Attach dies before its first, second, ... command: the same call completes it, or a detach leaves nothing behind."""
    dying = _dying(fabric, tmp_path)
    for number in range(1, 30):
        for mend in (True, False):
            _dies_at(tmp_path, number)
            try:
                dying.attach(M11, A)
            except Unknown:
                pass
            else:
                assert number > 8
                return
            if mend:
                seen = _shown(fabric, M11)
                assert seen.segment is None or seen.strange, f"dead before command {number}, and it looks whole"
                fabric.adapter.attach(M11, A)
                fabric.settled(M11, A.segment)
            fabric.adapter.detach(M11)
            assert fabric.lab.made_on("l1") == []
    pytest.fail("attach has no end")


def test_a_crash_of_a_detach_is_repaired_by_the_same_call(fabric: FrrFabric, tmp_path: Path) -> None:
    """Detach dies before its first, second, ... command: the port is not shown bare before it is, and a repeat leaves nothing behind."""
    dying = _dying(fabric, tmp_path)
    for number in range(1, 20):
        fabric.adapter.attach(M11, A)
        _dies_at(tmp_path, number)
        try:
            dying.detach(M11)
        except Unknown:
            inside = "master" in fabric.lab.on("l1", "ip", "-o", "link", "show", "dev", "p1")
            assert (_shown(fabric, M11).segment is not None) == inside
            fabric.adapter.detach(M11)
            assert fabric.lab.made_on("l1") == []
        else:
            assert number > 3
            return
    pytest.fail("detach has no end")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("ip link add stray type veth peer name stray2; ip link set stray master cpb100", "stray is in its network"),
        ("ip link set p2 down; ip link set bmc0 master cpb100", "bmc0 is in its network"),
        ("ip addr add 10.50.0.254/24 dev cpb100", "its network has the switch's address 10.50.0.254"),
        ("ip link set cpb100 down", "its network is switched off"),
        ("ip link set cpx100 down", "its tunnel is not connected"),
        ("ip link set cpx100 nomaster", "its tunnel is not connected"),
        ("ip link del cpx100", "its network has no tunnel"),
        ("bridge link set dev cpx100 learning on", "its tunnel learns"),
        ("echo 0 >/proc/sys/net/ipv4/conf/cpb100/arp_ignore", "the switch itself can be reached"),
        ("ip link set p1 down", "it is in its network and switched off"),
        (ANOTHER_TUNNEL, "its tunnel leads elsewhere"),
    ],
)
def test_what_somebody_did_to_a_network_is_told(fabric: FrrFabric, what: str, words: str) -> None:
    """Every way in which a tenant's network is not as it was made is strange; what the adapter made, a repeat of attach repairs."""
    fabric.adapter.attach(M11, A)
    fabric.settled(M11, A.segment)
    fabric.lab.on("l1", "sh", "-c", what)
    try:
        seen = _shown(fabric, M11)
        assert seen.segment == A.segment
        assert words in seen.strange
        fabric.adapter.attach(M11, A)
        if "stray" not in what and "bmc0" not in what and "addr add" not in what:
            fabric.settled(M11, A.segment)
    finally:
        undo = "ip link del stray; ip link set bmc0 master oob; ip addr flush dev cpb100"
        fabric.lab.on("l1", "sh", "-c", f"{undo}; true")


def test_a_foreign_device_with_our_name_is_not_touched(fabric: FrrFabric) -> None:
    """A device without our tag that somebody uses stays as it is, and the network is refused on that switch."""
    for device, kind in (("cpb100", ["bridge"]), ("cpx100", ["vxlan", "id", "77", "dstport", "4789"])):
        fabric.lab.on("l1", "ip", "link", "add", device, "type", *kind)
        fabric.lab.on("l1", "ip", "link", "set", "dev", device, "up")
        with pytest.raises(Refused) as told:
            fabric.adapter.attach(M11, A)
        assert told.value.code == "fabric_device_foreign"
        fabric.adapter.detach(M11)
        assert device in fabric.lab.made_on("l1")
        fabric.lab.on("l1", "ip", "link", "del", "dev", device)
        fabric.adapter.detach(M11)


def test_another_installation_on_the_same_switches_is_left_alone(fabric: FrrFabric) -> None:
    """Its networks are foreign: not shown as ours, not removed by our detach, and its segment is not joined."""
    other = fabric.lab.adapter(deployment="other")
    other.attach(M11, A)
    seen = _shown(fabric, M11)
    assert (seen.segment, "which is not ours" in seen.strange) == (None, True)
    with pytest.raises(Refused):
        fabric.adapter.detach(M11)
    for ref, network in ((M12, A), (M11, B)):
        with pytest.raises(Refused):
            fabric.adapter.attach(ref, network)
    fabric.adapter.detach(M12)
    assert other.observe_port(M11).segment == A.segment
    other.detach(M11)


def test_frr_that_does_not_answer_is_strange_and_not_silent(fabric: FrrFabric) -> None:
    """The kernel still tells which network the port is in; that it is not announced is said."""
    fabric.adapter.attach(M11, A)
    config = fabric.lab.config()
    config["switches"]["l1"]["vtysh"] = ["vtysh", "--vty_socket", "/nowhere"]
    view = fabric.lab.adapter(config).observe_fabric()
    assert view.complete
    assert (view.ports[0].segment, view.ports[0].strange) == (A.segment, "FRR does not answer, or its EVPN is off")


def test_a_port_that_the_switch_does_not_have(fabric: FrrFabric) -> None:
    """A listed port without a device is strange to look at and NotFound to change."""
    config = fabric.lab.config()
    config["switches"]["l1"]["ports"].append("p3")
    adapter = fabric.lab.adapter(config)
    absent = PortRef("l1", "p3")
    assert adapter.observe_port(absent) == PortView(absent, None, None, "the switch has no such port")
    with pytest.raises(NotFound):
        adapter.attach(absent, A)
    with pytest.raises(NotFound):
        adapter.detach(absent)


def test_a_reserved_segment_is_refused(fabric: FrrFabric) -> None:
    """What the operator uses in the fabric is never a tenant's."""
    with pytest.raises(Refused) as told:
        fabric.adapter.attach(M11, NetworkSpec("net-x", "ten_x", 99))
    assert told.value.code == "fabric_segment_reserved"


def test_a_fabric_says_how_it_is(fabric: FrrFabric) -> None:
    """It makes no product and names switches that are silent; with none that answers the question has no answer."""
    said = fabric.adapter.capabilities()
    assert (said.products, said.notes) == ((), ())
    config = fabric.lab.config(timeout_s=0.3)
    config["switches"]["l1"]["reach"]["argv_prefix"] = ["sh", "-c", "sleep 60 & sleep 60"]
    assert fabric.lab.adapter(config).capabilities().notes == ("l1 does not answer",)
    config["switches"]["l2"]["reach"]["argv_prefix"] = ["sh", "-c", "sleep 60 & sleep 60"]
    with pytest.raises(Unknown):
        fabric.lab.adapter(config).capabilities()


def test_a_switch_that_does_not_answer_in_time_is_unknown(fabric: FrrFabric) -> None:
    """The call ends in its time although the switch holds the line open; the view names the switch."""
    config = fabric.lab.config(timeout_s=0.3)
    config["switches"]["l1"]["reach"]["argv_prefix"] = ["sh", "-c", "sleep 60 & sleep 60"]
    slow = fabric.lab.adapter(config)
    with pytest.raises(Unknown):
        slow.attach(M11, A)
    config["switches"]["l2"]["reach"]["argv_prefix"] = ["sh", "-c", "sleep 60 & sleep 60"]
    assert fabric.lab.adapter(config).observe_fabric().silent == ("l1", "l2")


def test_a_switch_behind_ssh(fabric: FrrFabric) -> None:
    """All of it works through ssh with a pinned host key; each way in that fails is told apart, and no secret is in the words."""
    lab = fabric.lab
    key, host_key = lab.ssh("l1")
    reach = {"kind": "ssh", "host": "127.0.0.1", "host_keys": [host_key]}

    def adapter(secret: str = key, **changed: Any) -> Any:
        config = lab.config()
        config["switches"] = {"l1": {**config["switches"]["l1"], "reach": {**reach, **changed}}}
        return lab.adapter(config, secrets={"ssh_key": secret})

    def failure(broken: Any) -> ProviderError:
        with pytest.raises(ProviderError) as told:
            broken.attach(M11, A)
        assert not any(line in f"{told.value.detail}{broken.__dict__}" for line in key.splitlines()[1:-1])
        return told.value

    def all_of_it() -> None:
        through = adapter()
        through.attach(M11, A)
        until(lambda: through.observe_port(M11), lambda seen: (seen.segment, seen.strange) == (A.segment, ""))
        assert through.observe_fabric().complete
        with pytest.raises(Refused):
            through.attach(M11, B)
        through.detach(M11)
        through.close()
        assert isinstance(failure(adapter(port=23)), NotSent)
        other = (lab.directory / "l1" / "host").read_text(encoding="utf-8")
        assert type(failure(adapter(other))) is AuthFailed
        foreign = (lab.directory / "l1" / "client.pub").read_text(encoding="utf-8").rpartition(" ")[0]
        assert failure(adapter(host_keys=[foreign])).code == "fabric_host_key_unknown"

    lab.from_inside("l1", all_of_it)
