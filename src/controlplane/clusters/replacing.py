"""
Replacing nodes of clusters that run: at their owner's wish, or by itself when a node is sick.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from controlplane.clusters import joining, repository
from controlplane.clusters.errors import NotChangeable, NoWorkersJoin, QuorumAtRisk
from controlplane.clusters.models import ClusterRow
from controlplane.clusters.service import CHANGEABLE, ClusterView, announce, enter, view_of
from controlplane.health.classes import SICK
from controlplane.kit.access import Principal
from controlplane.kit.errors import NoCapacity, NotFound
from controlplane.kit.operations import NewOperation, start_operation
from controlplane.nodes import service as nodes
from controlplane.rendering.kubernetes.laws import may_part

SYSTEM = "system"
CONTROL_PLANE = "control_plane"
WORDS = "A node that is not healthy is being replaced."
MOST = 20

SICK_ALLOCATIONS = """
    FROM allocations a JOIN nodes n ON n.id = a.node_id
    JOIN node_sets w ON w.id = a.node_set_id AND (w.role = 'worker' OR w.role = 'control_plane' AND w.count > 1)
    WHERE a.state = 'active' AND n.state = 'active' AND NOT a.leaving AND n.health = ANY(:sick)
      AND n.health_since < cp_clock() - make_interval(secs => :settled)
      AND NOT EXISTS (SELECT 1 FROM automation_freezes f WHERE f.site = n.site AND f.block = n.block AND f.lifted_at IS NULL)
