"""
What the frr-evpn adapter takes for settings, and what it makes of names.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.frr_evpn.config import LARGEST_SEGMENT, FabricConfig
from controlplane.providers.adapters.frr_evpn.rendering import Names, attach_words, bridge_of, segment_of, vxlan_of
from controlplane.providers.errors import Permanent, Refused
from controlplane.providers.fabrics import NetworkSpec
from controlplane.providers.registry import AdapterInput, build_adapter

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJlvJqgQxCkQb5BpbvzQ0B0m3m3m3m3m3m3m3m3m3m3"
LEAF = {"reach": {"kind": "exec", "argv_prefix": ["true"]}, "vtep": "10.0.0.1", "ports": ["swp1", "swp2"]}
SSH = {"kind": "ssh", "host": "leaf1.example.org", "host_keys": [HOST_KEY]}
GOOD: dict[str, Any] = {"switches": {"leaf1": LEAF}}


def build(config: dict[str, Any], **more: Any) -> Any:
    """The adapter, as in production."""
    given = {
        "provider_id": "prv_1",
        "config": config,
        "secrets": {},
        "deployment": "test",
        "now": lambda: datetime.now(UTC),
        **more,
    }
    return build_adapter("frr-evpn", AdapterInput(**given))


def leaf(**changed: Any) -> dict[str, Any]:
    """A config of one switch that differs from the good one."""
    return {"switches": {"leaf1": {**deepcopy(LEAF), **changed}}}


def test_a_good_config_builds_an_adapter_that_asks_nobody() -> None:
    """Building needs no switch."""
    build(GOOD).close()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"switches": {}},
        {**GOOD, "unknown": 1},
        {**GOOD, "timeout_s": 60.0},
        {**GOOD, "reserved_segments": [0]},
        {**GOOD, "mtu": 100},
        {"switches": {"leaf 1": LEAF}},
        {"switches": {"leaf1": LEAF, "leaf2": LEAF}},
        leaf(ports=[]),
        leaf(ports=["swp1", "swp1"]),
        leaf(ports=["swp1"], reserved=["swp1"]),
        leaf(ports=["swp1"], uplinks=["swp1"]),
        leaf(ports=["swp1; reboot"]),
        leaf(ports=["a-name-of-17-char"]),
        leaf(ports=["cpb100"]),
        leaf(ports=["lo"]),
        leaf(ports=["../x"]),
        leaf(vtep="leaf1"),
        leaf(vtysh=["vtysh", "-N", "$(reboot)"]),
        leaf(lock_file="/run/../etc/passwd"),
        leaf(lock_file="here"),
        leaf(reach={"kind": "telnet"}),
        leaf(reach={"kind": "exec", "argv_prefix": []}),
        leaf(reach={**SSH, "host": "-oProxyCommand=x y"}),
        leaf(reach={**SSH, "host_keys": []}),
        leaf(reach={**SSH, "host_keys": ["* ssh-ed25519 AAAA"]}),
        leaf(reach={**SSH, "user": "root; reboot"}),
    ],
)
def test_a_config_that_cannot_be_is_refused(config: dict[str, Any]) -> None:
    """The place is named, and what stands there is not repeated."""
    with pytest.raises(Permanent) as told:
        build(config)
    assert told.value.code == "provider_config_invalid"
    assert "reboot" not in told.value.detail or "not a plain" in told.value.detail or "not the name" in told.value.detail


def test_a_missing_key_is_named() -> None:
    """An ssh switch needs its secret; the secret's name is told, nothing else."""
    with pytest.raises(Permanent, match="ssh_key"):
        build(leaf(reach=SSH))
    build(leaf(reach=SSH), secrets={"ssh_key": "words"}).close()


def test_a_secret_is_in_no_repr() -> None:
    """Neither the adapter nor anything it holds shows the key."""
    adapter = build(leaf(reach=SSH), secrets={"ssh_key": "SECRETWORDS"})
    assert "SECRETWORDS" not in f"{adapter!r} {adapter.__dict__!r} {[vars(one) for one in adapter._scripts.values()]!r}"
    adapter.close()


def test_an_installation_with_a_bad_name_is_refused() -> None:
    """Its name becomes part of every tag."""
    with pytest.raises(Permanent):
        build(GOOD, deployment="two words")


@given(st.integers(1, LARGEST_SEGMENT))
def test_names_of_devices_fit_and_lead_back(segment: int) -> None:
    """Linux allows 15 characters; a bridge's name tells its segment, a tunnel's is no bridge's."""
    assert len(bridge_of(segment)) <= 15
    assert len(vxlan_of(segment)) <= 15
    assert segment_of(bridge_of(segment)) == segment
    assert segment_of(vxlan_of(segment)) is None


@given(name=st.text(max_size=80), segment=st.integers(-5, LARGEST_SEGMENT + 5))
def test_nothing_but_plain_words_reaches_a_switch(name: str, segment: int) -> None:
    """Whatever a network is called, it is refused or its words mean the same to every shell."""
    config = FabricConfig.model_validate(GOOD)
    switch = config.switches["leaf1"]
    try:
        words = attach_words(Names("test"), config, switch, "swp1", NetworkSpec(name, "ten_1", segment), 1780000000000000)
    except Refused:
        return
    assert 1 <= segment <= LARGEST_SEGMENT
    assert not set("".join(words)) & set(" \t\n\"'`$\\;&|<>()*?[]{}!#~^")
    assert f"controlplane:test:{name}" in words


@given(st.tuples(*[st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")] * 4))
def test_no_two_networks_of_two_installations_share_a_tag(names: tuple[str, str, str, str]) -> None:
    """A tag is a function of both names that can be undone."""
    one, first, other, second = names
    assert (Names(one).tag(first) == Names(other).tag(second)) == ((one, first) == (other, second))
