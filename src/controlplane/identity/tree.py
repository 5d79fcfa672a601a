"""
Use cases of the tree: resellers, tenants and projects.

Whoever changes a row holds its lock; whoever adds below it holds a shared one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.identity import keys, repository
from controlplane.identity.errors import NotAllowedNow, StillInUse
from controlplane.identity.models import ProjectRow, ResellerRow, TenantRow
from controlplane.identity.repository import Filters
from controlplane.identity.states import Scope, Verb, tenant_verbs
from controlplane.kit.access import Principal
from controlplane.kit.errors import Conflict, Forbidden, NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.quotas import service as quotas
from controlplane.quotas.states import RESOURCES

CheckVersion = Callable[[int], None]
PLATFORM_RESELLER = "platform"


@dataclass(frozen=True, slots=True)
class Described:
    """
    A name and labels for something new.
    """

    name: str
    """Unique under its parent."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free key-value pairs."""


@dataclass(frozen=True, slots=True)
class Changes:
    """
    What is to change; None: stays as it is.
    """

    name: str | None = None
    """The new name."""
    labels: Mapping[str, str] | None = None
    """The new labels, all of them."""
    brand: Mapping[str, Any] | None = None
    """The new brand, all of it; resellers only."""
    domains: Collection[str] | None = None
    """The new host names, all of them; resellers only."""


@dataclass(frozen=True, slots=True)
class ResellerView:
    """
    A reseller with its host names.
    """

    row: ResellerRow
    """The reseller itself."""
    domains: Sequence[str]
    """Where only its brand is seen."""


# Resellers


def create_reseller(
    session: Session,
    new: Described,
    *,
    brand: Mapping[str, Any],
    domains: Collection[str],
    ceilings: Mapping[str, int | None],
) -> ResellerView:
    """
    The reseller exists with its brand, host names and ceilings. Raises NameTaken, DomainTaken.
    """
    row = ResellerRow(id=new_id("rsl"), name=new.name, labels=dict(new.labels), brand=dict(brand))
    repository.add(session, row)
    session.refresh(row)
    repository.set_domains(session, row.id, domains)
    quotas.open_counters(session, quotas.ScopeRef("reseller", row.id, row.id), ceilings)
    return ResellerView(row, sorted(set(domains)))


def get_reseller(session: Session, reseller_id: str) -> ResellerView:
    """
    The reseller. Raises NotFound.
    """
    row = _reseller(session, reseller_id)
    return ResellerView(row, repository.domains_of(session, [row.id])[row.id])


def list_resellers(session: Session, ask: PageAsk, filters: Filters) -> Page[ResellerView]:
    """
    A page of resellers.
    """
    page: Page[ResellerRow] = fetch_page(session, repository.narrow(select(ResellerRow), ResellerRow, filters), ResellerRow.id, ask)
    domains = repository.domains_of(session, [row.id for row in page.items])
    return page.map(lambda row: ResellerView(row, domains[row.id]))


def update_reseller(session: Session, reseller_id: str, changes: Changes, check: CheckVersion) -> ResellerView:
    """
    The reseller is changed. Raises NotFound, NameTaken, DomainTaken and what `check` raises.
    """
    row = _reseller(session, reseller_id, lock="change")
    check(row.version)
    if changes.name is not None:
        row.name = changes.name
    if changes.labels is not None:
        row.labels = dict(changes.labels)
    if changes.brand is not None:
        row.brand = dict(changes.brand)
    if changes.domains is not None:
        repository.set_domains(session, row.id, changes.domains)
    repository.touch(session, row)
    return ResellerView(row, repository.domains_of(session, [row.id])[row.id])


def suspend_reseller(session: Session, reseller_id: str) -> ResellerView:
    """
    The reseller's keys and those of all its tenants serve nothing but deletes. Raises NotFound, NotAllowedNow.
    """
    return _move_reseller(session, reseller_id, "active", "suspended")


def resume_reseller(session: Session, reseller_id: str) -> ResellerView:
    """
    The reseller is active again. Raises NotFound, NotAllowedNow.
    """
    return _move_reseller(session, reseller_id, "suspended", "active")


