"""
Placement as a decision: all waiting orders, one snapshot of the fleet, one transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from sqlalchemy import bindparam, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from controlplane.clusters import founding, managing, repository
from controlplane.clusters.models import ClusterRow, NodeSetRow
from controlplane.clusters.states import ClusterFacts
from controlplane.images import service as images
from controlplane.kit.errors import QuotaExceeded
from controlplane.kit.lifecycle import Claim
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes import service as nodes
from controlplane.quotas import service as quotas
from controlplane.scheduling.fleet import Fleet
from controlplane.scheduling.placement import place_all
from controlplane.scheduling.requests import NodeSetRequest, Placement, Refusal, Request

ONE_PLACER = 7306125092
RETRY_S = 5.0
POLL_S = 10.0
FEWEST_FAILED = 3
SHARE_FAILED = 0.25
"""So many nodes, or that share of the wanted ones if it is more, may fail to be deployed before an order is given up."""
NEEDS_MACHINES_ONLY = "baremetal"
TRY_PLACER = text("SELECT pg_try_advisory_xact_lock(:lock)")


@dataclass(frozen=True, slots=True)
class Order:
    """
    What one cluster still lacks.
    """

    claim: Claim
    """The cluster."""
    lacking: tuple[tuple[NodeSetRow, int], ...]
    """Node sets and how many nodes each of them lacks."""
    near: frozenset[str]
    """Nodes it has."""
    replaces: bool = False
    """Whether nodes leave it for which it wants others."""

    @property
    def row(self) -> Any:
        """
        The cluster's columns.
        """
        return self.claim.row


def decide(session: Session, claims: Sequence[Claim]) -> Mapping[str, Sequence[Outcome]]:
    """
    What becomes of clusters that wait for nodes: placed, still waiting with a reason, refused, or complete.

    Of several workers one decides at a time; the others leave the rows to it.
    """
    if not session.execute(TRY_PLACER, {"lock": ONE_PLACER}).scalar_one():
        return {}
    ids = [claim.id for claim in claims]
    sets, members = repository.sets_of(session, ids), repository.members_of(session, ids)
    failed = _failed_deployments(session, claims)
    orders: list[Order] = []
    paths: dict[str, Sequence[Outcome]] = {}
    for claim in claims:
        order = _order(claim, sets[claim.id], members[claim.id])
        if not order.lacking:
            paths[claim.id] = _complete(claim, members[claim.id])
            continue
        given_up = _given_up(failed.get(claim.id, 0), sets[claim.id])
        if given_up is not None:
            paths[claim.id] = _path(order, given_up)
            continue
        try:
            _carry_charge(session, order, members[claim.id])
        except QuotaExceeded as error:
            paths[claim.id] = _path(order, Wait(f"A replacement waits for quota: {error.detail}", RETRY_S))
        else:
            orders.append(order)
    paths.update(_place(session, orders) if orders else {})
    return paths


def _order(claim: Claim, sets: Sequence[NodeSetRow], members: Sequence[Any]) -> Order:
    staying = [row for row in members if row[0].state in {"held", "active"} and not row[0].leaving]
    lacking = []
    for one in sets:
        short = one.count - sum(1 for row in staying if row[0].node_set_id == one.id)
        if short > 0:
            lacking.append((one, short))
    replaces = any(row[0].leaving and row[0].state in {"held", "active"} for row in members)
    return Order(claim, tuple(lacking), frozenset(row[0].node_id for row in staying), replaces)


def _failed_deployments(session: Session, claims: Sequence[Claim]) -> dict[str, int]:
    """
    How many nodes each of these clusters was given and could not be deployed: in all for an order, by the present change for one that runs.
    """
    since = {
        one.id: one.row["state_since"] if one.state == "updating" else None
        for one in claims
        if one.state in {"provisioning", "updating"}
    }
    return nodes.failed_deployments(session, since)


def _given_up(failed: int, sets: Sequence[NodeSetRow]) -> Outcome | None:
    """
    The end of an order for which too many nodes could not be deployed. What fails everywhere is not the nodes' fault, user-data that
    breaks every boot for example: it must not go on through the fleet and put one node after the other aside.
    """
    most = max(FEWEST_FAILED, ceil(sum(one.count for one in sets) * SHARE_FAILED))
    if failed < most:
        return None
    words = f"{failed} nodes could not be deployed for it; no more are tried."
    return Fail("deploy_failed", words)


def _carry_charge(session: Session, order: Order, members: Sequence[Any]) -> None:
    """
    Nodes that are to replace others are charged once: the charge moves over from the allocation that leaves or is being
    cleaned, and is taken anew when it was given back already. Raises QuotaExceeded.
    """
    for one, short in order.lacking:
        if short <= one.unplaced:
            continue
        withdrawn = [
            row[0].id
            for row in members
            if row[0].node_set_id == one.id and row[0].charged and (row[0].state == "releasing" or row[0].leaving)
        ]
        moved = nodes.transfer_charge(session, withdrawn[: short - one.unplaced])
        fresh = short - one.unplaced - moved
        if fresh:
            chain = quotas.Chain(order.row["reseller_id"], order.row["tenant_id"], order.row["project_id"])
            with session.begin_nested():
                quotas.take(session, chain, [quotas.Need("gpus", fresh * one.gpus, one.gpu_model, order.row["site"])])
        repository.set_unplaced(session, [(one.id, moved + fresh)])
        session.refresh(one)


def _complete(claim: Claim, members: Sequence[Any]) -> Sequence[Outcome]:
    """
    All nodes are held: go on when all are deployed.
    """
    staying = [row for row in members if row[0].state in {"held", "active"}]
    ready = sum(1 for row in staying if row[0].state == "active")
    if ready < len(staying):
        return [Wait(f"{ready} of {len(staying)} nodes are deployed.", POLL_S)]
    if claim.state == "updating":
        return [Wait("All nodes are deployed.", 0.0, step="applying")]
    return [Advance("bootstrapping", f"All {len(staying)} nodes are deployed.")]


def _may_wait(order: Order) -> bool:
    """
    Whether the order outlives a lack of nodes or of a provider: it said so, or its nodes were chosen once and it only wants replacements. A
    growth is refused like a new order is; the cluster then goes on as it was.
    """
    return bool(order.row["spec"].get("wait")) or order.claim.state == "provisioning" or order.replaces


def _unmade(order: Order) -> Outcome:
    """
    Nobody makes the product now; a provider that is new, or switched off, says nothing about what it can do.
    """
    words = f"No provider in {order.row['site']} makes {order.row['kind']} clusters for you."
    return Wait(words, RETRY_S) if _may_wait(order) else Fail("product_not_available", words)


def _place(session: Session, orders: Sequence[Order]) -> dict[str, Sequence[Outcome]]:
    sites = [order.row["site"] for order in orders]
    pools = nodes.read_pools(session, sites)
    fleet = Fleet.from_rows(nodes.read_fleet(session, sites))
    formats = images.formats_of(session, {one.image_id for order in orders for one, _ in order.lacking if one.image_id is not None})
    chosen = {order.claim.id: _pool_for(order, pools, formats) for order in orders}
    able = [order for order in orders if chosen[order.claim.id] is not None]
    answers = place_all(fleet, [_request(order, chosen[order.claim.id].pool) for order in able])
    paths: dict[str, Sequence[Outcome]] = {}
    for order in orders:
        if chosen[order.claim.id] is None:
            paths[order.claim.id] = _path(order, _unmade(order))
    for order, answer in zip(able, answers, strict=True):
        paths[order.claim.id] = _settle(session, order, answer, chosen[order.claim.id])
    return paths


def _pool_for(order: Order, pools: Sequence[Any], formats: Mapping[str, str]) -> Any:
    """
    The provider that shall make the cluster: its present one, or the first in the site that makes this product for this tenant.
    """
    wanted = {formats[one.image_id] for one, _ in order.lacking if one.image_id is not None}
    managed = managing.is_managed(order.row["kubernetes"])
    product = NEEDS_MACHINES_ONLY if order.row["peer_id"] is not None else managing.PRODUCT if managed else order.row["kind"]
    for pool in pools:
        if order.row["provider_id"] is not None and pool.id != order.row["provider_id"]:
            continue
        if not nodes.installs_images(pool, wanted):
            continue
        if managed and order.row["provider_id"] is None and not _makes(order, pool):
            continue
        products = pool.capabilities.get("products", [])
        others = set(pool.tenants) - {order.row["tenant_id"]}
        if pool.site == order.row["site"] and product in products and not others:
            return pool
    return None


def _makes(order: Order, pool: Any) -> bool:
    return managing.makes(pool, {one.instance_type for one, _ in order.lacking}, order.row["kubernetes"]["version"])


def _request(order: Order, pool: str) -> Request:
    return Request(
        id=order.claim.id,
        site=pool,
        sets=tuple(NodeSetRequest(one.name, one.instance_type, short) for one, short in order.lacking),
        near_nodes=order.near,
    )


def _settle(session: Session, order: Order, answer: Placement | Refusal, pool: Any) -> Sequence[Outcome]:
    if isinstance(answer, Refusal):
        return _path(order, _refused(order, answer))
    users = pool.config.get("users")
    user = "" if users is None else repository.assign_user(session, pool.id, users, order.row["tenant_id"])
    if user is None:
        return _path(order, Wait("Every account at the provider is in use by others.", RETRY_S))
    by_name = {one.name: one for one, _ in order.lacking}
    holds = [
        nodes.Hold(
            node_id=node_id,
            cluster_id=order.claim.id,
            node_set_id=by_name[name].id,
            tenant_id=order.row["tenant_id"],
            reseller_id=order.row["reseller_id"],
            project_id=order.row["project_id"],
            blueprint_id=by_name[name].blueprint_id or order.row["blueprint_id"],
            image_id=by_name[name].image_id,
        )
        for name, ids in answer.nodes.items()
        for node_id in ids
    ]
    refused = _take(session, order, holds)
    if refused is not None:
        return _path(order, refused)
    repository.set_unplaced(session, [(one.id, -min(short, one.unplaced)) for one, short in order.lacking])
    _remember(session, order, answer, pool.id, user)
    return _path(order, Advance("provisioning", f"{len(holds)} nodes chosen in {_words(answer)}."))


def _take(session: Session, order: Order, holds: Sequence[nodes.Hold]) -> Outcome | None:
    """
    None when the nodes are the cluster's, and its hosts' files tell of them; else nothing is, and why.
    """
    with session.begin_nested() as savepoint:
        if not nodes.hold(session, holds):
            savepoint.rollback()
            return Wait("The chosen nodes were taken by another order; choosing again.", 0.1)
        if order.row["peer_id"] is None:
            return None
        try:
            founding.renew(session, order.row, "members")
        except founding.BAD_PLANS as error:
            savepoint.rollback()
            return Fail(
                error.code,
                f"The nodes of this site cannot be made a {order.row['kind'].capitalize()} cluster.",
                detail=error.detail,
            )
    return None


def _remember(session: Session, order: Order, answer: Placement, provider_id: str, user: str) -> None:
    if order.near:
        return
    shown = {
        "domain_kind": answer.domain_kind,
        "explanation": f"{len(answer.node_ids)} nodes in {_words(answer)}, the smallest kind of fabric domain that fits.",
        "operator": {"domain_path": list(answer.domain_path), "explanation": answer.explanation},
    }
    statement = update(ClusterRow).where(ClusterRow.id == order.claim.id)
    session.execute(
        statement.values(
            provider_id=provider_id, provider_user=user or order.row["provider_user"], placement=bindparam("shown", type_=JSONB())
        ),
        {"shown": shown},
    )


def _words(answer: Placement) -> str:
    return "one NVLink domain" if answer.domain_kind == "nvlink_domain" else f"one {answer.domain_kind}"


def _refused(order: Order, refusal: Refusal) -> Outcome:
    site = order.row["site"]
    wanted = " and ".join(f"{short} of {one.instance_type}" for one, short in order.lacking)
    words = f"{wanted} wanted in {site}: {refusal.missing_nodes} more free nodes are needed."
    if refusal.best_alternative is not None and refusal.best_alternative.kind == "smaller_gang":
        words += f" {refusal.best_alternative.nodes} nodes would fit now."
    if refusal.code == "insufficient_capacity" and _may_wait(order):
        return Wait(words, RETRY_S)
    code = "insufficient_capacity" if refusal.code == "insufficient_capacity" else "never_fits"
    facts = ClusterFacts(issues=({"code": code, "message": words},))
    return Fail(code, words, facts=facts)


def _path(order: Order, last: Outcome) -> Sequence[Outcome]:
    """
    The moves from where the cluster stands to the last outcome, one legal step at a time.
    """
    state = order.claim.state
    if state == "pending":
        return [Advance("placing"), last]
    if state == "placing":
        return [last]
    if state == "updating":
        if isinstance(last, Fail) and not order.row["issues"] and not (order.replaces and order.row["peer_id"]):
            return [replace(last, to="running")]  # nothing of the change was begun with its members
        return [last if isinstance(last, (Fail, Wait)) else Wait(last.reason if isinstance(last, Advance) else "", POLL_S)]
    return [Wait(last.reason, POLL_S) if isinstance(last, Advance) else last]
