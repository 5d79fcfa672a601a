"""
Roles, the rules by which rights go down the tree and never grow, and which verbs a tenant's state allows. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_network

from controlplane.identity.errors import ExceedsMaker
from controlplane.kit.access import Principal, ScopeKind

NOUNS: Mapping[str, tuple[str, ...]] = {
    "keys": ("read", "create", "delete"),
    "members": ("read", "write"),
    "tenants": ("read", "create", "update", "delete", "suspend"),
    "projects": ("read", "create", "update", "delete"),
    "quotas": ("read", "write"),
    "catalog": ("read", "write"),
    "images": ("read", "create", "update", "delete"),
    "availability": ("read",),
    "nodes": ("read", "write"),
    "providers": ("read", "write"),
    "qualification": ("read", "write"),
    "clusters": ("read", "create", "update", "delete", "credentials"),
    "jobs": ("read", "create", "delete", "logs"),
    "services": ("read", "create", "update", "delete", "logs"),
    "operations": ("read", "cancel", "resolve"),
    "usage": ("read",),
    "prices": ("read", "write"),
    "events": ("read",),
    "audit": ("read",),
    "resellers": ("read", "create", "update", "delete"),
}
PERMISSIONS = frozenset(f"{noun}:{verb}" for noun, verbs in NOUNS.items() for verb in verbs)


def _all(noun: str) -> frozenset[str]:
    return frozenset(f"{noun}:{verb}" for verb in NOUNS[noun])


def _read(*nouns: str) -> frozenset[str]:
    return frozenset(f"{noun}:read" for noun in nouns)


_BILLING = _read("tenants", "projects", "quotas", "catalog", "availability", "usage", "prices", "events", "operations")
_PROJECT_VIEWER = _BILLING | _read("clusters", "jobs", "services", "images") | {"jobs:logs", "services:logs"}
_PROJECT_MEMBER = _PROJECT_VIEWER | _all("clusters") | _all("jobs") | _all("services") | {"operations:cancel"}
_PROJECT_ADMIN = _PROJECT_MEMBER | _all("members") | _all("keys") | {"projects:update"}
_TENANT_ADMIN = _PROJECT_ADMIN | _all("projects") | _all("quotas") | _all("images") | _read("audit")
_TENANT_OWNER = _TENANT_ADMIN | {"tenants:update"}
_RESELLER_VIEWER = _BILLING | _read("keys", "members", "audit", "resellers")
_RESELLER_ADMIN = _TENANT_OWNER | _RESELLER_VIEWER | _all("tenants") | {"resellers:update"}

ROLES: Mapping[str, frozenset[str]] = {
    "operator": PERMISSIONS,
    "operator_viewer": _read(*(noun for noun, verbs in NOUNS.items() if "read" in verbs)),
    "reseller_admin": _RESELLER_ADMIN,
    "reseller_viewer": _RESELLER_VIEWER,
    "tenant_owner": _TENANT_OWNER,
    "tenant_admin": _TENANT_ADMIN,
    "tenant_billing": _BILLING,
    "project_admin": _PROJECT_ADMIN,
    "project_member": _PROJECT_MEMBER,
    "project_viewer": _PROJECT_VIEWER,
}
"""What each role may do at its scope and below; a role higher in the tree holds everything its lower ones do."""

ROLE_LEVEL: Mapping[str, ScopeKind] = {
    role: "platform" if role.startswith("operator") else role.split("_", 1)[0]  # type: ignore[misc]
    for role in ROLES
}
"""The one level of the tree at which a role may be bound."""

TOP_RIGHTS: Mapping[ScopeKind, frozenset[str]] = {
    "platform": ROLES["operator"],
    "reseller": ROLES["reseller_admin"],
    "tenant": ROLES["tenant_owner"],
    "project": ROLES["project_admin"],
}
"""The most that any role of a level holds."""


@dataclass(frozen=True, slots=True)
class Scope:
    """
    A place in the tree, with the path to it.
    """

    kind: ScopeKind
    """Level."""
    id: str
    """`platform`, or the id of the scope."""
    reseller_id: str = ""
    """Reseller on the path; empty for the platform."""
    tenant_id: str = ""
    """Tenant on the path; empty above tenants."""
    project_id: str = ""
    """Project on the path; empty above projects."""

    def covers(self, other: "Scope") -> bool:
        """
        Whether the other place is this one or lies below it.
        """
        if self.kind == "platform":
            return True
        if self.kind == "reseller":
            return other.reseller_id == self.reseller_id
        if self.kind == "tenant":
            return other.tenant_id == self.tenant_id
        return other.project_id == self.project_id


PLATFORM = Scope("platform", "platform")


def scope_of(principal: Principal) -> Scope:
    """
    Where the principal's key stands.
    """
    return Scope(principal.scope_kind, principal.scope_id, principal.reseller_id, principal.tenant_id, principal.project_id)


@dataclass(frozen=True, slots=True)
class Grant:
    """
    A role at a place.
    """

    role: str
    """A name of `ROLES`."""
    scope: Scope
    """Where it holds."""


def check_grant(granter: Principal, grant: Grant) -> None:
    """
    Returns when the granter may give or take the role there. Raises ExceedsMaker: its place must lie at or below the granter's, and
    every right of it must be held by the granter.
    """
    if ROLE_LEVEL[grant.role] != grant.scope.kind or not scope_of(granter).covers(grant.scope):
        raise ExceedsMaker(f"The role {grant.role} cannot be given or taken there with this key.", role=grant.role)
    missing = ROLES[grant.role] - granter.permissions
    if missing:
        raise ExceedsMaker(
            f"The role {grant.role} holds rights that this key does not, among them {min(missing)}.", role=grant.role
        )


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """
    What narrows a key; None means: not at all.
    """

    permissions: frozenset[str] | None = None
    """The most it may do."""
    networks: tuple[str, ...] | None = None
    """Where it may be used from."""
    expires_at: datetime | None = None
    """Until when."""


def limits_for(maker: Principal, own: KeyLimits, asked: KeyLimits, *, follows_roles: bool) -> KeyLimits:
    """
    The limits of a key that the maker makes with a key limited by `own`: never wider, never longer-lived than that one. What is
    not asked for is taken over. `follows_roles` lets an unlimited key stay so. Raises ExceedsMaker.
    """
    return KeyLimits(
        permissions=_permissions(maker, own, asked, follows_roles=follows_roles),
        networks=_networks(own, asked),
        expires_at=_expiry(own, asked),
    )


def _permissions(maker: Principal, own: KeyLimits, asked: KeyLimits, *, follows_roles: bool) -> frozenset[str] | None:
    if asked.permissions is not None:
        missing = asked.permissions - maker.permissions
        if missing:
            raise ExceedsMaker(f"A key cannot hold {min(missing)}: the key that makes it does not.", permission=min(missing))
        return asked.permissions
    return None if follows_roles and own.permissions is None else maker.permissions


def _networks(own: KeyLimits, asked: KeyLimits) -> tuple[str, ...] | None:
    if asked.networks is None or own.networks is None:
        return own.networks if asked.networks is None else asked.networks
    for one in asked.networks:
        if not any(_inside(ip_network(one), ip_network(wide)) for wide in own.networks):
            raise ExceedsMaker(f"A key cannot be used from {one}: the key that makes it cannot.")
    return asked.networks


def _inside(small: IPv4Network | IPv6Network, wide: IPv4Network | IPv6Network) -> bool:
    if isinstance(small, IPv4Network) and isinstance(wide, IPv4Network):
        return small.subnet_of(wide)
    return isinstance(small, IPv6Network) and isinstance(wide, IPv6Network) and small.subnet_of(wide)


def _expiry(own: KeyLimits, asked: KeyLimits) -> datetime | None:
    if own.expires_at is None or asked.expires_at is None:
        return asked.expires_at or own.expires_at
    if asked.expires_at > own.expires_at:
        raise ExceedsMaker("A key cannot live longer than the key that makes it.")
    return asked.expires_at


@dataclass(frozen=True, slots=True)
class Verb:
    """
    Whether a verb is allowed now.
    """

    name: str
    """suspend, resume or delete."""
    allowed: bool
    """Now, for this caller."""
    reason: str
    """Why not; empty when allowed."""


def tenant_verbs(state: str, *, suspended_by: str, caller: ScopeKind, live_clusters: int) -> tuple[Verb, ...]:
    """
    Every verb of a tenant, and why it is not allowed when it is not.
    """
    above = suspended_by == "platform" and caller != "platform"
    reasons = {
        "suspend": "" if state == "active" else f"The tenant is {state}.",
        "resume": "It was suspended at a higher level." if above else "" if state == "suspended" else f"The tenant is {state}.",
        "delete": "The tenant is deleted."
        if state == "deleted"
        else f"{live_clusters} clusters must be deleted first."
        if live_clusters
        else "",
    }
    return tuple(Verb(name, not reason, reason) for name, reason in reasons.items())
