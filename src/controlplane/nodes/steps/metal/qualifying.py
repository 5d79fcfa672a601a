"""
Acceptance checks of a bare machine, run by itself from a boot of ours.
"""

from controlplane.kit.outcome import Advance, Fail, Outcome
from controlplane.nodes.states import Boot, NodeFacts, NodeSnapshot
from controlplane.nodes.steps.metal.power import as_checks, boot_acts, eject
from controlplane.nodes.steps.metal.sequence import Act, Machine, run
from controlplane.nodes.steps.qualifying import CLEARED_BY_WIPE
from controlplane.providers.toolbox import Toolbox


def qualify(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine ran our checks and reported them; one failure keeps it out, what it could not measure is shown as that.
    """
    return run(ACTS, node, tools)


def judge(machine: Machine, boot: Boot) -> Outcome:
    """
    On to the wipe when something passed and nothing failed but what the wipe clears.
    """
    checks = as_checks(boot.checks)
    failed = [one["name"] for one in checks if one["result"] == "failed" and one["name"] not in CLEARED_BY_WIPE]
    facts = NodeFacts(checks=checks)
    if failed:
        return Fail("qualification_failed", f"Failed: {', '.join(failed)}.", facts=facts)
    if not any(one["result"] == "passed" for one in checks):
        return Fail("qualification_failed", "No check was run.", facts=facts)
    eject(machine)
    return Advance("cleaning", facts=facts)


ACTS: tuple[Act, ...] = boot_acts("qualification_failed", judge)
