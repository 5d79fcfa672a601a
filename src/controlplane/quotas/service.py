"""
What a scope may hold and what it holds, at every level of the tree.

Limits bind at every level: a project with a higher limit than its tenant is stopped by the tenant's. Take everything a
transaction needs in one call: two calls in one transaction may meet another transaction's two calls in the opposite order, and
Postgres then ends one of them as a deadlock (tried again by the edge, but slowly).
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from controlplane.kit.access import ScopeKind
from controlplane.kit.errors import FieldError, Invalid, NotFound, QuotaExceeded, VersionStale
from controlplane.kit.paging import Page, PageAsk, decode_token, encode_token
from controlplane.quotas import repository
from controlplane.quotas.errors import LimitAboveCeiling
from controlplane.quotas.models import QuotaRow
from controlplane.quotas.repository import Refusal
from controlplane.quotas.states import (
    DEPTHS,
    PLATFORM_SCOPE,
    PROVIDER,
    RESOURCES,
    Chain,
    Counter,
    Drift,
    Limit,
    Need,
    Resource,
    ScopeQuotas,
    ScopeRef,
    merged,
)

__all__ = [
    "PLATFORM_SCOPE",
    "Chain",
    "Counter",
    "Drift",
    "Limit",
    "Need",
    "Resource",
    "ScopeQuotas",
    "ScopeRef",
    "find_scope",
    "get_quotas",
    "get_scoped",
    "give_back",
    "list_quotas",
    "open_counters",
    "recount",
    "replace_limits",
    "set_limit",
    "take",
]

NOUNS = {"gpus": "GPUs", "clusters": "clusters", "keys": "API keys", "operations": "open operations", "image_bytes": "image bytes"}
ASK = {"project": "a tenant administrator", "tenant": "your provider", "reseller": "the platform's operator"}


def open_counters(session: Session, scope: ScopeRef, limits: Mapping[str, int | None] | None = None) -> None:
    """
    The scope has a counter for every resource; a new one has the limit given, or none. Counters that were there are left alone.
    """
    given = dict(limits or {})
    unknown = set(given) - set(RESOURCES)
    if unknown:
        raise ValueError(f"there is no resource {min(unknown)!r}")
    repository.add_base(session, scope, [(resource, given.get(resource)) for resource in RESOURCES])


def take(session: Session, chain: Chain, needs: Iterable[Need], *, viewer: ScopeKind = "tenant") -> None:
    """
    Every counter of every level has risen by what is needed, or none has. `viewer` is the level of whoever reads the refusal: of
    levels above it only that the provider's limit is reached is told, without numbers. Raises QuotaExceeded.
    """
    wanted, levels = merged(needs), chain.scopes()
    if not wanted:
        return
    repository.lock(session, levels, wanted)
    refusals = repository.take(session, levels, wanted)
    if refusals:
        raise _exceeded(refusals, viewer)


def give_back(session: Session, chain: Chain, needs: Iterable[Need]) -> None:
    """
    Every counter of every level has fallen by what is no longer held. Giving back more than is held is a fault of the caller: the
    database refuses a counter below zero with IntegrityError, and AssertionError is raised for a counter that was never taken from.
    """
    wanted, levels = merged(needs), chain.scopes()
    if not wanted:
        return
    repository.lock(session, levels, wanted)
    missing = repository.give_back(session, levels, wanted)
    if missing:
        raise AssertionError(f"{missing} counters that would fall do not exist")


def _exceeded(refusals: Sequence[Refusal], viewer: ScopeKind) -> QuotaExceeded:
    """
    The error for the lowest full level that the viewer may read; the caller can do most about that one.
    """
    first = refusals[0]
    noun = NOUNS[first.resource]
    where = "".join(f" {word} {name}" for word, name in (("of", first.gpu_model), ("in", first.site)) if name)
    if DEPTHS[first.scope_kind] < DEPTHS[viewer]:  # type: ignore[index]
        alternative = f"Ask for fewer {noun}, release some, or ask your provider for more."
        detail = f"Your provider's limit of {noun}{where} does not allow {first.amount} more. {alternative}"
        scope, limit, used = PROVIDER, None, None
    else:
        room = max(first.ceiling - first.used, 0)
        whom = ASK.get(first.scope_kind, "an operator")
        alternative = (
            f"Ask for at most {room}, release {first.amount - room}, or ask {whom} for a limit of {first.used + first.amount}."
        )
        detail = (
            f"The {first.scope_kind}'s limit of {noun}{where} is {first.ceiling}: "
            f"{first.used} are held, {first.amount} more are asked. {alternative}"
        )
        scope, limit, used = first.scope_kind, first.ceiling, first.used
    return QuotaExceeded(
        detail,
        resource=first.resource,
        gpu_model=first.gpu_model or None,
        site=first.site or None,
        scope=scope,
        limit=limit,
        used=used,
        requested=first.amount,
        alternative=alternative,
    )


def set_limit(
    session: Session,
    scope: ScopeRef,
    resource: Resource,
    ceiling: int | None,
    *,
    gpu_model: str = "",
    site: str = "",
    version: int | None = None,
    within: ScopeRef | None = None,
) -> ScopeQuotas:
    """
    The scope's limit is the ceiling; none: no limit of its own. A limit below what is held stops new takes only. `version` must be
    the scope's when given; `within` names the seller whose own limits bound this one. Raises VersionStale, LimitAboveCeiling and
    Invalid.
    """
    repository.lock_scope(session, scope, RESOURCES)
    _check_version(session, scope, version)
    limit = Limit(resource, ceiling, gpu_model, site)
    _check_limits(session, [limit], within)
    repository.set_ceiling(session, scope, resource, gpu_model, site, ceiling)
    return get_quotas(session, scope)


def replace_limits(
    session: Session, scope: ScopeRef, limits: Sequence[Limit], *, version: int | None = None, within: ScopeRef | None = None
) -> ScopeQuotas:
    """
    The scope has exactly these limits: what is not named has no limit of its own any more. Raises as `set_limit` does.
    """
    repository.lock_scope(session, scope, RESOURCES)
    _check_version(session, scope, version)
    _check_limits(session, limits, within)
    wanted = {(one.resource, one.gpu_model, one.site): one.ceiling for one in limits}
    for counter in get_quotas(session, scope).counters:
        wanted.setdefault((counter.resource, counter.gpu_model, counter.site), None)
    for (resource, gpu_model, site), ceiling in sorted(wanted.items()):
        repository.set_ceiling(session, scope, resource, gpu_model, site, ceiling)
    return get_quotas(session, scope)


def _check_version(session: Session, scope: ScopeRef, version: int | None) -> None:
    present = get_quotas(session, scope).version
    if version is not None and version != present:
        raise VersionStale(f"The limits are at version {present}; read them again and repeat the change.", version=present)


def _check_limits(session: Session, limits: Sequence[Limit], within: ScopeRef | None) -> None:
    seen: set[tuple[str, str, str]] = set()
    own = repository.rows_of(session, [within.id]) if within is not None else []
    for position, limit in enumerate(limits):
        key = (limit.resource, limit.gpu_model, limit.site)
        field = f"body.limits.{position}"
        if key in seen:
            raise Invalid("A limit is given twice.", errors=[FieldError(field, "duplicate", "This limit is given twice.")])
        seen.add(key)
        if limit.resource != "gpus" and limit.gpu_model:
            refusal = FieldError(f"{field}.gpu_model", "not_applicable", "Only GPUs have a model.")
            raise Invalid(f"A limit of {NOUNS[limit.resource]} has no GPU model.", errors=[refusal])
        _check_within(own, limit)


def _check_within(own: Sequence[QuotaRow], limit: Limit) -> None:
    """
    Returns when no limit of the seller's that covers this one is lower. No limit at all is fine: the seller's binds at every take.
    """
    for row in own:
        covers = row.resource == limit.resource and row.gpu_model in {"", limit.gpu_model} and row.site in {"", limit.site}
        if covers and row.ceiling is not None and limit.ceiling is not None and limit.ceiling > row.ceiling:
            raise LimitAboveCeiling(
                f"Your own limit of {NOUNS[limit.resource]} is {row.ceiling}; one customer cannot be given {limit.ceiling}.",
                resource=limit.resource,
                gpu_model=row.gpu_model or None,
                site=row.site or None,
                limit=row.ceiling,
                requested=limit.ceiling,
            )


def find_scope(session: Session, scope_id: str) -> ScopeRef | None:
    """
    The scope of this id, when it has counters that may be seen from behind this transaction's wall.
    """
    rows = repository.rows_of(session, [scope_id])
    if not rows:
        return None
    return _scope_of(rows[0])


def get_quotas(session: Session, scope: ScopeRef) -> ScopeQuotas:
    """
    The scope's limits and what is held under them. Raises NotFound for a scope without counters.
    """
    rows = repository.rows_of(session, [scope.id])
    if not rows:
        raise NotFound
    return _quotas_of(rows)


def get_scoped(
    session: Session,
    scope_id: str,
    kind: ScopeKind | None = None,
    *,
    reseller_id: str | None = None,
    tenant_id: str | None = None,
) -> ScopeQuotas:
    """
    The quotas of the scope when it is of this kind and belongs there; none means any. Raises NotFound alike for all that is not so.
    """
    rows = repository.rows_of(session, [scope_id])
    scope = _scope_of(rows[0]) if rows else None
    if (
        scope is None
        or (kind is not None and scope.kind != kind)
        or (reseller_id is not None and scope.reseller_id != reseller_id)
        or (tenant_id is not None and scope.tenant_id != tenant_id)
    ):
        raise NotFound
    return _quotas_of(rows)


def list_quotas(session: Session, tenant_id: str | None, ask: PageAsk, *, project_id: str | None = None) -> Page[ScopeQuotas]:
    """
    A page of the tenant's quotas: its own first, then its projects'; of one project only when one is named. No tenant: all scopes
    from the root down.
    """
    after = _position(ask.token) if ask.token is not None else None
    places = repository.page_of_scopes(session, tenant_id, after, ask.limit + 1, project_id=project_id)
    kept = places[: ask.limit]
    by_scope: dict[str, list[QuotaRow]] = {scope_id: [] for _, scope_id in kept}
    for row in repository.rows_of(session, list(by_scope)):
        by_scope[row.scope_id].append(row)
    token = encode_token(f"{kept[-1][0]}.{kept[-1][1]}") if len(places) > ask.limit else None
    return Page(tuple(_quotas_of(rows) for rows in by_scope.values()), token)


def _position(token: str) -> tuple[int, str]:
    depth, _, scope_id = decode_token(token).partition(".")
    if depth not in {"0", "1", "2", "3"} or not scope_id:
        raise Invalid(
            "The page token is not one of ours.", errors=[FieldError("query.page_token", "invalid_token", "Use a next_page_token.")]
        )
    return int(depth), scope_id


def _scope_of(row: QuotaRow) -> ScopeRef:
    return ScopeRef(row.scope_kind, row.scope_id, row.reseller_id, row.tenant_id)  # type: ignore[arg-type]


def _quotas_of(rows: Sequence[QuotaRow]) -> ScopeQuotas:
    counters = tuple(Counter(one.resource, one.gpu_model, one.site, one.ceiling, one.used) for one in rows)  # type: ignore[arg-type]
    return ScopeQuotas(_scope_of(rows[0]), 1 + sum(one.version - 1 for one in rows), counters)


def recount(session: Session, held: Iterable[tuple[Chain, Need]]) -> list[Drift]:
    """
    Every counter that differs from what the callers hold; nothing when all is well. Sees what the transaction's wall lets it see.
    """
    sums: dict[tuple[str, str, str, str], int] = {}
    for chain, need in held:
        for scope in chain.scopes():
            for gpu_model in {"", need.gpu_model}:
                for site in {"", need.site}:
                    key = (scope.id, need.resource, gpu_model, site)
                    sums[key] = sums.get(key, 0) + need.amount
    counted: dict[tuple[str, str, str, str], int] = {
        (row.scope_id, row.resource, row.gpu_model, row.site): row.used for row in repository.all_rows(session)
    }
    base = {key for key in sums if key[2:] == ("", "")}
    return [
        Drift(*key, counted=counted.get(key, 0), held=sums.get(key, 0))
        for key in sorted(counted.keys() | base)
        if counted.get(key, 0) != sums.get(key, 0)
    ]
