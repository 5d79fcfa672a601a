"""
Scopes and a client at the edge for tests of quotas and their neighbours.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError

from controlplane.identity.states import TOP_RIGHTS
from controlplane.kit.access import Principal, ScopeKind
from controlplane.kit.ids import new_id
from controlplane.quotas.states import Chain
from controlplane.web.endpoint import Edge
from controlplane.web.problems import validation_problem


def chain(reseller_id: str | None = None, tenant_id: str | None = None) -> Chain:
    """
    A path down to a new project, under new or given ancestors.
    """
    return Chain(reseller_id or new_id("rsl"), tenant_id or new_id("ten"), new_id("prj"))


def principal(kind: ScopeKind, path: Chain) -> Principal:
    """
    A bearer of every right of the level, at that level of the path.
    """
    ids = {"platform": "platform", "reseller": path.reseller_id, "tenant": path.tenant_id, "project": path.project_id}
    return Principal(
        id=new_id("prn"),
        key_id=new_id("key"),
        scope_kind=kind,
        scope_id=ids[kind] or "",
        permissions=TOP_RIGHTS[kind],
        reseller_id=(path.reseller_id or "") if kind != "platform" else "",
        tenant_id=(path.tenant_id or "") if kind in {"tenant", "project"} else "",
        project_id=(path.project_id or "") if kind == "project" else "",
    )


class KnownBearers:
    """
    Accepts tokens that a test handed out.
    """

    def __init__(self) -> None:
        self._by_header: dict[str, Principal] = {}

    def headers(self, who: Principal) -> dict[str, str]:
        """
        The header under which the principal is known from now on.
        """
        token = f"Bearer {secrets.token_hex(8)}"
        self._by_header[token] = who
        return {"Authorization": token}

    def authenticate(self, authorization: str | None, client: Any, *, reseller_id: str | None = None) -> Principal:
        """
        The principal of the header.
        """
        return self._by_header[authorization or ""]


class NoLimit:
    """
    Lets every request pass.
    """

    def check_key(self, who: Principal, *, cheap: bool) -> None:
        """
        Returns.
        """


class Caller:
    """
    Speaks to an application that serves only some routers, as whoever it is told.
    """

    def __init__(self, engine: Any, routers: Sequence[APIRouter]) -> None:
        self._bearers = KnownBearers()
        self._app = FastAPI()
        self._app.state.edge = Edge(engine=engine, authenticator=self._bearers, nudge=lambda _: None)
        self._app.middleware("http")(_outer)
        self._app.exception_handler(RequestValidationError)(_malformed)
        for one in routers:
            self._app.include_router(one)

    def __call__(self, who: Principal, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """
        The answer to one request.
        """
        headers = self._bearers.headers(who) | kwargs.pop("headers", {})

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://edge") as client:
                return await client.request(method, path, headers=headers, **kwargs)

        return asyncio.run(send())


async def _outer(request: Request, call_next: Any) -> Any:
    request.state.request_id, request.state.client, request.state.limiter = new_id("req"), None, NoLimit()
    return await call_next(request)


async def _malformed(request: Request, error: Exception) -> Any:
    assert isinstance(error, RequestValidationError)
    return validation_problem(error, request.state.request_id)
