"""
HTTP to slurmrestd: one pool, one deadline a call, capped bodies, and every way to fail as an error of the port.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from controlplane.providers.adapters.slurm.tokens import Tokens
from controlplane.providers.deadline import time_left_s
from controlplane.providers.errors import AuthFailed, Busy, NoCapacity, NotFound, NotSent, ProviderError, Refused, Unknown
from controlplane.providers.tls import trusted

CONNECT_S = 5.0
MAX_CONNECTIONS = 8
AUTH_STATUS = frozenset({401, 403, 511})
AUTH_ERRNO = frozenset({1007})
BUSY_ERRNO = frozenset({2016, 2020})
NO_CAPACITY_ERRNO = frozenset({2015})
NOT_FOUND_ERRNO = frozenset({2017, 2018})
ALREADY_DONE = 2021
STANDBY_ERRNO = frozenset({2027})
BAD_REQUEST_ERRNO = frozenset({9001})
SLURMCTLD_SAID_NO = range(2000, 3000)
WORDLESS_ERRNO = frozenset({-1, 5005})
NO_CHANGE = "since update_time"
UNKNOWN_FIELD = "unknown field"
log = logging.getLogger(__name__)


class WordlessFailure(Unknown):
    """
    22.05 says the same "Unspecified error" when slurmctld is away and when it does not accept our token.
    """


@dataclass(frozen=True, slots=True)
class Problem:
    """
    One entry of errors[] or warnings[].
    """

    errno: int | None
    """Slurm's number; 22.05 has three names for it."""
    text: str
    """Slurm's words: for operators."""


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What slurmrestd said, before it is judged.
    """

    status: int
    """HTTP; never the proof of anything by itself."""
    body: Mapping[str, Any]
    """The JSON object; empty when the answer was plain text or 304."""
    text: str
    """Its first characters when it was not JSON."""
    errors: tuple[Problem, ...]
    """From errors[] and from the items of a bulk answer."""
    warnings: tuple[Problem, ...]
    """From warnings[]."""
    retry_after_s: float | None
    """The peer's own wish."""

    @property
    def unchanged(self) -> bool:
        """
        Whether this says only that nothing is newer. 22.05 answers 304; later ones 200 with an empty list and a warning.
        """
        return self.status == httpx.codes.NOT_MODIFIED or any(NO_CHANGE in warning.text for warning in self.warnings)

    @property
    def detail(self) -> str:
        """
        A line for operators.
        """
        said = "; ".join(f"[{error.errno}] {error.text}" for error in self.errors) or self.text or "no errors named"
        return f"HTTP {self.status}: {said}"[:500]


