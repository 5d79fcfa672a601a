"""
What tenants do with clusters; the only writer of their rows besides the lifecycle engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.catalog import service as catalog
from controlplane.clusters import driving, founding, managing, repository
from controlplane.clusters.checking import check_images, check_order, image_formats, refuse_if_hopeless
from controlplane.clusters.driving import return_quota
from controlplane.clusters.errors import NotChangeable
from controlplane.clusters.models import ClusterRow, NodeSetRow
from controlplane.clusters.states import (
    CLUSTER_STATES,
    HOME_LOST,
    Home,
    KubernetesOptions,
    Login,
    Options,
    Order,
    SetOrder,
    SetView,
)
from controlplane.identity import service as identity
from controlplane.kit.access import Principal
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import Conflict, NameTaken, Unavailable
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.operations import NewOperation, Progress, advance, find_active, request_cancel, start_operation, supersede
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.states import host_name
from controlplane.quotas import service as quotas

__all__ = [
    "CHANGEABLE",
    "ClusterFilter",
    "ClusterView",
    "KubernetesOptions",
    "Login",
    "Options",
    "Order",
    "SetOrder",
    "allowed_actions",
    "announce",
    "apply",
    "cancel_order",
    "delete_cluster",
    "enter",
    "get_cluster",
    "homes",
    "list_clusters",
    "order_cluster",
    "stop_upgrade",
    "view_of",
]

UNPLACED = ("pending", "placing", "failed")
CHANGEABLE = ("running", "degraded")
TABLE = ClusterRow.__table__
LISTED = select(*TABLE.columns)
INSERT = (
    upsert(TABLE)  # type: ignore[arg-type]
    .on_conflict_do_nothing(index_elements=["project_id", "name"], index_where=text("state <> 'deleted'"))
    .returning(*TABLE.columns)
)
"""No row comes back where a cluster that is not deleted has the name."""

apply = driving.apply
"""What follows from an outcome that is not the engine's own: an operator gave a cluster up."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """
    A cluster with what stands beside it.
    """

    row: Any
    """The cluster: its entity, or a row of its columns."""
    sets: Sequence[SetView]
    """Its node sets."""
    ready: Mapping[str, int]
    """Deployed nodes per node set id."""
    operation_id: str | None
    """The active operation, if any."""


def order_cluster(
    session: Session, principal: Principal, project_id: str, order: Order, sealer: Sealer | None = None
) -> tuple[ClusterView, str]:
    """
    The order is on record with its quota taken; the cluster and the id of its operation are returned. Nothing is placed yet.

    Raises NotFound, Invalid, NameTaken, QuotaExceeded, NoCapacity, Unavailable where there is nothing to seal user-data with.
    """
    project = identity.hold_project(session, principal, project_id)
    facts = check_order(session, order)
    check_images(session, principal, project.tenant_id, order)
    refuse_if_hopeless(session, order)
    cluster_id = new_id("clu")
    needs = [
        quotas.Need("gpus", one.count * facts[one.instance_type].gpus, facts[one.instance_type].gpu_model, order.site)
        for one in order.sets
    ]
    chain = quotas.Chain(principal.reseller_id, project.tenant_id, project_id)
    quotas.take(session, chain, [quotas.Need("clusters", 1), *needs])
    stay = CLUSTER_STATES.by_name["pending"].longest_stay_s
    made = _establish(session, project.tenant_id, cluster_id, order, sealer)
    values = {
        "id": cluster_id,
        "tenant_id": project.tenant_id,
        "reseller_id": principal.reseller_id,
        "project_id": project_id,
        "name": order.name,
        "labels": dict(order.labels),
        "kind": order.kind,
        "site": order.site,
        "spec": order.spec,
        "blueprint_id": _make_blueprint(session, project.tenant_id, cluster_id, order, sealer),
        "slurm": made.facts if made and order.slurm is not None else None,
        "kubernetes": _kubernetes_facts(session, project.tenant_id, order, made),
        "provider_id": made.pool_id if made else None,
        "peer_id": made.peer_id if made else None,
        "provider_user": founding.account_of(order),
        "state": CLUSTER_STATES.initial,
        "reason": "Ordered.",
        "deadline_at": CpClock() + func.make_interval(0, 0, 0, 0, 0, 0, stay),
    }
    row = session.execute(INSERT.values(values)).one_or_none()
    if row is None:
        raise NameTaken(f"The project has a cluster named {order.name}.", name=order.name)
    sets = _insert_sets(session, row, order, facts, made.blueprints if made else {})
    new = NewOperation("cluster.create", "cluster", cluster_id, principal.id, project.tenant_id, project_id)
    operation_id = start_operation(session, new, first="pending", reason="Ordered.")
    _tell(session, row, "", "pending", "Ordered.")
    return ClusterView(row, sets, {}, operation_id), operation_id


def _kubernetes_facts(session: Session, tenant_id: str, order: Order, made: founding.Founding | None) -> dict[str, Any] | None:
    if order.managed:
        return managing.facts_of(session, tenant_id, order)
    return made.facts if made and order.kubernetes is not None else None


def _make_blueprint(session: Session, tenant_id: str, cluster_id: str, order: Order, sealer: Sealer | None) -> str | None:
    """
    What the order's nodes boot with; none where the nodes are not the tenant's to log in to.
    """
    if order.login is None or order.own:
        return None
    if sealer is None:
        raise Unavailable("This installation has no master key, so it takes no secrets.", code="no_master_key")
    wanted = boots.NewBlueprint(
        tenant_id=tenant_id, cluster_id=cluster_id, ssh_keys=order.login.ssh_keys, user_data=order.login.user_data
    )
    return boots.make_blueprint(session, sealer, wanted)


def _establish(session: Session, tenant_id: str, cluster_id: str, order: Order, sealer: Sealer | None) -> founding.Founding | None:
    """
    What a product of the tenant's own needs before it has nodes; None for other orders.
    """
    if not order.own or order.login is None:
        return None
    if sealer is None:
        raise Unavailable("This installation has no master key, so it takes no secrets.", code="no_master_key")
    return founding.establish(session, sealer, order, image_formats(session, order), tenant_id=tenant_id, cluster_id=cluster_id)


def _insert_sets(
    session: Session, row: Any, order: Order, facts: Mapping[str, catalog.InstanceType], blueprints: Mapping[str, str]
) -> Sequence[SetView]:
    ids = sorted(new_id("nds") for _ in order.sets)  # they are shown by id, and so in the order's order
    values = [
        {
            "id": set_id,
            "cluster_id": row.id,
            "tenant_id": row.tenant_id,
            "name": one.name,
            "role": one.role,
            "blueprint_id": blueprints.get(one.name),
            "image_id": one.image,
            "instance_type": one.instance_type,
            "count": one.count,
            "gpus": facts[one.instance_type].gpus,
            "gpu_model": facts[one.instance_type].gpu_model,
            "unplaced": one.count,
        }
        for set_id, one in zip(ids, order.sets, strict=True)
    ]
    session.execute(insert(NodeSetRow.__table__), values)  # type: ignore[arg-type]
    shown = ("id", "name", "instance_type", "count", "gpus", "role", "image_id")
    return [SetView(*(one[name] for name in shown)) for one in values]


def get_cluster(session: Session, principal: Principal, project_id: str, cluster_id: str) -> ClusterView:
    """
    The cluster. Raises NotFound.
    """
    principal.check_project(project_id)
    row = repository.get_cluster(session, project_id, cluster_id)
    return _views(session, [row])[0]


@dataclass(frozen=True, slots=True)
class ClusterFilter:
    """
    Which clusters are asked for; None: any.
    """

    state: str | None = None
    """State; deleted ones are left out unless asked for."""
    label: tuple[str, str] | None = None
    """A label and its value."""
    created_after: datetime | None = None
    """Younger than this."""


def list_clusters(session: Session, principal: Principal, project_id: str, which: ClusterFilter, ask: PageAsk) -> Page[ClusterView]:
    """
    A page of the project's clusters; three queries however many, and no entities: lists are what is asked for most.
    """
    identity.get_project(session, principal, project_id)
    query = LISTED.where(ClusterRow.project_id == project_id)
    query = query.where(ClusterRow.state == which.state) if which.state else query.where(ClusterRow.state != "deleted")
    if which.label is not None:
        query = query.where(ClusterRow.labels.contains({which.label[0]: which.label[1]}))
    if which.created_after is not None:
        query = query.where(ClusterRow.created_at > which.created_after)
    page = fetch_page(session, query, ClusterRow.id, ask)
    views = {view.row.id: view for view in _views(session, page.items)}
    return page.map(lambda row: views[row.id])


def _views(session: Session, rows: Sequence[Any]) -> list[ClusterView]:
    beside = repository.read_beside(session, [row.id for row in rows])
    return [ClusterView(row, *beside[row.id]) for row in rows]


def delete_cluster(
    session: Session, principal: Principal, project_id: str, cluster_id: str, version: Any
) -> tuple[ClusterView, str]:
    """
    Deletion is accepted in any state: billing has ended, and the id of the operation that takes it down is returned.

    What was never placed is gone at once. `version` checks the caller's If-Match against the row's version.
    """
    principal.check_project(project_id)
    row = repository.get_cluster(session, project_id, cluster_id, lock=True)
    if row.state == "deleted":
        raise NotChangeable("The cluster is deleted.", state=row.state)
    version(row.version)
    if row.state == "deleting":
        active = find_active(session, cluster_id)
        if active is None:
            raise Conflict("The cluster is being deleted.")
        return _views(session, [row])[0], active
    supersede(session, cluster_id, "The cluster is being deleted.")
    new = NewOperation("cluster.delete", "cluster", cluster_id, principal.id, row.tenant_id, project_id)
    operation_id = start_operation(session, new)
    _begin_delete(session, row)
    session.refresh(row)
    return _views(session, [row])[0], operation_id


def cancel_order(session: Session, principal: Principal, cluster_id: str) -> None:
    """
    The order that is under way is being undone; its operation ends as cancelled once nothing is left of it. Raises Conflict, NotFound.
    """
    row = session.execute(select(ClusterRow).where(ClusterRow.id == cluster_id).with_for_update()).scalar_one()
    principal.check_project(row.project_id)
    if row.state not in {"pending", "placing", "provisioning", "bootstrapping", "verifying", "adopting"}:
        raise NotChangeable("Only an order that is not running yet can be cancelled; delete the cluster instead.", state=row.state)
    request_cancel(session, cluster_id)
    _begin_delete(session, row)


def stop_upgrade(session: Session, principal: Principal, cluster_id: str) -> None:
    """
    The upgrade goes no further than the workers it has taken out of use by now. Raises NotChangeable, NotFound.
    """
    row = session.execute(select(ClusterRow).where(ClusterRow.id == cluster_id).with_for_update()).scalar_one()
    principal.check_project(row.project_id)
    if row.state != "upgrading" or row.upgrade is None:
        raise NotChangeable("No upgrade is under way.", state=row.state)
    if managing.is_managed(row.kubernetes):
        raise NotChangeable(
            "The provider brings a managed Kubernetes to its version; that is not stopped half-way.", state=row.state
        )
    request_cancel(session, cluster_id)
    now = session.execute(select(CpClock())).scalar_one()
    row.upgrade = {**row.upgrade, "cancelled": True}
    row.attention, row.due_at, row.wakes = "", now, row.wakes + 1
    session.flush()


def _begin_delete(session: Session, row: ClusterRow) -> None:
    """
    Meters stop now. With nothing held anywhere the cluster is gone in this transaction; else the engine takes it down.
    """
    now = session.execute(select(CpClock())).scalar_one()
    before = row.state
    nodes.accept_release(session, row.id, now)
    held = repository.members_of(session, [row.id])[row.id]
    stay = CLUSTER_STATES.by_name["deleting"].longest_stay_s
    _move(session, row.id, "deleting", "Being taken down; billing has ended.", now, stay)
    announce(session, row, before, "deleting", "Deletion was asked for.")
    if before in UNPLACED and not held and row.provider_id is None:
        _move(session, row.id, "deleted", "It held nothing.", now, None)
        announce(session, row, "deleting", "deleted", "It held nothing.")
        return_quota(session, row.id)


def view_of(session: Session, row: ClusterRow) -> ClusterView:
    """
    The cluster with what stands beside it.
    """
    return _views(session, [row])[0]


def enter(session: Session, row: ClusterRow, state: str, reason: str) -> None:
    """
    The cluster has come to the state by a request; the engine takes it from there.
    """
    now = session.execute(select(CpClock())).scalar_one()
    _move(session, row.id, state, reason, now, CLUSTER_STATES.by_name[state].longest_stay_s)


def _move(session: Session, cluster_id: str, state: str, reason: str, now: datetime, stay: float | None) -> None:
    session.execute(
        update(ClusterRow)
        .where(ClusterRow.id == cluster_id)
        .values(
            state=state,
            step="",
            reason=reason,
            state_since=now,
            deadline_at=now + func.make_interval(0, 0, 0, 0, 0, 0, stay) if stay is not None else None,
            due_at=now if stay is not None else None,
            wakes=ClusterRow.wakes + 1,
            attention="",
            attempts=0,
            delete_accepted_at=func.coalesce(ClusterRow.delete_accepted_at, now)
            if state == "deleting"
            else ClusterRow.delete_accepted_at,
            version=ClusterRow.version + 1,
            updated_at=now,
        )
    )


def announce(session: Session, row: ClusterRow, before: str, after: str, reason: str) -> None:
    """
    History, event and operation tell of a move that a request made.
    """
    _tell(session, row, before, after, reason)
    advance(session, [Progress(row.id, after, reason, "succeeded" if after == "deleted" else None)])


def _tell(session: Session, row: Any, before: str, after: str, reason: str) -> None:
    event = Event(
        f"cluster.{after}", "cluster", row.id, row.tenant_id, row.project_id, {"state": after, "before": before, "reason": reason}
    )
    record(session, [event], [Move("cluster", row.id, before, after, reason, row.tenant_id)])


def lost(session: Session, cluster_ids: Sequence[str]) -> set[str]:
    """
    Those of the clusters that none of their work comes back to.
    """
    query = select(ClusterRow.id).where(ClusterRow.id.in_(set(cluster_ids)), ClusterRow.state.in_(HOME_LOST))
    return set(session.execute(query).scalars()) if cluster_ids else set()


def homes(session: Session, cluster_ids: Sequence[str]) -> dict[str, Home]:
    """
    What jobs need to know of their clusters; four queries however many.
    """
    rows = session.execute(select(ClusterRow).where(ClusterRow.id.in_(set(cluster_ids)))).scalars().all()
    ids = [row.id for row in rows]
    sets, members = repository.sets_of(session, ids), repository.members_of(session, ids)
    peers = {row.id: _peer_of(row) for row in rows}
    providers = nodes.read_providers(session, [peer for peer in peers.values() if peer is not None])
    work = {one: [each for each in found if each.role == "worker"] for one, found in sets.items()}
    return {
        row.id: Home(
            cluster_id=row.id,
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            state=row.state,
            kind=row.kind,
            user=row.provider_user,
            provider=providers.get(peers[row.id] or ""),
            instances={_name_of(row, one): one[0].instance_id for one in members[row.id] if one[0].state == "active"},
            nodes=sum(one.count for one in work[row.id]),
            gpus_per_node=max((one.gpus for one in work[row.id]), default=0),
            gpu_model=models.pop() if len(models := {one.gpu_model for one in work[row.id]}) == 1 else "",
            dedicated=row.peer_id is not None,
            managed=managing.is_managed(row.kubernetes),
            runs=managing.work_of(row.kubernetes, providers.get(peers[row.id] or "")),
            offers=repository.offers_of(row.kind, row.kubernetes, providers.get(peers[row.id] or "")),
        )
        for row in rows
    }


def _name_of(row: ClusterRow, member: Any) -> str:
    """
    What the member is called by whoever runs the cluster's work.
    """
    seat = repository.seats_of(row.adopted).get(member[0].id)
    return seat or (str(member.ref) if row.peer_id is None else host_name(member[0].instance_id))


def _peer_of(row: ClusterRow) -> str | None:
    """
    Who is asked about the cluster's jobs; nobody once a scheduler of its own has ended with it.
    """
    if row.peer_id is not None and row.state in {"failed", "deleted"}:
        return None
    return row.peer_id or row.provider_id


def allowed_actions(view: ClusterView) -> dict[str, str]:
    """
    Every verb with the reason why it is not allowed now; an empty reason where it is.
    """
    state, busy = view.row.state, view.operation_id
    update_ = (
        f"Operation {busy} is active." if busy else "" if state in CHANGEABLE else f"A cluster in state {state} cannot be changed."
    )
    upgradable = view.row.peer_id is not None or managing.is_managed(view.row.kubernetes)
    own = "" if upgradable else "Only a Slurm or a Kubernetes of one's own is upgraded."
    own = "It stood before it was ours, and is upgraded from outside." if repository.came(view.row) else own
    return {"delete": "It is deleted." if state == "deleted" else "", "update": update_, "upgrade": own or update_}
