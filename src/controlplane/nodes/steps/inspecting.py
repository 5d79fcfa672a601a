"""
Reading what a node has, and comparing it with what was bought.
"""

from dataclasses import asdict

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import Expected, NodeFacts, NodeSnapshot
from controlplane.providers.machines import Inventory
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0
MEMORY_TOLERANCE = 0.95  # firmware keeps some of what was bought


def inspect(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The inventory has been read and differences are findings; fewer or other GPUs than sold keep the node out.
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


def find_differences(expected: Expected, seen: Inventory) -> list[dict[str, str]]:
    """
    Every difference between what was bought and what was found, as {check, severity, message}.
    """
    findings = []
    if seen.gpus is None:
        findings.append(_finding("gpu_count", "info", f"not seen from outside; {expected.gpus} expected"))
    elif seen.gpus != expected.gpus:
        findings.append(_finding("gpu_count", "blocking", f"{seen.gpus} GPUs found, {expected.gpus} expected"))
    if seen.gpu_model and seen.gpu_model != expected.gpu_model:
        findings.append(_finding("gpu_model", "blocking", f"{seen.gpu_model} found, {expected.gpu_model} expected"))
    if seen.memory_gib and seen.memory_gib < expected.memory_gib * MEMORY_TOLERANCE:
        findings.append(_finding("memory", "info", f"{seen.memory_gib} GiB found, {expected.memory_gib} GiB expected"))
    return findings


def _finding(check: str, severity: str, message: str) -> dict[str, str]:
    return {"check": check, "severity": severity, "message": message}
