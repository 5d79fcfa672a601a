"""
Every query of the room. Row-level security stands behind each; the conditions here are the first wall.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Row, Select, and_, case, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from controlplane.identity.errors import DomainTaken
from controlplane.identity.models import (
    ApiKeyRow,
    PrincipalRow,
    ProjectRow,
    ResellerDomainRow,
    ResellerRow,
    RoleBindingRow,
    TenantRow,
)
from controlplane.identity.states import Scope
from controlplane.kit.access import Principal
from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base, constraint_name
from controlplane.kit.errors import NameTaken
from controlplane.kit.ids import new_id

Q = TypeVar("Q", bound=Select[Any])
Lock = Literal["share", "change"] | None
"""share: the row stays as it is until this transaction ends; change: this transaction alone may change it."""

NAME_TAKEN = {
    "uq_resellers_name": "A reseller of this name exists.",
    "uq_tenants_name": "A tenant of this name exists.",
    "uq_projects_name": "A project of this name exists.",
    "uq_principals_email": "A member with this e-mail address or name exists.",
}


def brand_of_host(session: Session, host: str) -> ResellerRow | None:
    """
    The reseller whose domain the host is, or None.
    """
    return session.scalar(
        select(ResellerRow)
        .join(ResellerDomainRow, ResellerDomainRow.reseller_id == ResellerRow.id)
        .where(ResellerDomainRow.domain == host, ResellerRow.state != "deleted")
    )


def platform_reseller(session: Session) -> ResellerRow | None:
    """
    The operator's own reseller, or None before the first operator.
    """
    return session.scalar(select(ResellerRow).where(ResellerRow.is_platform))


def has_live_platform_key(session: Session) -> bool:
    """
    Whether any operator key is accepted now.
    """
    return bool(
        session.scalar(
            select(func.count())
            .select_from(ApiKeyRow)
            .join(PrincipalRow, PrincipalRow.id == ApiKeyRow.principal_id)
            .where(
                ApiKeyRow.scope_kind == "platform",
                ApiKeyRow.revoked_at.is_(None),
                or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > CpClock()),
                PrincipalRow.state == "active",
            )
        )
    )


def find_principal_by_email(session: Session, email: str, *, tenant_id: str | None, reseller_id: str | None) -> PrincipalRow | None:
    """
    The live principal with this address at this home, or None.
    """
    return session.scalar(
        select(PrincipalRow).where(
            PrincipalRow.email == email,
            PrincipalRow.state != "deleted",
            PrincipalRow.tenant_id.is_not_distinct_from(tenant_id),
            PrincipalRow.reseller_id.is_not_distinct_from(reseller_id),
        )
    )


def add(session: Session, row: Base) -> None:
    """
    The row is stored. Raises NameTaken or DomainTaken where another has the name.
    """
    session.add(row)
    flush(session)


def flush(session: Session) -> None:
    """
    Changes are in the database. Raises NameTaken or DomainTaken where another has the name.
    """
    try:
        session.flush()
    except IntegrityError as error:
        name = constraint_name(error)
        if name in NAME_TAKEN:
            raise NameTaken(NAME_TAKEN[name]) from None
        if name == "pk_reseller_domains":
            raise DomainTaken("The domain belongs to a reseller already.") from None
        raise


def bind(session: Session, principal_id: str, role: str, scope: Scope) -> None:
    """
    The principal has the role at the scope, as before or from now on.
    """
    session.execute(
        insert(RoleBindingRow)
        .values(
            id=new_id("rol"),
            principal_id=principal_id,
            role=role,
            scope_kind=scope.kind,
            scope_id=scope.id,
            reseller_id=scope.reseller_id or None,
            tenant_id=scope.tenant_id or None,
        )
        .on_conflict_do_nothing(index_elements=[RoleBindingRow.principal_id, RoleBindingRow.role, RoleBindingRow.scope_id])
    )


@dataclass(frozen=True, slots=True)
class Filters:
    """
    What narrows a list.
    """

    state: str | None = None
    """Only in this state; none: all but the deleted."""
    label: str | None = None
    """`key=value`, or `key` for any value."""
    created_after: datetime | None = None
    """Only what is younger."""


def narrow(query: Select[Any], row: type[Any], filters: Filters) -> Select[Any]:
    """
    The query with the filters applied.
    """
    query = query.where(row.state != "deleted") if filters.state is None else query.where(row.state == filters.state)
    if filters.created_after is not None:
        query = query.where(row.created_at > filters.created_after)
    if filters.label is not None:
        key, equals, value = filters.label.partition("=")
        query = query.where(row.labels.contains({key: value}) if equals else row.labels.has_key(key))
    return query


def tenants_of(principal: Principal) -> Select[TenantRow]:
    """
    The tenants that the principal's key covers.
    """
    query = select(TenantRow)
    if principal.scope_kind == "platform":
        return query
    if principal.scope_kind == "reseller":
        return query.where(TenantRow.reseller_id == principal.reseller_id)
    return query.where(TenantRow.id == principal.tenant_id)


def find_tenant(session: Session, principal: Principal, tenant_id: str, *, lock: Lock = None) -> TenantRow | None:
    """
    The tenant, deleted or not, when the principal's key covers it; the row is locked as asked.
    """
    return session.scalar(_locked(tenants_of(principal).where(TenantRow.id == tenant_id), lock))


def projects_of(principal: Principal) -> Select[ProjectRow]:
    """
    The projects that the principal's key covers; only keys in a tenant cover any.
    """
    query = select(ProjectRow).where(ProjectRow.tenant_id == principal.tenant_id)
    return query if principal.scope_kind == "tenant" else query.where(ProjectRow.id == principal.project_id)


def find_project(session: Session, principal: Principal, project_id: str, *, lock: Lock = None) -> ProjectRow | None:
    """
    The project when the principal's key covers it and it is not deleted; the row is locked as asked.
    """
    query = projects_of(principal).where(ProjectRow.id == project_id, ProjectRow.state != "deleted")
    return session.scalar(_locked(query, lock))


def hold_project_of(session: Session, tenant_id: str, project_id: str) -> str | None:
    """
    The reseller of the tenant, when both are active and the project is the tenant's; both rows are locked against change.
    """
    query = (
        select(TenantRow.reseller_id)
        .join(ProjectRow, ProjectRow.tenant_id == TenantRow.id)
        .where(TenantRow.id == tenant_id, TenantRow.state == "active", ProjectRow.id == project_id, ProjectRow.state == "active")
        .with_for_update(read=True)
    )
    return session.scalar(query)


def find_reseller(session: Session, reseller_id: str, *, lock: Lock = None) -> ResellerRow | None:
    """
    The reseller, when it is not deleted and this transaction may see it; the row is locked as asked.
    """
    query = select(ResellerRow).where(ResellerRow.id == reseller_id, ResellerRow.state != "deleted")
    return session.scalar(_locked(query, lock))


def _locked(query: Q, lock: Lock) -> Q:
    if lock is None:
        return query
    return query.with_for_update(read=lock == "share", key_share=lock == "change").execution_options(populate_existing=True)


def domains_of(session: Session, reseller_ids: Sequence[str]) -> dict[str, list[str]]:
    """
    The host names of each reseller, in order.
    """
    found: dict[str, list[str]] = {one: [] for one in reseller_ids}
    query = select(ResellerDomainRow).where(ResellerDomainRow.reseller_id.in_(reseller_ids)).order_by(ResellerDomainRow.domain)
    for row in session.scalars(query):
        found[row.reseller_id].append(row.domain)
    return found


def set_domains(session: Session, reseller_id: str, domains: Collection[str]) -> None:
    """
    The reseller has exactly these host names. Raises DomainTaken.
    """
    present = set(domains_of(session, [reseller_id])[reseller_id])
    gone = present - set(domains)
    if gone:
        session.execute(delete(ResellerDomainRow).where(ResellerDomainRow.domain.in_(gone)))
    session.add_all(ResellerDomainRow(domain=one, reseller_id=reseller_id) for one in sorted(set(domains) - present))
    flush(session)


def has_live_tenants(session: Session, reseller_id: str) -> bool:
    """
    Whether any tenant of the reseller is not deleted.
    """
    query = select(TenantRow.id).where(TenantRow.reseller_id == reseller_id, TenantRow.state != "deleted").limit(1)
    return session.scalar(query) is not None


def end_projects(session: Session, tenant_id: str) -> None:
    """
    All of the tenant's projects are deleted.
    """
    session.execute(
        update(ProjectRow)
        .where(ProjectRow.tenant_id == tenant_id, ProjectRow.state != "deleted")
        .values(state="deleted", updated_at=CpClock(), version=ProjectRow.version + 1)
    )


def touch(session: Session, row: TenantRow | ProjectRow | ResellerRow | PrincipalRow) -> None:
    """
    The changed row is stored under its next version, and its stamps are read again.
    """
    row.version += 1
    row.updated_at = CpClock()
    flush(session)
    session.refresh(row)


def end_principals(session: Session, *, tenant_id: str | None = None, reseller_id: str | None = None) -> None:
    """
    Everybody whose home is the tenant, or the reseller itself, is deleted and holds no role.
    """
    home = (
        PrincipalRow.tenant_id == tenant_id
        if tenant_id is not None
        else and_(PrincipalRow.reseller_id == reseller_id, PrincipalRow.tenant_id.is_(None))
    )
    ids = select(PrincipalRow.id).where(home)
    session.execute(delete(RoleBindingRow).where(RoleBindingRow.principal_id.in_(ids)).execution_options(synchronize_session=False))
    session.execute(
        update(PrincipalRow)
        .where(home, PrincipalRow.state != "deleted")
        .values(state="deleted", updated_at=CpClock(), version=PrincipalRow.version + 1)
        .execution_options(synchronize_session=False)
    )


def members_of(scope: Scope) -> Select[PrincipalRow]:
    """
    Whose home the scope is; for a project, who has a role in it.
    """
    query = select(PrincipalRow)
    if scope.kind == "project":
        bound = select(RoleBindingRow.principal_id).where(RoleBindingRow.scope_id == scope.project_id)
        return query.where(PrincipalRow.tenant_id == scope.tenant_id, PrincipalRow.id.in_(bound))
    if scope.kind == "tenant":
        return query.where(PrincipalRow.tenant_id == scope.tenant_id)
    if scope.kind == "reseller":
        return query.where(PrincipalRow.reseller_id == scope.reseller_id, PrincipalRow.tenant_id.is_(None))
    return query.where(PrincipalRow.reseller_id.is_(None), PrincipalRow.tenant_id.is_(None))


def find_member(session: Session, scope: Scope, principal_id: str, *, lock: Lock = None) -> PrincipalRow | None:
    """
    The member of the scope when it is not deleted; the row is locked as asked.
    """
    query = members_of(scope).where(PrincipalRow.id == principal_id, PrincipalRow.state != "deleted")
    return session.scalar(_locked(query, lock))


def find_principal(session: Session, principal_id: str, *, lock: Lock = None) -> PrincipalRow | None:
    """
    Whoever it is, when not deleted and when this transaction may see it; the row is locked as asked.
    """
    query = select(PrincipalRow).where(PrincipalRow.id == principal_id, PrincipalRow.state != "deleted")
    return session.scalar(_locked(query, lock))


def grants_of(session: Session, principal_ids: Sequence[str]) -> dict[str, list[RoleBindingRow]]:
    """
    The roles of each principal, oldest first.
    """
    found: dict[str, list[RoleBindingRow]] = {one: [] for one in principal_ids}
    query = select(RoleBindingRow).where(RoleBindingRow.principal_id.in_(principal_ids)).order_by(RoleBindingRow.id)
    for row in session.scalars(query):
        found[row.principal_id].append(row)
    return found


def unbind(session: Session, binding_ids: Collection[str]) -> None:
    """
    The roles are taken away.
    """
    session.execute(delete(RoleBindingRow).where(RoleBindingRow.id.in_(binding_ids)).execution_options(synchronize_session=False))


def has_other_owner(session: Session, tenant_id: str, principal_id: str) -> bool:
    """
    Whether another active principal owns the tenant.
    """
    query = (
        select(RoleBindingRow.id)
        .join(PrincipalRow, PrincipalRow.id == RoleBindingRow.principal_id)
        .where(
            RoleBindingRow.scope_id == tenant_id,
            RoleBindingRow.role == "tenant_owner",
            PrincipalRow.state == "active",
            PrincipalRow.id != principal_id,
        )
    )
    return session.scalar(query.limit(1)) is not None


KEY_STATE = case(
    (ApiKeyRow.revoked_at.is_not(None), "revoked"), (ApiKeyRow.expires_at <= CpClock(), "expired"), else_="active"
).label("key_state")


KEY_EXPIRED = ApiKeyRow.expires_at <= CpClock()
KeyQuery: TypeAlias = "Select[ApiKeyRow, str]"


def keys_of(scope: Scope, *, only_there: bool = False) -> KeyQuery:
    """
    (key, its state now) of every key at the scope, and below it unless `only_there`.
    """
    query = select(ApiKeyRow, KEY_STATE)
    if only_there or scope.kind == "project":
        return query.where(ApiKeyRow.scope_id == scope.id)
    if scope.kind == "tenant":
        return query.where(ApiKeyRow.tenant_id == scope.tenant_id)
    if scope.kind == "reseller":
        return query.where(ApiKeyRow.reseller_id == scope.reseller_id)
    return query


def find_key(
    session: Session, query: KeyQuery, key_id: str, *, lock: Literal["change"] | None = None
) -> Row[ApiKeyRow, str] | None:
    """
    The key and its state, among those of the query; the row is locked as asked.
    """
    query = query.where(ApiKeyRow.id == key_id)
    if lock is not None:
        query = query.with_for_update(of=ApiKeyRow, key_share=True).execution_options(populate_existing=True)
    return session.execute(query).one_or_none()


def own_key(session: Session, key_id: str) -> ApiKeyRow | None:
    """
    The key that a principal calls with, whatever its state.
    """
    return session.get(ApiKeyRow, key_id)


def lock_live_keys(session: Session, *where: ColumnElement[bool]) -> list[ApiKeyRow]:
    """
    The keys that were not revoked, locked, in the order of their ids.
    """
    query = select(ApiKeyRow).where(ApiKeyRow.revoked_at.is_(None), *where).order_by(ApiKeyRow.id)
    return list(session.scalars(_locked(query, "change")))


def now(session: Session) -> datetime:
    """
    The database's clock.
    """
    return session.execute(select(CpClock())).scalar_one()


def live_key_counts(session: Session) -> Sequence[Row[str | None, str | None, str | None, int]]:
    """
    (reseller_id, tenant_id, project_id, number of keys that were not revoked) of everything that has keys.
    """
    where = (ApiKeyRow.reseller_id, ApiKeyRow.tenant_id, ApiKeyRow.project_id)
    return session.execute(select(*where, func.count()).where(ApiKeyRow.revoked_at.is_(None)).group_by(*where)).all()
