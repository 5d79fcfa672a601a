"""
Acceptance checks before a node may be sold.
"""

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import NodeFacts, NodeSnapshot
from controlplane.providers.toolbox import Toolbox

POLL_S = 2.0
CLEARED_BY_WIPE = frozenset({"residue"})  # the wipe comes next, and is followed by the same checks, where this one counts


def qualify(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    Every check that the provider ran has passed or is shown as not measured; one failure keeps the node out. What an earlier tenant
    left behind is no failure yet: else a node whose wipe failed could never be wiped again.
    """
    machines = tools.machines(node.provider)
    assert node.task_id is not None
    if node.step != "asked":
        machines.qualify(node.ref, node.task_id)
        return Wait("Acceptance checks run.", 0.0, step="asked")
    view = machines.observe(node.ref)
    if view.qualified_token != node.task_id:
        if view.phase == "failed":
            return Fail("qualification_failed", "The provider could not run the acceptance checks.", detail=view.failure)
        return Wait("Acceptance checks run.", POLL_S)
    checks = tuple({"name": one.name, "result": one.result, "detail": one.detail} for one in view.checks)
    failed = [one["name"] for one in checks if one["result"] == "failed" and one["name"] not in CLEARED_BY_WIPE]
    if failed or not checks:
        words = f"Failed: {', '.join(failed)}." if failed else "No check was run."
        return Fail("qualification_failed", words, facts=NodeFacts(checks=checks))
    return Advance("cleaning", facts=NodeFacts(checks=checks))
