"""
What the kit's API server lacks: the proxy to Services, as the published one behaves on a GET, with a source of metrics behind them that
says what a test tells it.

Source: Kubernetes' reference of `connect get service proxy`, and the errors that its registry of Services and its proxy handler give.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes_kit import KubernetesKit, emulator_module

PATH = re.compile(r"/api/v1/namespaces/([^/]+)/services/(?:(https?):)?([a-z0-9-]+)(?::([a-z0-9-]*))?/proxy(/.*)?")


@dataclass
class MetricsSource:
    """
    A source that speaks as Prometheus does.
    """

    counts: list[str] = field(default_factory=list)
    """Samples of each series."""
    peaks: list[str] = field(default_factory=list)
    """The highest of each."""
    raw: tuple[int, bytes] | None = None
    """Said in place of all that."""
    location: str = ""
    """Where a redirect leads."""
    hangs_s: float = 0.0
    """How long it says nothing."""
    asked: list[str] = field(default_factory=list)
    """Queries that it got."""

    def answer(self, query: str) -> tuple[int, bytes]:
        """Status and body."""
        self.asked.append(query)
        if self.raw is not None:
            return self.raw
        values = self.counts if "count_over_time" in query else self.peaks
        result = [{"metric": {"gpu": str(number)}, "value": [1.0, one]} for number, one in enumerate(values)]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


NO_ANSWERS: dict[str, tuple[int, bytes]] = {
    "an error": (500, b"{}"),
    "a redirect": (302, b""),
    "a page": (200, b"<html>"),
    "a list": (200, b"[]"),
    "an error inside": (200, b'{"status": "error", "error": "x"}'),
    "a matrix": (200, b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'),
    "half of it": (200, b'{"status": "success", "warnings": ["half"], "data": {"resultType": "vector", "result": []}}'),
    "no number": (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "NaN"]}]}}'),
    "no value": (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{}]}}'),
    "too much": (200, b" " * (4 * 1024 * 1024 + 1)),
}
"""What a source may say that measures nothing."""


def keep_figures(kit: KubernetesKit, name: str = "prometheus", **spec: Any) -> None:
    """
    Somebody has made a Service, labelled it, and nothing stands behind it yet.
    """
    notes = spec.pop("annotations", {})
    label = spec.pop("label", "prometheus")
    meta = {"name": name, "labels": {"controlplane.internal/gpu-metrics": label}, "annotations": notes}
    ports = [{"name": "web", "port": 9090, "protocol": "TCP"}]
    kit.ask("POST", "/api/v1/namespaces/default/services", {"metadata": meta, "spec": {"ports": ports, **spec}}, "application/json")


class ServiceProxy:
    """
    The proxy of one server; Services have endpoints once a source stands behind their name.
    """

    def __init__(self, kit: KubernetesKit) -> None:
        self.behind: dict[str, MetricsSource] = {}
        self.paths: list[str] = []
        """What was asked of it, without queries."""
        self._emulator = kit.emulator
        self._route = self._emulator.route
        self._emulator.route = self._answer

    async def _answer(self, request: Any) -> Any:
        found = PATH.fullmatch(request.path)
        if found is None:
            return await self._route(request)
        assert request.method == "GET"
        self._emulator.who(request)
        self.paths.append(request.path)
        namespace, _, name, port, rest = found.groups()
        source = self._source(namespace, name, port or "")
        if source.hangs_s:
            await asyncio.sleep(source.hangs_s)
        assert rest == "/api/v1/query"
        status, body = source.answer(request.query["query"])
        headers = {"Location": source.location} if source.location else {}
        return emulator_module().web.Response(status=status, body=body, headers=headers)

    def _source(self, namespace: str, name: str, port: str) -> MetricsSource:
        fail = emulator_module().Fail
        service = self._emulator.data[("", "services")].get((namespace, name))
        if service is None:
            raise fail(404, "NotFound", f'services "{name}" not found', {})
        ports = service["spec"].get("ports") or []
        if port not in {key for one in ports for key in (str(one["port"]), one.get("name", ""))}:
            raise fail(503, "ServiceUnavailable", f'no service port {port} found for service "{name}"', {})
        if name not in self.behind:
            raise fail(503, "ServiceUnavailable", f'no endpoints available for service "{name}"', {})
        return self.behind[name]
