"""
The one map from errors to HTTP: status codes and problem+json.
"""

import json
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from controlplane.kit import errors as e
from controlplane.web.schemas import plain

MEDIA_TYPE = "application/problem+json"
STATUS: Mapping[type[e.DomainError], int] = {
    e.Invalid: 422,
    e.Unauthenticated: 401,
    e.Forbidden: 403,
    e.NotFound: 404,
    e.Conflict: 409,
    e.QuotaExceeded: 409,
    e.NoCapacity: 409,
    e.VersionRequired: 428,
    e.VersionStale: 412,
    e.KeyReused: 422,
    e.TooLarge: 413,
    e.TooMany: 429,
    e.Unavailable: 503,
}
RETRY_AFTER_S: Mapping[type[e.DomainError], float] = {
    e.InFlight: 1.0,
    e.OperationActive: 5.0,
    e.NoCapacity: 60.0,
    e.Unavailable: 5.0,
}
WORDS = {
    400: "The request cannot be read",
    404: "Not found",
    405: "The method is not allowed here",
    500: "Something failed on our side",
}


def status_of(error: e.DomainError) -> int:
    """
    The HTTP status of a domain error.
    """
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 400


def problem(error: e.DomainError, request_id: str) -> Response:
    """
    The answer for a domain error.
    """
    after_s = error.fields.get("retry_after_s")
    for kind in type(error).__mro__:
        if after_s is None and kind in RETRY_AFTER_S:
            after_s = RETRY_AFTER_S[kind]
    extra = {key: value for key, value in error.fields.items() if key != "retry_after_s"}
    fields = [{"field": one.field, "code": one.code, "message": one.message} for one in error.errors]
    return document(
        status_of(error), error.code, error.title, error.detail, request_id, errors=fields, after_s=after_s, extra=extra
    )


def document(
    status: int,
    code: str,
    title: str,
    detail: str,
    request_id: str,
    *,
    errors: list[dict[str, str]] | None = None,
    after_s: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """
    A problem document as a response; the request id stands in the header too.
    """
    body = {
        **plain(dict(extra or {})),
        "type": f"/problems/{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": request_id,
        "errors": errors or [],
        "retry": {"retryable": after_s is not None or status in {429, 500, 503}, "after_s": after_s},
    }
    headers = {"X-Request-Id": request_id}
    if after_s is not None:
        headers["Retry-After"] = str(max(1, round(after_s)))
    if status == 401:  # noqa: PLR2004
        headers["WWW-Authenticate"] = "Bearer"
    return Response(json.dumps(body).encode(), status, headers, MEDIA_TYPE)


def plain_problem(status: int, request_id: str, detail: str = "") -> Response:
    """
    The answer for what no room raised: unknown paths, methods, failures of ours.
    """
    title = WORDS.get(status, "The request failed")
    code = {404: "not_found", 405: "method_not_allowed", 500: "internal"}.get(status, "bad_request")
    if status == 404:  # noqa: PLR2004
        return problem(e.NotFound(), request_id)
    return document(status, code, title, detail or title + ".", request_id)


def validation_problem(error: RequestValidationError, request_id: str) -> Response:
    """
    The answer for a malformed request: every refused field by its path. Values are never repeated.
    """
    fields = [
        {
            "field": ".".join(str(part) for part in one["loc"])[:300],
            "code": str(one["type"]),
            "message": str(one["msg"])[:300].encode("utf-8", "replace").decode(),
        }
        for one in error.errors()[:50]
    ]
    detail = "; ".join(f"{one['field']}: {one['message']}" for one in fields[:3]) or "The request is malformed."
    return document(422, "invalid_request", "The request is malformed", detail, request_id, errors=fields)
