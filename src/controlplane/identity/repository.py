"""
Every query of the room. Row-level security stands behind each; the conditions here are the first wall.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, or_, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from controlplane.identity.errors import DomainTaken
from controlplane.identity.models import ApiKeyRow, PrincipalRow, ResellerDomainRow, ResellerRow, RoleBindingRow
from controlplane.identity.states import Scope
from controlplane.kit.access import ScopeKind
from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base, constraint_name
from controlplane.kit.errors import NameTaken
from controlplane.kit.ids import new_id

NAME_TAKEN = {
    "uq_resellers_name": "A reseller of this name exists.",
    "uq_tenants_name": "A tenant of this name exists.",
    "uq_projects_name": "A project of this name exists.",
    "uq_principals_email": "A member with this e-mail address or name exists.",
}


@dataclass(frozen=True, slots=True)
class Bearer:
    """
    A key with everything above it, at one instant.
    """

    key_id: str
    """`key_…`."""
    principal_id: str
    """Who acts with it."""
    scope_kind: ScopeKind
    """Level of the key."""
    scope_id: str
    """Its scope."""
    reseller_id: str | None
    """The scope's reseller."""
    tenant_id: str | None
    """The scope's tenant."""
    project_id: str | None
    """The scope's project."""
    secret_hash: bytes
    """SHA-256 of the secret part."""
    permissions: Sequence[str] | None
    """Narrowed to these; none: not narrowed."""
    networks: Sequence[str] | None
    """May be used from these; none: from anywhere."""
    revoked: bool
    """Whether it was revoked."""
    remaining_s: float | None
    """Seconds until it expires; none: never."""
    use_is_old: bool
    """Whether its last use was noted more than a minute ago."""
    principal_state: str
    """active, disabled or deleted."""
    tenant_state: str | None
    """State of the scope's tenant."""
    reseller_state: str | None
    """State of the scope's reseller."""
    project_state: str | None
    """State of the scope's project."""
    roles: Sequence[str]
    """Roles of the principal at the scope or above."""


BEARER = text(
    """
    SELECT k.id AS key_id, k.principal_id, k.scope_kind, k.scope_id, k.reseller_id, k.tenant_id, k.project_id, k.secret_hash,
      k.permissions, k.networks, k.revoked_at IS NOT NULL AS revoked,
      extract(epoch FROM k.expires_at - cp_clock())::float8 AS remaining_s,
      coalesce(k.last_used_at < cp_clock() - interval '1 minute', true) AS use_is_old,
      CASE WHEN home.state = 'deleted' OR seller.state = 'deleted' THEN 'deleted' ELSE p.state END AS principal_state,
      t.state AS tenant_state, r.state AS reseller_state, j.state AS project_state,
      ARRAY(
        SELECT b.role FROM role_bindings b
        WHERE b.principal_id = k.principal_id AND b.scope_id IN ('platform', k.reseller_id, k.tenant_id, k.project_id)
      ) AS roles
    FROM api_keys k
    JOIN principals p ON p.id = k.principal_id
    LEFT JOIN tenants home ON home.id = p.tenant_id
    LEFT JOIN resellers seller ON seller.id = p.reseller_id
    LEFT JOIN resellers r ON r.id = k.reseller_id
    LEFT JOIN tenants t ON t.id = k.tenant_id
    LEFT JOIN projects j ON j.id = k.project_id
    WHERE k.id = :key_id
    """
)
NOTE_USE = text(
    """
    UPDATE api_keys SET last_used_at = cp_clock() WHERE id IN (
      SELECT id FROM api_keys
      WHERE id = :key_id AND coalesce(last_used_at < cp_clock() - interval '1 minute', true)
      FOR NO KEY UPDATE SKIP LOCKED
    )
    """
)
LAZY_COMMIT = text("SET LOCAL synchronous_commit = off")


def find_bearer(session: Session, key_id: str) -> Bearer | None:
    """
    The key and what stands above it, or None.
    """
    row = session.execute(BEARER, {"key_id": key_id}).mappings().one_or_none()
    return None if row is None else Bearer(**{**row, "secret_hash": bytes(row["secret_hash"])})


def note_use(session: Session, key_id: str) -> None:
    """
    The key's last use is now, unless it was noted within the minute or somebody holds its row.
    """
    session.execute(LAZY_COMMIT)
    session.execute(NOTE_USE, {"key_id": key_id})


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
