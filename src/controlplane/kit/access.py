"""
Who is calling, what they may do and how far they see. Computed by the identity room at every use, understood by all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Literal, Protocol

from controlplane.kit.errors import Forbidden, NotFound
from controlplane.kit.wall import EVERYTHING, Wall

ScopeKind = Literal["platform", "reseller", "tenant", "project"]


@dataclass(frozen=True, slots=True)
class Principal:
    """
    The bearer of an accepted credential, with its rights at this moment.
    """

    id: str
    """`prn_…`: who acts."""
    key_id: str
    """`key_…`: with which key."""
    scope_kind: ScopeKind
    """Level of the key."""
    scope_id: str
    """`platform`, or the id of the scope."""
    permissions: frozenset[str]
    """`noun:verb` strings that hold at the scope."""
    reseller_id: str = ""
    """The scope's reseller; empty for the platform."""
    tenant_id: str = ""
    """The scope's tenant; empty above tenants."""
    project_id: str = ""
    """The scope's project; empty above projects."""
    suspended: bool = False
    """Whether an ancestor is suspended: nothing but deletes is served."""

    @property
    def wall(self) -> Wall:
        """
        What row-level security shows this principal.
        """
        if self.scope_kind == "platform":
            return EVERYTHING
        if self.scope_kind == "reseller":
            return Wall(reseller_id=self.reseller_id)
        return Wall(tenant_id=self.tenant_id)

    @property
    def audit_chain(self) -> str:
        """
        The audit chain its deeds are written to.
        """
        return self.tenant_id or (self.reseller_id if self.scope_kind == "reseller" else "platform")

    def require(self, permission: str) -> None:
        """
        Returns when the permission is held. Raises Forbidden naming it.
        """
        if permission not in self.permissions:
            raise Forbidden(f"This needs the permission {permission}.", permission=permission)

    def check_project(self, project_id: str) -> None:
        """
        Returns when the key's scope covers the project. Raises NotFound as for a project that does not exist.
        """
        if self.project_id and self.project_id != project_id:
            raise NotFound


class Authenticator(Protocol):
    """
    Turns a credential into a principal.
    """

    def authenticate(
        self,
        authorization: str | None,
        client: IPv4Address | IPv6Address | None,
        *,
        reseller_id: str | None = None,
    ) -> Principal:
        """
        The principal of the header; on a reseller's domain (`reseller_id`) only one of that reseller. Raises Unauthenticated with
        the same words for every reason.
        """
        ...


def narrowed(permissions: Iterable[str], to: Iterable[str] | None) -> frozenset[str]:
    """
    The permissions that remain when a key is narrowed.
    """
    return frozenset(permissions) if to is None else frozenset(permissions) & frozenset(to)
