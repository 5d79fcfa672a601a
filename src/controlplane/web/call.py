"""
What a handler gets, and what it may answer with besides a plain model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from sqlalchemy.orm import Session

from controlplane.kit.access import Principal
from controlplane.kit.errors import FieldError, Invalid, VersionRequired, VersionStale
from controlplane.kit.secrets import Sealer


@dataclass(slots=True)
class Call:
    """
    One authenticated request inside its transaction.
    """

    session: Session
    """The one transaction of the request; the edge commits it."""
    principal: Principal
    """Who calls."""
    request_id: str
    """Shown in the answer and in the audit."""
    if_match: str | None = None
    """The header as sent."""
    dry_run: bool = False
    """Whether the transaction will be rolled back whatever the handler does."""
    nudges: list[tuple[str, str]] = field(default_factory=list)
    """(kind, id) to wake workers for after the commit."""
    audit_target: str = ""
    """Id of what was changed; the path when empty."""
    audit_detail: dict[str, Any] = field(default_factory=dict)
    """More for the audit entry; never a secret."""
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    """Run after the commit; must not fail the request."""
    sealer: Sealer | None = None
    """Seals secrets that the caller hands in; none where the installation has no master key."""
    images: Any = None
    """The images room's depot; none where the installation keeps no images."""
    tenant_limits: Mapping[str, int | None] = field(default_factory=dict)
    """Quota of a tenant that is created without one."""
    credentials: Any = None
    """Asks providers for tenants' credentials, as the clusters room does; none where there are no providers to ask."""
    finish: Callable[[], BaseModel] | None = None
    """
    Makes the answer's body after the commit, outside of any transaction; it may ask others, block and raise domain errors. What the
    handler itself answered is what a repeat under the same idempotency key gets.
    """

    def nudge(self, kind: str, resource_id: str) -> None:
        """
        A worker will be told of the row after the commit; only a hint.
        """
        self.nudges.append((kind, resource_id))

    def check_version(self, version: int) -> None:
        """
        Returns when If-Match names this version. Raises VersionRequired, VersionStale, Invalid.
        """
        if self.if_match is None:
            raise VersionRequired('Send If-Match with the ETag you read, for example If-Match: "3".')
        if self.if_match.strip() == "*":
            return
        given = {part.strip().removeprefix("W/").strip('"') for part in self.if_match.split(",")}
        if not all(one.isascii() and one.isdigit() for one in given):
            raise Invalid(
                "If-Match must hold an ETag.", errors=[FieldError("header.If-Match", "invalid_etag", 'Use a value like "3".')]
            )
        if str(version) not in given:
            raise VersionStale(f"The resource is at version {version}; read it again and repeat the change.", version=version)


@dataclass(frozen=True, slots=True)
class Reply:
    """
    An answer with more than a body.
    """

    body: BaseModel | None
    """What is sent; None for 204."""
    status: int | None = None
    """None: the route's own."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """`Location`, …"""
    etag: int | None = None
    """The resource's version."""
    remembered: BaseModel | None = None
    """What a repeat under the same idempotency key is answered with, when the body holds a secret."""
