"""
Ironic's provision states as phases of the port. What is not known here is `unknown`, never good.

Source: docs.openstack.org/ironic/latest/user/states.html.
"""

from __future__ import annotations

from datetime import datetime

from controlplane.providers.adapters.ironic.marks import Marks, Tenancy, instant
from controlplane.providers.adapters.ironic.nodes import Node
from controlplane.providers.machines import MachineView, Phase, Power

DEPLOYING = frozenset({"deploying", "wait call-back", "deploy hold"})
CLEANING = frozenset({"cleaning", "clean wait", "clean hold"})
INSPECTING = frozenset({"inspecting", "inspect wait"})
SERVING = frozenset(
    {"active", "servicing", "service wait", "service hold", "service failed"}
    | {"rescuing", "rescue", "rescue wait", "rescue failed", "unrescuing", "unrescue failed"}
)
"""A tenancy stands on the node."""
DELETABLE = frozenset(
    {"active", "wait call-back", "deploy failed", "error", "rescue", "rescue wait", "rescue failed", "unrescue failed"}
    | {"service wait", "service failed"}
)
"""Ironic tears a tenancy down from these; from the others of `SERVING` and `DEPLOYING` only once they have passed."""
BEFORE_LIFE = frozenset({"enroll", "verifying"})
FREE = frozenset({"manageable", "available"}) | BEFORE_LIFE | INSPECTING
"""Nothing of anybody's is on the node."""
FAILED = frozenset({"deploy failed", "clean failed", "inspect failed", "error"})


def view_of(node: Node) -> MachineView:
    """
    The node as the port shows it, from what one look at it told.
    """
    marks = node.marks
    tenancy = None if is_foreign(node) else marks.tenancy
    phase, failure = _phase(node)
    held = tenancy is not None and tenancy.stage == "held" and phase in {"deploying", "deployed"}
    return MachineView(
        ref=node.ref,
        power=power_of(node),
        phase=phase,
        token=tenancy.token if tenancy else None,
        ready_at=ready_at(node, tenancy, phase),
        inventory=marks.inventory,
        wipe=marks.wipe,
        checks=marks.checks,
        qualified_token=marks.qualified_token,
        failure=failure,
        network=(tenancy.network or None) if tenancy and held else None,
    )


def power_of(node: Node) -> Power:
    """
    As Ironic last read it; `unknown` while it was never read, is wrong, or changes.
    """
    if node.power_state == "power on":
        return "on"
    return "off" if node.power_state == "power off" else "unknown"


def is_foreign(node: Node) -> bool:
    """
    Whether a tenancy that is not ours stands on the node: never touched.
    """
    if node.unreadable:
        return True
    if node.instance_uuid is not None:
        return not is_ours(node)
    ours = node.marks.tenancy
    return node.state in SERVING | DEPLOYING and (ours is None or ours.stage == "released")


def is_ours(node: Node) -> bool:
    """
    Whether Ironic has the node associated with the tenancy of our marks.
    """
    return node.instance_uuid is not None and node.instance_uuid == node.our_instance_uuid


def ready_at(node: Node, tenancy: Tenancy | None, phase: Phase) -> datetime | None:
    """
    When Ironic had the deployment active: as remembered, or now seen.
    """
    if tenancy is None:
        return None
    return instant(tenancy.ready_at) if tenancy.ready_at else node.changed_at if phase == "deployed" else None


def _phase(node: Node) -> tuple[Phase, str]:
    if node.unreadable:
        return "unknown", "our key in the node's extra holds something that we did not write"
    if is_foreign(node):
        return "unknown", f"held at Ironic by instance {node.instance_uuid or '(none named)'}, which is not ours"
    tenancy = node.marks.tenancy
    if tenancy is not None and tenancy.stage == "held":
        return _held(node, tenancy)
    if tenancy is not None and tenancy.stage == "releasing":
        return ("failed", node.words) if node.state == "error" else ("releasing", "")
    return _free(node)


def _held(node: Node, tenancy: Tenancy) -> tuple[Phase, str]:
    if node.state in {"deploy failed", "error"}:
        return "failed", node.words
    if not is_ours(node):
        return "failed", "its instance was taken away at Ironic by somebody else"
    if node.state in DEPLOYING:
        return "deploying", ""
    if node.state in SERVING:
        return ("deployed" if tenancy.ready_at or power_of(node) == "on" else "deploying"), ""
    # Claimed, and not yet begun: the caller is to ask again, so it must not look as if it ran.
    return ("idle", "") if node.state in FREE | CLEANING else ("unknown", _strange(node))


def _free(node: Node) -> tuple[Phase, str]:
    task = node.marks.task
    if node.state in FAILED:
        return "failed", node.words
    if task is not None and task.kind == "wipe" and (node.state in CLEANING or has_moved(node)):
        return "wiping", ""
    if node.state in FREE or (node.state in CLEANING and task is not None):
        return rest(node.marks), ""
    return "unknown", _strange(node)


def rest(marks: Marks) -> Phase:
    """
    The phase of a node on which nothing happens.
    """
    if marks.wiped_since:
        return "wiped"
    return "released" if marks.tenancy is not None else "idle"


def has_moved(node: Node) -> bool:
    """
    Whether the node's state has changed since its task was written down.
    """
    task = node.marks.task
    return task is not None and node.changed != task.since


def _strange(node: Node) -> str:
    return f"Ironic has it in state {node.state!r}, which is none of our doing"
