"""
The errors of the domain. They carry a stable `code` and typed fields and know no HTTP; `web/problems.py` is the one map to status codes.

    DomainError
    ├── Invalid              the request is malformed: `errors` names the fields          (422)
    ├── Unauthenticated      no credential, or one that is not accepted                   (401)
    ├── Forbidden            known, but without the permission                            (403)
    ├── NotFound             does not exist, or may not be seen: the same answer          (404)
    ├── Conflict             the present state does not allow it                          (409)
    │   ├── NameTaken        another of this name lives under the same parent
    │   ├── OperationActive  one active operation per resource; names it
    │   └── InFlight         the same idempotency key is being served now
    ├── QuotaExceeded        limit, used, requested and the level that refused            (409)
    ├── NoCapacity           missing count and the best alternative                       (409)
    ├── VersionRequired      a change without If-Match                                    (428)
    ├── VersionStale         If-Match names an older version                              (412)
    ├── KeyReused            an idempotency key with another body                         (422)
    ├── TooLarge             a body or a part of it over the limit                        (413)
    ├── TooMany              rate limit                                                   (429)
    └── Unavailable          a part that is needed is down                                (503)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldError:
    """
    One field that was refused.
    """

    field: str
    """Path in the request: `spec.node_sets.0.count`, `query.limit`, `header.If-Match`."""
    code: str
    """Stable code."""
    message: str
    """In words."""


class DomainError(Exception):
    """
    Something the caller can be told. `fields` become members of the problem document.
    """

    code = "error"
    title = "The request failed"

    def __init__(self, detail: str, *, code: str | None = None, errors: Sequence[FieldError] = (), **fields: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)
        self.fields: Mapping[str, Any] = fields
        if code is not None:
            self.code = code


class Invalid(DomainError):
    """
    The request is malformed.
    """

    code = "invalid_request"
    title = "The request is malformed"


class Unauthenticated(DomainError):
    """
    There is no accepted credential.
    """

    code = "unauthenticated"
    title = "A valid API key is needed"


class Forbidden(DomainError):
    """
    The caller lacks a permission.
    """

    code = "forbidden"
    title = "The credential does not allow this"


class NotFound(DomainError):
    """
    It does not exist, or the caller may not see it: both answer alike.
    """

    code = "not_found"
    title = "Not found"

    def __init__(self, detail: str = "There is no such resource, or this credential may not see it.", **fields: Any) -> None:
        super().__init__(detail, **fields)


class Conflict(DomainError):
    """
    The present state does not allow the request.
    """

    code = "conflict"
    title = "The present state does not allow this"


class NameTaken(Conflict):
    """
    Names are unique per parent among what is not deleted.
    """

    code = "name_taken"
    title = "The name is taken"


class OperationActive(Conflict):
    """
    Another operation is active on the resource; `operation_id` names it.
    """

    code = "operation_active"
    title = "Another operation is active"


class InFlight(Conflict):
    """
    A request with the same idempotency key is being served.
    """

    code = "idempotency_in_flight"
    title = "The same request is being served"


class QuotaExceeded(DomainError):
    """
    A level of the tree has no room: fields `resource`, `scope`, `limit`, `used`, `requested`.
    """

    code = "quota_exceeded"
    title = "The quota does not allow this"


class NoCapacity(DomainError):
    """
    The fleet has no room: fields `requested`, `missing`, `alternative`.
    """

    code = "insufficient_capacity"
    title = "There is not enough capacity"


class VersionRequired(DomainError):
    """
    A change of something that costs money needs If-Match.
    """

    code = "version_required"
    title = "If-Match is required"


class VersionStale(DomainError):
    """
    The resource has changed since the caller read it.
    """

    code = "version_stale"
    title = "The resource has changed"


class KeyReused(DomainError):
    """
    The idempotency key was used for another request.
    """

    code = "idempotency_key_reused"
    title = "The idempotency key was used for another request"


class TooLarge(DomainError):
    """
    The body, or a part of it, is over the limit.
    """

    code = "too_large"
    title = "The request is too large"


class TooMany(DomainError):
    """
    The rate limit is reached; field `retry_after_s`.
    """

    code = "rate_limited"
    title = "Too many requests"


class Unavailable(DomainError):
    """
    A part that the request needs is down.
    """

    code = "unavailable"
    title = "Temporarily unavailable"
