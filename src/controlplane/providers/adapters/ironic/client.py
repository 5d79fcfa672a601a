"""
HTTP to one Ironic: microversion, login, and every answer judged. The only place that knows httpx.

Source: docs.openstack.org/api-ref/baremetal, and docs.openstack.org/ironic/latest/contributor/webapi-version-history.html.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from controlplane.providers.adapters.ironic.answers import Answer, judge, read_answer
from controlplane.providers.adapters.ironic.login import Login
from controlplane.providers.deadline import time_left_s
from controlplane.providers.errors import NotSent, Unknown, Unsupported
from controlplane.providers.tls import trusted

CONNECT_S = 5.0
MAX_CONNECTIONS = 8
OLDEST = 78
"""Of the microversions 1.N: node history, by which a wipe is believed (Ironic 19, Xena)."""
NEWEST = 115
"""The newest that was tried: a newer Ironic is spoken to in this one."""
VERSION_HEADER = "X-OpenStack-Ironic-API-Version"
_MAXIMUM = "x-openstack-ironic-api-maximum-version"


class IronicRest:
    """
    An Ironic. Safe to share between threads.
    """

    def __init__(
        self,
        url: str,
        login: Login,
        *,
        timeout_s: float,
        max_body_bytes: int,
        ca_file: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._login = login
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._minor: int | None = None
        self._lock = threading.Lock()
        self._http = httpx.Client(
            verify=trusted(ca_file),
            trust_env=False,
            follow_redirects=False,
            transport=transport,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        )

    def close(self) -> None:
        """
        The pool's connections are closed.
        """
        self._http.close()

    def minor(self) -> int:
        """
        The N of the microversion 1.N that is spoken: the newest both sides know. Raises Unsupported for an Ironic that is too old.
        """
        with self._lock:
            if self._minor is None:
                answer = self._ask("GET", "/v1", None, None, {})
                judge(answer, "GET /v1")
                self._minor = _spoken(answer.headers.get(_MAXIMUM, ""))
            return self._minor

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """
        The JSON object of a good answer.
        """
        found = self._judged("GET", path, params, None)
        if not isinstance(found, Mapping):
            raise Unknown(f"GET {path} was not answered with a JSON object")
        return found

    def pages(self, path: str, item: str, params: Mapping[str, str], *, marker: str = "") -> Iterator[Mapping[str, Any]]:
        """
        Every item of a listing. Ironic's `next` tells that there are more; its address is not followed, for it may name a host that
        only Ironic knows.
        """
        while True:
            page = self.get(path, {**params, "marker": marker} if marker else params)
            items = page.get(item)
            if not isinstance(items, list) or not all(isinstance(one, Mapping) for one in items):
                raise Unknown(f"GET {path} was answered without {item}")
            yield from items
            if not page.get("next"):
                return
            last = str(items[-1].get("uuid", "")) if items else ""
            if not last or last == marker:
                raise Unknown(f"GET {path} does not page: no new marker")
            marker = last

    def change(self, method: str, path: str, content: Any = None) -> Any:
        """
        Ironic has accepted the change; its JSON, or None.
        """
        return self._judged(method, path, None, content)

    def _judged(self, method: str, path: str, params: Mapping[str, str] | None, content: Any) -> Any:
        headers = {VERSION_HEADER: f"1.{self.minor()}"}
        return judge(self._ask(method, path, params, content, headers), f"{method} {path}")

    def _ask(self, method: str, path: str, params: Mapping[str, str] | None, content: Any, headers: Mapping[str, str]) -> Answer:
        proof = self._login.headers(self._post)
        answer = self._exchange(method, self._url + path, params, content, {**headers, **proof})
        if answer.status == httpx.codes.UNAUTHORIZED and self._login.refused(proof):
            proof = self._login.headers(self._post)
            answer = self._exchange(method, self._url + path, params, content, {**headers, **proof})
        return answer

    def _post(self, url: str, content: Mapping[str, Any]) -> Answer:
        return self._exchange("POST", url, None, content, {})

    def _exchange(
        self, method: str, url: str, params: Mapping[str, str] | None, content: Any, headers: Mapping[str, str]
    ) -> Answer:
        left_s = time_left_s(self._timeout_s)
        ends_at = time.monotonic() + left_s
        what = f"{method} {httpx.URL(url).path}"
        try:
            with self._http.stream(
                method,
                url,
                params=params,
                json=content,
                headers={"Accept": "application/json", **headers},
                timeout=httpx.Timeout(left_s, connect=min(CONNECT_S, left_s)),
            ) as response:
                raw = self._body(response, ends_at)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            raise NotSent(f"{what}: {type(error).__name__}: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unknown(f"{what}: {type(error).__name__}: {error}") from error
        return read_answer(response.status_code, raw, response.headers)

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


def node_path(ref: str, *more: str) -> str:
    """
    The path of a node, or of something below it, for any name.
    """
    return "/".join(["/v1/nodes", quote(ref, safe=""), *more])


def _spoken(maximum: str) -> int:
    major, _, minor = maximum.partition(".")
    if major != "1" or not minor.isdecimal():
        raise Unknown(f"/v1 does not say which microversions it knows ({maximum!r}): is this an Ironic?")
    if int(minor) < OLDEST:
        raise Unsupported(f"this Ironic knows API 1.{minor} at most; 1.{OLDEST} is needed", code="provider_version_unsupported")
    return min(int(minor), NEWEST)
