"""
What a controller said, and what it means: every answer is good, or one error of the port.

Source: DMTF DSP0266 1.20, sections "Error responses" and "Status codes"; vendors' ways as named in `quirks.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from controlplane.providers.adapters.redfish.quirks import BUSY_MESSAGES, HARMLESS_MESSAGES, LICENCE_MESSAGES
from controlplane.providers.errors import AuthFailed, Busy, NotFound, ProviderError, Refused, Unknown, Unsupported

BUSY_S = 10.0
LONGEST_WISH_S = 600.0
LONGEST_DETAIL = 500
INFO = "@Message.ExtendedInfo"
BUSY_STATUS = frozenset({HTTPStatus.CONFLICT, HTTPStatus.LOCKED, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
ABSENT_STATUS = frozenset({HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})


@dataclass(frozen=True, slots=True)
class Message:
    """
    One entry of `@Message.ExtendedInfo`.
    """

    code: str
    """Its MessageId, for example `Base.1.8.ActionParameterMissing`."""
    text: str
    """Its words, its arguments and what it is about, in one line: for operators, and to find parameters in."""
    grave: bool
    """Whether it is more than information."""

    @property
    def key(self) -> str:
        """
        The last part of the code.
        """
        return self.code.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Reply:
    """
    A whole answer, not judged yet.
    """

    method: str
    """HTTP method it answers."""
    path: str
    """What was asked for."""
    status: int
    """HTTP status."""
    headers: Mapping[str, str]
    """With names in lower case."""
    body: dict[str, Any] | None
    """The JSON object; None where there was none that could be read."""
    text: str = ""
    """Its first characters where it was not JSON."""
    messages: tuple[Message, ...] = field(default=())
    """What it explains."""

    @property
    def good(self) -> bool:
        """
        Whether it is a plain success.
        """
        return self.problem() is None

    @property
    def etag(self) -> str:
        """
        The resource's ETag as it was just read; empty when there is none.
        """
        said = self.headers.get("etag") or (self.body or {}).get("@odata.etag")
        return said if isinstance(said, str) else ""

    @property
    def server_fault(self) -> bool:
        """
        Whether the controller itself broke down over the request.
        """
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR and self.status not in {*BUSY_STATUS, *ABSENT_STATUS}

    @property
    def detail(self) -> str:
        """
        A line for operators.
        """
        said = "; ".join(f"{one.code}: {one.text}" if one.code else one.text for one in self.messages) or self.text
        return f"{self.method} {self.path}: HTTP {self.status}{': ' if said else ''}{said}"[:LONGEST_DETAIL]

    def names(self, word: str) -> bool:
        """
        Whether its explanations mention the word.
        """
        return any(word.lower() in one.text.lower() for one in self.messages)

    def problem(self) -> ProviderError | None:
        """
        What is wrong with it, or None.
        """
        if self.status >= HTTPStatus.BAD_REQUEST:
            return _failure(self)
        if self.status >= HTTPStatus.MULTIPLE_CHOICES:
            return Unknown(self.detail)
        return _read_problem(self) if self.method == "GET" else _change_problem(self)

    def checked(self) -> Reply:
        """
        Itself. Raises what is wrong with it.
        """
        problem = self.problem()
        if problem is not None:
            raise problem
        return self


def understand(method: str, path: str, status: int, headers: Mapping[str, str], raw: bytes, cleaned: Callable[[str], str]) -> Reply:
    """
    The answer as far as it can be read, its words for people without our secrets; never raises.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    text = raw.decode("utf-8", errors="replace")
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        value = None
    body = value if isinstance(value, dict) else None
    found = _messages(body) if body is not None else ()
    messages = tuple(Message(cleaned(one.code), cleaned(one.text), grave=one.grave) for one in found)
    return Reply(method, path, status, lower, body, "" if body is not None else cleaned(" ".join(text[:200].split())), messages)


def _messages(body: Mapping[str, Any]) -> Iterator[Message]:
    error = body.get("error")
    if isinstance(error, Mapping):
        inside = list(_entries(error.get(INFO)))
        yield from inside
        if not inside:
            code = str(error.get("code", ""))
            yield Message(code, _line(error.get("message")), grave=code.rpartition(".")[2] not in HARMLESS_MESSAGES)
    elif error is not None:
        yield Message("", _line(error), grave=True)
    for name, value in body.items():
        if name.endswith(INFO):
            yield from _entries(value)


def _entries(value: Any) -> Iterator[Message]:
    rows = value if isinstance(value, list) else [value]
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        code = str(row.get("MessageId", ""))
        severity = str(row.get("MessageSeverity") or row.get("Severity") or "")
        about = [row.get("Message"), row.get("MessageArgs"), row.get("RelatedProperties")]
        words = " ".join(_line(one) for one in about if one)
        harmless = code.rpartition(".")[2] in HARMLESS_MESSAGES or severity.lower() in {"ok", "informational"}
        yield Message(code, words, grave=not harmless)


def _line(value: Any) -> str:
    return " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())[:300]


def _read_problem(reply: Reply) -> ProviderError | None:
    if reply.status == HTTPStatus.NO_CONTENT:
        return None
    if reply.body is None:
        return Unknown(f"not a JSON object: {reply.detail}")
    if "error" in reply.body:
        return _busy(reply) or Unknown(f"an error inside a success: {reply.detail}")
    return None


def _change_problem(reply: Reply) -> ProviderError | None:
    """
    A success that names a grave error, or that is not Redfish at all, may have done anything.
    """
    if any(one.grave for one in reply.messages):
        return _busy(reply) or Unknown(f"an error inside a success: {reply.detail}")
    if reply.body is None and reply.text and "json" not in reply.headers.get("content-type", "").lower():
        return Unknown(f"a page instead of an answer: {reply.detail}") if "<" in reply.text else None
    if reply.body is None and reply.text:
        return Unknown(f"an answer that cannot be read: {reply.detail}")
    return None


def _busy(reply: Reply) -> Busy | None:
    if any(word in one.code for one in reply.messages for word in BUSY_MESSAGES):
        return Busy(reply.detail, retry_in_s=wish_s(reply))
    return None


def _failure(reply: Reply) -> ProviderError:
    busy = _busy(reply)
    if reply.status == HTTPStatus.UNAUTHORIZED:
        failure: ProviderError = AuthFailed(reply.detail)
    elif busy is not None:
        failure = busy
    elif any(word in one.code for one in reply.messages for word in LICENCE_MESSAGES):
        failure = Unsupported(reply.detail, code="provider_licence_missing")
    elif reply.status in BUSY_STATUS:
        failure = Busy(reply.detail, retry_in_s=wish_s(reply))
    elif reply.status in ABSENT_STATUS:
        failure = Unsupported(reply.detail)
    elif reply.status == HTTPStatus.FORBIDDEN:
        failure = AuthFailed(reply.detail)
    elif reply.status == HTTPStatus.NOT_FOUND:
        failure = NotFound(reply.detail)
    elif reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR or reply.status == HTTPStatus.REQUEST_TIMEOUT:
        failure = Unknown(reply.detail)
    else:
        failure = Refused(reply.detail)
    return failure


def wish_s(reply: Reply) -> float:
    """
    How long the controller asks us to stay away, in seconds; a default of ours where it names none, or a date.
    """
    said = reply.headers.get("retry-after", "").strip()
    return min(float(said), LONGEST_WISH_S) if said.isascii() and said.isdigit() else BUSY_S