def _move_reseller(session: Session, reseller_id: str, before: str, after: str) -> ResellerView:
    row = _reseller(session, reseller_id, lock="change")
    if row.is_platform:
        raise NotAllowedNow("The platform's own reseller is always active.")
    if row.state != before:
        raise NotAllowedNow(f"The reseller is {row.state}.")
    row.state = after
    repository.touch(session, row)
    record(session, moves=[Move("reseller", row.id, before, after)])
    return ResellerView(row, repository.domains_of(session, [row.id])[row.id])


def delete_reseller(session: Session, reseller_id: str, check: CheckVersion) -> None:
    """
    The reseller is gone with its host names, people and keys. Raises NotFound, StillInUse while it has tenants.
    """
    row = _reseller(session, reseller_id, lock="change")
    check(row.version)
    if row.is_platform:
        raise NotAllowedNow("The platform's own reseller cannot be deleted.")
    if repository.has_live_tenants(session, row.id):
        raise StillInUse("The reseller has tenants; delete them first.")
    keys.end_keys(session, Scope("reseller", row.id, row.id))
    repository.end_principals(session, reseller_id=row.id)
    repository.set_domains(session, row.id, ())
    before, row.state = row.state, "deleted"
    repository.touch(session, row)
    record(session, moves=[Move("reseller", row.id, before, "deleted")])


def _reseller(session: Session, reseller_id: str, *, lock: repository.Lock = None) -> ResellerRow:
    row = repository.find_reseller(session, reseller_id, lock=lock)
    if row is None:
        raise NotFound
    return row


def platform_reseller_id(session: Session) -> str:
    """
    The id of the operator's own reseller, which exists from now on. The session must see everything.
    """
    row = repository.platform_reseller(session)
    if row is None:
        row = ResellerRow(id=new_id("rsl"), name=PLATFORM_RESELLER, is_platform=True)
        repository.add(session, row)
        quotas.open_counters(session, quotas.PLATFORM_SCOPE)
        quotas.open_counters(session, quotas.ScopeRef("reseller", row.id, row.id))
    return row.id


def own_reseller_id(session: Session, principal: Principal) -> str:
    """
    The principal's reseller; for operators the platform's own.
    """
    return principal.reseller_id or platform_reseller_id(session)


# Tenants


def require_tenant_key(principal: Principal) -> None:
    """
    Returns for keys of a whole tenant. Raises Forbidden for those of a project: its rights do not reach outside.
    """
    if principal.scope_kind == "project":
        raise Forbidden("This needs a key of the whole tenant.", code="wrong_audience")


def create_tenant(
    session: Session, principal: Principal, new: Described, *, limits: Mapping[str, int | None], reseller_id: str | None = None
) -> TenantRow:
    """
    The tenant exists under the principal's reseller, or for operators under the one named or the platform's own. Raises NameTaken,
    NotFound, LimitAboveCeiling.
    """
    home = principal.reseller_id or reseller_id or platform_reseller_id(session)
    reseller = _reseller(session, home, lock="share")
    if reseller.state != "active":
        raise NotAllowedNow(f"The reseller is {reseller.state}.")
    row = TenantRow(id=new_id("ten"), reseller_id=home, name=new.name, labels=dict(new.labels))
    repository.add(session, row)
    session.refresh(row)
    scope = quotas.ScopeRef("tenant", row.id, home, row.id)
    quotas.open_counters(session, scope, limits)
    within = quotas.ScopeRef("reseller", home, home)
    asked = [quotas.Limit(resource, limits[resource]) for resource in RESOURCES if limits.get(resource) is not None]
    quotas.replace_limits(session, scope, asked, within=within)
    record(session, [Event("tenant.active", "tenant", row.id, row.id)], [Move("tenant", row.id, "", "active", tenant_id=row.id)])
    return row


def get_tenant(session: Session, principal: Principal, tenant_id: str) -> TenantRow:
    """
    The tenant. Raises NotFound for what the principal's key does not cover and for what is deleted.
    """
    return _tenant(session, principal, tenant_id)


