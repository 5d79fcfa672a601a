"""
What an order would get, without ordering.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.clusters import founding, managing
from controlplane.clusters.checking import check_images, check_order, image_formats
from controlplane.clusters.states import Order
from controlplane.identity import service as identity
from controlplane.kit.access import Principal
from controlplane.metering import service as metering
from controlplane.nodes import service as nodes
from controlplane.scheduling.fleet import Fleet
from controlplane.scheduling.placement import place_all
from controlplane.scheduling.requests import NodeSetRequest, Placement, Request


@dataclass(frozen=True, slots=True)
class Plan:
    """
    The answer of a dry run.
    """

    placed: bool
    """Whether it would be placed at once."""
    domain_kind: str | None
    """The kind of fabric domain."""
    explanation: str
    """Why, or what is missing; names no machine."""
    missing_nodes: int
    """Free nodes that are lacking."""
    alternative: str | None
    """The nearest order that would fit."""
    per_hour: tuple[Decimal, str] | None
    """Price of an hour and its currency."""


def plan(session: Session, principal: Principal, project_id: str, order: Order) -> Plan:
    """
    What the order would get from the fleet as it is. Raises NotFound, Invalid as ordering would.
    """
    project = identity.get_project(session, principal, project_id)
    facts = check_order(session, order)
    check_images(session, principal, project.tenant_id, order)
    pools = _pools(session, project.tenant_id, order)
    price = _price(session, project.tenant_id, order, facts)
    if not pools:
        return Plan(False, None, f"No provider in {order.site} makes {order.kind} clusters.", 0, None, price)
    fleet = Fleet.from_rows(nodes.read_fleet(session, [order.site]))
    sets = tuple(NodeSetRequest(one.name, one.instance_type, one.count) for one in order.sets)
    answer = place_all(fleet, [Request(id="plan", site=pools[0].pool, sets=sets)])[0]
    if isinstance(answer, Placement):
        words = f"{len(answer.node_ids)} nodes in one {answer.domain_kind.replace('nvlink_domain', 'NVLink domain')}."
        return Plan(True, answer.domain_kind, words, 0, None, price)
    words = f"{answer.missing_nodes} more free nodes are needed in one fabric domain."
    best = answer.best_alternative
    near = f"{best.nodes} nodes would fit now." if best is not None and best.kind == "smaller_gang" else None
    return Plan(False, None, words, answer.missing_nodes, near, price)


def _pools(session: Session, tenant_id: str, order: Order) -> list[Any]:
    """
    The providers that make the product for this tenant, the one that an order would take first.
    """
    formats = image_formats(session, order)
    known = [one for one in nodes.read_pools(session, [order.site]) if nodes.installs_images(one, formats)]
    if order.managed:
        return managing.find_pools(known, tenant_id, order)
    if order.own:
        found = founding.find_pool(known, tenant_id, order)
        return [] if found is None else [found]
    return [pool for pool in known if order.kind in pool.capabilities.get("products", []) and not set(pool.tenants) - {tenant_id}]


def _price(session: Session, tenant_id: str, order: Order, facts: dict[str, catalog.InstanceType]) -> tuple[Decimal, str] | None:
    total, currency = Decimal(0), ""
    for one in order.sets:
        gpus = one.count * facts[one.instance_type].gpus
        amount = metering.estimate(session, tenant_id, instance_type=one.instance_type, gpus=gpus)
        if amount is None or currency not in {"", amount.currency}:
            return None
        total, currency = total + amount.amount, amount.currency
    return total, currency
