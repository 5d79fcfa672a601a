"""
What a replica is made of: as it was written, or as an engine needs it for a model on the nodes of the cluster.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.orm import Session

from controlplane.calculating.engines import EngineAnswer, EngineAsk
from controlplane.calculators import service as calculators
from controlplane.clusters.states import Home
from controlplane.kit.errors import FieldError, Invalid
from controlplane.services.errors import DoesNotFit

EngineName = Literal["vllm", "sglang", "tensorrt-llm", "triton", "tgi"]
RAY_PORT, SGLANG_PORT = 6379, 20_000


@dataclass(frozen=True, slots=True)
class Engine:
    """
    How one engine is run here.
    """

    image: str
    """Where its makers publish it."""
    listen: tuple[str, ...]
    """Arguments that make it listen on `{port}` of every address."""
    health: str
    """Answers once it serves."""
    spreads: bool
    """Whether one replica may span nodes."""


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine("docker.io/vllm/vllm-openai:v0.11.0", ("--host", "0.0.0.0", "--port", "{port}"), "/health", True),  # noqa: S104 - in its pod
    "sglang": Engine("docker.io/lmsysorg/sglang:v0.5.3", ("--host", "0.0.0.0", "--port", "{port}"), "/health", True),  # noqa: S104 - in its pod
    "tensorrt-llm": Engine(
        "nvcr.io/nvidia/tensorrt-llm/release:1.0.0",
        ("--host", "0.0.0.0", "--port", "{port}"),  # noqa: S104 - in its pod
        "/health",
        False,
    ),
    "triton": Engine("nvcr.io/nvidia/tritonserver:25.09-vllm-python-py3", ("--http-port", "{port}"), "/v2/health/ready", False),
}
"""The engines that have a template. Images are defaults: an order may name its own."""


def engine_template(
    session: Session, home: Home, given: Mapping[str, Any], wish: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    The template with the engine's command, GPUs and nodes for the model, and the proposal that they come from.

    Raises Invalid for what does not go together, DoesNotFit where no split over the cluster's nodes has room.
    """
    answer = _propose(session, home, wish)
    fit = answer.result.fit
    name = str(wish["engine"])
    if not fit.fits or fit.gpus is None or fit.nodes is None:
        raise DoesNotFit(
            f"{fit.reason} The cluster has {home.nodes} nodes with {home.gpus_per_node} GPUs.",
            resource="gpus",
            reason=fit.reason,
            limit=home.nodes * home.gpus_per_node,
        )
    engine = ENGINES[name]
    if fit.nodes > 1 and not engine.spreads:
        raise DoesNotFit(
            f"The model needs {fit.nodes} nodes, and {name} is run on one node here: take vllm or sglang.",
            resource="nodes",
            reason=fit.reason,
            limit=1,
        )
    command = [*answer.result.command, *(one.format(port=given["port"]) for one in engine.listen)]
    first, others = _spread(name, command) if fit.nodes > 1 else (command, [])
    made = {
        **given,
        "image": given["image"] or engine.image,
        "command": first,
        "worker_command": others,
        "files": [one.model_dump() for one in answer.result.files],
        "gpus_per_node": fit.gpus // fit.nodes,
        "nodes_per_replica": fit.nodes,
        "readiness": {**given["readiness"], "path": given["readiness"]["path"] or engine.health},
        "engine": dict(wish),
    }
    return made, answer.model_dump(mode="json")


def _propose(session: Session, home: Home, wish: Mapping[str, Any]) -> EngineAnswer:
    nodes = {"gpu_model": home.gpu_model or None, "gpus_per_node": max(1, home.gpus_per_node)}
    ask = EngineAsk.model_validate({**wish, **nodes, "most_gpus": max(1, min(4096, home.nodes * home.gpus_per_node))})
    try:
        answer: EngineAnswer = calculators.calculate(session, "engine", ask)
    except Invalid as error:
        told = [
            FieldError(one.field.replace("body.", "body.spec.template.engine.", 1), one.code, one.message) for one in error.errors
        ]
        raise type(error)(error.detail, code=error.code, errors=told) from error
    return answer


def _spread(name: str, command: list[str]) -> tuple[list[str], list[str]]:
    """
    Commands of the first node and of the others, which find it by MASTER_ADDR.
    """
    serve = shlex.join(command)
    if name == "sglang":
        joined = f'exec {serve} --dist-init-addr "$MASTER_ADDR:{SGLANG_PORT}" --node-rank "$NODE_RANK"'
        return ["/bin/sh", "-c", joined], ["/bin/sh", "-c", joined]
    lead = f"ray start --head --port={RAY_PORT} && exec {serve}"
    # a follower may be there before the first node listens
    follow = f'until ray start --block --address="$MASTER_ADDR:{RAY_PORT}"; do sleep 5; done'
    return ["/bin/sh", "-c", lead], ["/bin/sh", "-c", follow]