def list_tenants(
    session: Session, principal: Principal, ask: PageAsk, filters: Filters, *, reseller_id: str | None = None
) -> Page[TenantRow]:
    """
    A page of the tenants that the principal's key covers.
    """
    query = repository.narrow(repository.tenants_of(principal), TenantRow, filters)
    if reseller_id is not None:
        query = query.where(TenantRow.reseller_id == reseller_id)
    return fetch_page(session, query, TenantRow.id, ask)


def update_tenant(session: Session, principal: Principal, tenant_id: str, changes: Changes, check: CheckVersion) -> TenantRow:
    """
    The tenant is changed. Raises NotFound, NameTaken and what `check` raises.
    """
    row = _tenant(session, principal, tenant_id, lock="change")
    check(row.version)
    if changes.name is not None:
        row.name = changes.name
    if changes.labels is not None:
        row.labels = dict(changes.labels)
    repository.touch(session, row)
    return row


def tenant_actions(session: Session, principal: Principal, tenant_id: str) -> tuple[Verb, ...]:
    """
    Every verb, whether it is allowed now, and why not. Raises NotFound.
    """
    row = _tenant(session, principal, tenant_id)
    return tenant_verbs(
        row.state,
        suspended_by=row.suspended_by,
        caller=principal.scope_kind,
        live_clusters=_live_clusters(quotas.get_quotas(session, _tenant_counters(row))),
    )


def suspend_tenant(session: Session, principal: Principal, tenant_id: str) -> TenantRow:
    """
    The tenant's keys serve nothing but deletes, within seconds; what runs goes on. Raises NotFound, NotAllowedNow.
    """
    row = _tenant(session, principal, tenant_id, lock="change")
    _check_verb(session, principal, row, "suspend")
    row.suspended_by = principal.scope_kind
    return _move_tenant(session, row, "suspended")


def resume_tenant(session: Session, principal: Principal, tenant_id: str) -> TenantRow:
    """
    The tenant is active again. Raises NotFound, NotAllowedNow: what a higher level suspended, a lower one cannot resume.
    """
    row = _tenant(session, principal, tenant_id, lock="change")
    _check_verb(session, principal, row, "resume")
    row.suspended_by = ""
    return _move_tenant(session, row, "active")


def delete_tenant(session: Session, principal: Principal, tenant_id: str, check: CheckVersion) -> None:
    """
    The tenant is gone with its projects, people and keys, and nothing can be taken on its account any more. Raises NotFound, and
    StillInUse while it has clusters.
    """
    row = _tenant(session, principal, tenant_id, lock="change")
    check(row.version)
    keys.end_keys(session, Scope("tenant", row.id, row.reseller_id, row.id))
    live = _live_clusters(_closed(session, _tenant_counters(row)))
    if live:
        raise StillInUse(f"{live} clusters must be deleted first.", clusters=live)
    repository.end_projects(session, row.id)
    repository.end_principals(session, tenant_id=row.id)
    _move_tenant(session, row, "deleted")


def _move_tenant(session: Session, row: TenantRow, after: str) -> TenantRow:
    before, row.state = row.state, after
    repository.touch(session, row)
    record(
        session,
        [Event(f"tenant.{after}", "tenant", row.id, row.id)],
        [Move("tenant", row.id, before, after, tenant_id=row.id)],
    )
    return row


def _check_verb(session: Session, principal: Principal, row: TenantRow, name: str) -> None:
    for verb in tenant_actions(session, principal, row.id):
        if verb.name == name and not verb.allowed:
            raise NotAllowedNow(verb.reason)


def _tenant(session: Session, principal: Principal, tenant_id: str, *, lock: repository.Lock = None) -> TenantRow:
    row = repository.find_tenant(session, principal, tenant_id, lock=lock)
    if row is None or row.state == "deleted":
        raise NotFound
    return row


def _tenant_counters(row: TenantRow) -> quotas.ScopeRef:
    return quotas.ScopeRef("tenant", row.id, row.reseller_id, row.id)


