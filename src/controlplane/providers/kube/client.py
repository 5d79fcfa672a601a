"""
HTTP to a kube-apiserver through the official client's transport: one bounded pool, one deadline a call, whole lists, typed errors.

Objects are plain JSON. The client's own models refuse fields that are newer than they are, and cost five times as much on long lists.
"""

from __future__ import annotations

import json
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import urllib3
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from controlplane.providers.deadline import time_left_s
from controlplane.providers.errors import (
    AuthFailed,
    Busy,
    NotFound,
    NotSent,
    Permanent,
    ProviderError,
    Refused,
    Unknown,
    UnknownBeyond,
)
from controlplane.providers.kube.access import Access
from controlplane.providers.kube.feed import PIECE_BYTES, Feed

CONNECT_S = 5.0
MAX_CONNECTIONS = 8
MAX_FEEDS = 3
"""Watches hold their connections, so they have a pool of their own."""
MAX_LISTINGS = 3
"""How often a list is begun anew when its pages grow too old."""
FIELD_MANAGER = "gpu-controlplane"
"""Who we are to server-side apply: one name for all that we write."""
NO_SUCH_KIND = "could not find the requested resource"
_UNAUTHORIZED, _FORBIDDEN, _MISSING, _CONFLICT, _GONE, _MANY, _ERROR = 401, 403, 404, 409, 410, 429, 500
_OK = range(200, 300)
Json: TypeAlias = dict[str, Any]


class Conflict(Busy):
    """
    Somebody else changed the object since it was read: read again, decide again.
    """

    code = "provider_conflict"


class Exists(Refused):
    """
    An object of that name is there already.
    """

    code = "provider_exists"


class Expired(Unknown):
    """
    The list's next page is too old to be had.
    """

    code = "provider_list_expired"


