"""
The identity room's open side: who calls, what lives in the tree, and how the first operator comes to be.
"""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from controlplane.identity import repository
from controlplane.identity.authenticating import KeyAuthenticator
from controlplane.identity.errors import NotAllowedNow
from controlplane.identity.keytext import mint
from controlplane.identity.models import ApiKeyRow, PrincipalRow, ResellerRow
from controlplane.identity.states import PLATFORM
from controlplane.kit.ids import new_id

__all__ = ["Brand", "KeyAuthenticator", "brand_for_host", "first_operator", "platform_reseller_id"]

PLATFORM_RESELLER = "platform"


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


def platform_reseller_id(session: Session) -> str:
    """
    The id of the operator's own reseller, which exists from now on. The session must see everything.
    """
    row = repository.platform_reseller(session)
    if row is None:
        row = ResellerRow(id=new_id("rsl"), name=PLATFORM_RESELLER, is_platform=True)
        repository.add(session, row)
    return row.id


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
    key_id = new_id("key")
    text, secret_hash = mint(key_id, "platform")
    repository.add(
        session,
        ApiKeyRow(
            id=key_id,
            principal_id=user.id,
            name="first operator key",
            scope_kind="platform",
            scope_id="platform",
            secret_hash=secret_hash,
            created_by=user.id,
        ),
    )
    return text
