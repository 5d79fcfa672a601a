"""
Changing a cluster that runs: labels, name, and how many nodes it has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from controlplane.clusters import joining, repository
from controlplane.clusters.errors import NotChangeable
from controlplane.clusters.models import ClusterRow, NodeSetRow
from controlplane.clusters.service import CHANGEABLE, ClusterView, announce, enter, view_of
from controlplane.kit.access import Principal
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import FieldError, Invalid
from controlplane.kit.operations import NewOperation, start_operation
from controlplane.nodes import service as nodes
from controlplane.quotas import service as quotas


def change_cluster(
    session: Session,
    principal: Principal,
    project_id: str,
    cluster_id: str,
    version: Callable[[int], None],
    *,
    labels: Mapping[str, str] | None = None,
    counts: Mapping[str, int] | None = None,
    leaving: Sequence[str] = (),
) -> tuple[ClusterView, str | None]:
    """
    Labels are changed at once; new counts are an operation, whose id is returned. `leaving` names the instances a shrink should take.

    Raises NotFound, NotChangeable, OperationActive, QuotaExceeded, Invalid, NoWorkersJoin.
    """
    principal.check_project(project_id)
    row = repository.get_cluster(session, project_id, cluster_id, lock=True)
    version(row.version)
    if labels is not None:
        row.labels = dict(labels)
        row.version += 1
        row.updated_at = session.execute(select(CpClock())).scalar_one()
        session.flush()
    wanted = _changes(session, row, counts or {})
    if not wanted and not leaving:
        return view_of(session, row), None
    operation_id = _begin(session, principal, row, wanted, leaving)
    session.refresh(row)
    return view_of(session, row), operation_id


def _changes(session: Session, row: ClusterRow, counts: Mapping[str, int]) -> list[tuple[NodeSetRow, int]]:
    sets = {one.name: one for one in repository.sets_of(session, [row.id])[row.id]}
    unknown = sorted(set(counts) - set(sets))
    if unknown:
        wrong = [
            FieldError("body.spec.node_sets", "unknown_node_set", f"The cluster has no node set {name[:60]}.") for name in unknown
        ]
        raise Invalid(wrong[0].message, errors=wrong)
    fixed = sorted(name for name, count in counts.items() if sets[name].role != "worker" and count != sets[name].count)
    if fixed:
        wrong = [
            FieldError("body.spec.node_sets", "fixed_size", f"{name} keeps its size: only workers grow and shrink.")
            for name in fixed
        ]
        raise Invalid(wrong[0].message, errors=wrong)
    return [(sets[name], count) for name, count in counts.items() if count != sets[name].count]


def _begin(
    session: Session, principal: Principal, row: ClusterRow, wanted: Sequence[tuple[NodeSetRow, int]], leaving: Sequence[str]
) -> str:
    new = NewOperation("cluster.update", "cluster", row.id, principal.id, row.tenant_id, row.project_id)
    operation_id = start_operation(session, new)
    if row.state not in CHANGEABLE:
        raise NotChangeable(f"A cluster in state {row.state} cannot be changed.", state=row.state)
    grown = [(one, count - one.count) for one, count in wanted if count > one.count]
    if grown and len(grown) < len(wanted):
        wrong = [FieldError("body.node_sets", "mixed_change", "Grow first, then shrink, in two changes.")]
        raise Invalid("One change either grows node sets or shrinks them.", errors=wrong)
    if grown:
        joining.check_growth(session, row)
        chain = quotas.Chain(row.reseller_id, row.tenant_id, row.project_id)
        quotas.take(session, chain, [quotas.Need("gpus", more * one.gpus, one.gpu_model, row.site) for one, more in grown])
    for one, more in grown:
        session.execute(
            update(NodeSetRow)
            .where(NodeSetRow.id == one.id)
            .values(count=NodeSetRow.count + more, unplaced=NodeSetRow.unplaced + more)
        )
    chosen = _choose_leaving(session, row, wanted, leaving)
    nodes.mark_leaving(session, chosen)
    for one, count in wanted:
        if count < one.count:
            session.execute(update(NodeSetRow).where(NodeSetRow.id == one.id).values(count=count))
    spec = {
        **row.spec,
        "node_sets": [
            _spec_of(one, {one.id: count for one, count in wanted}) for one in repository.sets_of(session, [row.id])[row.id]
        ],
    }
    session.execute(update(ClusterRow).where(ClusterRow.id == row.id).values(spec=spec))
    before = row.state
    enter(session, row, "updating", "Being changed.")
    announce(session, row, before, "updating", "A change was asked for.")
    return operation_id


def _spec_of(one: NodeSetRow, counts: Mapping[str, int]) -> dict[str, Any]:
    return {"name": one.name, "instance_type": one.instance_type, "count": counts.get(one.id, one.count), "role": one.role}


def _choose_leaving(session: Session, row: ClusterRow, wanted: Sequence[tuple[NodeSetRow, int]], named: Sequence[str]) -> list[str]:
    """
    The allocations that a shrink takes: those the caller named, then the newest.
    """
    members = [one[0] for one in repository.members_of(session, [row.id])[row.id] if one[0].state in {"held", "active"}]
    by_instance = {one.instance_id: one for one in members}
    unknown = [name for name in named if name not in by_instance]
    if unknown:
        wrong = [FieldError("body.leaving", "unknown_instance", f"The cluster has no instance {name[:60]}.") for name in unknown]
        raise Invalid(wrong[0].message, errors=wrong)
    chosen: list[str] = []
    free_choice = {one.id: one.count - count for one, count in wanted if count < one.count}
    for name in named:
        node_set_id = by_instance[name].node_set_id
        if free_choice.get(node_set_id, 0) <= 0:
            raise Invalid(
                "More instances are named than the node set shrinks by.",
                errors=[FieldError("body.leaving", "too_many", "Lower the count of the node set by as many.")],
            )
        free_choice[node_set_id] -= 1
        chosen.append(by_instance[name].id)
    for node_set_id, count in free_choice.items():
        rest = [one.id for one in reversed(members) if one.node_set_id == node_set_id and one.id not in chosen]
        chosen.extend(rest[:count])
    return chosen
