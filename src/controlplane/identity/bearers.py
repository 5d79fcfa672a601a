"""
The queries of authentication: a key with everything above it in one statement, and the note of its last use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.kit.access import ScopeKind


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
