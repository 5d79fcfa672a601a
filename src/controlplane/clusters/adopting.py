"""
Taking over a cluster that exists at its provider: an operator says whose it is, and from then on it is like any other.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.clusters import finding, joining, repository
from controlplane.clusters.errors import NotAdoptable, NotChangeable
from controlplane.clusters.finding import FoundCluster, Obstacle
from controlplane.clusters.managing import PRODUCT
from controlplane.clusters.models import ClusterRow, NodeSetRow
from controlplane.clusters.service import CHANGEABLE, INSERT, announce, enter
from controlplane.clusters.states import CLUSTER_STATES, KUBERNETES, MANAGED, KubernetesOptions, Order, SetOrder
from controlplane.identity import service as identity
from controlplane.kit.access import Principal
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import FieldError, Invalid, NameTaken, NotFound
from controlplane.kit.events import Event, record
from controlplane.kit.ids import new_id
from controlplane.kit.operations import NewOperation, start_operation, was_done
from controlplane.kit.secrets import Sealer
from controlplane.metering import service as metering
from controlplane.nodes import service as nodes
from controlplane.quotas import service as quotas

WORDS = "Its provider is asked to hand it over."
CHANGES = ("cluster.update", "cluster.replace", "cluster.upgrade")
"""Operations after which a cluster is not what it was when it was taken over."""


@dataclass(frozen=True, slots=True)
class Wish:
    """
    Whose the cluster becomes.
    """

    tenant_id: str
    """The tenant."""
    project_id: str
    """One of its projects."""
    name: str
    """What it is called with us; its provider keeps its own name of it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free key-value pairs."""


@dataclass(frozen=True, slots=True)
class Preview:
    """
    What taking over would do.
    """

    found: FoundCluster
    """What was found, with what stands in the way."""
    gpus: Mapping[str, int]
    """GPUs by model that its tenant's quota would be charged."""
    per_hour: tuple[Decimal, str] | None
    """Price of an hour and its currency; None where there is no price."""


def preview(
    session: Session, principal: Principal, provider_id: str, found_id: str, wish: Wish, sealer: Sealer | None = None
) -> Preview:
    """
    What stands in the way, and what the tenant would hold and pay; where nothing stands in the way it was tried, and is undone with the
    transaction. Raises NotFound, Invalid, NameTaken, QuotaExceeded.
    """
    found = _with_owner(session, finding.get_found(session, provider_id, found_id), provider_id, wish.tenant_id)
    facts = catalog.instance_facts(session)
    counts = Counter(one.node.instance_type for one in found.hosts if one.node is not None)
    gpus: Counter[str] = Counter()
    total, currency, priced = Decimal(0), "", True
    for kind, count in counts.items():
        gpus[facts[kind].gpu_model] += count * facts[kind].gpus
        amount = metering.estimate(session, wish.tenant_id, instance_type=kind, gpus=count * facts[kind].gpus)
        priced = priced and amount is not None and currency in {"", amount.currency}
        if amount is not None:
            total, currency = total + amount.amount, amount.currency
    if not found.obstacles:
        adopt(session, principal, provider_id, found_id, wish, sealer)
    return Preview(found, dict(gpus), (total, currency) if priced and currency else None)


