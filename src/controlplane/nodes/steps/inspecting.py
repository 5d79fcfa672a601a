"""
Reading what a node has, and comparing it with what was bought.
"""

from dataclasses import asdict

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import NodeFacts, NodeSnapshot
from controlplane.nodes.steps.comparing import find_differences
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0


def inspect(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The inventory has been read and differences are findings; blocking ones keep the node out.
    """
    machines = tools.machines(node.provider)
    assert node.task_id is not None
    if node.step != "asked":
        machines.inspect(node.ref, node.task_id)
        return Wait("Its inventory is being read.", 0.0, step="asked")
    view = machines.observe(node.ref)
    seen = view.inventory
    if seen is None:
        if view.phase == "failed":
            return Fail("inspection_failed", "The provider could not read its inventory.", detail=view.failure)
        return Wait("Its inventory is being read.", POLL_S)
    findings = find_differences(node.expected, seen)
    facts = NodeFacts(inventory={**asdict(seen), "findings": findings})
    if any(one["severity"] == "blocking" for one in findings):
        return Fail("inventory_mismatch", "; ".join(one["message"] for one in findings), facts=facts)
    return Advance("qualifying", facts=facts)
