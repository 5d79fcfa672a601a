"""
What one switch has: read from its own words, and judged port by port.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.frr_evpn.config import SwitchConfig
from controlplane.providers.adapters.frr_evpn.rendering import Names, segment_of, vxlan_of
from controlplane.providers.errors import Unknown
from controlplane.providers.fabrics import PortRef, PortView

_SECTIONS = ("links", "walls", "evpn")


@dataclass(frozen=True, slots=True)
class Tunnel:
    """
    A VXLAN device's own settings.
    """

    vni: int
    """Its segment; 0 for none of its own."""
    vtep: str
    """Where its packets come from; empty for anywhere."""
    udp_port: int
    """Where they go."""
    learns: bool
    """Whether it trusts what comes in; EVPN is there to tell it instead."""
    remote: str
    """A fixed far end; empty for none."""


@dataclass(frozen=True, slots=True)
class Device:
    """
    One network device of the switch.
    """

    name: str
    """By the kernel."""
    kind: str
    """`bridge`, `vxlan`, `veth`; empty for a physical one."""
    master: str
    """The bridge it is a member of; empty for none."""
    below: str
    """The device it is stacked on; empty for none."""
    tag: str
    """Its alias."""
    is_open: bool
    """Whether it was switched on."""
    carrier: bool | None
    """Whether it has a link; None when the kernel does not tell."""
    addresses: tuple[str, ...]
    """The switch's own on it."""
    tunnel: Tunnel | None
    """Of a VXLAN device."""
    learns_as_member: bool
    """Whether its bridge learns addresses from it."""


@dataclass(frozen=True, slots=True)
class SwitchState:
    """
    One switch at one moment.
    """

    devices: Mapping[str, Device]
    """By name."""
    walled: frozenset[str]
    """Our bridges from which the switch itself cannot be reached, and through which it routes nothing."""
    announced: Mapping[int, str] | None
    """FRR's VNIs with the devices they come from; None when it does not answer or EVPN is off."""

    def members(self, bridge: str) -> Iterator[Device]:
        """
        What is in the bridge.
        """
        return (one for one in self.devices.values() if one.master == bridge)


def read_state(printed: str) -> SwitchState:
    """
    The state as `observe` printed it. Raises Unknown for anything else.

    Source: iproute2 6.1 `ip -j -d addr show`, FRR 8.4 `show evpn vni json`.
    """
    sections = _sections(printed)
    try:
        devices = tuple(_device(one) for one in json.loads(sections["links"]) if one != {})
        walled = frozenset(sections["walls"].split())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unknown(f"what the switch printed cannot be read: {type(error).__name__}: {error}") from error
    if not devices:
        raise Unknown("the switch printed no device at all, and every one has a loopback")
    return SwitchState({one.name: one for one in devices}, walled, _announced(sections["evpn"]))


def port_view(switch: str, port: str, config: SwitchConfig, names: Names, udp_port: int, state: SwitchState) -> PortView:
    """
    What the switch does with the port; everything that is not as `attach` or `detach` leaves it is told in `strange`.
    """
    ref = PortRef(switch, port)
    device = state.devices.get(port)
    if device is None:
        return PortView(ref, None, None, "the switch has no such port")
    wrong = [f"{one.name} is stacked on it" for one in state.devices.values() if one.below == port]
    wrong += [f"it has the switch's address {one}" for one in device.addresses]
    if not device.master:
        wrong += ["it is switched on and in no network"] if device.is_open else []
        return PortView(ref, None, device.carrier, "; ".join(wrong))
    bridge = state.devices.get(device.master)
    segment = segment_of(device.master)
    if bridge is None or segment is None or not names.is_ours(bridge.tag):
        return PortView(ref, None, device.carrier, "; ".join([*wrong, f"it is in {device.master}, which is not ours"]))
    wrong += [] if device.is_open else ["it is in its network and switched off"]
    wrong += _wrong_with(bridge, segment, config, udp_port, state)
    return PortView(ref, segment, device.carrier, "; ".join(wrong))


