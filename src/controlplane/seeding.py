"""
A simulated region with somebody in it: what `controlplane up` starts from, and tests and benchmarks too.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.identity import service as identity
from controlplane.identity.states import ROLES
from controlplane.kit.access import Principal
from controlplane.kit.clock import utc_now
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.ids import new_id
from controlplane.kit.paging import PageAsk
from controlplane.metering import service as metering
from controlplane.metering.states import Price
from controlplane.nodes import service as nodes
from controlplane.providers.clusters import Clusters
from controlplane.providers.machines import Position, SupportsPositions
from controlplane.providers.registry import AdapterInput, build_adapter

OPERATOR_EMAIL = "operator@cloud.example"
RESELLER = "north-compute"
TENANT = "acme-research"
PROJECT = "training"
DEMO_TYPE = "hgx-h100-8"
DEMO_GPUS = 512
PRICES = {"hgx-h100-8": "2.49", "hgx-h200-8": "3.29", "hgx-b200-8": "4.99", "gb200-nvl72-4": "6.49"}
OPEN_BOOK_FROM = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DemoKeys:
    """
    What somebody needs to try the region.
    """

    operator_key: str
    """Runs the fleet."""
    reseller_key: str
    """Sells it."""
    tenant_key: str
    """Orders and pays."""
    tenant_id: str
    """The tenant."""
    project_id: str
    """Its project."""
    site: str
    """Where its machines stand."""
    instance_type: str
    """What it orders."""


@dataclass(frozen=True, slots=True)
class Region:
    """
    The simulated provider a region is made on.
    """

    world: Path
    """The simulator's file."""
    fleet: str = "demo"
    """A shipped fleet, or a fleet file's path."""
    profile: str = "fast"
    """How long things take."""
    extra: Mapping[str, Any] | None = None
    """More settings of the simulator."""

    @property
    def config(self) -> dict[str, Any]:
        """
        The provider's settings.
        """
        return {"path": str(self.world), "fleet": self.fleet, "profile": self.profile, **(self.extra or {})}


def sow(engine: Engine, region: Region, currency: str, known: Mapping[str, str]) -> DemoKeys:
    """
    The region, an operator, a reseller, a tenant, a project and their keys exist; keys that are known are not made again.
    """
    site = in_transaction(engine, EVERYTHING, lambda session: sow_fleet(session, region))
    return sow_people(engine, currency, site=site, known=known)


def sow_people(engine: Engine, currency: str, *, site: str, known: Mapping[str, str] | None = None) -> DemoKeys:
    """
    An operator, a reseller, a tenant, a project, prices and the site exist; keys that are known are not made again.
    """
    known = known or {}
    fields = list(DemoKeys.__dataclass_fields__)
    if all(known.get(name) for name in fields):
        return DemoKeys(**{name: known[name] for name in fields})
    operator_key = in_transaction(engine, EVERYTHING, lambda session: identity.first_operator(session, OPERATOR_EMAIL, force=True))
    operator = identity.KeyAuthenticator(engine).authenticate(f"Bearer {operator_key}", None)
    return in_transaction(engine, EVERYTHING, lambda session: _sow_people(session, operator, operator_key, site, currency))


def sow_fleet(session: Session, region: Region) -> str:
    """
    Catalog, sites, one provider per site and its nodes are known; nodes new to us are on their way through inspection, checks and
    wipe. The site with the most demo nodes is returned.
    """
    catalog.load_catalog(session)
    given = AdapterInput("seed", region.config, {}, "cp", utc_now)
    adapter = build_adapter("simulated", given)
    by_site: dict[str, list[Position]] = {}
    for one in cast("SupportsPositions", adapter).list_positions():
        by_site.setdefault(one.site, []).append(one)
    capabilities = cast("Clusters", adapter).capabilities()
    for site, positions in by_site.items():
        catalog.ensure_site(session, site, positions[0].region)
        provider = nodes.find_provider(session, f"sim-{site}")
        if provider is None:
            provider = nodes.register_provider(
                session,
                nodes.NewProvider(
                    name=f"sim-{site}",
                    adapter="simulated",
                    site=site,
                    config={**region.config, "site": site},
                    sealed=None,
                    capabilities=asdict(capabilities),
                    shared=True,
                    provider_id=new_id("prv"),
                ),
            )
        nodes.enroll(session, provider.id, site, [_node(one) for one in positions])
    return max(by_site, key=lambda site: sum(one.instance_type == DEMO_TYPE for one in by_site[site]))


def _node(one: Position) -> nodes.NewNode:
    return nodes.NewNode(one.ref, one.block, one.leaf, one.rack, one.nvlink_domain, one.instance_type, one.gpus)


def _sow_people(session: Session, operator: Principal, operator_key: str, site: str, currency: str) -> DemoKeys:
    catalog.load_catalog(session)
    catalog.ensure_site(session, site, site)
    brand = {"name": "North Compute", "colour": "#0b6e4f", "support_email": "help@north.example"}
    everybody = PageAsk(200)
    resellers = identity.list_resellers(session, everybody, identity.Filters()).items
    reseller = next((one.row for one in resellers if one.row.name == RESELLER), None)
    if reseller is None:
        ceilings = {"gpus": DEMO_GPUS * 2}
        described = identity.Described(RESELLER)
        reseller = identity.create_reseller(session, described, brand=brand, domains=["north.example"], ceilings=ceilings).row
    _, reseller_key = identity.create_reseller_admin(
        session, operator, reseller.id, name="North admin", email="admin@north.example"
    )
    limits = {"gpus": DEMO_GPUS, "clusters": 20, "keys": 100, "operations": 100}
    tenants = identity.list_tenants(session, operator, everybody, identity.Filters()).items
    tenant = next((one for one in tenants if one.name == TENANT), None)
    if tenant is None:
        tenant = identity.create_tenant(session, operator, identity.Described(TENANT), limits=limits)
    _, owner_key = identity.create_owner(session, operator, tenant.id, name="Ada Owner", email="ada@acme.example")
    owner = tenant_principal(tenant.id, tenant.reseller_id, owner_key.view.row.principal_id, owner_key.view.row.id)
    projects = identity.list_projects(session, owner, everybody, identity.Filters()).items
    project = next((one for one in projects if one.name == PROJECT), None)
    if project is None:
        project = identity.create_project(session, owner, identity.Described(PROJECT))
    if not metering.current_prices(session, tenant.reseller_id):
        lines = [Price(name, "on_demand", Decimal(amount)) for name, amount in PRICES.items()]
        metering.create_price_book(session, None, currency, OPEN_BOOK_FROM, lines)
    return DemoKeys(operator_key, reseller_key.text, owner_key.text, tenant.id, project.id, site, DEMO_TYPE)


def tenant_principal(tenant_id: str, reseller_id: str, principal_id: str, key_id: str) -> Principal:
    """
    The tenant's owner as the authenticator would make it.
    """
    return Principal(principal_id, key_id, "tenant", tenant_id, ROLES["tenant_owner"], reseller_id, tenant_id)
