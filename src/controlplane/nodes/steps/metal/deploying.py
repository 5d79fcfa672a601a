"""
Making a bare machine ready for its tenant.
"""

from controlplane.kit.outcome import Advance, Outcome
from controlplane.nodes.states import NodeSnapshot
from controlplane.nodes.steps.metal.doors import CLOSING, OPENING
from controlplane.nodes.steps.metal.ports import attach, joined
from controlplane.nodes.steps.metal.power import boot_acts, eject, go_to
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


def _deployed(machine: Machine) -> Outcome:
    eject(machine)
    return Advance("active", "Deployed.")


ACTS = (
    *boot_acts(
        "deploy_failed",
        go_to("eject"),
        before=(Act("attach", attach), Act("joined", joined)),
        opening=OPENING,
        closing=CLOSING,
    ),
    Act("eject", _deployed),
)
