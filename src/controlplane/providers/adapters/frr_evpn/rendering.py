"""
What is asked of a switch: names of devices, tags and the words of each action, every one of them checked.
"""

from __future__ import annotations

import re
from importlib import resources

from controlplane.providers.adapters.frr_evpn.config import LARGEST_SEGMENT, FabricConfig, SwitchConfig, check_plain, check_word
from controlplane.providers.errors import Refused
from controlplane.providers.fabrics import NetworkSpec

SCRIPT = resources.files(__package__).joinpath("switch.sh").read_text(encoding="utf-8")
"""Goes to the standard input of `sh` on the switch; it never changes with what is asked."""
_BRIDGE = re.compile(r"cpb([1-9][0-9]{0,7})")


class Names:
    """
    Our objects' names on the switches; all are functions of the segment, the network's name and the installation's.
    """

    def __init__(self, deployment: str) -> None:
        self.prefix = f"controlplane:{check_plain(deployment)}:"

    def tag(self, network: str) -> str:
        """
        The alias of everything that is made for the network. `:` cannot occur in either part, so that no two pairs share one.
        """
        return f"{self.prefix}{network}"

    def is_ours(self, tag: str) -> bool:
        """
        Whether a device with this alias was made by this installation.
        """
        return tag.startswith(self.prefix)


def bridge_of(segment: int) -> str:
    """
    The segment's bridge; with the largest segment it has 11 of the 15 characters a device's name may have.
    """
    return f"cpb{segment}"


def vxlan_of(segment: int) -> str:
    """
    The segment's tunnel.
    """
    return f"cpx{segment}"


def segment_of(bridge: str) -> int | None:
    """
    The segment whose bridge is called so; None for any other name.
    """
    found = _BRIDGE.fullmatch(bridge)
    return int(found[1]) if found else None


def check_network(network: NetworkSpec, config: FabricConfig) -> None:
    """
    Tenants may have the network. Raises Refused for a bad name and for a segment outside 1 to 16777215 or reserved.
    """
    try:
        check_plain(network.name)
    except ValueError as error:
        raise Refused(f"network name: {error}", code="provider_bad_name") from error
    if not 1 <= network.segment <= LARGEST_SEGMENT:
        raise Refused(f"segment {network.segment} is outside 1 to {LARGEST_SEGMENT}", code="fabric_segment_invalid")
    if network.segment in config.reserved_segments:
        raise Refused(f"segment {network.segment} is reserved by the operator", code="fabric_segment_reserved")


def observe_words(names: Names, switch: SwitchConfig) -> tuple[str, ...]:
    """
    The arguments of a look at the whole switch.
    """
    return _checked(switch.lock_file, "observe", names.prefix, *switch.vtysh)


def attach_words(
    names: Names, config: FabricConfig, switch: SwitchConfig, port: str, network: NetworkSpec, turn: int
) -> tuple[str, ...]:
    """
    The arguments that bring the port into the network. Raises Refused for a network that tenants may not have.
    """
    check_network(network, config)
    return _checked(
        *(switch.lock_file, "attach", names.prefix, port, str(turn), names.tag(network.name)),
        *(str(network.segment), switch.vtep, str(config.vxlan_port), "-" if config.mtu is None else str(config.mtu)),
    )


def detach_words(names: Names, switch: SwitchConfig, port: str, only: int | None, turn: int) -> tuple[str, ...]:
    """
    The arguments that take the port out of whatever network of ours it is in, or out of the one segment.
    """
    return _checked(switch.lock_file, "detach", names.prefix, port, str(turn), "-" if only is None else str(only))


def _checked(*words: str) -> tuple[str, ...]:
    return tuple(check_word(word) for word in words)
