"""
The port to whatever connects machines' network ports: tenant networks that are walled off from each other.

A port is where one cable of one machine ends at a switch. Networks are declarative and made by attaching: `attach` states that a
port carries exactly one tenant network, `detach` that it carries none, `observe_port` reads back what the switches do. The fabric
itself holds the truth: an adapter keeps no state of its own between calls, so that any worker may ask.

Deciders race: a process may sleep between its decision and its call. So each change may carry a `turn`, a number that rises with every
decision about the port (the database's clock when it was made), and the switch remembers the highest it was told. It is the switch
that turns an old change away, whatever leases and clocks of processes were worth. 0 is for callers without competitors: such a change
is always made and nothing is remembered. A switch that lost everything lost its turns too, and all that was on its way in it.

Every method may block for at most the adapter's request timeout (well under 30 s) and may raise any error of `providers.errors`.
Changing methods are idempotent. A port that belongs to the management, provisioning or storage side, or is not in the adapter's
list, is refused by every changing method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class PortRef:
    """
    Where one cable of a machine ends.
    """

    switch: str
    """The switch by the fabric's name."""
    port: str
    """The port by the switch's name."""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """
    One tenant network.
    """

    name: str
    """Our name, a function of the tenant's id; tags what is made for it."""
    tenant_id: str
    """Whose."""
    segment: int
    """Its number in the fabric (a VNI), 1 to 16777215, assigned by us and never used by two networks at once."""


@dataclass(frozen=True, slots=True)
class PortView:
    """
    What the switches do with one port.
    """

    ref: PortRef
    """Which."""
    segment: int | None
    """The one tenant segment it carries; None for none."""
    up: bool | None
    """Whether it has a link; None when the switch does not tell."""
    strange: str = ""
    """What is wrong with it, in words: more than one segment, half-made, changed behind our back."""


@dataclass(frozen=True, slots=True)
class FabricView:
    """
    Every port of the fabric that we may touch.
    """

    ports: tuple[PortView, ...]
    """In order of switch and port."""
    complete: bool
    """False when a switch did not answer: what is missing then proves nothing."""
    silent: tuple[str, ...] = ()
    """The switches that did not answer."""


@runtime_checkable
class Fabrics(Protocol):
    """
    A network fabric.
    """

    def observe_fabric(self) -> FabricView:
        """
        All ports as the switches have them now.
        """
        ...

    def observe_port(self, ref: PortRef) -> PortView:
        """
        One port as its switch has it now. Raises NotFound when the adapter's list has no such port.
        """
        ...

    def observe_ports(self, switch: str) -> tuple[PortView, ...]:
        """
        All listed ports of one switch as it has them now, in order. Raises NotFound when the adapter's list has no such switch.
        """
        ...

    def attach(self, ref: PortRef, network: NetworkSpec, *, turn: int = 0) -> None:
        """
        The port carries this network and no other; what the network needs on the switch is made. Refused while it carries another.

        Raises Busy (`fabric_turn_over`), and nothing has changed, when the port was told of a later turn.
        """
        ...

    def detach(self, ref: PortRef, *, only: int | None = None, turn: int = 0) -> None:
        """
        The port carries no tenant network; what nobody else on the switch needs any more is removed. A bare port is success.

        With `only`, the port does not carry this segment, and one that carries anything else, or was told of a later turn, is left as
        it is: looking and taking off are one act of the switch. Without `only` it is always made: separating harms no promise.
        """
        ...
