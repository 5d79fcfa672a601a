"""
Use cases of API keys: made, listed, rotated, revoked. A key is counted against its scope and everything above from the moment it is
made until it is revoked; expired ones are revoked when the next is made at the same place.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from controlplane.identity import repository
from controlplane.identity.errors import ExceedsMaker, NotAllowedNow
from controlplane.identity.keytext import mint
from controlplane.identity.models import ApiKeyRow, PrincipalRow
from controlplane.identity.repository import Filters
from controlplane.identity.states import ROLES, TOP_RIGHTS, KeyLimits, Scope, limits_for, scope_of
from controlplane.kit.access import Principal, ScopeKind, narrowed
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.quotas import service as quotas
from controlplane.quotas.service import Chain, Need


@dataclass(frozen=True, slots=True)
class KeyView:
    """
    A key and its state at the moment of the query.
    """

    row: ApiKeyRow
    """The key itself."""
    state: str
    """active, expired or revoked."""


@dataclass(frozen=True, slots=True)
class FreshKey:
    """
    A key just made, with its text, which cannot be had again.
    """

    view: KeyView
    """The key."""
    text: str
    """To be shown once."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """
    What a new key shall be.
    """

    name: str
    """For people."""
    limits: KeyLimits
    """What is asked for; what is None is taken over from the key that makes it."""
    principal_id: str | None = None
    """A service account that will act with it; none: the maker."""
    scope: Scope | None = None
    """Where it stands; none: where the maker's key stands."""


def create_key(session: Session, principal: Principal, new: NewKey) -> FreshKey:
    """
    The key exists; it can do no more, from nowhere else and no longer than the key that made it. Raises ExceedsMaker, NotFound,
    Invalid, QuotaExceeded.
    """
    scope = new.scope or scope_of(principal)
    if not scope_of(principal).covers(scope):
        raise NotFound
    _hold(session, principal, scope)
    holder = _holder(session, principal, new.principal_id)
    return _issue(session, principal, holder, scope, new.name, new.limits)


def key_for_new_owner(session: Session, principal: Principal, owner: PrincipalRow, scope: Scope) -> FreshKey:
    """
    The first key of somebody whom the principal has just given a role at the scope. Raises ExceedsMaker, QuotaExceeded.
    """
    return _issue(session, principal, owner, scope, "first key", KeyLimits())


def list_keys(session: Session, principal: Principal, ask: PageAsk, filters: Filters) -> Page[KeyView]:
    """
    A page of the keys at the principal's scope, and for keys in a tenant also of those below it.
    """
    query = _visible(principal)
    if filters.state is not None:
        query = query.where(repository.KEY_STATE.in_([filters.state]))
    if filters.created_after is not None:
        query = query.where(ApiKeyRow.created_at > filters.created_after)
    return _views(fetch_page(session, query.add_columns(ApiKeyRow.id), ApiKeyRow.id, ask))


def _views(page: Page[tuple[ApiKeyRow, str, str]]) -> Page[KeyView]:
    return page.map(lambda row: KeyView(row[0], row[1]))


def get_key(session: Session, principal: Principal, key_id: str) -> KeyView:
    """
    The key. Raises NotFound.
    """
    return _key(session, principal, key_id)


def revoke_key(session: Session, principal: Principal, key_id: str) -> None:
    """
    The key is refused everywhere within seconds. Raises NotFound, and ExceedsMaker when somebody else's key holds rights that the
    caller's does not. A key that was revoked stays so.
    """
    view = _key(session, principal, key_id, lock="change")
    _check_reach(session, principal, view.row)
    if view.row.revoked_at is None:
        _revoke(session, [view.row])


