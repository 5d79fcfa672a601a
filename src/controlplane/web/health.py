"""
What is up: for probes of whatever runs the process, without credentials, limits or brand.
"""

from collections.abc import Callable, Mapping

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from controlplane.web.problems import document
from controlplane.web.schemas import Out, Problem

Probe = Callable[[], str]
"""Answers `up`, `down`, `absent` (not configured) or `behind` (the schema is older than the code)."""


class Health(Out):
    """
    The process lives.
    """

    status: str = Field(description="Always ok.", examples=["ok"])


class Readiness(Out):
    """
    Requests can be served.
    """

    status: str = Field(description="Always ready; a process that is not answers 503.", examples=["ready"])
    parts: dict[str, str] = Field(
        description="Each part: up, down or absent. Without a broker everything works, only slower.",
        examples=[{"database": "up", "broker": "absent"}],
    )


def health_router(probes: Mapping[str, Probe], needed: frozenset[str]) -> APIRouter:
    """
    Routes that tell whether the process lives and whether every needed part is up.
    """
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="Tell whether the process lives", operation_id="get_health", response_model=Health)
    async def get_health() -> Response:
        """
        Answered without looking at anything else.
        """
        return JSONResponse({"status": "ok"})

    @router.get(
        "/readyz",
        summary="Tell whether requests can be served",
        operation_id="get_readiness",
        response_model=Readiness,
        responses={503: {"model": Problem, "description": "A part that is needed is down; `parts` names it."}},
    )
    def get_readiness(request: Request) -> Response:
        """
        The database answers at the schema this code needs. A broker that is down is told, but does not make the process unready.
        """
        parts = {name: probe() for name, probe in probes.items()}
        if all(parts[name] == "up" for name in needed):
            return JSONResponse({"status": "ready", "parts": parts})
        detail = ", ".join(f"{name} is {parts[name]}" for name in sorted(needed) if parts[name] != "up") + "."
        return document(503, "not_ready", "Not ready", detail, request.state.request_id, after_s=2.0, extra={"parts": parts})

    return router