class Kube:
    """
    One API. Safe to share between threads, built anew after a fork. Where it has several servers, one that was not reached is not asked
    again before the others; the call that found it so has failed, and whoever repeats calls repeats it.
    """

    def __init__(self, way: Access, *, timeout_s: float, max_body_bytes: int, page_size: int, most: int | None = None) -> None:
        self._urls, self._turn = (way.url, *way.others), 0
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._page_size = page_size
        self._most = most
        """Objects of a list; what holds more is not read to its end. None: as many as there are."""
        self._headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        if way.token:
            self._headers["Authorization"] = f"Bearer {way.token}"
        # certificates from memory, no more connections than this, and no retries that the caller does not see
        tls: Json = {"ssl_context": _tls(way)} if way.url.startswith("https:") else {}
        if way.server_name:
            tls |= {"server_hostname": way.server_name}
        self._api, self._feeds = (_client(way.url, one, tls) for one in (MAX_CONNECTIONS, MAX_FEEDS))
        self.seen_at: datetime | None = None

    @property
    def url(self) -> str:
        """
        The server that is asked now, without a slash at its end.
        """
        return self._urls[self._turn % len(self._urls)]

    def close(self) -> None:
        """
        The pools' connections are closed.
        """
        for one in (self._api, self._feeds):
            one.rest_client.pool_manager.clear()

    def get(self, path: str) -> Json:
        """
        The object. Raises NotFound.
        """
        return self._json("GET", path)

    def find(self, path: str) -> Json | None:
        """
        The object, or None when the server says that it is not there.
        """
        try:
            return self._json("GET", path)
        except NotFound:
            return None

    def read(self, path: str, **query: str) -> bytes:
        """
        A plain answer, for example a log.
        """
        return self.exchange("GET", path, query)

    def create(self, path: str, body: Json) -> Json:
        """
        The object has been made. Raises Exists.
        """
        return self._json("POST", path, {"fieldManager": FIELD_MANAGER}, body, "application/json")

    def rehearse(self, path: str, body: Json) -> Json:
        """
        What the server would make of the object, after all that it does on the way in; nothing is made. Raises as `create`.
        """
        return self._json("POST", path, {"fieldManager": FIELD_MANAGER, "dryRun": "All"}, body, "application/json")

    def apply(self, path: str, body: Json) -> Json:
        """
        The object holds our fields. Every object that is applied is ours by its name and marks, so its fields are taken back by force.
        """
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._json("PATCH", path, query, body, "application/apply-patch+yaml")

    def patch(self, path: str, body: Json) -> Json:
        """
        The object holds the merge patch's fields. Raises Conflict when the patch names a version that is not the latest.
        """
        return self._json("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, "application/merge-patch+json")

    def delete(self, path: str, *, uid: str = "") -> None:
        """
        The object is being removed with all that it owns; absence is success.
        """
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self._json("DELETE", path, {}, body, "application/json")
        except NotFound:
            return

    def list_all(self, path: str, *, labels: str = "", fields: str = "") -> list[Json]:
        """
        Every object, all pages. A list whose pages grew too old is begun anew, for the rest of it would not fit its beginning.
        """
        return self.list_at(path, labels=labels, fields=fields)[0]

    def list_at(self, path: str, *, labels: str = "", fields: str = "") -> tuple[list[Json], str]:
        """
        As `list_all`, with the version that the list is of: a watch from there misses nothing.
        """
        for _ in range(MAX_LISTINGS):
            try:
                pages = list(self._pages(path, labels, fields))
            except Expired:
                continue
            return [one for page, _ in pages for one in page], pages[-1][1]
        raise Unknown(f"GET {path}: the pages grew too old {MAX_LISTINGS} times")

    def follow(self, path: str, *, labels: str, version: str, lasts_s: float, late_s: float) -> Feed:
        """
        An open watch over what changes after the version. The server ends it after `lasts_s`; one that says nothing until `late_s` after
        that has gone silent. Raises as a list does.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(lasts_s)))}
        query |= {"labelSelector": labels, "resourceVersion": version}
        what, url = f"watch {path}", f"{self.url}{path}?{urlencode(query)}"
        answer = self._opened(what, self._feeds, ("GET", url, dict(self._headers), None), (CONNECT_S, lasts_s + late_s))
        ends_at = time.monotonic() + lasts_s + late_s
        if answer.status not in _OK:
            with _as_unknown(what):
                raw = self._body(answer.response, time.monotonic() + self._timeout_s, what)
            raise failed(what, answer.status, raw, answer.response.headers.get("retry-after"))
        return Feed(answer.response, what, ends_at)

    def told(self, what: str, status: Json) -> ProviderError:
        """
        The error that the server told as an event.
        """
        code = status.get("code")
        return failed(what, code if isinstance(code, int) else _ERROR, json.dumps(status).encode(), None)

    def _pages(self, path: str, labels: str, fields: str) -> Iterator[tuple[list[Json], str]]:
        query = {"limit": str(self._page_size)} | ({"labelSelector": labels} if labels else {})
        query |= {"fieldSelector": fields} if fields else {}
        count = 0
        while True:
            answer = self._json("GET", path, query)
            items = answer.get("items")
            if not isinstance(items, list):
                raise Unknown(f"GET {path}: not a list")
            count += len(items)
            if self._most is not None and count > self._most:
                raise Unknown(f"GET {path}: more than {self._most} objects")
            about = answer.get("metadata") or {}
            yield items, str(about.get("resourceVersion") or "")
            after = about.get("continue")
            if not after:
                return
            query = {**query, "continue": after}

    def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None, kind: str | None = None
    ) -> Json:
        raw = self.exchange(method, path, query or {}, body, kind)
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Unknown(f"{method} {path}: the answer cannot be read") from error
        if not isinstance(value, dict):
            raise Unknown(f"{method} {path}: the answer is not an object")
        return value

    def exchange(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None = None, kind: str | None = None
    ) -> bytes:
        """
        The answer to one request, whole: every other call is made of these. `kind` is the body's content type.
        """
        left_s = time_left_s(self._timeout_s)
        ends_at = time.monotonic() + left_s
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        what = f"{method} {path}"
        answer = self._opened(what, self._api, (method, url, headers, body), (min(CONNECT_S, left_s), left_s))
        with _as_unknown(what):
            raw = self._body(answer.response, ends_at, what)
        self._note(answer.response.headers.get("date"))
        if answer.status not in _OK:
            raise failed(what, answer.status, raw, answer.response.headers.get("retry-after"))
        return raw

    def relay(self, path: str, query: Mapping[str, str], *, most_bytes: int) -> tuple[int, bytes]:
        """
        Status and body of what something behind the server answers to a GET that it passes on, whatever that is. No redirect is followed.
        Raises NotSent where the server cannot be reached, UnknownBeyond where no whole answer comes: it may be the other's silence.
        """
        left_s = time_left_s(self._timeout_s)
        ends_at = time.monotonic() + left_s
        what, url = f"GET {path}", f"{self.url}{path}?{urlencode(query)}"
        try:
            answer = self._opened(what, self._api, ("GET", url, dict(self._headers), None), (min(CONNECT_S, left_s), left_s))
            with _as_unknown(what):
                return answer.status, self._body(answer.response, ends_at, what, most_bytes)
        except Unknown as error:
            raise UnknownBeyond(error.detail) from error

    def _opened(
        self, what: str, api: ApiClient, sent: tuple[str, str, dict[str, str], Json | None], limits: tuple[float, float]
    ) -> Any:
        """
        The answer's head; its body is still to be read.
        """
        method, url, headers, body = sent
        turn = self._turn
        try:
            answer = api.call_api(method, url, headers, body, None, limits)
        except urllib3.exceptions.EmptyPoolError as error:
            raise NotSent(f"{what}: all connections are in use") from error
        except (urllib3.exceptions.HTTPError, OSError, ApiException) as error:
            self._turn = turn + 1  # threads that fail at one server turn away from it once
            raise _not_reached(what, error) from error
        if answer.status >= _ERROR:  # as of a server that has lost its store
            self._turn = turn + 1
        return answer

    def _body(self, response: urllib3.BaseHTTPResponse, ends_at: float, what: str, most_bytes: int | None = None) -> bytes:
        parts, size, wrong = [], 0, ""
        most = self._max_body_bytes if most_bytes is None else most_bytes
        for part in response.stream(PIECE_BYTES):
            size += len(part)
            wrong = f"the answer is larger than {most} bytes" if size > most else ""
            wrong = "the answer trickled past the deadline" if time.monotonic() > ends_at else wrong
            if wrong:
                response.close()
                raise Unknown(f"{what}: {wrong}")
            parts.append(part)
        response.release_conn()
        return b"".join(parts)

    def _note(self, date: str | None) -> None:
        try:
            self.seen_at = parsedate_to_datetime(date).astimezone(UTC) if date else None
        except ValueError:
            self.seen_at = None


@contextmanager
def _as_unknown(what: str) -> Iterator[None]:
    """
    A body that breaks off leaves open what was done.
    """
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Unknown(f"{what}: {type(error).__name__}") from error


def _client(url: str, connections: int, tls: Json) -> ApiClient:
    configuration = Configuration(host=url)
    configuration.proxy = None
    client = ApiClient(configuration)
    client.rest_client.pool_manager = urllib3.PoolManager(
        num_pools=1, maxsize=connections, block=True, retries=urllib3.Retry(0, redirect=0, raise_on_redirect=False), **tls
    )
    return client


def failed(what: str, status: int, raw: bytes, retry_after: str | None) -> ProviderError:
    """
    The server's refusal in the port's words. What it says of an unknown outcome stays unknown.
    """
    reason, message, causes = _status(raw)
    detail = f"{what}: HTTP {status} {reason}: {message}"[:600]
    wait_s = min(float(retry_after), 600.0) if retry_after and retry_after.isdigit() else 5.0
    wrong: ProviderError = Refused(detail) if status < _ERROR else Unknown(detail, retry_in_s=wait_s)
    if status == _UNAUTHORIZED:
        wrong = AuthFailed(detail)
    elif status == _FORBIDDEN:
        wrong = _forbidden(detail, message, causes)
    elif status == _MISSING:
        # without a Status it is the server that lacks the kind, or a proxy that answers: no proof that the object is not there
        wrong = NotFound(detail) if reason == "NotFound" and NO_SUCH_KIND not in message else Unknown(detail)
    elif status == _CONFLICT:
        wrong = Exists(detail) if reason == "AlreadyExists" else Conflict(detail, retry_in_s=1.0)
    elif status == _GONE:
        wrong = Expired(detail)
    elif status == _MANY:
        wrong = Busy(detail, retry_in_s=wait_s)
    return wrong


def _forbidden(detail: str, message: str, causes: frozenset[str]) -> ProviderError:
    """
    403 is also how quotas, Pod Security and a namespace on its way out say no.
    """
    if "NamespaceTerminating" in causes:
        return Busy(detail, retry_in_s=5.0, code="provider_namespace_terminating")
    if "exceeded quota" in message or "violates PodSecurity" in message or "admission webhook" in message:
        return Refused(detail)
    return AuthFailed(detail)


def _status(raw: bytes) -> tuple[str, str, frozenset[str]]:
    try:
        said = json.loads(raw)
        details = said.get("details") or {}
        causes = frozenset(str(one.get("reason")) for one in details.get("causes") or [])
        return str(said.get("reason") or ""), str(said.get("message") or "")[:500], causes
    except (ValueError, AttributeError, TypeError, RecursionError):
        return "", raw[:200].decode(errors="replace"), frozenset()


def _not_reached(what: str, error: Exception) -> ProviderError:
    """
    What is known of a request that got no answer: that it was never sent, or nothing.
    """
    if isinstance(error, ApiException):
        return NotSent(f"{what}: {str(error.reason)[:200]}")
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
    never: tuple[type[Exception], ...] = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
    never += (urllib3.exceptions.SSLError,) if cause is not error else ()
    return (NotSent if isinstance(cause, never) else Unknown)(f"{what}: {type(cause).__name__}")


def _tls(way: Access) -> ssl.SSLContext:
    """
    A context that checks the server's name and holds our certificate; its file lives as long as the reading takes.
    """
    try:
        context = ssl.create_default_context(cadata=way.ca_pem or None)
        if way.cert_pem:
            with tempfile.TemporaryDirectory() as folder:
                both = Path(folder) / "client.pem"
                both.touch(mode=0o600)
                both.write_text(f"{way.cert_pem}\n{way.key_pem}\n", encoding="ascii")
                context.load_cert_chain(both)
    except (ssl.SSLError, ValueError) as error:
        raise Permanent(f"a certificate cannot be used: {type(error).__name__}", code="provider_config_invalid") from error
    return context
