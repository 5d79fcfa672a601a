"""
Which Service an owner means, and how it is asked.
"""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.providers.kube.work.figures import Figures, told_by

WEB, RELOADER = {"name": "http-web", "port": 9090}, {"name": "reloader-web", "port": 8080}
PORT, EVERY_S = "controlplane.internal/gpu-metrics-port", "controlplane.internal/gpu-metrics-every-s"


def service(*ports: dict[str, Any], name: str = "prom", notes: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A labelled one."""
    meta = {"name": name, "namespace": "monitoring", "annotations": notes or {}}
    return {"metadata": meta, "spec": {"ports": list(ports), **spec}}


def at(where: str, every_s: int = 30) -> Figures:
    """Asked there."""
    return Figures(f"/api/v1/namespaces/monitoring/services/{where}/proxy/api/v1/query", every_s)


@pytest.mark.parametrize(
    ("services", "told"),
    [
        ([service(WEB)], at("prom:9090")),
        ([service(WEB, clusterIP="None", type="ClusterIP")], at("prom:9090")),
        ([service({**WEB, "appProtocol": "https"})], at("https:prom:9090")),
        ([service(WEB, RELOADER, notes={PORT: "http-web"})], at("prom:9090")),
        ([service(WEB, RELOADER, notes={PORT: "8080", EVERY_S: "300"})], at("prom:8080", 300)),
        ([], None),
        ([service(WEB), service(WEB, name="other")], None),
        ([service(WEB, RELOADER)], None),
        ([service(WEB, notes={PORT: "metrics"})], None),
        ([service()], None),
        ([service({"name": "dns", "port": 53, "protocol": "UDP"})], None),
        ([service({"name": "odd", "port": 0})], None),
        ([service(WEB, type="ExternalName", externalName="prom.example.org")], None),
        ([service(WEB, name="../secrets/x")], None),
        *(([service(WEB, notes={EVERY_S: odd})], None) for odd in ("0", "301", "15s", "-1", "٣", "1000")),
    ],
)
def test_one_service_that_says_plainly_how_it_is_asked_is_the_source(services: list[dict[str, Any]], told: Figures | None) -> None:
    """Everything else is nobody's word."""
    assert told_by(services) == told