"""
DUE = text(
    f"""
    SELECT c.id FROM clusters c
    WHERE c.state IN ('running', 'degraded')
      AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.resource_id = c.id AND o.state IN ('pending', 'running', 'needs_attention'))
      AND EXISTS (SELECT 1 {SICK_ALLOCATIONS} AND a.cluster_id = c.id)
    ORDER BY c.mend_tried_at NULLS FIRST, c.id LIMIT :most FOR UPDATE OF c SKIP LOCKED
    """
)
TRIED = text("UPDATE clusters SET mend_tried_at = cp_clock() WHERE id = ANY(:clusters)")
MEMBERS = text(
    f"""
    SELECT a.cluster_id, a.id, a.instance_type, a.site, w.role {SICK_ALLOCATIONS} AND a.cluster_id = ANY(:clusters)
    ORDER BY 1, 4, 3, 2
    """
)


def replace_sick(session: Session, most: int = MOST) -> int:
    """
    Clusters that hold sick nodes have begun to replace them, each in an operation of its own, where others are free; how many is returned.
    Control planes are replaced one at a time, when no worker is, and only where the others keep the cluster. A few clusters are looked at a
    time, those first that were not for the longest while: some that cannot be helped hold up nobody.
    """
    given = {"sick": sorted(SICK), "settled": nodes.SETTLED_S}
    due = session.execute(DUE, {**given, "most": most}).scalars().all()
    if not due:
        return 0
    session.execute(TRIED, {"clusters": list(due)})
    members = session.execute(MEMBERS, {**given, "clusters": list(due)}).all()
    free = Counter({(one.site, one.instance_type): one.free for one in nodes.availability(session, None, None)})
    chosen: dict[str, list[str]] = {}
    workers = [one for one in members if one.role == "worker"]
    for (cluster_id, *kind), found in groupby(workers, key=lambda row: (row.cluster_id, row.site, row.instance_type)):
        ids = [row.id for row in found]
        if free[kind[0], kind[1]] >= len(ids):
            free[kind[0], kind[1]] -= len(ids)
            chosen.setdefault(cluster_id, []).extend(ids)
    leads = {one.cluster_id: one.id for one in members if one.role == CONTROL_PLANE and one.cluster_id not in chosen}
    rows = session.execute(select(ClusterRow).where(ClusterRow.id.in_({*chosen, *leads}))).scalars().all()
    return sum(_replace(session, row, chosen.get(row.id, []), leads.get(row.id)) for row in rows)


def _replace(session: Session, row: ClusterRow, workers: Sequence[str], lead: str | None) -> bool:
    """
    Whether the replacement of these workers, or of this control plane, has begun.
    """
    try:
        joining.check_growth(session, row)
    except NoWorkersJoin:
        return False
    if not workers:
        if repository.came(row):
            return False
        found = next((one for one in repository.members_of(session, [row.id])[row.id] if one[0].id == lead), None)
        if found is None:
            return False
        try:
            _check_control_plane(session, row, found[0])
        except (QuorumAtRisk, NotChangeable, NoCapacity):
            return False  # the cluster shows why it is not replaced, and its node is among those that need attention
    _begin(session, row, workers or [str(lead)], SYSTEM, WORDS)
    return True


def replace_instance(
    session: Session,
    principal: Principal,
    project_id: str,
    cluster_id: str,
    instance_id: str,
    version: Callable[[int], None],
) -> tuple[ClusterView, str]:
    """
    The node is being replaced by another; the cluster and its operation's id are returned. Raises NotFound, NotChangeable, OperationActive,
    and for a control plane QuorumAtRisk, and NoCapacity while no other machine of its kind is free: it leaves before the other comes. In a
    cluster that stood before it was ours ControlPlanesStay, and NoWorkersJoin.
    """
    principal.check_project(project_id)
    row = repository.get_cluster(session, project_id, cluster_id, lock=True)
    version(row.version)
    members = [one[0] for one in repository.members_of(session, [row.id])[row.id]]
    found = next((one for one in members if one.instance_id == instance_id and one.state == "active"), None)
    if found is None:
        raise NotFound
    roles = {one.id: one.role for one in repository.sets_of(session, [row.id])[row.id]}
    if roles[found.node_set_id] == CONTROL_PLANE:
        if repository.came(row):
            joining.refuse_control_planes("its control planes are not replaced")
        _check_control_plane(session, row, found)
    elif roles[found.node_set_id] != "worker":
        words = "Heads and logins are not replaced: what the cluster knows is on their disks. Restart the instance instead."
        raise NotChangeable(words, state=row.state)
    joining.check_growth(session, row)
    operation_id = _begin(session, row, [found.id], principal.id, "A node is being replaced.")
    session.refresh(row)
    return view_of(session, row), operation_id


def _check_control_plane(session: Session, row: ClusterRow, found: Any) -> None:
    """
    Raises QuorumAtRisk, NotChangeable, NoCapacity where a control plane cannot be replaced now, as far as rows know.
    """
    leads = [one for one in repository.members_of(session, [row.id])[row.id] if one[0].node_set_id == found.node_set_id]
    others = [one for one in leads if one[0].id != found.id and one[0].state == "active" and not one[0].leaving]
    ready = sum(1 for one in others if one.node_state == "active" and one.node_health not in SICK)
    if not may_part(len(others) + 1, ready):
        words = (
            f"It is one of {len(others) + 1} control planes, and {ready} of the others are ready: they could not go on without it."
        )
        raise QuorumAtRisk(words, members=len(others) + 1, ready=ready)
    if row.kubernetes is not None and row.kubernetes.get("ahead"):
        raise NotChangeable("An upgrade is not complete; go on with it first.", state=row.state)
    free = {(one.site, one.instance_type): one.free for one in nodes.availability(session, found.site, found.instance_type)}
    if free.get((found.site, found.instance_type), 0) < 1:
        raise NoCapacity("No other machine of its kind is free, and it would leave before the other comes.", missing_nodes=1)


def _begin(session: Session, row: ClusterRow, allocation_ids: Sequence[str], by: str, words: str) -> str:
    new = NewOperation("cluster.replace", "cluster", row.id, by, row.tenant_id, row.project_id)
    operation_id = start_operation(session, new)
    if row.state not in CHANGEABLE:
        raise NotChangeable(f"A cluster in state {row.state} cannot be changed.", state=row.state)
    nodes.mark_leaving(session, allocation_ids)
    before = row.state
    enter(session, row, "updating", words)
    announce(session, row, before, "updating", words)
    return operation_id
