"""
What the ports of bare machines carry, and what switches tell of them. Pure.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from controlplane.nodes.states import TENANTS, ProviderRef, Wire

PORT_STEPS = {
    "deploying": frozenset({"", "cut", "dark", "attach", "joined"}),
    "releasing": frozenset({"", "detach", "apart"}),
    "cleaning": frozenset({"", "detach", "apart"}),
}
"""The parts of states that lead to what the ports carry after them: until then the node's own steps are at the ports."""


def ports_carry(state: str, step: str) -> Literal["network", "nothing", "changing"]:
    """
    What the ports of a bare machine that stands there carry: its tenant's network, nothing, or what its own step is about to change.
    """
    if step in PORT_STEPS.get(state, ()):
        return "changing"
    return "network" if state == "deploying" or state in TENANTS else "nothing"


@dataclass(frozen=True, slots=True)
class WatchedSwitch:
    """
    A switch whose ports are to be looked at.
    """

    provider: ProviderRef
    """The fabric."""
    name: str
    """The switch by the fabric's name."""
    since: datetime
    """Database clock before it is asked: what happens to a node after this, the look may not show."""


@dataclass(frozen=True, slots=True)
class SeenPort:
    """
    What a switch does with one port.
    """

    port: str
    """The port by the switch's name."""
    segment: int | None
    """The tenant segment it carries; None for none."""
    strange: str
    """What else is wrong with it, in the fabric's words."""


@dataclass(frozen=True, slots=True)
class SwitchLook:
    """
    What came of asking one switch for its ports.
    """

    ports: tuple[SeenPort, ...] | None
    """All that the fabric lists; None when it did not tell: that says nothing of any port."""
    problem: str = ""
    """Why it did not, as a stable code."""


@dataclass(frozen=True, slots=True)
class Network:
    """
    A tenant network as its row has it.
    """

    name: str
    """A function of the tenant's id."""
    tenant_id: str
    """Whose."""
    segment: int
    """Its number in fabrics."""


@dataclass(frozen=True, slots=True)
class Mend:
    """
    What a switch has to be told of one port, decided at one instant.
    """

    node_id: str
    """Whose port."""
    wire: Wire
    """Where it is."""
    off: int | None
    """A segment that it must not carry; None: no certain one."""
    onto: Network | None
    """What it should carry; None: nothing."""
    turn: int
    """When it was decided, as switches order it."""
