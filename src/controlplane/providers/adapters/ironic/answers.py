"""
Ironic's answers folded into the port's errors. Ironic says what is wrong as JSON inside a JSON string; proxies in front of it do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from controlplane.providers.errors import AuthFailed, Busy, NotFound, ProviderError, Refused, Unknown, Unsupported

LONGEST_WORDS = 500
LONGEST_WAIT_S = 600.0
_NOT_FOUND = "could not be found"
_MAINTENANCE = "maintenance mode"
_STALE_PATCH = "couldn't apply patch"
_TAKEN = ("is associated with instance", "is already associated with")
_FINAL = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_PATIENCE = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What came back, before it is judged.
    """

    status: int
    """HTTP status."""
    body: Any = field(repr=False)
    """The JSON value; None for an empty body and for one that is not JSON."""
    text: str = field(repr=False)
    """The first characters of a body that is not JSON; empty otherwise."""
    headers: Mapping[str, str] = field(repr=False)
    """With names in lower case."""

    @property
    def spoke(self) -> bool:
        """
        Whether it was Ironic itself that named an error, not something in front of it.
        """
        return isinstance(self.body, Mapping) and "error_message" in self.body

    @property
    def words(self) -> str:
        """
        The error in Ironic's words, or the first of whatever else was said.
        """
        return _words(self.body) or self.text

    @property
    def detail(self) -> str:
        """
        A line for operators.
        """
        return f"HTTP {self.status}: {self.words or 'nothing said'}"[:LONGEST_WORDS]


def read_answer(status: int, raw: bytes, headers: Mapping[str, str]) -> Answer:
    """
    The answer; a body that is not JSON is kept as text.
    """
    said = raw.decode(errors="replace").strip()
    try:
        body, text = (json.loads(said), "") if said else (None, "")
    except (ValueError, RecursionError):
        body, text = None, said[:200]
    return Answer(status, body, text, {name.lower(): value for name, value in headers.items()})


def judge(answer: Answer, what: str) -> Any:
    """
    The JSON of a success, None for one without a body. Raises what the answer amounts to otherwise.
    """
    if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES and not answer.text and not answer.spoke:
        return answer.body
    raise failure(answer, what)


def failure(answer: Answer, what: str) -> ProviderError:
    """
    The error that the answer amounts to.
    """
    detail, words = f"{what}: {answer.detail}", answer.words.lower()
    by_status: dict[int, ProviderError] = {
        HTTPStatus.UNAUTHORIZED: AuthFailed(detail),
        HTTPStatus.FORBIDDEN: Refused(detail, code="machine_protected") if "is protected" in words else AuthFailed(detail),
        HTTPStatus.NOT_ACCEPTABLE: Unsupported(detail),
        HTTPStatus.CONFLICT: _conflict(answer, detail, words),
    }
    failed: ProviderError = by_status.get(answer.status, Unknown(detail))
    if answer.status == HTTPStatus.NOT_FOUND and answer.spoke and _NOT_FOUND in words:
        failed = NotFound(detail)
    elif answer.status in _FINAL and answer.spoke:
        failed = _bad_request(detail, words)
    elif answer.status == HTTPStatus.TOO_MANY_REQUESTS or (answer.status in _PATIENCE and answer.spoke):
        failed = Busy(detail, retry_in_s=_wait_s(answer))
    return failed


def _conflict(answer: Answer, detail: str, words: str) -> ProviderError:
    if not answer.spoke:
        return Unknown(detail)
    if any(said in words for said in _TAKEN):
        return Refused(detail, code="machine_held")
    return Busy(detail, retry_in_s=1.0)


def _bad_request(detail: str, words: str) -> ProviderError:
    if _MAINTENANCE in words:
        return Busy(
            f"the node is in maintenance at Ironic, which refuses the change until it is taken out of it; {detail}",
            retry_in_s=30.0,
            code="machine_in_maintenance",
        )
    if _STALE_PATCH in words:
        return Busy(
            f"somebody else changed the node between our look and our change; {detail}", retry_in_s=0.5, code="machine_changed"
        )
    return Refused(detail)


def _wait_s(answer: Answer) -> float:
    wish = answer.headers.get("retry-after", "")
    return min(float(wish), LONGEST_WAIT_S) if wish.isdecimal() else 5.0


def _words(body: Any) -> str:
    """
    Unwraps `error_message` (a JSON text or an object) and Keystone's `error`, whichever is there.
    """
    if not isinstance(body, Mapping):
        return ""
    inner = body.get("error_message", body.get("error", ""))
    if isinstance(inner, str):
        try:
            inner = json.loads(inner)
        except (ValueError, RecursionError):
            return str(inner)
    if not isinstance(inner, Mapping):
        return str(inner)
    said = [str(inner[name]) for name in ("faultstring", "title", "description", "message") if inner.get(name)]
    return ": ".join(said)