def adopt(
    session: Session, principal: Principal, provider_id: str, found_id: str, wish: Wish, sealer: Sealer | None = None
) -> tuple[str, str]:
    """
    The cluster is on record with its nodes held and its quota taken, as they are at the provider, and an operation follows until it has
    been handed over; the ids of both are returned. Nothing is billed before that.

    Raises NotFound, Invalid, NotAdoptable with everything that stands in the way, NameTaken, QuotaExceeded, and Unavailable where new
    workers of it would need secrets and there is nothing to seal them with.
    """
    try:
        scope = identity.hold_project_of(session, wish.tenant_id, wish.project_id)
    except NotFound:
        words = "The tenant has no such project, or is not active."
        raise Invalid(words, errors=[FieldError("body.project_id", "unknown_project", words)]) from None
    found = finding.get_found(session, provider_id, found_id, lock=True)
    found = _with_owner(session, found, provider_id, wish.tenant_id)
    if found.obstacles:
        words = f"It cannot be taken over as it is: {found.obstacles[0].message}"
        told = [{"code": one.code, "message": one.message} for one in found.obstacles]
        hint = "Look at it with GET, mend what stands in the way, and have the provider looked at again with actions/discover."
        raise NotAdoptable(words, obstacles=told, hint=hint)
    provider = nodes.get_provider(session, finding.machines_of(session, provider_id) or provider_id)
    order = _order_of(found, wish, provider.site)
    facts = catalog.instance_facts(session)
    needs = [
        quotas.Need("gpus", one.count * facts[one.instance_type].gpus, facts[one.instance_type].gpu_model, order.site)
        for one in order.sets
    ]
    chain = quotas.Chain(scope.reseller_id, scope.tenant_id, scope.project_id)
    quotas.take(session, chain, [quotas.Need("clusters", 1), *needs], viewer="platform")
    cluster_id = new_id("clu")
    row = session.execute(INSERT.values(_columns(cluster_id, order, scope, found, provider.id))).one_or_none()
    if row is None:
        raise NameTaken(f"The project has a cluster named {order.name}.", name=order.name)
    blueprints: Mapping[str, str] = {}
    if found.row.facts.get("distribution"):
        workers = [one.name for one in order.sets if one.role == "worker"]
        blueprints = joining.make_blueprints(session, sealer, workers, tenant_id=row.tenant_id, cluster_id=cluster_id)
    _hold(session, row, order, found, facts, blueprints)
    new = NewOperation("cluster.adopt", "cluster", cluster_id, principal.id, row.tenant_id, row.project_id)
    operation_id = start_operation(session, new, first="adopting", reason=WORDS)
    made = session.get_one(ClusterRow, cluster_id)
    if made.peer_id is not None:
        _seat(session, made, found)
    enter(session, made, "adopting", WORDS)
    announce(session, made, "pending", "adopting", WORDS)
    data = {"found_id": found_id, "provider_id": provider_id, "ref": found.row.ref}
    record(session, [Event("cluster.adoption_asked", "cluster", cluster_id, data=data)])
    return cluster_id, operation_id


def let_go(session: Session, principal: Principal, cluster_id: str, version: Callable[[int], None]) -> str:
    """
    A cluster that was taken over, and not changed through us since, is on its way back to whoever had it, as it is: billing has ended, and
    the id of the operation is returned. Raises NotFound, NotChangeable, OperationActive.
    """
    row = session.execute(select(ClusterRow).where(ClusterRow.id == cluster_id).with_for_update()).scalar_one_or_none()
    if row is None:
        raise NotFound
    version(row.version)
    if row.adopted is None:
        raise NotChangeable("It was not taken over but ordered: there is nobody to give it back to. Delete it.", state=row.state)
    operation_id = start_operation(
        session, NewOperation("cluster.let_go", "cluster", row.id, principal.id, row.tenant_id, row.project_id)
    )
    if row.state not in CHANGEABLE:
        raise NotChangeable(f"A cluster in state {row.state} cannot be let go.", state=row.state)
    if was_done(session, row.id, CHANGES):
        words = "It was changed through us since, so it is not what its owner gave away. It can only be deleted."
        raise NotChangeable(words, state=row.state)
    held = sum(one.count for one in repository.sets_of(session, [row.id])[row.id])
    if nodes.part(session, row.id) != held:
        raise NotChangeable("Not all of its nodes are in use; wait until they are.", state=row.state)
    nodes.accept_release(session, row.id, session.execute(select(CpClock())).scalar_one())
    row.adopted = {**row.adopted, "let_go": True}
    before, words = row.state, "Being let go as it is; billing has ended."
    session.flush()
    enter(session, row, "deleting", words)
    announce(session, row, before, "deleting", words)
    return operation_id


def _with_owner(session: Session, found: FoundCluster, provider_id: str, tenant_id: str) -> FoundCluster:
    """
    With what stands in the way for this tenant besides: a provider that is off, or that is another tenant's alone.
    """
    here = nodes.get_provider(session, provider_id)
    machines = finding.machines_of(session, provider_id)
    try:
        provider = nodes.get_provider(session, machines or provider_id)
    except NotFound:
        words = f"{here.name} names {machines} as the provider of its machines, and there is none."
        unknown = Obstacle("machines_provider_unknown", words)
        return FoundCluster(found.row, found.hosts, (unknown, *found.obstacles), found.cluster_id)
    pool = next((one for one in nodes.read_pools(session, [provider.site]) if one.id == provider.id), None)
    more = []
    if provider.site != here.site:
        words = f"{here.name} is registered in {here.site}, and its machines stand in {provider.site}."
        more.append(Obstacle("other_site", words))
    if machines and here.state != "active":
        more.append(Obstacle("provider_off", f"{here.name} is not active."))
    if pool is None:
        more.append(Obstacle("provider_off", f"{provider.name} is not active."))
    elif set(pool.tenants) - {tenant_id}:
        more.append(
            Obstacle("provider_of_another_tenant", f"{provider.name} is not shared, and another tenant has clusters there.")
        )
    return FoundCluster(found.row, found.hosts, (*found.obstacles, *more), found.cluster_id)