class SlurmRest:
    """
    A slurmrestd. Safe to share between threads.
    """

    def __init__(self, url: str, tokens: Tokens, *, admin: str, timeout_s: float, max_body_bytes: int, ca_file: str | None) -> None:
        self._url = url.rstrip("/")
        self._tokens = tokens
        self._admin = admin
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self.errors_inside_success = 0
        self._http = httpx.Client(
            verify=trusted(ca_file),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        )

    def close(self) -> None:
        """
        The pool's connections are closed.
        """
        self._http.close()

    def read(self, path: str, params: Mapping[str, str] | None = None) -> Answer:
        """
        A good answer to a GET: no errors inside, JSON or "unchanged". Anything else raises.
        """
        answer = self._exchange("GET", path, None, self._admin, params)
        if answer.unchanged:
            return answer
        if answer.errors or answer.status != httpx.codes.OK:
            self._count(answer)
            raise _read_failed(answer)
        if not answer.body:
            raise Unknown(f"GET {path} was not answered in JSON: {answer.detail}")
        return answer

    def change(self, method: str, path: str, content: Mapping[str, Any] | None = None, *, user: str | None = None) -> Answer:
        """
        The peer has accepted the change. A number that slurmctld gave counts as accepted, whatever stands beside it.
        """
        answer = self._exchange(method, path, content, user or self._admin, None)
        if _accepted(answer):
            return answer
        self._count(answer)
        raise _change_failed(answer)

    def _count(self, answer: Answer) -> None:
        if answer.status < httpx.codes.BAD_REQUEST:
            self.errors_inside_success += 1
            log.warning("slurmrestd put errors inside a success: %s", answer.detail)

    def _exchange(
        self, method: str, path: str, content: Mapping[str, Any] | None, user: str, params: Mapping[str, str] | None
    ) -> Answer:
        headers = {"Accept": "application/json", "X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": self._tokens.for_user(user)}
        left_s = time_left_s(self._timeout_s)
        ends_at = time.monotonic() + left_s
        try:
            with self._http.stream(
                method,
                self._url + path,
                params=params,
                json=content,
                headers=headers,
                timeout=httpx.Timeout(left_s, connect=min(CONNECT_S, left_s)),
            ) as response:
                raw = self._body(response, ends_at)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            raise NotSent(f"{method} {path}: {type(error).__name__}: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unknown(f"{method} {path}: {type(error).__name__}: {error}") from error
        return _answer(response, raw)

    def _body(self, response: httpx.Response, ends_at: float) -> bytes:
        parts, size = [], 0
        for part in response.iter_bytes():
            size += len(part)
            if size > self._max_body_bytes:
                raise Unknown(f"the answer is larger than {self._max_body_bytes} bytes")
            if time.monotonic() > ends_at:
                raise Unknown("the answer trickled past the deadline")
            parts.append(part)
        return b"".join(parts)


def _answer(response: httpx.Response, raw: bytes) -> Answer:
    said = raw.decode(errors="replace")
    is_json = "json" in response.headers.get("content-type", "json") or said.lstrip().startswith("{")
    body: Mapping[str, Any] = {}
    if is_json and said.strip():
        try:
            body = _json_object(said)
        except (ValueError, RecursionError) as error:
            if response.status_code in AUTH_STATUS:
                raise AuthFailed(f"HTTP {response.status_code}") from error
            raise Unknown(f"HTTP {response.status_code} with a body that cannot be read: {said[:200]!r}") from error
    return Answer(
        status=response.status_code,
        body=body,
        text="" if body else said[:200],
        errors=(*_problems(body.get("errors")), *_item_problems(body.get("status"))),
        warnings=_problems(body.get("warnings")),
        retry_after_s=_seconds(response.headers.get("retry-after")),
    )


def _json_object(said: str) -> Mapping[str, Any]:
    """
    The object, also behind lines of noise that a plugin of the peer printed before it.
    """
    start = said.find("{")
    if start < 0:
        raise ValueError("no object")
    value = json.loads(said[start:])
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one way to be unreadable
    return value


def _problems(value: Any) -> tuple[Problem, ...]:
    if value is None:
        return ()
    rows: Iterable[Any] = value if isinstance(value, list) else [value]
    return tuple(_problem(row) for row in rows)


def _problem(row: Any) -> Problem:
    if not isinstance(row, Mapping):
        return Problem(None, str(row)[:200])
    numbers = [row[key] for key in ("error_number", "error_code", "errno") if isinstance(row.get(key), int)]
    words = " ".join(str(row[key]) for key in ("description", "error") if row.get(key))
    return Problem(numbers[0] if numbers else None, words[:300])


def _item_problems(value: Any) -> tuple[Problem, ...]:
    """
    A rejected item of a bulk request is an error inside HTTP 200.
    """
    out = []
    for item in value if isinstance(value, list) else []:
        error = item.get("error") if isinstance(item, Mapping) else None
        if isinstance(error, Mapping) and error.get("code"):
            code = error["code"]
            out.append(Problem(code if isinstance(code, int) else None, str(error.get("message", ""))[:300]))
    return tuple(out)


def _seconds(value: str | None) -> float | None:
    return min(float(value), 600.0) if value is not None and value.isdigit() else None


def _accepted(answer: Answer) -> bool:
    if answer.body.get("job_id"):
        return True  # 22.05 may name an error beside the number of a job it has queued
    return answer.status == httpx.codes.OK and not answer.errors and bool(answer.body)


def _read_failed(answer: Answer) -> ProviderError:
    numbers = {error.errno for error in answer.errors}
    if answer.status in AUTH_STATUS or numbers & AUTH_ERRNO:
        return AuthFailed(answer.detail)
    if answer.status in {429, 503}:
        return Busy(answer.detail, retry_in_s=answer.retry_after_s or 5.0)
    if numbers & NOT_FOUND_ERRNO:
        return NotFound(answer.detail)
    if answer.status == httpx.codes.INTERNAL_SERVER_ERROR and numbers and numbers <= WORDLESS_ERRNO:
        return WordlessFailure(answer.detail)
    return Unknown(answer.detail)


def _change_failed(answer: Answer) -> ProviderError:
    """
    A no that slurmctld said by its number is final; everything else may have taken effect.
    """
    numbers = {error.errno for error in answer.errors if error.errno}
    said_no = bool(numbers & BAD_REQUEST_ERRNO) or any(number in SLURMCTLD_SAID_NO for number in numbers)
    bad_request = httpx.codes.BAD_REQUEST <= answer.status < httpx.codes.INTERNAL_SERVER_ERROR
    failed: ProviderError = Refused(answer.detail) if said_no or bad_request else Unknown(answer.detail)
    if answer.status in AUTH_STATUS or numbers & AUTH_ERRNO:
        failed = AuthFailed(answer.detail)
    elif answer.status == httpx.codes.TOO_MANY_REQUESTS or numbers & BUSY_ERRNO:
        failed = Busy(answer.detail, retry_in_s=answer.retry_after_s or 5.0)
    elif numbers & NOT_FOUND_ERRNO:
        failed = NotFound(answer.detail)
    elif numbers & NO_CAPACITY_ERRNO:
        failed = NoCapacity(answer.detail)
    elif numbers & STANDBY_ERRNO:
        failed = Unknown(answer.detail)
    return failed
