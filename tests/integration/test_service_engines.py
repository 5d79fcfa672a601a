"""
Services that name an engine and a model, over HTTP: sized, spread over nodes, refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.factories.services import ENGINE, ServiceWorld, service_world


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[ServiceWorld]:
    """Two tenants with a Kubernetes cluster each."""
    with service_world(database, tmp_path) as made:
        yield made


def test_an_engine_is_sized_for_the_model_and_says_how(world: ServiceWorld) -> None:
    """GPUs and parallelism come from the cluster's nodes and the model; formulas, assumptions and sources are in the answer."""
    body = world.body(replicas=1)
    body["spec"]["template"] = {"engine": ENGINE}
    status, told = world.call("POST", f"{world.path}?dry_run=true", body)
    assert status == 200, told
    template, fit = told["spec"]["template"], told["proposal"]["result"]["fit"]
    assert (template["gpus_per_node"], template["nodes_per_replica"]) == (fit["gpus"], 1)
    assert template["command"][:2] == ["vllm", "serve"]
    assert template["command"][-4:] == ["--host", "0.0.0.0", "--port", "8000"]
    assert template["readiness"]["path"] == "/health"
    assert told["proposal"]["formulas"]
    assert told["proposal"]["assumptions"]
    assert {"H100-SXM5-80GB"} == {told["proposal"]["inputs"]["gpu_model"]}
    path = world.start(body)
    assert world.until_state(path, "running")["status"]["gpus_held"] == fit["gpus"]
    assert world.get(f"{path}/versions")["items"][0]["proposal"] == told["proposal"]


@pytest.mark.parametrize(("engine", "word"), [("vllm", "ray start --head"), ("sglang", '--node-rank "$NODE_RANK"')])
def test_a_model_larger_than_a_node_spans_nodes(world: ServiceWorld, engine: str, word: str) -> None:
    """One replica over two nodes: the first leads, the others find it."""
    body = world.body(replicas=1)
    large = {"engine": engine, "model": "llama-3.1-405b", "context_tokens": 8192}
    body["spec"]["template"] = {"engine": large}
    status, told = world.call("POST", f"{world.path}?dry_run=true", body)
    assert status == 200, told
    template = told["spec"]["template"]
    assert (template["nodes_per_replica"], template["gpus_per_node"]) == (2, 8)
    assert word in template["command"][-1]
    assert "$MASTER_ADDR" in template["worker_command"][-1]


@pytest.mark.parametrize(
    ("wish", "status", "code"),
    [
        ({**ENGINE, "engine": "tgi"}, 422, "engine_archived"),
        ({**ENGINE, "model": "no-such-model", "model_path": "a/b"}, 422, "unknown_facts"),
        ({**ENGINE, "sequences": 1_000_000}, 409, "model_does_not_fit"),
        ({"engine": "triton", "model": "llama-3.1-405b", "context_tokens": 8192}, 409, "model_does_not_fit"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(world: ServiceWorld, wish: dict[str, Any], status: int, code: str) -> None:
    """Archived, unknown, too large, or more nodes than the engine is run on; fields are named where they stand in the request."""
    body = world.body()
    body["spec"]["template"] = {"engine": wish}
    answer = world.call("POST", world.path, body)
    assert (answer[0], answer[1]["code"]) == (status, code)
    assert all(one["field"].startswith("body.spec.template.engine") for one in answer[1].get("errors", []))
