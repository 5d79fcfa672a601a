"""
Making a bare machine ready for its tenant.
"""

from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.nodes.states import Boot, NodeFacts, NodeSnapshot
from controlplane.nodes.steps.metal.doors import CLOSING, OPENING
from controlplane.nodes.steps.metal.ports import attach, joined
from controlplane.nodes.steps.metal.power import boot_acts, eject
from controlplane.nodes.steps.metal.sequence import Act, Machine, run
from controlplane.providers.toolbox import Toolbox


def deploy(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine was started from its own seed, on its tenant's network, its way to its controller locked, and has itself reported every
    stage good; or its order was withdrawn.
    """
    if node.cancel or node.tenancy is None:
        return Advance("releasing", "The order was withdrawn.")
    return run(ACTS, node, tools)


def _reported(machine: Machine, boot: Boot) -> Outcome:
    """
    A machine that has installed its image is started once more, from its disk and with its tenant's seed.
    """
    del machine
    if boot.purpose == "install":
        return Wait("Its image is installed; it is started from its disk.", 0.0, step="cut-again", facts=NodeFacts(installed=True))
    return Wait("The machine has reported.", 0.0, step="eject")


def _deployed(machine: Machine) -> Outcome:
    eject(machine)
    return Advance("active", "Deployed.")


ACTS = (
    *boot_acts(
        "deploy_failed",
        _reported,
        before=(Act("attach", attach), Act("joined", joined)),
        opening=OPENING,
        closing=CLOSING,
    ),
    Act("eject", _deployed),
)
