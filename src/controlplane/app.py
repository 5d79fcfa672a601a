"""
The HTTP application: the edge around every room's routes.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio.to_thread
import redis
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from controlplane import migrations
from controlplane.activity.routes import router as activity
from controlplane.boots.machine_routes import LANES as BOOT_LANES
from controlplane.boots.machine_routes import door_of
from controlplane.boots.routes import router as boots
from controlplane.bootstrap import Runtime, build, credential_desk
from controlplane.calculators.routes import router as calculators
from controlplane.catalog.routes import router as catalog
from controlplane.clusters.routes import router as clusters
from controlplane.fabric_checks.machine_routes import LANES as FABRIC_LANES
from controlplane.fabric_checks.routes import router as fabric_checks
from controlplane.identity import service as identity
from controlplane.identity.routes import router as tree
from controlplane.images.routes import UPLOADS
from controlplane.images.routes import router as images
from controlplane.jobs.machine_routes import LANES as JOB_LANES
from controlplane.jobs.routes import router as jobs
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.kit.errors import Unavailable
from controlplane.kit.logging import configure
from controlplane.metering.routes import router as metering
from controlplane.nodes.enrolment_routes import FILES, LARGEST_FILE_BYTES, MEDIA_TYPES
from controlplane.nodes.routes import router as nodes
from controlplane.qualification.routes import router as qualification
from controlplane.quotas.routes import router as quotas
from controlplane.services.routes import router as services
from controlplane.settings import Settings
from controlplane.web import openapi
from controlplane.web.brand import Brands
from controlplane.web.edge import EdgeMiddleware, Gate, trusted_networks
from controlplane.web.endpoint import Edge, refuse_malformed
from controlplane.web.health import Probe, health_router
from controlplane.web.limits import Limiter
from controlplane.web.problems import plain_problem
from controlplane.web.sharing import Exchange, store_client
from controlplane.web.uploads import Upload, Written

log = logging.getLogger(__name__)
ROUTERS = (
    *(
        clusters,
        jobs,
        services,
        tree,
        catalog,
        images,
        quotas,
        metering,
        nodes,
        boots,
        qualification,
        fabric_checks,
        activity,
        calculators,
    ),
)
"""What is asked for most comes first: routes are searched in order."""
REVISION = text("SELECT version_num FROM alembic_version")


def create_app(settings: Settings | None = None) -> FastAPI:
    """
    The application, wired and not yet serving. Raises PowerfulRole when the database role could see past row-level security.
    """
    settings = settings or Settings()
    configure(settings.log_level)
    runtime = build(settings)
    limiter = Limiter(settings.rate_limit_per_s, settings.rate_limit_burst)
    gate = Gate(
        limiter=limiter,
        brands=Brands(lambda host: _find_brand(runtime.engine, host)),
        trusted=trusted_networks(settings.trusted_proxies),
        max_body_bytes=settings.max_body_bytes,
        lanes=(*BOOT_LANES, *JOB_LANES, *FABRIC_LANES),
        written=(Written("POST", re.compile(FILES), frozenset(MEDIA_TYPES), LARGEST_FILE_BYTES),),
        uploads=tuple(Upload("PUT", re.compile(path), settings.max_image_chunk_bytes) for path in UPLOADS),
    )
    app = FastAPI(
        title=openapi.NAME,
        version=openapi.VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(runtime, limiter),
    )
    app.state.edge = _edge(runtime)
    app.state.boots = door_of(settings, runtime.sealer)
    app.state.runtime = runtime
    app.add_middleware(EdgeMiddleware, gate=gate)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(health_router(_probes(runtime), frozenset({"database"})))
    openapi.mount_documents(app)
    return app


def _edge(runtime: Runtime) -> Edge:
    settings = runtime.settings
    limits = {
        "gpus": settings.default_gpu_quota,
        "clusters": settings.default_cluster_quota,
        "keys": settings.default_key_quota,
        "operations": settings.default_operation_quota,
        "image_bytes": settings.default_image_bytes_quota,
    }
    return Edge(
        engine=runtime.engine,
        authenticator=runtime.authenticator,
        nudge=runtime.nudge,
        tenant_limits=limits,
        sealer=runtime.sealer,
        images=runtime.images,
        credentials=credential_desk(runtime),
    )


def _lifespan(runtime: Runtime, limiter: Limiter) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def span(app: FastAPI) -> AsyncIterator[None]:
        del app
        anyio.to_thread.current_default_thread_limiter().total_tokens = runtime.settings.http_threads
        broker_url = runtime.settings.broker_url.get_secret_value()
        if broker_url:
            exchange = Exchange(limiter, store_client(broker_url), prefix=runtime.settings.deployment)
            exchange.start()
            runtime.closers.append(exchange.stop)
        runtime.keeper.start()
        runtime.closers.append(runtime.keeper.stop)
        try:
            yield
        finally:
            runtime.close()

    return span


def _find_brand(engine: Engine, host: str) -> identity.Brand | None:
    try:
        with Session(engine) as session:
            raise_wall(session, EVERYTHING)
            return identity.brand_for_host(session, host)
    except SQLAlchemyError:
        raise Unavailable("The database does not answer; the request changed nothing. Try again soon.") from None


def _probes(runtime: Runtime) -> dict[str, Probe]:
    newest = migrations.head()
    broker_url = runtime.settings.broker_url.get_secret_value()
    broker = store_client(broker_url) if broker_url else None

    def database() -> str:
        try:
            with runtime.engine.connect() as connection:
                revision = connection.execute(REVISION).scalar()
                connection.commit()  # a rollback would throw away the connection's prepared statements
                return "up" if revision == newest else "behind"
        except SQLAlchemyError:
            return "down"

    def wakes() -> str:
        if broker is None:
            return "absent"
        try:
            broker.ping()
        except (redis.RedisError, OSError):
            return "down"
        return "up"

    if broker is not None:
        runtime.closers.append(broker.close)
    return {"database": database, "broker": wakes}


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = plain_problem(error.status_code, request.state.request_id, str(error.detail))
    allowed = (error.headers or {}).get("Allow")
    if allowed:
        response.headers["Allow"] = allowed
    return response


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await run_in_threadpool(refuse_malformed, request, error)
