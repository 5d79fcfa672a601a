"""
What is made of a switch's own words.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.frr_evpn.config import FabricConfig
from controlplane.providers.adapters.frr_evpn.rendering import Names
from controlplane.providers.adapters.frr_evpn.switch import port_view, read_state
from controlplane.providers.errors import Unknown
from controlplane.providers.fabrics import PortView

CONFIG = FabricConfig.model_validate(
    {"switches": {"leaf1": {"reach": {"kind": "exec", "argv_prefix": ["true"]}, "vtep": "10.0.0.1", "ports": ["swp1", "swp2"]}}}
)
TAG = "controlplane:test:net-a"
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ifname", "flags", "linkinfo", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def link(name: str, **more: Any) -> dict[str, Any]:
    """A device that is up, as `ip -j -d addr show` prints it."""
    return {"ifname": name, "flags": ["BROADCAST", "UP", "LOWER_UP"], "operstate": "UP", "addr_info": [], **more}


def network() -> dict[str, dict[str, Any]]:
    """The devices of one port in one network, all as they should be."""
    tunnel = {"id": 100, "local": "10.0.0.1", "port": 4789, "learning": False}
    return {
        "swp1": link("swp1", master="cpb100", linkinfo={"info_slave_kind": "bridge", "info_slave_data": {"learning": True}}),
        "swp2": link("swp2", flags=["BROADCAST"], operstate="DOWN"),
        "cpb100": link("cpb100", ifalias=TAG, linkinfo={"info_kind": "bridge"}),
        "cpx100": link(
            "cpx100",
            master="cpb100",
            ifalias=TAG,
            linkinfo={
                "info_kind": "vxlan",
                "info_data": tunnel,
                "info_slave_kind": "bridge",
                "info_slave_data": {"learning": False},
            },
        ),
    }


def printed(
    devices: dict[str, dict[str, Any]], *, walls: str = "cpb100", evpn: str = '{"100": {"vni": 100, "vxlanIf": "cpx100"}}'
) -> str:
    """As the script prints it."""
    return f"=links\n{json.dumps(list(devices.values()))}\n\n=walls\n{walls}\n=evpn\n{evpn}\n"


def seen(text: str, port: str = "swp1") -> PortView:
    """The port's view."""
    return port_view("leaf1", port, CONFIG.switches["leaf1"], Names("test"), CONFIG.vxlan_port, read_state(text))


def test_a_network_as_it_should_be() -> None:
    """The port carries the segment, has a link, and nothing is strange; the other port is bare."""
    one = seen(printed(network()))
    assert (one.segment, one.up, one.strange) == (100, True, "")
    bare = seen(printed(network()), "swp2")
    assert (bare.segment, bare.up, bare.strange) == (None, False, "")


def _change(path: tuple[str, ...], value: Any) -> str:
    devices: Any = network()
    *way, last = path
    place = devices
    for key in way:
        place = place[key]
    place[last] = value
    return printed(devices)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_change(("swp1", "flags"), []), "switched off"),
        (_change(("swp1", "master"), "br0"), "not ours"),
        (_change(("cpb100", "ifalias"), "controlplane:other:net-a"), "not ours"),
        (_change(("cpb100", "ifalias"), ""), "not ours"),
        (_change(("cpb100", "flags"), []), "its network is switched off"),
        (_change(("swp1", "addr_info"), [{"local": "10.0.0.9", "scope": "global"}]), "the switch's address"),
        (_change(("vlan",), link("swp1.7", link="swp1")), "swp1.7 is stacked on it"),
        (_change(("eth0",), link("eth0", master="cpb100")), "eth0 is in its network"),
        (_change(("cpx100", "linkinfo", "info_data", "id"), 200), "leads elsewhere"),
        (_change(("cpx100", "linkinfo", "info_data", "local"), "10.0.0.2"), "leads elsewhere"),
        (_change(("cpx100", "linkinfo", "info_data", "port"), 8472), "leads elsewhere"),
        (_change(("cpx100", "linkinfo", "info_data", "remote"), "192.0.2.1"), "leads elsewhere"),
        (_change(("cpx100", "linkinfo", "info_data"), {"external": True}), "leads elsewhere"),
        (_change(("cpx100", "linkinfo", "info_data", "learning"), True), "learns"),
        (printed(network(), walls=""), "the switch itself can be reached"),
        (printed(network(), evpn="{}"), "FRR does not announce segment 100"),
        (printed(network(), evpn='{"100": {"vxlanIf": "vx9"}}'), "FRR does not announce segment 100"),
        (printed(network(), evpn=""), "FRR does not answer"),
        (printed(network(), evpn="no answer"), "FRR does not answer"),
        (printed(network(), evpn="[1]"), "FRR does not answer"),
    ],
)
def test_whatever_is_not_as_it_was_made_is_strange(text: str, words: str) -> None:
    """Each fault is told in words."""
    assert words in seen(text).strange


def test_a_port_that_was_left_open_is_strange() -> None:
    """In no network and switched on, it could reach the switch's own stack."""
    devices = network()
    devices["swp2"] = link("swp2")
    assert seen(printed(devices), "swp2").strange == "it is switched on and in no network"


@pytest.mark.parametrize(
    ("operstate", "flags", "up"), [("UNKNOWN", [], None), ("UNKNOWN", ["LOWER_UP"], True), ("DORMANT", [], None)]
)
def test_a_link_that_is_not_told_is_unknown(operstate: str, flags: list[str], up: object) -> None:
    """Unknown is never taken for up."""
    devices = network()
    devices["swp1"] |= {"operstate": operstate, "flags": ["UP", *flags]}
    assert seen(printed(devices)).up is up


@pytest.mark.parametrize(
    "text",
    ["", "hello", "=links\n[]\n", "=links\n[{}]\n=walls\n=evpn\n", "=links\n{\n=walls\n=evpn\n", "=walls\n=links\n[]\n=evpn"],
)
def test_what_cannot_be_read_is_unknown(text: str) -> None:
    """Never a fabric without ports."""
    with pytest.raises(Unknown):
        read_state(text)


@given(links=ANY_JSON, rest=st.text(max_size=60))
def test_no_answer_breaks_the_reader(links: Any, rest: str) -> None:
    """Any JSON in the devices' place and any text after it is read or is Unknown."""
    try:
        state = read_state(f"=links\n{json.dumps(links)}\n=walls\n\n=evpn\n{rest}")
    except Unknown:
        return
    port_view("leaf1", "swp1", CONFIG.switches["leaf1"], Names("test"), CONFIG.vxlan_port, state)
