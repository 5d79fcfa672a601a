"""
A small tree with keys at every level, and a small application that serves one router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.responses import Response

from controlplane.identity import service
from controlplane.identity.service import Described, KeyAuthenticator
from controlplane.kit.access import Principal
from controlplane.kit.db import EVERYTHING, Wall, in_transaction, raise_wall
from controlplane.web.endpoint import Edge
from controlplane.web.problems import validation_problem


@dataclass(frozen=True)
class Branch:
    """
    A reseller with one tenant and one project, and a key for each.
    """

    reseller_id: str
    """`rsl_…`."""
    reseller_key: str
    """Text of its administrator's key."""
    tenant_id: str
    """`ten_…`."""
    owner_key: str
    """Text of the tenant owner's key."""
    project_id: str
    """`prj_…`."""


@dataclass(frozen=True)
class Tree:
    """
    The operator and two resellers that must not see each other.
    """

    operator_key: str
    """Text of the first operator's key."""
    left: Branch
    """One reseller's branch."""
    right: Branch
    """The other's."""


def work(engine: Engine, job: Callable[[Session], Any], wall: Wall = EVERYTHING) -> Any:
    """
    What the job returned, in one committed transaction.
    """
    return in_transaction(engine, wall, job)


def principal_of(engine: Engine, key: str) -> Principal:
    """
    The principal that a key stands for now, without any cache.
    """
    return KeyAuthenticator(engine, cache_s=0).authenticate(f"Bearer {key}", None)


def make_branch(engine: Engine, operator: Principal, name: str, *, domain: str | None = None) -> Branch:
    """
    A reseller of this name with a tenant and a project.
    """

    def reseller(session: Session) -> tuple[str, str]:
        brand = {"name": name.title(), "logo_url": "", "colour": "#0a7cff", "support_email": f"help@{name}.example"}
        domains = [domain] if domain else []
        view = service.create_reseller(session, Described(name), brand=brand, domains=domains, ceilings={"gpus": 512})
        made = service.create_reseller_admin(session, operator, view.row.id, name="Ann", email=f"ann@{name}.example")[1]
        return view.row.id, made.text

    reseller_id, reseller_key = work(engine, reseller)
    seller = principal_of(engine, reseller_key)

    def tenant(session: Session) -> tuple[str, str]:
        row = service.create_tenant(session, seller, Described("acme"), limits={"gpus": 64, "clusters": 5, "keys": 50})
        return row.id, service.create_owner(session, seller, row.id, name="Ola", email="ola@acme.example")[1].text

    tenant_id, owner_key = work(engine, tenant, seller.wall)
    owner = principal_of(engine, owner_key)
    project_id = work(engine, lambda session: service.create_project(session, owner, Described("vision")).id, owner.wall)
    return Branch(reseller_id, reseller_key, tenant_id, owner_key, project_id)


def make_tree(engine: Engine) -> Tree:
    """
    The operator and two resellers, each with a tenant named acme.
    """
    key = work(engine, lambda session: service.first_operator(session, "root@cloud.example"))
    operator = principal_of(engine, key)
    left = make_branch(engine, operator, "fjord", domain="cloud.fjord.example")
    right = make_branch(engine, operator, "delta", domain="cloud.delta.example")
    return Tree(key, left, right)


def small_app(engine: Engine, router: APIRouter, *, cache_s: float = 0.0) -> FastAPI:
    """
    An application that serves the router as the real one does, as far as the edge goes.
    """
    app = FastAPI()
    app.state.edge = Edge(
        engine, KeyAuthenticator(engine, cache_s=cache_s), lambda nudges: None, tenant_limits={"gpus": 64, "clusters": 20}
    )
    limiter = SimpleNamespace(check_key=lambda principal, *, cheap: None)

    @app.middleware("http")
    async def prepare(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        request.state.request_id = "req_test"
        request.state.client = ip_address("192.0.2.7")
        request.state.limiter = limiter
        with Session(engine) as session, session.begin():
            raise_wall(session, EVERYTHING)
            request.state.brand = service.brand_for_host(session, request.headers["host"])
        return await call_next(request)

    async def malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_problem(error, request.state.request_id)

    app.add_exception_handler(RequestValidationError, malformed)
    app.include_router(router)
    return app


class Caller:
    """
    Calls an application with one key.
    """

    def __init__(self, app: FastAPI, key: str, *, host: str = "testserver") -> None:
        self._app = app
        self._key = key
        self._url = f"http://{host}"

    def __call__(
        self, method: str, path: str, body: Any = None, *, version: int | None = None, once: str | None = None
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._key}"}
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        if once is not None:
            headers["Idempotency-Key"] = once

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=self._url) as client:
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(ask())
