"""
Taking a bare machine back: its ports leave the tenant's network first, then its power is cut, and the way to its controller opened.
"""

from controlplane.kit.outcome import Advance, Outcome
from controlplane.nodes.states import NodeSnapshot
from controlplane.nodes.steps.metal.doors import unlock
from controlplane.nodes.steps.metal.ports import apart, detach
from controlplane.nodes.steps.metal.power import cut, dark, eject
from controlplane.nodes.steps.metal.sequence import Act, Machine, run
from controlplane.providers.toolbox import Toolbox


def release(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine was seen off the network and without power.
    """
    return run(ACTS, node, tools)


def _taken(machine: Machine) -> Outcome:
    eject(machine)
    return Advance("cleaning", "Taken back.")


ACTS = (
    Act("detach", detach),
    Act("apart", apart),
    Act("cut", cut),
    Act("dark", dark),
    Act("unlock", unlock),
    Act("eject", _taken),
)
