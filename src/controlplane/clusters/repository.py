"""
Every query of the clusters room.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import cast, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.clusters.models import ClusterRow, NodeSetRow, ProviderUserRow
from controlplane.clusters.offers import Offers
from controlplane.clusters.refusals import REFUSED, UNDOING, UNDONE, Refusal
from controlplane.clusters.states import MANAGED, ClusterSnapshot, MemberSnapshot, Roll, SetSnapshot, SetView
from controlplane.clusters.takeovers import Takeover
from controlplane.kit.errors import NotFound
from controlplane.nodes import service as nodes
from controlplane.nodes.states import ProviderRef, host_name

FEATURES, VOLUMES, MIG = "job_features", "volumes", "mig"
"""Where what a managed Kubernetes offers is kept with it."""
CAME = "came"
"""Where it stands there that it stood before it was ours."""
SEATS = "nodes"
"""Where it stands with a cluster that was taken over which Node the machine of each allocation is, where names differ."""


def get_cluster(session: Session, project_id: str, cluster_id: str, *, lock: bool = False) -> ClusterRow:
    """
    The project's cluster. Raises NotFound.
    """
    query = select(ClusterRow).where(ClusterRow.id == cluster_id, ClusterRow.project_id == project_id)
    row = session.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if row is None:
        raise NotFound
    return row


def sets_of(session: Session, cluster_ids: Sequence[str]) -> dict[str, list[NodeSetRow]]:
    """
    Node sets by cluster, in the order they were made.
    """
    found: dict[str, list[NodeSetRow]] = {one: [] for one in cluster_ids}
    query = select(NodeSetRow).where(NodeSetRow.cluster_id.in_(cluster_ids)).order_by(NodeSetRow.id)
    for row in session.execute(query).scalars():
        found[row.cluster_id].append(row)
    return found


BESIDE = text(
    """
    SELECT s.id, s.cluster_id, s.name, s.instance_type, s.count AS nodes, s.gpus, s.role, s.image_id,
      (SELECT count(*) FROM allocations a WHERE a.cluster_id = s.cluster_id AND a.state = 'active' AND a.node_set_id = s.id) AS ready,
      (SELECT jsonb_object_agg(i.image, i.n) FROM (
        SELECT coalesce(a.image_id, '') AS image, count(*) AS n FROM allocations a
        WHERE a.cluster_id = s.cluster_id AND a.state = 'active' AND a.node_set_id = s.id GROUP BY 1) i) AS images,
      (SELECT o.id FROM operations o WHERE o.resource_id = s.cluster_id AND o.state IN ('pending', 'running', 'needs_attention')
      ) AS operation_id
    FROM node_sets s WHERE s.cluster_id = ANY(:ids) ORDER BY s.id
    """
)


def read_beside(session: Session, cluster_ids: Sequence[str]) -> dict[str, tuple[list[SetView], dict[str, int], str | None]]:
    """
    What callers see beside each cluster, in one query: node sets in the order they were made, ready nodes per set, active operation.
    """
    found: dict[str, tuple[list[SetView], dict[str, int], str | None]] = {one: ([], {}, None) for one in cluster_ids}
    if not cluster_ids:
        return found
    for one in session.execute(BESIDE, {"ids": list(cluster_ids)}):
        sets, ready, _ = found[one.cluster_id]
        sets.append(SetView(one.id, one.name, one.instance_type, one.nodes, one.gpus, one.role, one.image_id, one.images or {}))
        ready[one.id] = one.ready
        found[one.cluster_id] = (sets, ready, one.operation_id)
    return found


def members_of(session: Session, cluster_ids: Sequence[str]) -> dict[str, list[Any]]:
    """
    Rows of (AllocationRow, ref, node_state, provider_id, node_health, address) by cluster.
    """
    found: dict[str, list[Any]] = {one: [] for one in cluster_ids}
    for row in session.execute(nodes.allocations_of(cluster_ids)):
        found[row[0].cluster_id].append(row)
    return found


BILLED = text("SELECT allocation_id FROM meter_intervals WHERE cluster_id = ANY(:ids)")


def billed_of(session: Session, cluster_ids: Sequence[str]) -> set[str]:
    """
    Allocations of these clusters that are, or were, billed: they have been in use.
    """
    return set(session.execute(BILLED, {"ids": list(cluster_ids)}).scalars())


def read_snapshots(session: Session, rows: Sequence[Any], observe_interval_s: float) -> dict[str, ClusterSnapshot]:
    """
    What steps need of these clusters, in four queries.
    """
    ids = [row["id"] for row in rows]
    sets, members = sets_of(session, ids), members_of(session, ids)
    billed = billed_of(session, ids)
    providers = nodes.read_providers(session, [peer for row in rows if (peer := peer_of(row)) is not None])
    own = [one[0].id for row in rows if row["peer_id"] is not None for one in members[row["id"]]]
    booted = boots.views_of(session, own)
    return {
        row["id"]: snapshot(
            row, sets[row["id"]], members[row["id"]], providers.get(peer_of(row) or ""), (billed, booted), observe_interval_s
        )
        for row in rows
    }


def peer_of(row: Any) -> str | None:
    """
    Who runs the cluster: its own scheduler, or the provider that made it.
    """
    peer: str | None = row["peer_id"] or row["provider_id"]
    return peer


def snapshot(
    row: Any,
    sets: Sequence[NodeSetRow],
    members: Sequence[Any],
    provider: ProviderRef | None,
    beside: tuple[set[str], Mapping[str, boots.BootView]],
    observe_interval_s: float,
) -> ClusterSnapshot:
    """
    The frozen value of one cluster; `beside` are allocations that are billed, and boots of allocations whose files are renewed.
    """
    billed, booted = beside
    roles = {one.id: one.role for one in sets}
    dedicated, seats = row["peer_id"] is not None, seats_of(row["adopted"])
    managing = row["kubernetes"] is not None and row["kubernetes"]["distribution"] == MANAGED
    return ClusterSnapshot(
        id=row["id"],
        state=row["state"],
        step=row["step"],
        tenant_id=row["tenant_id"],
        project_id=row["project_id"],
        kind=row["kind"],
        user=row["provider_user"],
        provider=provider,
        members=tuple(
            _member(one, roles[one[0].node_set_id], booted.get(one[0].id), seats, billed=one[0].id in billed, dedicated=dedicated)
            for one in members
        ),
        sets=tuple(SetSnapshot(one.id, one.name, one.instance_type, one.count) for one in sets),
        observe_interval_s=observe_interval_s,
        leaving=frozenset(one[0].id for one in members if one[0].leaving),
        state_for_s=row.get("state_for_s", 0.0),
        dedicated=dedicated,
        roll=None if row["upgrade"] is None else read_roll(row["upgrade"]),
        release="" if row["slurm"] is None else head_release(row["slurm"]),
        distribution="" if row["kubernetes"] is None else row["kubernetes"]["distribution"],
        version=kubernetes_version(row["kubernetes"]) if managing else "",
        ahead={} if row["kubernetes"] is None else row["kubernetes"].get("ahead", {}),
        offers=offers_of(row["kind"], row["kubernetes"], provider),
        came=came(row),
        takes=_takeover(row),
        refusal=_refusal(row),
    )


def _refusal(row: Any) -> Refusal | None:
    if row["step"] not in {REFUSED, UNDOING, UNDONE}:
        return None
    return Refusal(row["issues"][0]["code"] if row["issues"] else "provider_refused", row["detail"])


def came(row: Any) -> bool:
    """
    Whether the cluster, a row or its columns, is a Kubernetes of control planes that stood before it was ours.
    """
    kubernetes = row["kubernetes"] if isinstance(row, Mapping) else row.kubernetes
    return bool(kubernetes and kubernetes.get(CAME))


def seats_of(adopted: Mapping[str, Any] | None) -> Mapping[str, str]:
    """
    By allocation: the Node that its machine was when the cluster was taken over, where that is not what we would call it.
    """
    found: Mapping[str, str] = (adopted or {}).get(SEATS) or {}
    return found


def _takeover(row: Any) -> Takeover | None:
    told = row["adopted"]
    if not told or (row["running_at"] is not None and not told.get("let_go")):
        return None
    return Takeover(told["ref"], told["uid"])


def head_release(facts: Mapping[str, Any]) -> str:
    """
    The release that the head of a Slurm of one's own has, by what is kept with the cluster; others may have an older one.
    """
    return str((facts.get("install") or facts["offer"])["release"])


def offers_of(kind: str, kubernetes: Mapping[str, Any] | None, provider: ProviderRef | None) -> Offers:
    """
    What jobs may ask of the cluster: as its own API told where its provider makes many that differ, else as its provider said of its
    kind.
    """
    if provider is None:
        return Offers()
    if kubernetes is None or kubernetes["distribution"] != MANAGED:
        said = provider.job_features
        had = None if said is None else tuple(one for one in said if provider.only_in.get(one, kind) == kind)
        return Offers(had, provider.volumes, provider.mig)
    told = kubernetes.get(FEATURES)
    volumes = tuple(kubernetes.get(VOLUMES, provider.volumes))
    return Offers(None if told is None else tuple(told), volumes, kubernetes.get(MIG, {}))


def note_offers(session: Session, cluster_id: str, offers: Offers) -> None:
    """
    What the cluster's own API told that jobs may ask for is known.
    """
    told = {FEATURES: list(offers.features or ()), VOLUMES: list(offers.volumes), MIG: dict(offers.mig)}
    said = ClusterRow.kubernetes.op("||")(cast(told, JSONB))
    session.execute(update(ClusterRow).where(ClusterRow.id == cluster_id).values(kubernetes=said))


def kubernetes_version(facts: Mapping[str, Any]) -> str:
    """
    The version that every host of a Kubernetes of one's own has at least, by what is kept with the cluster.
    """
    return str(facts.get("version") or facts["offer"]["versions"][facts["distribution"]])


def read_roll(told: Mapping[str, Any]) -> Roll:
    """
    An upgrade as it is kept.
    """
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return Roll(**values)


def _member(
    row: Any, role: str, booted: boots.BootView | None, seats: Mapping[str, str], *, billed: bool, dedicated: bool
) -> MemberSnapshot:
    allocation = row[0]
    follows = dedicated and allocation.id not in seats
    return MemberSnapshot(
        allocation_id=allocation.id,
        instance_id=allocation.instance_id,
        node_id=allocation.node_id,
        ref=seats.get(allocation.id) or (host_name(allocation.instance_id) if dedicated else row.ref),
        gpus=0 if role == "control_plane" else allocation.gpus,  # pods never get a control plane's GPUs
        state=allocation.state,
        node_state=row.node_state,
        node_set_id=allocation.node_set_id,
        billed=billed,
        node_health=row.node_health,
        role=role,
        current=not follows or (booted is not None and booted.applied_version >= booted.version and not booted.apply_failure),
        trouble="" if booted is None else booted.apply_failure,
    )


def assign_user(session: Session, provider_id: str, users: Sequence[str], tenant_id: str) -> str | None:
    """
    The account of the tenant at the provider, given to it now if it had none; None when all are taken by others.
    """
    query = select(ProviderUserRow.user, ProviderUserRow.tenant_id).where(ProviderUserRow.provider_id == provider_id)
    taken = {row.user: row.tenant_id for row in session.execute(query)}
    own: str | None = next((user for user, owner in taken.items() if owner == tenant_id), None)
    if own is not None:
        return own
    for user in users:
        if user in taken:
            continue
        statement = upsert(ProviderUserRow).values(provider_id=provider_id, user=user, tenant_id=tenant_id)
        if session.execute(statement.on_conflict_do_nothing().returning(ProviderUserRow.user)).first() is not None:
            return user
    return None


NAME_IMAGES = text(
    """
    UPDATE node_sets s SET image_id = m.image FROM (
      SELECT node_set_id, min(image_id) AS image FROM allocations WHERE cluster_id = :cluster AND state = 'active'
      GROUP BY node_set_id HAVING count(DISTINCT coalesce(image_id, '')) = 1) m
    WHERE s.id = m.node_set_id AND s.cluster_id = :cluster
    """
)


def name_images(session: Session, cluster_id: str) -> None:
    """
    Each node set whose members all have the same image names that; one of several keeps what its next members get.
    """
    session.execute(NAME_IMAGES, {"cluster": cluster_id})


def set_unplaced(session: Session, changes: Sequence[tuple[str, int]]) -> None:
    """
    `unplaced` of each node set has changed by so much.
    """
    for node_set_id, by in changes:
        session.execute(update(NodeSetRow).where(NodeSetRow.id == node_set_id).values(unplaced=NodeSetRow.unplaced + by))
