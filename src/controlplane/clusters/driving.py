"""
What the lifecycle engine asks of this room: snapshots for steps, and what an outcome means beyond the move itself.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import ARRAY, Text, bindparam, cast, func, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from controlplane.clusters import finding, founding, joining, managing, repository, restoring
from controlplane.clusters.models import ClusterRow, NodeSetRow
from controlplane.clusters.offers import Offers
from controlplane.clusters.states import CLUSTER_STATES, ClusterFacts, ClusterSnapshot
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import Conflict
from controlplane.kit.lifecycle import Claim, Result
from controlplane.kit.operations import supersede
from controlplane.kit.outcome import Advance, Fail, Gone
from controlplane.kit.secrets import Sealer
from controlplane.metering import service as metering
from controlplane.nodes import service as nodes
from controlplane.quotas import service as quotas

OPERATION_ENDS: Mapping[str, str] = {"running": "succeeded", "failed": "failed", "deleted": "succeeded"}


def snapshots(observe_interval_s: float) -> Callable[[Session, Sequence[Claim]], Mapping[str, ClusterSnapshot]]:
    """
    A reader of what the steps of clusters need.
    """

    def read(session: Session, claims: Sequence[Claim]) -> Mapping[str, ClusterSnapshot]:
        return repository.read_snapshots(session, [claim.row for claim in claims], observe_interval_s)

    return read


def apply(session: Session, results: Sequence[Result], sealer: Sealer | None = None) -> None:
    """
    Meters, quotas, issues and allocations follow from these outcomes, in the transaction that moves the clusters. What new workers of a
    cluster join by is sealed.
    """
    _store(session, results)
    _roll(session, results)
    following = _follow(session, results)
    for one in results:
        if isinstance(one.outcome.facts, ClusterFacts) and one.outcome.facts.renew:
            row = {**one.claim.row, **following.get(one.claim.id, {})}
            founding.renew(session, row, one.outcome.facts.renew, one.outcome.facts.drain)
        if isinstance(one.outcome.facts, ClusterFacts) and one.outcome.facts.entry is not None and sealer is not None:
            joining.let_in(session, sealer, {**one.claim.row, **following.get(one.claim.id, {})}, one.outcome.facts.entry)
    usable = {
        key: at for one in results if isinstance(one.outcome.facts, ClusterFacts) for key, at in one.outcome.facts.usable_at.items()
    }
    _open_meters(session, usable, results)
    _tell_nodes(session, results)
    finding.follow(session, results)
    _note_running(session, results)
    over = [one for one in results if isinstance(one.outcome, Gone) or _target(one) == "failed"]
    for one in over:
        return_quota(session, one.claim.id)
    nodes.dismiss(session, [one.claim.id for one in over if one.claim.row["peer_id"] is not None])
    for one in results:
        if isinstance(one.outcome, Fail) and one.claim.state == "updating":
            restoring.restore(session, one)


def _tell_nodes(session: Session, results: Sequence[Result]) -> None:
    """
    Who leaves is given back, and what the cluster's own API said of its members and of jobs is known.
    """
    told = [(one.claim.id, one.outcome.facts) for one in results if isinstance(one.outcome.facts, ClusterFacts)]
    for _, facts in told:
        if facts.release:
            nodes.give_back(session, facts.release, reason=facts.release_reason)
    said = [found for _, facts in told for found in facts.health]
    nodes.report(session, [nodes.Report(node_id, "scheduler", "node_state", health, words) for node_id, health, words in said])
    kept = {one.claim.id: one.claim.row["kubernetes"] for one in results}
    peers = {one.claim.id: one.claim.row["peer_id"] for one in results}
    for cluster_id, facts in told:
        if facts.job_features is not None:
            if managing.is_managed(kept[cluster_id]):
                repository.note_offers(session, cluster_id, Offers(facts.job_features, facts.volumes, facts.mig))
            elif peers[cluster_id] is not None:
                nodes.note_features(session, peers[cluster_id], facts.job_features, facts.volumes, facts.mig)


def _target(result: Result) -> str | None:
    if isinstance(result.outcome, Advance):
        return result.outcome.to
    if isinstance(result.outcome, Fail):
        return result.outcome.to or CLUSTER_STATES.by_name[result.claim.state].fails_to
    return None


def _store(session: Session, results: Sequence[Result]) -> None:
    changes = []
    for one in results:
        facts, outcome = one.outcome.facts, one.outcome
        issues = list(facts.issues) if isinstance(facts, ClusterFacts) and facts.issues is not None else None
        if issues is None and isinstance(outcome, Fail):
            issues = [{"code": outcome.code, "message": outcome.message}]
        if _target(one) == "running" and (issues is None or isinstance(outcome, Fail)):
            issues = []  # of a change that failed its operation tells: the cluster is as it was
        checks = list(facts.checks) if isinstance(facts, ClusterFacts) and facts.checks is not None else None
        if issues is not None or checks is not None:
            changes.append({"cluster": one.claim.id, "issues_": issues, "checks_": checks})
    if changes:
        table = ClusterRow.__table__
        statement = (
            update(table)  # type: ignore[arg-type]
            .where(table.c.id == bindparam("cluster"))
            .values(
                issues=func.coalesce(bindparam("issues_", type_=JSONB(none_as_null=True)), table.c.issues),
                checks=func.coalesce(bindparam("checks_", type_=JSONB(none_as_null=True)), table.c.checks),
            )
        )
        session.connection().execute(statement, changes)


def _roll(session: Session, results: Sequence[Result]) -> None:
    """
    Upgrades are as far as was learnt, and installations that were to begin have begun, where nothing else is under way on the machine.
    """
    told = [(one.claim.id, one.outcome.facts) for one in results if isinstance(one.outcome.facts, ClusterFacts)]
    begun = _reinstall(session, {cluster_id: facts.reinstall for cluster_id, facts in told if facts.reinstall})
    for cluster_id, facts in told:
        new = begun.get(cluster_id, [])
        if facts.roll or new:
            started = func.coalesce(ClusterRow.upgrade["started"], cast([], JSONB())).op("||")(cast(new, JSONB()))
            grown = ClusterRow.upgrade.op("||")(func.jsonb_build_object("started", started))
            merged = (grown if new else ClusterRow.upgrade).op("||")(cast(dict(facts.roll), JSONB()))
            session.execute(update(ClusterRow).where(ClusterRow.id == cluster_id).values(upgrade=merged))
        if facts.stopped:
            repository.name_images(session, cluster_id)
            supersede(session, cluster_id, "It was stopped as asked for.")


def _follow(session: Session, results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """
    What is kept of releases and versions is as was learnt; by cluster, what of its row is new.
    """
    fresh: dict[str, dict[str, Any]] = {}
    for one in results:
        facts = one.outcome.facts
        if isinstance(facts, ClusterFacts) and facts.versions:
            kept = ClusterRow.kubernetes.op("||")(cast(dict(facts.versions), JSONB()))
            told_of = update(ClusterRow).where(ClusterRow.id == one.claim.id).values(kubernetes=kept)
            fresh[one.claim.id] = {"kubernetes": session.execute(told_of.returning(ClusterRow.kubernetes)).scalar_one()}
        if not isinstance(facts, ClusterFacts) or not facts.follow:
            continue
        install = ClusterRow.upgrade["install"]
        told: Any = ClusterRow.slurm.op("||")(func.jsonb_build_object("install", install))
        if facts.follow == "all":
            told = func.jsonb_set(told, cast(["offer", "release"], ARRAY(Text)), install["release"])
        changed = update(ClusterRow).where(ClusterRow.id == one.claim.id).values(slurm=told).returning(ClusterRow.slurm)
        fresh[one.claim.id] = {"slurm": session.execute(changed).scalar_one()}
    return fresh


def _reinstall(session: Session, wanted: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """
    By cluster, which of these allocations are being installed anew; the others are looked at again.
    """
    if not wanted:
        return {}
    sets = repository.sets_of(session, list(wanted))
    members = repository.members_of(session, list(wanted))
    begun: dict[str, list[str]] = {}
    for cluster_id, allocation_ids in wanted.items():
        images = {one.id: one.image_id for one in sets[cluster_id]}
        of_set = {one[0].id: one[0].node_set_id for one in members[cluster_id]}
        for one in allocation_ids:
            with suppress(Conflict), session.begin_nested():
                if nodes.act_on_instance(session, one, "reinstall", by="system", image_id=images[of_set[one]]) is not None:
                    begun.setdefault(cluster_id, []).append(one)
    return begun


def _open_meters(session: Session, usable: Mapping[str, object], results: Sequence[Result]) -> None:
    if not usable:
        return
    clusters = {one.claim.id: one.claim for one in results}
    rows = session.execute(nodes.allocations_of(list(clusters))).all()
    metering.open_intervals(
        session,
        [
            metering.Opening(
                allocation_id=allocation.id,
                instance_id=allocation.instance_id,
                tenant_id=allocation.tenant_id,
                project_id=allocation.project_id,
                cluster_id=allocation.cluster_id,
                instance_type=allocation.instance_type,
                site=allocation.site,
                gpus=allocation.gpus,
                evidence=f"{allocation.cluster_id} usable, claim {clusters[allocation.cluster_id].fence}",
                not_before=allocation.during.lower,
                usable_at=usable[allocation.id],  # type: ignore[arg-type]
            )
            for allocation, *_ in rows
            if allocation.id in usable and allocation.state == "active"
        ],
    )
    for allocation, *_ in rows:
        if allocation.id in usable and allocation.release_accepted_at is not None:
            metering.close_intervals(
                session, [allocation.id], at=allocation.release_accepted_at, evidence="release accepted before"
            )


def _note_running(session: Session, results: Sequence[Result]) -> None:
    ids = [one.claim.id for one in results if isinstance(one.outcome, Advance) and one.outcome.to == "running"]
    if ids:
        session.execute(
            update(ClusterRow).where(ClusterRow.id.in_(ids), ClusterRow.running_at.is_(None)).values(running_at=CpClock())
        )


def return_quota(session: Session, cluster_id: str) -> None:
    """
    What the cluster was charged beyond the nodes it holds is back in the quota; doing it twice changes nothing.
    """
    row = session.execute(select(ClusterRow).where(ClusterRow.id == cluster_id).with_for_update()).scalar_one()
    needs = _unplaced_needs(session, row)
    if row.charged:
        needs.append(quotas.Need("clusters", 1))
    session.execute(update(NodeSetRow).where(NodeSetRow.cluster_id == cluster_id).values(unplaced=0))
    session.execute(update(ClusterRow).where(ClusterRow.id == cluster_id).values(charged=False))
    if needs:
        quotas.give_back(session, quotas.Chain(row.reseller_id, row.tenant_id, row.project_id), needs)


def _unplaced_needs(session: Session, row: ClusterRow) -> list[quotas.Need]:
    sets = repository.sets_of(session, [row.id])[row.id]
    return [quotas.Need("gpus", one.unplaced * one.gpus, one.gpu_model, row.site) for one in sets if one.unplaced]
