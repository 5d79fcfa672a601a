"""
Wiping a node between tenants, and believing only a complete report.
"""

from controlplane.health.classes import SICK
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import NodeFacts, NodeSnapshot
from controlplane.providers.errors import Refused
from controlplane.providers.machines import WipeReport
from controlplane.providers.toolbox import Toolbox

POLL_S = 2.0


def clean(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The node is wiped and the wipe is verified, or the node is put aside; nothing in between makes it available.
    """
    machines = tools.machines(node.provider)
    assert node.task_id is not None
    view = machines.observe(node.ref)
    if view.wipe is not None and view.wipe.token == node.task_id:
        verdict = judge(view.wipe, sick=node.health in SICK)
        return verdict if isinstance(verdict, Fail) else look_again(node, tools, verdict)
    if view.phase == "failed" and node.step == "asked":
        return Fail("wipe_failed", "The wipe did not finish.", detail=view.failure, facts=NodeFacts(wipe_id=node.task_id))
    if view.phase == "wiping" and node.step == "asked":
        return Wait("Being wiped.", POLL_S)
    try:
        machines.wipe(node.ref, node.task_id)
    except Refused as error:
        return Fail(
            "wipe_refused", "The provider refused to wipe the node.", detail=error.detail, facts=NodeFacts(wipe_id=node.task_id)
        )
    return Wait("Being wiped.", 0.0 if node.step != "asked" else POLL_S, step="asked")


def look_again(node: NodeSnapshot, tools: Toolbox, verdict: Outcome) -> Outcome:
    """
    A report that claims success is believed once the acceptance checks, run after the wipe, find nothing left over and nothing broken.
    """
    machines = tools.machines(node.provider)
    token = f"{node.task_id}-check"
    view = machines.observe(node.ref)
    if view.qualified_token != token:
        if node.step != "checking":
            machines.qualify(node.ref, token)
        return Wait("Wiped; being checked.", 0.0 if node.step != "checking" else POLL_S, step="checking")
    failed = [one.name for one in view.checks if one.result == "failed"]
    if failed or not view.checks:
        words = f"Failed after the wipe: {', '.join(failed)}." if failed else "Nothing was checked after the wipe."
        return Fail("wipe_not_believed", words, facts=NodeFacts(wipe_id=node.task_id))
    return verdict


def judge(report: WipeReport, *, sick: bool = False) -> Outcome:
    """
    Available for a report in which something was checked, nothing failed and something passed; quarantine for any other, and for a node
    that is sick.
    """
    checks = tuple({"name": one.name, "result": one.result, "detail": one.detail} for one in report.checks)
    facts = NodeFacts(wipe_id=report.token, wipe_finished_at=report.finished_at, checks=checks)
    failed = [one["name"] for one in checks if one["result"] == "failed"]
    if failed:
        return Fail("wipe_failed", f"Not wiped: {', '.join(failed)}.", facts=facts)
    if not any(one["result"] == "passed" for one in checks):
        return Fail("wipe_not_performed", "No wipe was performed.", facts=facts)
    verified = NodeFacts(wipe_id=report.token, wipe_finished_at=report.finished_at, wipe_verified=True, checks=checks)
    return wiped(verified, sick=sick)


def wiped(facts: NodeFacts, *, sick: bool) -> Outcome:
    """
    What becomes of a node whose wipe is verified.
    """
    if sick:
        return Advance("quarantined", "Wiped and verified; it is sick and waits for repair.", facts=facts)
    return Advance("available", "Wiped and verified.", facts=facts)
