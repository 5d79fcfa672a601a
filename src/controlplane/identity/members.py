"""
Use cases of members: who acts in a tenant, for a reseller or for the platform, and with which roles. Nobody gives or takes a right
that they do not hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from controlplane.identity import keys, repository
from controlplane.identity.errors import LastOwner
from controlplane.identity.keys import FreshKey
from controlplane.identity.models import PrincipalRow, RoleBindingRow
from controlplane.identity.repository import Filters
from controlplane.identity.states import PLATFORM, ROLE_LEVEL, Grant, Scope, check_grant, scope_of
from controlplane.kit.access import Principal
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, fetch_page


@dataclass(frozen=True, slots=True)
class RoleAsk:
    """
    A role as a caller names it.
    """

    role: str
    """A name of `states.ROLES`."""
    project_id: str | None = None
    """For the roles of projects: in which one."""


@dataclass(frozen=True, slots=True)
class NewMember:
    """
    Somebody new.
    """

    kind: str
    """user or service_account."""
    name: str
    """For people."""
    email: str
    """Address of a user; empty for a service account."""
    roles: Sequence[RoleAsk] = ()
    """What it may do."""


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """
    What is to change; None: stays as it is.
    """

    name: str | None = None
    """The new name."""
    state: str | None = None
    """active or disabled."""
    roles: Sequence[RoleAsk] | None = None
    """The new roles, all of them (of this project only, for a key of a project)."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """
    A member with its roles.
    """

    row: PrincipalRow
    """Who."""
    grants: Sequence[RoleBindingRow]
    """Its roles, oldest first; a key of a project sees those of that project."""


def create_member(session: Session, principal: Principal, new: NewMember) -> MemberView:
    """
    The member exists in the principal's tenant (or at its reseller, or the platform) with its roles. Raises ExceedsMaker, NameTaken,
    NotFound, Invalid.
    """
    home = _home(session, principal)
    grants = _grants(session, principal, new.roles)
    for one in grants:
        check_grant(principal, one)
    row = _add(session, new, home)
    for one in grants:
        repository.bind(session, row.id, one.role, one.scope)
    return _view(session, principal, row)


def get_member(session: Session, principal: Principal, member_id: str) -> MemberView:
    """
    The member. Raises NotFound.
    """
    return _view(session, principal, _member(session, principal, member_id))


def list_members(session: Session, principal: Principal, ask: PageAsk, filters: Filters) -> Page[MemberView]:
    """
    A page of members: of the tenant (reseller, platform), or for a key of a project of those with a role in it.
    """
    scope = scope_of(principal)
    page: Page[PrincipalRow] = fetch_page(
        session, repository.narrow(repository.members_of(scope), PrincipalRow, filters), PrincipalRow.id, ask
    )
    grants = repository.grants_of(session, [row.id for row in page.items])
    return page.map(lambda row: MemberView(row, _seen(scope, grants[row.id])))


def update_member(session: Session, principal: Principal, member_id: str, changes: MemberChanges) -> MemberView:
    """
    The member is changed; a disabled one's keys are refused within seconds and accepted again when it is active again. Raises
    NotFound, ExceedsMaker, LastOwner, Invalid.
    """
    row = _member(session, principal, member_id, lock="change")
    grants = repository.grants_of(session, [row.id])[row.id]
    if changes.name is not None or (changes.state is not None and changes.state != row.state):
        _check_all(principal, grants, row)
    if changes.name is not None:
        row.name = changes.name
    if changes.state is not None:
        if changes.state == "disabled":
            _check_owner_stays(session, principal, row, grants)
        row.state = changes.state
    if changes.roles is not None:
        _replace_roles(session, principal, row, grants, changes.roles)
    repository.touch(session, row)
    return _view(session, principal, row)


def remove_member(session: Session, principal: Principal, member_id: str) -> None:
    """
    The member is gone and its own keys are revoked; keys that it made for service accounts stay. With a key of a project: it has no
    role and no key in that project any more. Raises NotFound, ExceedsMaker, LastOwner.
    """
    row = _member(session, principal, member_id, lock="change")
    scope = scope_of(principal)
    grants = repository.grants_of(session, [row.id])[row.id]
    if scope.kind == "project":
        _replace_roles(session, principal, row, grants, ())
        keys.end_keys_of(session, row.id, scope=scope)
        return
    _check_all(principal, grants, row)
    _check_owner_stays(session, principal, row, grants)
    repository.unbind(session, [one.id for one in grants])
    keys.end_keys_of(session, row.id)
    row.state = "deleted"
    repository.touch(session, row)


def create_owner(session: Session, principal: Principal, tenant_id: str, *, name: str, email: str) -> tuple[PrincipalRow, FreshKey]:
    """
    The tenant has an owner with this address, new or not, and a fresh key for it. For resellers and operators. Raises NotFound,
    ExceedsMaker, QuotaExceeded.
    """
    tenant = repository.find_tenant(session, principal, tenant_id, lock="share")
    if tenant is None or tenant.state == "deleted":
        raise NotFound
    home = Scope("tenant", tenant.id, tenant.reseller_id, tenant.id)
    return _first(session, principal, NewMember("user", name, email), Grant("tenant_owner", home))


def create_reseller_admin(
    session: Session, principal: Principal, reseller_id: str, *, name: str, email: str
) -> tuple[PrincipalRow, FreshKey]:
    """
    The reseller has an administrator with this address, new or not, and a fresh key for it. Raises NotFound, ExceedsMaker.
    """
    if repository.find_reseller(session, reseller_id, lock="share") is None:
        raise NotFound
    home = Scope("reseller", reseller_id, reseller_id)
    return _first(session, principal, NewMember("user", name, email), Grant("reseller_admin", home))


def _first(session: Session, principal: Principal, new: NewMember, grant: Grant) -> tuple[PrincipalRow, FreshKey]:
    check_grant(principal, grant)
    home = grant.scope
    row = repository.find_principal_by_email(
        session, new.email.lower(), tenant_id=home.tenant_id or None, reseller_id=home.reseller_id or None
    )
    if row is None:
        row = _add(session, new, home)
    repository.bind(session, row.id, grant.role, home)
    return row, keys.key_for_new_owner(session, principal, row, home)


def _home(session: Session, principal: Principal) -> Scope:
    """
    Where the principal's new members belong; it cannot be deleted until this transaction ends.
    """
    if principal.tenant_id:
        tenant = repository.find_tenant(session, principal, principal.tenant_id, lock="share")
        if tenant is None or tenant.state == "deleted":
            raise NotFound
        return Scope("tenant", tenant.id, tenant.reseller_id, tenant.id)
    if principal.reseller_id and repository.find_reseller(session, principal.reseller_id, lock="share") is None:
        raise NotFound
    return scope_of(principal)


def _add(session: Session, new: NewMember, home: Scope) -> PrincipalRow:
    member_id = new_id("prn")
    row = PrincipalRow(
        id=member_id,
        kind=new.kind,
        name=new.name,
        email=new.email.lower() or member_id,
        reseller_id=home.reseller_id or None,
        tenant_id=home.tenant_id or None,
    )
    repository.add(session, row)
    session.refresh(row)
    return row


def _grants(session: Session, principal: Principal, asked: Sequence[RoleAsk]) -> list[Grant]:
    return [_grant(session, principal, one, position) for position, one in enumerate(dict.fromkeys(asked))]


def _grant(session: Session, principal: Principal, asked: RoleAsk, position: int) -> Grant:
    level = ROLE_LEVEL[asked.role]
    if level == "project" and asked.project_id is not None:
        project = repository.find_project(session, principal, asked.project_id, lock="share")
        if project is None:
            raise NotFound
        return Grant(asked.role, Scope("project", project.id, principal.reseller_id, project.tenant_id, project.id))
    if level == "project" or asked.project_id is not None:
        words = "This role needs a project." if level == "project" else "Only roles of projects have one."
        raise Invalid(words, errors=[FieldError(f"body.roles.{position}.project_id", "wrong_scope", words)])
    if level == "tenant":
        return _known(Grant(asked.role, Scope("tenant", principal.tenant_id, principal.reseller_id, principal.tenant_id)), position)
    if level == "reseller":
        return _known(Grant(asked.role, Scope("reseller", principal.reseller_id, principal.reseller_id)), position)
    return Grant(asked.role, PLATFORM)


def _known(grant: Grant, position: int) -> Grant:
    if not grant.scope.id:
        words = f"The role {grant.role} cannot be held here."
        raise Invalid(words, errors=[FieldError(f"body.roles.{position}.role", "wrong_scope", words)])
    return grant


def _replace_roles(
    session: Session, principal: Principal, row: PrincipalRow, present: Sequence[RoleBindingRow], asked: Sequence[RoleAsk]
) -> None:
    scope = scope_of(principal)
    wanted = {(one.role, one.scope.id): one for one in _grants(session, principal, asked)}
    held = {(one.role, one.scope_id): one for one in _seen(scope, present)}
    for key in wanted.keys() - held.keys():
        check_grant(principal, wanted[key])
    gone = [held[key] for key in held.keys() - wanted.keys()]
    for one in gone:
        check_grant(principal, Grant(one.role, _place(one)))
    if any(one.role == "tenant_owner" for one in gone):
        _check_owner_stays(session, principal, row, gone)
    for key in wanted.keys() - held.keys():
        repository.bind(session, row.id, wanted[key].role, wanted[key].scope)
    repository.unbind(session, [one.id for one in gone])


def _check_all(principal: Principal, grants: Sequence[RoleBindingRow], row: PrincipalRow) -> None:
    """
    Returns when the principal is the member itself or holds, where they hold, all the member's rights.
    """
    if row.id != principal.id:
        for one in grants:
            check_grant(principal, Grant(one.role, _place(one)))


def _check_owner_stays(session: Session, principal: Principal, row: PrincipalRow, losing: Sequence[RoleBindingRow]) -> None:
    if row.state != "active" or not any(one.role == "tenant_owner" for one in losing):
        return
    # One at a time: two owners who remove each other must not both succeed.
    repository.find_tenant(session, principal, principal.tenant_id, lock="change")
    if not repository.has_other_owner(session, principal.tenant_id, row.id):
        raise LastOwner("A tenant keeps at least one active owner; name another first.")


def _member(session: Session, principal: Principal, member_id: str, *, lock: repository.Lock = None) -> PrincipalRow:
    row = repository.find_member(session, scope_of(principal), member_id, lock=lock)
    if row is None:
        raise NotFound
    return row


def _view(session: Session, principal: Principal, row: PrincipalRow) -> MemberView:
    return MemberView(row, _seen(scope_of(principal), repository.grants_of(session, [row.id])[row.id]))


def _seen(scope: Scope, grants: Sequence[RoleBindingRow]) -> list[RoleBindingRow]:
    return [one for one in grants if scope.covers(_place(one))]


def _place(row: RoleBindingRow) -> Scope:
    project_id = row.scope_id if row.scope_kind == "project" else ""
    return Scope(row.scope_kind, row.scope_id, row.reseller_id or "", row.tenant_id or "", project_id)  # type: ignore[arg-type]