def _wrong_with(bridge: Device, segment: int, config: SwitchConfig, udp_port: int, state: SwitchState) -> Iterator[str]:
    """
    What keeps the bridge from being a tenant's alone.
    """
    tunnel = vxlan_of(segment)
    for member in state.members(bridge.name):
        if member.name != tunnel and member.name not in config.ports:
            yield f"{member.name} is in its network and does not belong there"
    if not bridge.is_open:
        yield "its network is switched off"
    if bridge.name not in state.walled:
        yield "the switch itself can be reached from its network"
    for address in bridge.addresses:
        yield f"its network has the switch's address {address}"
    yield from _wrong_with_tunnel(tunnel, bridge, segment, config, udp_port, state)
    if state.announced is None:
        yield "FRR does not answer, or its EVPN is off"
    elif state.announced.get(segment) != tunnel:
        yield f"FRR does not announce segment {segment}"


def _wrong_with_tunnel(
    name: str, bridge: Device, segment: int, config: SwitchConfig, udp_port: int, state: SwitchState
) -> Iterator[str]:
    device = state.devices.get(name)
    if device is None or device.tunnel is None:
        yield "its network has no tunnel"
        return
    tunnel = device.tunnel
    if device.master != bridge.name or not device.is_open:
        yield "its tunnel is not connected"
    if (tunnel.vni, tunnel.vtep, tunnel.udp_port) != (segment, config.vtep, udp_port) or tunnel.remote:
        yield "its tunnel leads elsewhere"
    if tunnel.learns or device.learns_as_member:
        yield "its tunnel learns from what comes in"


def _sections(printed: str) -> Mapping[str, str]:
    found: dict[str, list[str]] = {}
    for line in printed.splitlines():
        name = line.removeprefix("=")
        if line.startswith("=") and name in _SECTIONS:
            found[name] = []
        elif found:
            found[next(reversed(found))].append(line)
    if tuple(found) != _SECTIONS:
        raise Unknown(f"the switch printed the sections {', '.join(found) or 'none'}, not {', '.join(_SECTIONS)}")
    return {name: "\n".join(lines) for name, lines in found.items()}


def _device(said: Mapping[str, Any]) -> Device:
    info = said.get("linkinfo", {})
    flags = said["flags"]
    settings = info.get("info_data", {})
    tunnel = None
    if info.get("info_kind") == "vxlan":
        tunnel = Tunnel(
            vni=int(settings.get("id", 0)),
            vtep=str(settings.get("local", settings.get("local6", ""))),
            udp_port=int(settings.get("port", 0)),
            learns=bool(settings.get("learning", True)),
            remote=str(settings.get("remote", settings.get("group", settings.get("remote6", settings.get("group6", ""))))),
        )
    return Device(
        name=str(said["ifname"]),
        kind=str(info.get("info_kind", "")),
        master=str(said.get("master", "")),
        below=str(said.get("link") or ""),
        tag=str(said.get("ifalias", "")),
        is_open="UP" in flags,
        carrier=_carrier(flags, str(said.get("operstate", ""))),
        addresses=tuple(str(one["local"]) for one in said.get("addr_info", ()) if one.get("scope") != "link"),
        tunnel=tunnel,
        learns_as_member=bool(info.get("info_slave_data", {}).get("learning", False)),
    )


def _carrier(flags: list[str], operstate: str) -> bool | None:
    if operstate in {"UP", "DOWN", "LOWERLAYERDOWN"}:
        return operstate == "UP"
    return True if "LOWER_UP" in flags else None


def _announced(text: str) -> Mapping[int, str] | None:
    """
    FRR prints nothing at all while EVPN is off, and words instead of JSON when a daemon is away.
    """
    try:
        said = json.loads(text)
        return {int(number): str(one["vxlanIf"]) for number, one in said.items() if isinstance(one, dict) and "vxlanIf" in one}
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
