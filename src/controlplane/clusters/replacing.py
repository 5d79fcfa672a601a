"""
Replacing nodes of clusters that run: at their owner's wish, or by itself when a node is sick.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from controlplane.clusters import repository
from controlplane.clusters.errors import NotChangeable
from controlplane.clusters.models import ClusterRow
from controlplane.clusters.service import CHANGEABLE, ClusterView, announce, enter, view_of
from controlplane.health.classes import SICK
from controlplane.kit.access import Principal
from controlplane.kit.errors import NotFound
from controlplane.kit.operations import NewOperation, start_operation
from controlplane.nodes import service as nodes

SYSTEM = "system"
WORDS = "A node that is not healthy is being replaced."
MOST = 20

SICK_ALLOCATIONS = """
    FROM allocations a JOIN nodes n ON n.id = a.node_id JOIN node_sets w ON w.id = a.node_set_id AND w.role = 'worker'
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
    ORDER BY c.id LIMIT :most FOR UPDATE OF c SKIP LOCKED
    """
)
MEMBERS = text(
    f"SELECT a.cluster_id, a.id, a.instance_type, a.site {SICK_ALLOCATIONS} AND a.cluster_id = ANY(:clusters) ORDER BY 1, 4, 3, 2"
)


def replace_sick(session: Session) -> int:
    """
    Clusters that hold sick nodes have begun to replace them, each in an operation of its own, where others are free; how many is returned.
    """
    given = {"sick": sorted(SICK), "settled": nodes.SETTLED_S}
    due = session.execute(DUE, {**given, "most": MOST}).scalars().all()
    if not due:
        return 0
    members = session.execute(MEMBERS, {**given, "clusters": list(due)}).all()
    free = Counter({(one.site, one.instance_type): one.free for one in nodes.availability(session, None, None)})
    chosen: dict[str, list[str]] = {}
    for (cluster_id, *kind), found in groupby(members, key=lambda row: (row.cluster_id, row.site, row.instance_type)):
        ids = [row.id for row in found]
        if free[kind[0], kind[1]] >= len(ids):
            free[kind[0], kind[1]] -= len(ids)
            chosen.setdefault(cluster_id, []).extend(ids)
    rows = session.execute(select(ClusterRow).where(ClusterRow.id.in_(chosen))).scalars().all()
    for row in rows:
        _begin(session, row, chosen[row.id], SYSTEM, WORDS)
    return len(rows)


def replace_instance(
    session: Session,
    principal: Principal,
    project_id: str,
    cluster_id: str,
    instance_id: str,
    version: Callable[[int], None],
) -> tuple[ClusterView, str]:
    """
    The node is being replaced by another; the cluster and its operation's id are returned. Raises NotFound, NotChangeable, OperationActive.
    """
    principal.check_project(project_id)
    row = repository.get_cluster(session, project_id, cluster_id, lock=True)
    version(row.version)
    members = [one[0] for one in repository.members_of(session, [row.id])[row.id]]
    found = next((one for one in members if one.instance_id == instance_id and one.state == "active"), None)
    if found is None:
        raise NotFound
    roles = {one.id: one.role for one in repository.sets_of(session, [row.id])[row.id]}
    if roles[found.node_set_id] != "worker":
        words = "Heads, logins and control planes are not replaced: what the cluster knows is on their disks. Restart the instance instead."
        raise NotChangeable(words, state=row.state)
    operation_id = _begin(session, row, [found.id], principal.id, "A node is being replaced.")
    session.refresh(row)
    return view_of(session, row), operation_id


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
