"""
A bare machine that is lent to a fabric check: started from a system of ours, and switched off again once the check lets it go.

The check says so by ending the machine's boot. Nothing here judges: a machine that does not come is the check's to tell of, and it is
switched off like the others.
"""

from math import inf

from controlplane.kit.outcome import Outcome, Wait
from controlplane.nodes.states import NodeSnapshot
from controlplane.nodes.steps.metal.power import FIRST_CALL_S, aim, cut, dark, eject, light, present_boot, seed
from controlplane.nodes.steps.metal.sequence import Act, Machine, node_words, run
from controlplane.providers.toolbox import Toolbox

LOOK_S = 60.0
"""The check wakes the machine when it lets it go; this is for wakes that are lost."""
HOMEWARD = frozenset({"down", "still", "eject", "home"})


def lend(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine runs the check's system until its boot has ended; then it was seen without power, and its virtual drive is empty.
    """
    over = node.boot is None or node.boot.state == "ended"
    if over and node.step not in HOMEWARD:
        return Wait("Its check lets it go.", 0.0, step="down")
    return run(ACTS, node, tools)


def wait_out(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    Nothing is done: who owns the machine's whole life is told by the check itself.
    """
    del node, tools
    return Wait("Lent to a fabric check.", inf)


def meet(machine: Machine) -> Outcome:
    """
    The machine is left to its check; one that never called is started once more.
    """
    boot = present_boot(machine)
    patience_s = float(machine.node.provider.config.get("first_call_s", FIRST_CALL_S))
    if boot.state != "made" or boot.age_s <= patience_s:
        return Wait(node_words("met"), LOOK_S)
    return Wait("The machine has not called; it is started once more.", 0.0, step="cut-again")


def meet_again(machine: Machine) -> Outcome:
    """
    As before; one that never called after its second start is not started again.
    """
    boot = present_boot(machine)
    patience_s = float(machine.node.provider.config.get("first_call_s", FIRST_CALL_S))
    if boot.state != "made" or boot.age_s <= 2 * patience_s:
        return Wait(node_words("met"), LOOK_S)
    return Wait(node_words("silent"), 0.0, step="silent")


def be_silent(machine: Machine) -> Outcome:
    """
    Nothing more is tried.
    """
    del machine
    return Wait(node_words("silent"), LOOK_S)


def be_home(machine: Machine) -> Outcome:
    """
    The check takes it from here.
    """
    del machine
    return Wait(node_words("home"), inf)


ACTS = (
    Act("cut", cut),
    Act("dark", dark),
    Act("seed", seed),
    Act("aim", aim),
    Act("light", light),
    Act("met", meet),
    Act("cut-again", cut),
    Act("dark-again", dark),
    Act("seed-again", seed),
    Act("aim-again", aim),
    Act("light-again", light),
    Act("met-again", meet_again),
    Act("silent", be_silent),
    Act("down", cut),
    Act("still", dark),
    Act("eject", eject),
    Act("home", be_home),
)
