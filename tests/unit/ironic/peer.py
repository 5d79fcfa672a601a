"""
An Ironic of a few lines for what a real one does not do on order: it answers as a test tells it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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


class OneNode:
    """
    An Ironic with one node that keeps what it is told and moves as the test says.
    """

    def __init__(self, moves: Mapping[str, str], history: Sequence[Mapping[str, Any]] = (), **more: Any) -> None:
        self.node = node(**more)
        self.sent: list[str] = []
        self.history = list(history)
        self._moves = moves

    def answer(self, request: httpx.Request) -> httpx.Response:
        """
        As Ironic would; changes are listed in `sent`.
        """
        below = request.url.path.partition("/v1/nodes/")[2].partition("/")[2]
        if request.method == "GET":
            listed = {"history": {"history": self.history}, "vifs": {"vifs": []}}
            return httpx.Response(200, json=listed.get(below, self.node))
        return self._change(request.method, below, json.loads(request.content or "null"))

    def _change(self, method: str, below: str, content: Any) -> httpx.Response:
        if method == "PATCH":
            for op in content:
                self._patch(op)
            return httpx.Response(200, json=self.node)
        if below == "maintenance":
            self.node |= {"maintenance": False, "maintenance_reason": None, "fault": None}
        elif below == "states/provision":
            state = self._moves[content["target"]]
            self.node |= {"provision_state": state, "provision_updated_at": f"2026-01-31T11:00:{len(self.sent) + 1:02d}+00:00"}
        else:
            self.node["power_state"] = content["target"]
        self.sent.append(f"{method} {below} {(content or {}).get('target', '')}".strip())
        return httpx.Response(202)

    def _patch(self, op: Mapping[str, Any]) -> None:
        *parents, name = op["path"][1:].split("/")
        place = self.node
        for one in parents:
            place = place[one]
        if op["op"] == "remove":
            del place[name]
        else:
            place[name] = op["value"]