def rotate_key(
    session: Session, principal: Principal, key_id: str, *, overlap_s: int, expires_at: datetime | None = None
) -> FreshKey:
    """
    A second key with the same holder, place and limits exists, and the first expires after the overlap. Raises NotFound,
    ExceedsMaker, NotAllowedNow, QuotaExceeded.
    """
    _hold(session, principal, _scope(_key(session, principal, key_id).row))
    view = _key(session, principal, key_id, lock="change")
    old = view.row
    if view.state != "active":
        raise NotAllowedNow(f"The key is {view.state}; make a new one.")
    _check_reach(session, principal, old)
    holder = _active(session, old.principal_id)
    own = _own_limits(session, principal)
    ends = {one for one in (old.expires_at, own.expires_at) if one is not None}
    asked = KeyLimits(
        None if old.permissions is None else frozenset(old.permissions) & principal.permissions,
        None if old.networks is None else tuple(old.networks),
        expires_at or min(ends, default=None),
    )
    fresh = _issue(session, principal, holder, _scope(old), old.name, asked)
    ends_at = repository.now(session) + timedelta(seconds=overlap_s)
    old.expires_at = min(old.expires_at or ends_at, ends_at)
    session.flush()
    return fresh


def end_keys(session: Session, scope: Scope) -> None:
    """
    Every key at the scope and below is revoked and counted no more.
    """
    column = {"reseller": ApiKeyRow.reseller_id, "tenant": ApiKeyRow.tenant_id, "project": ApiKeyRow.project_id}[scope.kind]
    _revoke(session, repository.lock_live_keys(session, column == scope.id))


def end_keys_of(session: Session, principal_id: str, *, scope: Scope | None = None) -> None:
    """
    Every key of the principal, or only those at the scope, is revoked and counted no more.
    """
    where: list[ColumnElement[bool]] = [ApiKeyRow.principal_id == principal_id]
    if scope is not None:
        where.append(ApiKeyRow.scope_id == scope.id)
    _revoke(session, repository.lock_live_keys(session, *where))


def held_keys(session: Session) -> Iterator[tuple[Chain, Need]]:
    """
    What `quotas.service.recount` compares the counters of keys with.
    """
    for reseller_id, tenant_id, project_id, count in repository.live_key_counts(session):
        yield Chain(reseller_id, tenant_id, project_id), Need("keys", count)


def add_key(session: Session, holder: PrincipalRow, scope: Scope, name: str, limits: KeyLimits, *, created_by: str) -> FreshKey:
    """
    The key exists and is counted; nobody's rights were asked.
    """
    viewer: ScopeKind = scope.kind
    quotas.take(session, _chain(scope), [Need("keys", 1)], viewer=viewer)
    key_id = new_id("key")
    text, secret_hash = mint(key_id, scope.kind)
    row = ApiKeyRow(
        id=key_id,
        principal_id=holder.id,
        name=name,
        scope_kind=scope.kind,
        scope_id=scope.id,
        reseller_id=scope.reseller_id or None,
        tenant_id=scope.tenant_id or None,
        project_id=scope.project_id or None,
        secret_hash=secret_hash,
        permissions=None if limits.permissions is None else sorted(limits.permissions),
        networks=None if limits.networks is None else list(limits.networks),
        expires_at=limits.expires_at,
        created_by=created_by,
    )
    repository.add(session, row)
    session.refresh(row)
    return FreshKey(KeyView(row, "active"), text)


def _issue(session: Session, maker: Principal, holder: PrincipalRow, scope: Scope, name: str, asked: KeyLimits) -> FreshKey:
    if asked.expires_at is not None and asked.expires_at <= repository.now(session):
        raise Invalid(
            "The key would be expired at once.",
            errors=[FieldError("body.expires_at", "in_the_past", "Must lie in the future.")],
        )
    follows = _follows_roles(maker, holder) and _rights(session, holder.id, scope) <= maker.permissions
    limits = limits_for(maker, _own_limits(session, maker), asked, follows_roles=follows)
    expired = repository.lock_live_keys(session, ApiKeyRow.scope_id == scope.id, repository.KEY_EXPIRED)
    _revoke(session, expired)
    return add_key(session, holder, scope, name, limits, created_by=maker.id)


