"""
A small client of the public API: what a tenant's own program would do, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from controlplane.local.errors import LocalError

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 45.0
GONE_FOR_S = 30.0
RETRY_EVERY_S = 0.5

Json = dict[str, Any]


class ApiRefused(LocalError):
    """
    The API answered with a problem.
    """

    def __init__(self, status: int, problem: Json) -> None:
        self.status = status
        self.code = str(problem.get("code", ""))
        words = problem.get("detail") or problem.get("title") or "no reason given"
        fields = "; ".join(f"{each.get('field')}: {each.get('message')}" for each in problem.get("errors") or [])
        said = f"{words} ({fields})" if fields else str(words)
        super().__init__(
            f"The API answered {status} {self.code}: {said}", f"Its log names request {problem.get('request_id', '?')}."
        )


class ApiClient:
    """
    Calls the API with one key. A connection that fails is tried again for a while: the server may be starting anew.
    """

    def __init__(self, base_url: str, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # Proxies in the environment are for the world outside; this server is on the loopback address.
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """
        Tells whether the server says that it is ready.
        """
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def get(self, path: str, **query: str | int) -> Json:
        """
        Answers the document at a path.
        """
        return self._call("GET", path, query=query)

    def post(self, path: str, body: Json, *, idempotency_key: str) -> Json:
        """
        Answers what the server made of the body: the same however often it is sent with one key.
        """
        return self._call("POST", path, body=body, headers={"Idempotency-Key": idempotency_key})

    def pages(self, path: str, **query: str | int) -> Iterator[Json]:
        """
        Yields every item of a list.
        """
        while True:
            page = self.get(path, **query)
            yield from page["items"]
            if not page.get("next_page_token"):
                return
            query["page_token"] = page["next_page_token"]

    def _call(self, method: str, path: str, *, query: Json | None = None, body: Any = None, headers: Any = None) -> Json:
        until_s = time.monotonic() + GONE_FOR_S
        while True:
            try:
                answer = self._http.request(method, path, params=query, json=body, headers=headers)
            except httpx.TransportError as error:
                if time.monotonic() > until_s:
                    raise LocalError(f"The API does not answer: {error}", "See the API's log.") from error
                time.sleep(RETRY_EVERY_S)
                continue
            if answer.status_code == httpx.codes.TOO_MANY_REQUESTS and time.monotonic() < until_s:
                time.sleep(float(answer.headers.get("Retry-After", "1")))
                continue
            return _document(answer)


def _document(answer: httpx.Response) -> Json:
    try:
        content = answer.json()
    except ValueError:
        content = {"detail": answer.text[:200]}
    if answer.is_error:
        raise ApiRefused(answer.status_code, content)
    assert isinstance(content, dict)
    return content
