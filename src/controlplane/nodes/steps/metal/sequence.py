"""
Acts in order: each is at most one outside call, its name is the row's step, and doing it again changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.kit.outcome import Outcome, Wait
from controlplane.nodes.states import NodeFacts, NodeSnapshot
from controlplane.providers.errors import Permanent
from controlplane.providers.hardware import Controller, Hardware
from controlplane.providers.toolbox import Toolbox

POLL_S = 2.0
LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Machine:
    """
    One machine as an act sees it.
    """

    node: NodeSnapshot
    """What our rows say."""
    controller: Controller
    """How its controller is reached."""
    hardware: Hardware
    """The adapter."""
    tools: Toolbox
    """Everything else."""


@dataclass(frozen=True, slots=True)
class Act:
    """
    One part of a state.
    """

    name: str
    """The row's step while it is under way."""
    do: Callable[[Machine], Outcome | NodeFacts | None]
    """Makes its call and says what to wait for; None, or what is to be stored, when the next act may begin."""


def begin(node: NodeSnapshot, tools: Toolbox) -> Machine:
    """
    The machine of this node.
    """
    access = node.access
    assert access is not None
    controller = tools.controller(node.id, url=access.url, system=access.system, username=access.username, sealed=access.sealed)
    return Machine(node, controller, tools.hardware(node.provider, node.id), tools)


def flag(machine: Machine, name: str, *, default: bool) -> bool:
    """
    A switch among the provider's settings. Raises Permanent for one that is neither true nor false: a guess could open a door.
    """
    value = machine.node.provider.config.get(name, default)
    if not isinstance(value, bool):
        raise Permanent(f"the provider's setting {name} must be true or false", code="provider_config_invalid")
    return value


def seconds(machine: Machine, name: str, default: float) -> float:
    """
    A time among the provider's settings. Raises Permanent for one that is none.
    """
    value = machine.node.provider.config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
        raise Permanent(f"the provider's setting {name} must be 0 to {LONGEST_S:g} seconds", code="provider_config_invalid")
    return float(value)


def run(acts: Sequence[Act], node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The outcome of the act that the row stands at; the last act decides what becomes of the node. An unknown step begins anew.
    """
    names = [act.name for act in acts]
    place = names.index(node.step) if node.step in names else 0
    outcome = acts[place].do(begin(node, tools))
    if outcome is not None and not isinstance(outcome, NodeFacts):
        return _standing(outcome, names[place])
    following = acts[place + 1]
    return Wait(node_words(following.name), 0.0, step=following.name, facts=outcome)


def _standing(outcome: Outcome, name: str) -> Outcome:
    if isinstance(outcome, Wait) and outcome.step is None:
        return Wait(outcome.reason, outcome.retry_in_s, step=name, facts=outcome.facts, detail=outcome.detail)
    return outcome


WORDS = {
    "cut": "Power is cut.",
    "dark": "Waits until the power is off.",
    "detach": "Its ports are taken off the tenant network.",
    "apart": "Waits until the ports carry nothing.",
    "attach": "Its ports join the tenant network.",
    "joined": "Waits until the ports carry the network.",
    "seed": "Its seed is put into the virtual drive.",
    "aim": "The boot device is chosen.",
    "light": "Power is switched on.",
    "report": "Waits for the machine's own report.",
    "eject": "The virtual drive is emptied.",
    "down": "Power is cut.",
    "still": "Waits until the power is off.",
    "compare": "The machine is compared with its baseline.",
    "restart": "Its controller is restarted.",
    "answering": "Waits until its controller answers again.",
    "rotate": "Its controller gets a new password.",
    "adjust": "Its firmware settings are put right.",
    "held": "Its firmware settings are read back.",
    "accounts": "The accounts of its controller are read.",
    "read": "Its inventory is being read.",
    "closing": "The way from the host to its controller is locked.",
    "lock": "The way from the host to its controller is locked.",
    "unlock": "The way from the host to its controller is opened.",
    "ask": "Its operating system is asked to shut down.",
    "off": "Waits until its operating system has shut down.",
    "drive": "Its virtual drive is made as it was when it was deployed.",
    "source": "The boot device is chosen.",
    "lit": "Waits until the power is on.",
    "weigh": "Its firmware is compared with what is wanted.",
    "send": "Its controller is told where the image is.",
    "follow": "Its controller installs the image.",
    "settle": "The version is read back.",
    "boot": "Power is switched on, for an image that is installed at the next start.",
    "shown": "The version is read back.",
    "met": "In a fabric check, from a system of ours.",
    "silent": "It was started twice for its fabric check and never called; it waits for the check to let it go.",
    "home": "Switched off; it waits for the end of its fabric check.",
}


def node_words(step: str) -> str:
    """
    The part of a state in words that a tenant may read.
    """
    return WORDS[step.removesuffix("-again")]
