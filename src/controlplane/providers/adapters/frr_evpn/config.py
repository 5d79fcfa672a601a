"""
What an operator says about one fabric of Linux switches.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

LARGEST_SEGMENT = (1 << 24) - 1
"""A VNI has 24 bits. Source: RFC 7348 section 4."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
_OUR_DEVICE = re.compile(r"cp[bx][0-9]+")
_WORD = re.compile(r"[A-Za-z0-9._:/=@%+,-]+")
_ABSOLUTE = re.compile(r"(/[A-Za-z0-9_.-]+)+")
_HOST_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,2000}={0,2}")


def check_plain(value: str) -> str:
    """
    The value is a plain name of letters, digits, `.`, `_` and `-`. Raises ValueError.
    """
    if not _PLAIN.fullmatch(value):
        raise ValueError(f"not a plain name: {value[:80]!r}")
    return value


def check_word(value: str) -> str:
    """
    The value means the same to every shell: no space, quote or other character with a meaning. Raises ValueError.
    """
    if not _WORD.fullmatch(value):
        raise ValueError(f"not a plain word: {value[:80]!r}")
    return value


def _check_device(value: str) -> str:
    if not _DEVICE.fullmatch(value) or value == "lo" or _OUR_DEVICE.fullmatch(value):
        raise ValueError(f"not the name of a port: {value[:80]!r}")
    return value


def _check_vtep(value: str) -> str:
    return str(ipaddress.ip_address(value))


def _check_lock(value: str) -> str:
    if not _ABSOLUTE.fullmatch(value) or ".." in value.split("/"):
        raise ValueError(f"not a plain absolute path: {value[:80]!r}")
    return value


def _check_host_key(value: str) -> str:
    if not _HOST_KEY.fullmatch(value):
        raise ValueError(
            "not a host key: its type, a space and its base64, as in /etc/ssh/ssh_host_ed25519_key.pub without the comment"
        )
    return value


Plain = Annotated[str, AfterValidator(check_plain)]
Word = Annotated[str, AfterValidator(check_word)]
Device = Annotated[str, AfterValidator(_check_device)]
Segment = Annotated[int, Field(ge=1, le=LARGEST_SEGMENT)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ExecReach(_Strict):
    """
    The switch is reached by a command here: a namespace of this machine, or the operator's own way in.
    """

    kind: Literal["exec"]
    """Which way."""
    argv_prefix: list[str] = Field(min_length=1)
    """Put before `sh`; it must hand on its arguments and its standard input, for example `["ip", "netns", "exec", "leaf1"]`."""


class SshReach(_Strict):
    """
    The switch is reached by the system's ssh.
    """

    kind: Literal["ssh"]
    """Which way."""
    host: Annotated[str, AfterValidator(check_word)]
    """Name or address."""
    user: Plain = "root"
    """Account; it must be root, or `sudo` must be set."""
    port: int = Field(default=22, ge=1, le=65535)
    """TCP port."""
    host_keys: list[Annotated[str, AfterValidator(_check_host_key)]] = Field(min_length=1)
    """Only a switch with one of these keys is spoken to."""
    sudo: bool = False
    """The account may run `sudo -n sh`."""
    key: Plain = "ssh_key"
    """Name of the provider's secret that holds the private key."""


class SwitchConfig(_Strict):
    """
    One leaf.
    """

    reach: Annotated[ExecReach | SshReach, Field(discriminator="kind")]
    """How it is reached."""
    vtep: Annotated[str, AfterValidator(_check_vtep)]
    """Its own tunnel address, which its underlay announces."""
    ports: list[Device] = Field(min_length=1)
    """The machines' ports that tenants may be given; no other device is ever touched."""
    reserved: list[Device] = Field(default_factory=list)
    """Ports of management controllers, provisioning and storage: never in a tenant's network."""
    uplinks: list[Device] = Field(default_factory=list)
    """Ports towards the spines."""
    vtysh: list[Word] = Field(default_factory=lambda: ["vtysh"], min_length=1)
    """How FRR is asked on the switch."""
    lock_file: Annotated[str, AfterValidator(_check_lock)] = "/run/controlplane-fabric.lock"
    """On the switch: changes to it take turns."""

    @model_validator(mode="after")
    def _every_port_once(self) -> SwitchConfig:
        named = [*self.ports, *self.reserved, *self.uplinks]
        twice = sorted({one for one in named if named.count(one) > 1})
        if twice:
            raise ValueError(f"named twice among ports, reserved and uplinks: {', '.join(twice)}")
        return self


class FabricConfig(_Strict):
    """
    One registered fabric.
    """

    switches: dict[Plain, SwitchConfig] = Field(min_length=1, max_length=2048)
    """Its leaves by name."""
    reserved_segments: list[Segment] = Field(default_factory=list)
    """VNIs that the operator uses for something else, management above all: never given to a tenant."""
    vxlan_port: int = Field(default=4789, ge=1, le=65535)
    """UDP port of the tunnels. Source: RFC 7348 section 5."""
    mtu: int | None = Field(default=None, ge=1280, le=9216)
    """Of the tunnels' inner frames; None: what the kernel makes of the underlay."""
    timeout_s: float = Field(default=8.0, gt=0, le=15)
    """Longest one visit to one switch may take."""

    @model_validator(mode="after")
    def _one_vtep_each(self) -> FabricConfig:
        addresses = [one.vtep for one in self.switches.values()]
        twice = sorted({one for one in addresses if addresses.count(one) > 1})
        if twice:
            raise ValueError(f"two switches have one vtep: {', '.join(twice)}")
        return self
