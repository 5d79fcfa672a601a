"""
The identity room's open side: who calls, what lives in the tree, and how the first operator comes to be.
"""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from controlplane.identity import keys, repository
from controlplane.identity.authenticating import KeyAuthenticator
from controlplane.identity.errors import NotAllowedNow
from controlplane.identity.keys import FreshKey, KeyView, NewKey, create_key, get_key, held_keys, list_keys, revoke_key, rotate_key
from controlplane.identity.members import (
    MemberChanges,
    MemberView,
    NewMember,
    RoleAsk,
    create_member,
    create_owner,
    create_reseller_admin,
    get_member,
    list_members,
    remove_member,
    update_member,
)
from controlplane.identity.models import PrincipalRow
from controlplane.identity.repository import Filters
from controlplane.identity.states import PLATFORM, KeyLimits, Scope, Verb
from controlplane.identity.tree import (
    Changes,
    CheckVersion,
    Described,
    ResellerView,
    create_project,
    create_reseller,
    create_tenant,
    delete_project,
    delete_reseller,
    delete_tenant,
    get_project,
    get_reseller,
    get_tenant,
    hold_project,
    hold_project_of,
    list_projects,
    list_resellers,
    list_tenants,
    own_reseller_id,
    platform_reseller_id,
    require_tenant_key,
    resume_reseller,
    resume_tenant,
    suspend_reseller,
    suspend_tenant,
    tenant_actions,
    update_project,
    update_reseller,
    update_tenant,
)
from controlplane.kit.ids import new_id

__all__ = [
    "Brand",
    "Changes",
    "CheckVersion",
    "Described",
    "Filters",
    "FreshKey",
    "KeyAuthenticator",
    "KeyLimits",
    "KeyView",
    "MemberChanges",
    "MemberView",
    "NewKey",
    "NewMember",
    "ResellerView",
    "RoleAsk",
    "Scope",
    "Verb",
    "brand_for_host",
    "create_key",
    "create_member",
    "create_owner",
    "create_project",
    "create_reseller",
    "create_reseller_admin",
    "create_tenant",
    "delete_project",
    "delete_reseller",
    "delete_tenant",
    "first_operator",
    "get_key",
    "get_member",
    "get_project",
    "get_reseller",
    "get_tenant",
    "held_keys",
    "hold_project",
    "hold_project_of",
    "list_keys",
    "list_members",
    "list_projects",
    "list_resellers",
    "list_tenants",
    "own_reseller_id",
    "platform_reseller_id",
    "remove_member",
    "require_tenant_key",
    "resume_reseller",
    "resume_tenant",
    "revoke_key",
    "rotate_key",
    "suspend_reseller",
    "suspend_tenant",
    "tenant_actions",
    "update_member",
    "update_project",
    "update_reseller",
    "update_tenant",
]


@dataclass(frozen=True, slots=True)
class Brand:
    """
    What a reseller's domain shows instead of the platform's name.
    """

    reseller_id: str
    """Whose."""
    name: str
    """For people."""
    logo_url: str
    """Empty: none."""
    colour: str
    """`#rrggbb`; empty: none."""
    support_email: str
    """Where its customers turn to; empty: none."""


def brand_for_host(session: Session, host: str) -> Brand | None:
    """
    The brand whose domain the Host header names (port and letter case do not matter), or None. The session must see everything.
    """
    name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
    name = name.rstrip(".").lower()
    reseller = repository.brand_of_host(session, name) if name and name.isprintable() and len(name) <= 253 else None  # noqa: PLR2004 - longest host name
    if reseller is None:
        return None
    brand = reseller.brand
    return Brand(
        reseller_id=reseller.id,
        name=str(brand.get("name") or reseller.name),
        logo_url=str(brand.get("logo_url") or ""),
        colour=str(brand.get("colour") or ""),
        support_email=str(brand.get("support_email") or ""),
    )


def first_operator(session: Session, email: str, *, force: bool = False) -> str:
    """
    The text of a fresh operator key, to be shown this once; its user and the platform's reseller exist. Raises NotAllowedNow
    when an operator key is accepted already, unless forced. The session must see everything.
    """
    platform_reseller_id(session)
    if not force and repository.has_live_platform_key(session):
        raise NotAllowedNow("An operator key exists; use it to make others, or force a new one when it is lost.")
    email = email.lower()
    user = repository.find_principal_by_email(session, email, tenant_id=None, reseller_id=None)
    if user is None:
        user = PrincipalRow(id=new_id("prn"), kind="user", name=email.partition("@")[0], email=email)
        repository.add(session, user)
    user.state = "active"
    repository.bind(session, user.id, "operator", PLATFORM)
    fresh = keys.add_key(session, user, PLATFORM, "first operator key", KeyLimits(), created_by=user.id)
    return fresh.text