def _hold(session: Session, principal: Principal, scope: Scope) -> None:
    """
    Returns when the place exists; it cannot be deleted until this transaction ends, so no key outlives the count of keys there. Comes
    before any lock on people or keys, as in deletes. Raises NotFound.
    """
    if scope.tenant_id:
        tenant = repository.find_tenant(session, principal, scope.tenant_id, lock="share")
        if tenant is None or tenant.state == "deleted":
            raise NotFound
    elif scope.reseller_id and repository.find_reseller(session, scope.reseller_id, lock="share") is None:
        raise NotFound
    if scope.project_id and repository.find_project(session, principal, scope.project_id, lock="share") is None:
        raise NotFound


def _follows_roles(maker: Principal, holder: PrincipalRow) -> bool:
    """
    Whether an unlimited key for the holder could never do more than the maker: its own, or one below everything the maker holds.
    """
    home: ScopeKind = "tenant" if holder.tenant_id else "reseller" if holder.reseller_id else "platform"
    return maker.id == holder.id or maker.permissions >= TOP_RIGHTS[home]


def _own_limits(session: Session, maker: Principal) -> KeyLimits:
    if not maker.key_id:  # the command line on the server itself
        return KeyLimits()
    row = repository.own_key(session, maker.key_id)
    if row is None:
        raise NotFound
    return KeyLimits(
        None if row.permissions is None else frozenset(row.permissions),
        None if row.networks is None else tuple(row.networks),
        row.expires_at,
    )


def _holder(session: Session, maker: Principal, principal_id: str | None) -> PrincipalRow:
    if principal_id is None or principal_id == maker.id:
        return _active(session, maker.id)
    holder = repository.find_member(session, scope_of(maker), principal_id, lock="share")
    if holder is None:
        raise NotFound
    if holder.kind != "service_account":
        raise ExceedsMaker("A user's keys are made by that user; for others make a service account.")
    return holder


def _active(session: Session, principal_id: str) -> PrincipalRow:
    row = repository.find_principal(session, principal_id, lock="share")
    if row is None or row.state != "active":
        raise NotFound
    return row


def _check_reach(session: Session, principal: Principal, row: ApiKeyRow) -> None:
    """
    Returns when the key is the principal's own or holds nothing that the principal does not.
    """
    if row.principal_id == principal.id:
        return
    missing = narrowed(_rights(session, row.principal_id, _scope(row)), row.permissions) - principal.permissions
    if missing:
        raise ExceedsMaker(f"The key holds rights that yours does not, among them {min(missing)}.", permission=min(missing))


def _rights(session: Session, principal_id: str, scope: Scope) -> frozenset[str]:
    """
    What the principal's roles at the scope and above it hold.
    """
    path = {"platform", scope.reseller_id, scope.tenant_id, scope.project_id}
    grants = repository.grants_of(session, [principal_id])[principal_id]
    return frozenset[str]().union(*(ROLES.get(one.role, frozenset()) for one in grants if one.scope_id in path))


def _revoke(session: Session, rows: Sequence[ApiKeyRow]) -> None:
    if not rows:
        return
    ended_at = repository.now(session)
    for row in rows:
        row.revoked_at = ended_at
    session.flush()
    for scope, count in Counter(_scope(row) for row in rows).items():
        quotas.give_back(session, _chain(scope), [Need("keys", count)])


def _key(session: Session, principal: Principal, key_id: str, *, lock: Literal["change"] | None = None) -> KeyView:
    row = repository.find_key(session, _visible(principal), key_id, lock=lock)
    if row is None:
        raise NotFound
    return KeyView(row[0], row[1])


def _visible(principal: Principal) -> repository.KeyQuery:
    scope = scope_of(principal)
    return repository.keys_of(scope, only_there=scope.kind in {"platform", "reseller"})


def _scope(row: ApiKeyRow) -> Scope:
    return Scope(row.scope_kind, row.scope_id, row.reseller_id or "", row.tenant_id or "", row.project_id or "")  # type: ignore[arg-type]


def _chain(scope: Scope) -> Chain:
    return Chain(scope.reseller_id or None, scope.tenant_id or None, scope.project_id or None)
