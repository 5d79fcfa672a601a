"""
The calculators over HTTP. They read the catalog, keep nothing and change nothing, so they are not audited.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from controlplane.calculating.checkpoint import CheckpointAnswer, CheckpointAsk
from controlplane.calculating.engines import EngineAnswer, EngineAsk
from controlplane.calculating.facts import KnownModel
from controlplane.calculating.inference_fit import InferenceFitAnswer, InferenceFitAsk
from controlplane.calculating.kv_cache import KvCacheAnswer, KvCacheAsk
from controlplane.calculating.rack_power import RackPowerAnswer, RackPowerAsk
from controlplane.calculating.training_memory import TrainingMemoryAnswer, TrainingMemoryAsk
from controlplane.calculating.training_time import TrainingTimeAnswer, TrainingTimeAsk
from controlplane.calculators import service
from controlplane.calculators.schemas import CalculatorOut
from controlplane.web.call import Call
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["calculators"])
ROOT = "/v1/calculators"


@endpoint(
    router,
    "GET",
    ROOT,
    permission="catalog:read",
    audience="any",
    answer=ListOf[CalculatorOut],
    summary="List the calculators",
)
def list_calculators(call: Call) -> ListOf[CalculatorOut]:
    """
    What can be calculated. Each answer comes with its formulas, everything that was assumed and where both stand.
    """
    del call
    items = [
        CalculatorOut(
            name=one.name,
            summary=one.summary,
            path=f"{ROOT}/{one.name}",
            required=[name for name, field in one.ask.model_fields.items() if field.is_required()],
            optional=[name for name, field in one.ask.model_fields.items() if not field.is_required()],
        )
        for one in service.list_calculators()
    ]
    return ListOf[CalculatorOut](items=items, next_page_token=None)


@endpoint(
    router,
    "GET",
    f"{ROOT}/models",
    permission="catalog:read",
    audience="any",
    answer=ListOf[KnownModel],
    summary="List the models that calculators know",
)
def list_calculator_models(call: Call) -> ListOf[KnownModel]:
    """
    Published configurations, each with its source. Calculators take a name from here, or the same numbers of any other model in `facts`.
    """
    del call
    return ListOf[KnownModel](items=list(service.list_models()), next_page_token=None)


def calculator(name: str, answer: type[BaseModel], summary: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    The function is served as the calculator of this name.
    """
    path = f"{ROOT}/{name}"
    return endpoint(router, "POST", path, permission="catalog:read", audience="any", mutates=False, answer=answer, summary=summary)


@calculator("checkpoint", CheckpointAnswer, "Calculate a checkpoint")
def calculate_checkpoint(call: Call, body: CheckpointAsk) -> CheckpointAnswer:
    """
    How large a checkpoint of a model in training is, how often it is best written when nodes fail so often, and how fast storage has
    to take it so that no more than a given share of time is lost.
    """
    answer: CheckpointAnswer = service.calculate(call.session, "checkpoint", body)
    return answer


@calculator("training-memory", TrainingMemoryAnswer, "Calculate the memory of training")
def calculate_training_memory(call: Call, body: TrainingMemoryAsk) -> TrainingMemoryAnswer:
    """
    What weights, gradients, optimizer and activations take on the fullest GPU, for a way to spread the model over GPUs.
    """
    answer: TrainingMemoryAnswer = service.calculate(call.session, "training-memory", body)
    return answer


@calculator("training-time", TrainingTimeAnswer, "Calculate the time of training")
def calculate_training_time(call: Call, body: TrainingTimeAsk) -> TrainingTimeAnswer:
    """
    How long so many GPUs train a model on so many tokens, from the GPU's dense peak in the catalog or from what was measured.
    """
    answer: TrainingTimeAnswer = service.calculate(call.session, "training-time", body)
    return answer


@calculator("kv-cache", KvCacheAnswer, "Calculate a KV cache")
def calculate_kv_cache(call: Call, body: KvCacheAsk) -> KvCacheAnswer:
    """
    What keys and values of past tokens take in memory, for multi-head, grouped-query, multi-query and multi-head latent attention.
    """
    answer: KvCacheAnswer = service.calculate(call.session, "kv-cache", body)
    return answer


@calculator("inference-fit", InferenceFitAnswer, "Calculate what serves a model")
def calculate_inference_fit(call: Call, body: InferenceFitAsk) -> InferenceFitAnswer:
    """
    The fewest GPUs that hold a model's weights and the cache of its sequences, with tensor and pipeline parallelism that engines accept.
    """
    answer: InferenceFitAnswer = service.calculate(call.session, "inference-fit", body)
    return answer


@calculator("rack-power", RackPowerAnswer, "Calculate the power of racks")
def calculate_rack_power(call: Call, body: RackPowerAsk) -> RackPowerAnswer:
    """
    How many nodes a rack's power and height carry, how many racks they need and what they draw.
    """
    answer: RackPowerAnswer = service.calculate(call.session, "rack-power", body)
    return answer


@calculator("engine", EngineAnswer, "Propose how to start a serving engine")
def propose_engine(call: Call, body: EngineAsk) -> EngineAnswer:
    """
    Command and files with which vLLM, SGLang, TensorRT-LLM or Triton serve a model on the fewest GPUs. Nothing is started. `tgi` is
    refused with the code `engine_archived`.
    """
    answer: EngineAnswer = service.calculate(call.session, "engine", body)
    return answer
