"""
Idempotency keys: the first answer to a POST is kept and given again.

The key is reserved by a lock that ends with the transaction, so a second request that arrives meanwhile is told so at once, and a
process that dies in between leaves nothing behind.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from fastapi import Request
from sqlalchemy import BigInteger, LargeBinary, Text, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from controlplane.kit.access import Principal
from controlplane.kit.errors import FieldError, InFlight, Invalid, KeyReused

KEPT_FOR = timedelta(hours=24)
FORM = re.compile(r"^[!-~]{1,255}$")
LOCK = text("SELECT pg_try_advisory_xact_lock(:lock)")
FIRST = text(
    """
    SELECT fingerprint, status, headers, body FROM idempotency_keys
    WHERE principal_id = :principal AND key = :key AND created_at > cp_clock() - interval '24 hours'
    """
).columns(fingerprint=LargeBinary(), status=BigInteger(), headers=JSONB(), body=LargeBinary())
REMEMBER = text(
    """
    INSERT INTO idempotency_keys (principal_id, key, tenant_id, fingerprint, status, headers, body)
    VALUES (:principal, :key, :tenant, :fingerprint, :status, :headers, :body)
    ON CONFLICT (principal_id, key) DO UPDATE SET
      fingerprint = excluded.fingerprint, status = excluded.status, headers = excluded.headers, body = excluded.body,
      created_at = cp_clock()
    """
).bindparams(bindparam("headers", type_=JSONB()), bindparam("tenant", type_=Text()))


@dataclass(frozen=True, slots=True)
class Repeat:
    """
    One use of one idempotency key.
    """

    principal_id: str
    """Keys of different principals never meet."""
    tenant_id: str
    """Whose: a tenant, a reseller or the platform."""
    key: str
    """As sent."""
    fingerprint: bytes
    """Over method, path, query and body."""

    @classmethod
    def of(cls, request: Request, principal: Principal) -> "Repeat | None":
        """
        The use that the request makes, or None without the header. Raises Invalid for a malformed key.
        """
        key = request.headers.get("idempotency-key")
        if key is None:
            return None
        if not FORM.match(key):
            wrong = FieldError("header.Idempotency-Key", "invalid_key", "1 to 255 visible ASCII characters.")
            raise Invalid("The Idempotency-Key is malformed.", errors=[wrong])
        body: bytes = getattr(request.state, "body", b"") or getattr(request, "_body", b"")
        mark = sha256(
            b"\n".join((request.method.encode(), request.url.path.encode(), str(request.url.query).encode(), body))
        ).digest()
        return cls(principal.id, principal.audit_chain, key, mark)

    @property
    def lock(self) -> int:
        """
        The name of the lock that reserves the key.
        """
        mark = sha256(f"{self.principal_id}\n{self.key}".encode()).digest()
        return int.from_bytes(mark[:8], "big", signed=True)


@dataclass(frozen=True, slots=True)
class Remembered:
    """
    A first answer.
    """

    status: int
    """HTTP status."""
    headers: dict[str, str]
    """Location and ETag."""
    body: bytes
    """As sent, less secrets."""


def reserve(session: Session, repeat: Repeat) -> Remembered | None:
    """
    The key is reserved for this transaction, and None is returned; or the first answer is. Raises InFlight, KeyReused.
    """
    # Lock first, look second: a look in the same statement would use a snapshot older than the lock.
    if not session.execute(LOCK, {"lock": repeat.lock}).scalar_one():
        raise InFlight("The first request with this Idempotency-Key is still being served; ask again in a second.")
    row = session.execute(FIRST, {"principal": repeat.principal_id, "key": repeat.key}).one_or_none()
    if row is None:
        return None
    if bytes(row.fingerprint) != repeat.fingerprint:
        raise KeyReused("This Idempotency-Key was used for another request; use a new key for a new request.")
    return Remembered(row.status, row.headers, bytes(row.body))


def remember(session: Session, repeat: Repeat, answer: Remembered) -> None:
    """
    The answer is kept with the effects it tells of, in the same transaction.
    """
    session.execute(
        REMEMBER,
        {
            "principal": repeat.principal_id,
            "key": repeat.key,
            "tenant": repeat.tenant_id,
            "fingerprint": repeat.fingerprint,
            "status": answer.status,
            "headers": answer.headers,
            "body": answer.body,
        },
    )