def _closed(session: Session, scope: quotas.ScopeRef) -> quotas.ScopeQuotas:
    """
    The scope's counters, locked, with every limit at zero: a take that waits for them will be refused.
    """
    return quotas.replace_limits(session, scope, [quotas.Limit(resource, 0) for resource in RESOURCES])


def _live_clusters(held: quotas.ScopeQuotas) -> int:
    return sum(one.used for one in held.counters if one.resource == "clusters" and not one.site)


# Projects


def create_project(session: Session, principal: Principal, new: Described) -> ProjectRow:
    """
    The project exists in the principal's tenant. Raises NameTaken, Conflict.
    """
    tenant = _tenant(session, principal, principal.tenant_id, lock="share")
    if tenant.state != "active":
        raise Conflict(f"The tenant is {tenant.state}.")
    row = ProjectRow(id=new_id("prj"), tenant_id=tenant.id, name=new.name, labels=dict(new.labels))
    repository.add(session, row)
    session.refresh(row)
    quotas.open_counters(session, quotas.ScopeRef("project", row.id, tenant.reseller_id, tenant.id))
    _project_event(session, row, "", "active")
    return row


def get_project(session: Session, principal: Principal, project_id: str) -> ProjectRow:
    """
    The project. Raises NotFound for what the principal's key does not cover and for what is deleted.
    """
    return _project(session, principal, project_id)


def hold_project(session: Session, principal: Principal, project_id: str) -> Scope:
    """
    Where the project stands; it cannot be deleted until this transaction ends, so something may be made in it. Raises NotFound.
    """
    row = _project(session, principal, project_id, lock="share")
    return Scope("project", row.id, principal.reseller_id, row.tenant_id, row.id)


def hold_project_of(session: Session, tenant_id: str, project_id: str) -> Scope:
    """
    Where the project of an active tenant stands, for the platform; neither can be deleted until this transaction ends. Raises NotFound.
    """
    found = repository.hold_project_of(session, tenant_id, project_id)
    if found is None:
        raise NotFound
    return Scope("project", project_id, found, tenant_id, project_id)


def list_projects(session: Session, principal: Principal, ask: PageAsk, filters: Filters) -> Page[ProjectRow]:
    """
    A page of the projects that the principal's key covers.
    """
    query = repository.narrow(repository.projects_of(principal), ProjectRow, filters)
    return fetch_page(session, query, ProjectRow.id, ask)


def update_project(session: Session, principal: Principal, project_id: str, changes: Changes, check: CheckVersion) -> ProjectRow:
    """
    The project is changed. Raises NotFound, NameTaken and what `check` raises.
    """
    row = _project(session, principal, project_id, lock="change")
    check(row.version)
    if changes.name is not None:
        row.name = changes.name
    if changes.labels is not None:
        row.labels = dict(changes.labels)
    repository.touch(session, row)
    return row


def delete_project(session: Session, principal: Principal, project_id: str, check: CheckVersion) -> None:
    """
    The project is gone with its keys. Raises NotFound, and StillInUse while it has clusters.
    """
    row = _project(session, principal, project_id, lock="change")
    check(row.version)
    scope = Scope("project", row.id, principal.reseller_id, row.tenant_id, row.id)
    keys.end_keys(session, scope)
    live = _live_clusters(_closed(session, quotas.ScopeRef("project", row.id, principal.reseller_id, row.tenant_id)))
    if live:
        raise StillInUse(f"{live} clusters must be deleted first.", clusters=live)
    row.state = "deleted"
    repository.touch(session, row)
    _project_event(session, row, "active", "deleted")


def _project(session: Session, principal: Principal, project_id: str, *, lock: repository.Lock = None) -> ProjectRow:
    row = repository.find_project(session, principal, project_id, lock=lock)
    if row is None:
        raise NotFound
    return row


def _project_event(session: Session, row: ProjectRow, before: str, after: str) -> None:
    record(
        session,
        [Event(f"project.{after}", "project", row.id, row.tenant_id, row.id)],
        [Move("project", row.id, before, after, tenant_id=row.tenant_id)],
    )
