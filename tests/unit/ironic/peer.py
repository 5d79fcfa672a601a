"""
An Ironic of a few lines for what a real one does not do on order: it answers as a test tells it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from controlplane.providers.adapters.ironic.adapter import IronicAdapter
from controlplane.providers.adapters.ironic.client import IronicRest
from controlplane.providers.adapters.ironic.config import IronicConfig
from controlplane.providers.adapters.ironic.login import login_for
from controlplane.providers.adapters.ironic.naming import Names

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
UUID = "5d72c68a-6c4c-4e0b-b95b-178f034215c2"
VERSIONS = {"X-OpenStack-Ironic-API-Maximum-Version": "1.115"}
Answering = Callable[[httpx.Request], httpx.Response]


def fault(status: int, words: str, **headers: str) -> httpx.Response:
    """
    An error as Ironic says it: JSON inside a JSON string.
    """
    inner = json.dumps({"faultcode": "Client", "faultstring": words, "debuginfo": None})
    return httpx.Response(status, json={"error_message": inner}, headers=headers)


def node(**more: Any) -> dict[str, Any]:
    """
    A free node as Ironic says it.
    """
    plain = {
        "uuid": UUID,
        "name": "n1",
        "provision_state": "available",
        "power_state": "power off",
        "extra": {},
        "instance_uuid": None,
        "maintenance": False,
        "last_error": None,
        "provision_updated_at": "2026-01-31T11:00:00+00:00",
    }
    return {**plain, **more}


def peer(answer: Answering, *, config: Mapping[str, Any] | None = None, secrets: Mapping[str, str] | None = None) -> IronicAdapter:
    """
    An adapter to an Ironic that answers so; `/v1` it answers by itself.
    """
    told = IronicConfig.model_validate({"url": "http://ironic.test", "site": "ams1", "images": {"default": {}}, **(config or {})})

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1":
            return httpx.Response(200, json={"id": "v1"}, headers=VERSIONS)
        return answer(request)

    login = login_for(told, secrets or {}, lambda: NOW)
    rest = IronicRest(told.url, login, timeout_s=5, max_body_bytes=100_000, transport=httpx.MockTransport(handle))
    return IronicAdapter(told, rest, Names("test"))