def _order_of(found: FoundCluster, wish: Wish, site: str) -> Order:
    """
    The cluster as if it had been ordered so.
    """
    counts: dict[tuple[str, bool], Counter[str]] = {}
    for one in found.hosts:
        assert one.node is not None
        counts.setdefault((one.node_set, one.leads), Counter())[one.node.instance_type] += 1
    sets = tuple(
        SetOrder(name, kind, count, "control_plane" if leads else "worker")
        for (name, leads), kinds in sorted(counts.items())
        for kind, count in kinds.items()
    )
    distribution = MANAGED if found.row.facts["product"] == PRODUCT else found.row.facts.get("distribution")
    kubernetes = KubernetesOptions(distribution, found.row.facts["version"]) if distribution else None
    return Order(wish.name, KUBERNETES, site, sets, labels=wish.labels, kubernetes=kubernetes)


def _columns(cluster_id: str, order: Order, scope: identity.Scope, found: FoundCluster, machines_id: str) -> dict[str, Any]:
    stay = CLUSTER_STATES.by_name[CLUSTER_STATES.initial].longest_stay_s
    kubernetes = None if order.kubernetes is None else {"distribution": MANAGED, "version": order.kubernetes.version}
    if order.kubernetes is not None and not order.managed:
        kubernetes = joining.facts_of(order.kubernetes.distribution, order.kubernetes.version)
    return {
        "id": cluster_id,
        "tenant_id": scope.tenant_id,
        "reseller_id": scope.reseller_id,
        "project_id": scope.project_id,
        "name": order.name,
        "labels": dict(order.labels),
        "kind": order.kind,
        "site": order.site,
        "spec": order.spec,
        "kubernetes": kubernetes,
        "provider_id": machines_id,
        "peer_id": None if machines_id == found.row.provider_id else found.row.provider_id,
        "adopted": {"found_id": found.row.id, "ref": found.row.ref, "uid": found.row.uid},
        "state": CLUSTER_STATES.initial,
        "reason": WORDS,
        "deadline_at": CpClock() + func.make_interval(0, 0, 0, 0, 0, 0, stay),
    }


def _seat(session: Session, row: ClusterRow, found: FoundCluster) -> None:
    """
    Which Node each machine is stands with the cluster: both are recognised by their firmware's name, once.
    """
    held = {one[0].node_id: one[0].id for one in repository.members_of(session, [row.id])[row.id]}
    seats = {held[one.node.id]: one.ref for one in found.hosts if one.node is not None}
    row.adopted = {**(row.adopted or {}), repository.SEATS: seats}
    session.flush()


def _hold(
    session: Session,
    row: Any,
    order: Order,
    found: FoundCluster,
    facts: Mapping[str, catalog.InstanceType],
    blueprints: Mapping[str, str],
) -> None:
    ids = dict(zip((one.name for one in order.sets), sorted(new_id("nds") for _ in order.sets), strict=True))
    values = [
        {
            "id": ids[one.name],
            "cluster_id": row.id,
            "tenant_id": row.tenant_id,
            "name": one.name,
            "role": one.role,
            "blueprint_id": blueprints.get(one.name),
            "instance_type": one.instance_type,
            "count": one.count,
            "gpus": facts[one.instance_type].gpus,
            "gpu_model": facts[one.instance_type].gpu_model,
            "unplaced": 0,
        }
        for one in order.sets
    ]
    session.execute(insert(NodeSetRow.__table__), values)  # type: ignore[arg-type]
    holds = [
        nodes.Hold(one.node.id, row.id, ids[one.node_set], row.tenant_id, row.reseller_id, row.project_id)
        for one in found.hosts
        if one.node is not None
    ]
    if not nodes.adopt(session, holds):
        raise NotAdoptable("Its nodes were taken, or set to work, meanwhile; look again.", obstacles=[], hint="Try again.")
