"""
How many GPUs a model needs to be served, and how it is spread over them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pydantic import Field

from controlplane.calculating.answers import Answer, Assumption, Precision, Source, Told, bytes_of, ceil_div, defaults_of
from controlplane.calculating.errors import refused
from controlplane.calculating.facts import (
    Catalog,
    GpuAsk,
    ModelAsk,
    ModelFacts,
    gpu_of,
    gpu_sources,
    inputs_of,
    model_of,
    model_sources,
)
from controlplane.calculating.kv_cache import FORMULAS as CACHE_FORMULAS
from controlplane.calculating.kv_cache import SUPPOSED as CACHE_SUPPOSED
from controlplane.calculating.kv_cache import cache_bytes, tokens_within

MIB = 2**20
SOURCES = [
    Source(
        title="vLLM documentation, Parallelism and Scaling",
        url="https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html",
        section="tensor parallel within a node, pipeline parallel over nodes",
    ),
    Source(
        title="Efficient Memory Management for Large Language Model Serving with PagedAttention",
        url="https://arxiv.org/abs/2309.06180",
        section="figure 1 and section 3: weights, cache and the rest",
    ),
    Source(
        title="The Llama 3 Herd of Models",
        url="https://arxiv.org/abs/2407.21783",
        section="section 6.1: 405B in bf16 on 16 GPUs, 8 by 2",
    ),
]
FORMULAS = [
    "usable_bytes = memory * memory_utilization - overhead_mib_per_gpu * 2^20",
    "weights_bytes_per_gpu = parameters * weight_precision / 8 * ceil(layers / pipeline_parallel) / layers / tensor_parallel",
    *CACHE_FORMULAS,
    "fits when weights_bytes_per_gpu + cache_bytes_per_gpu <= usable_bytes",
    "the fewest GPUs that fit; pipeline_parallel > 1 only at the widest tensor_parallel, and beyond one node only whole nodes",
    "tensor_parallel divides attention_heads and gpus_per_node, and divides kv_heads or is divided by it",
]


class InferenceFitAsk(ModelAsk, GpuAsk):
    """
    A model to be served, what it serves at once, and the GPU.
    """

    context_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Tokens of one sequence, prompt and output; null: the model's longest.",
        examples=[8192],
    )
    sequences: int = Field(default=1, ge=1, le=1_000_000, description="Sequences of that length at once.", examples=[16])
    weight_precision: Precision = Field(default="bf16", description="Precision of the weights.", examples=["bf16"])
    kv_precision: Precision = Field(default="bf16", description="Precision of cached keys and values.", examples=["bf16"])
    gpus_per_node: int = Field(
        default=8, ge=1, le=1024, description="GPUs that are joined closely: of a node, or an NVLink domain.", examples=[8]
    )
    most_gpus: int = Field(default=64, ge=1, le=4096, description="No answer takes more.", examples=[64])
    memory_utilization: float = Field(
        default=0.9, ge=0.01, le=1, description="Share of a GPU's memory that the engine may take.", examples=[0.9]
    )
    overhead_mib_per_gpu: int = Field(
        default=2048, ge=0, le=1_000_000, description="Activations, graphs and buffers of the engine on each GPU.", examples=[2048]
    )


class InferenceFitResult(Told):
    """
    The smallest way to serve it.
    """

    fits: bool | None = Field(description="Whether there is one; null when the GPU's memory is not known.", examples=[True])
    reason: str = Field(description="In words.", examples=["GPUs: 4; nodes: 1; tensor parallel 4, pipeline stages 1."])
    gpus: int | None = Field(description="GPUs of one replica.", examples=[4])
    nodes: int | None = Field(description="Nodes that they stand in.", examples=[1])
    tensor_parallel: int | None = Field(description="GPUs that share each layer.", examples=[4])
    pipeline_parallel: int | None = Field(description="Stages.", examples=[1])
    context_tokens: int = Field(description="Tokens of one sequence.", examples=[8192])
    weights_bytes: int = Field(description="All weights.", examples=[141_107_412_992])
    cache_bytes: int = Field(description="The cache of all sequences.", examples=[42_949_672_960])
    usable_bytes_per_gpu: int | None = Field(description="For weights and cache.", examples=[75_161_927_680])
    weights_bytes_per_gpu: int | None = Field(description="On the fullest GPU.", examples=[35_276_853_248])
    cache_bytes_per_gpu: int | None = Field(description="On the fullest GPU.", examples=[10_737_418_240])
    free_bytes_per_gpu: int | None = Field(description="What is left for more sequences.", examples=[29_147_656_192])
    most_sequences: int | None = Field(description="Sequences of that length that fit at once.", examples=[59])


class InferenceFitAnswer(Answer):
    """
    The inference fit calculator's answer.
    """

    result: InferenceFitResult = Field(description="The smallest way to serve it.")


@dataclass(frozen=True, slots=True)
class Split:
    """
    One way to spread a model over GPUs.
    """

    tensor: int
    """GPUs that share each layer."""
    stages: int
    """Pipeline stages."""

    @property
    def gpus(self) -> int:
        """
        GPUs of both together.
        """
        return self.tensor * self.stages


def inference_fit(ask: InferenceFitAsk, catalog: Catalog) -> InferenceFitAnswer:
    """
    The smallest number of GPUs that serve the model. Raises CannotCalculate, UnknownFacts.
    """
    model, gpu = model_of(ask), gpu_of(catalog, ask)
    if gpu is None:
        raise refused("gpu_model", "Give the GPU's name in `gpu_model` or its numbers in `gpu`.")
    result = fit(ask, model, gpu.memory_bytes)
    return InferenceFitAnswer(
        calculator="inference-fit",
        result=result,
        formulas=FORMULAS,
        inputs=inputs_of(ask, model, gpu) | {"context_tokens": result.context_tokens},
        assumptions=[*defaults_of(ask), *SUPPOSED],
        sources=[*SOURCES, *model_sources(ask), *gpu_sources(catalog, ask)],
        unknown=[] if gpu.memory_bytes is not None else ["The GPU's memory is not known, so no count is told."],
    )


SUPPOSED = [
    *CACHE_SUPPOSED,
    Assumption(
        name="weights",
        value="shared evenly",
        why="Embeddings and scales of quantized weights are spread like all other parameters.",
    ),
    Assumption(
        name="memory",
        value="as the maker names it",
        why="GB of a data sheet are taken as GiB; drivers keep some of it, which memory_utilization covers.",
    ),
]


def fit(ask: InferenceFitAsk, model: ModelFacts, memory_bytes: int | None) -> InferenceFitResult:
    """
    The smallest split that fits; none where there is none, or where the memory is not known.
    """
    context = _context(ask, model)
    tokens = context * ask.sequences
    usable = None if memory_bytes is None else usable_bytes(ask, memory_bytes)
    found = (
        None if usable is None else next((one for one in splits(ask, model) if _free(ask, model, one, tokens, usable) >= 0), None)
    )
    told = InferenceFitResult(
        fits=None if usable is None else found is not None,
        reason=_why_not(ask, usable) if found is None else "",
        gpus=None,
        nodes=None,
        tensor_parallel=None,
        pipeline_parallel=None,
        context_tokens=context,
        weights_bytes=bytes_of(model.parameters, ask.weight_precision),
        cache_bytes=cache_bytes(model, tokens, ask.kv_precision),
        usable_bytes_per_gpu=usable,
        weights_bytes_per_gpu=None,
        cache_bytes_per_gpu=None,
        free_bytes_per_gpu=None,
        most_sequences=None,
    )
    return told if found is None or usable is None else told.model_copy(update=_of_split(ask, model, found, context, usable))


def _of_split(ask: InferenceFitAsk, model: ModelFacts, split: Split, context: int, usable: int) -> dict[str, Any]:
    gpus, tokens, weights = split.gpus, context * ask.sequences, _weights(ask, model, split)
    nodes = ceil_div(gpus, ask.gpus_per_node)
    room = tokens_within(model, usable - weights, ask.kv_precision, tensor_parallel=split.tensor, pipeline_parallel=split.stages)
    return {
        "reason": f"GPUs: {gpus}; nodes: {nodes}; tensor parallel {split.tensor}, pipeline stages {split.stages}.",
        "gpus": gpus,
        "nodes": nodes,
        "tensor_parallel": split.tensor,
        "pipeline_parallel": split.stages,
        "weights_bytes_per_gpu": weights,
        "cache_bytes_per_gpu": _cache(ask, model, split, tokens),
        "free_bytes_per_gpu": _free(ask, model, split, tokens, usable),
        "most_sequences": room // context,
    }


def usable_bytes(ask: InferenceFitAsk, memory_bytes: int) -> int:
    """
    What weights and cache may take of each GPU; below zero where the overhead alone is more.
    """
    share = Fraction(str(ask.memory_utilization))  # the decimal that was given, not the binary number next to it
    return memory_bytes * share.numerator // share.denominator - ask.overhead_mib_per_gpu * MIB


def splits(ask: InferenceFitAsk, model: ModelFacts) -> Iterator[Split]:
    """
    Every way to be tried, fewest GPUs first. Stages come where tensor parallelism goes no further: they add to the time of each token.
    """
    tensors = [one for one in range(1, ask.gpus_per_node + 1) if ask.gpus_per_node % one == 0 and _divides(model, one)]
    widest = tensors[-1]  # one GPU always divides
    staged = (Split(widest, stages) for stages in range(2, min(model.layers, ask.most_gpus // widest) + 1))
    every = [Split(tensor, 1) for tensor in tensors if tensor <= ask.most_gpus]
    every += [one for one in staged if one.gpus <= ask.gpus_per_node or one.gpus % ask.gpus_per_node == 0]
    return iter(sorted(every, key=lambda one: (one.gpus, one.stages)))


def _divides(model: ModelFacts, tensor: int) -> bool:
    even = model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0
    return model.attention_heads % tensor == 0 and (even or model.latent_dim is not None)


def _weights(ask: InferenceFitAsk, model: ModelFacts, split: Split) -> int:
    stage = ceil_div(model.parameters * ceil_div(model.layers, split.stages), model.layers * split.tensor)
    return bytes_of(stage, ask.weight_precision)


def _cache(ask: InferenceFitAsk, model: ModelFacts, split: Split, tokens: int) -> int:
    return cache_bytes(model, tokens, ask.kv_precision, tensor_parallel=split.tensor, pipeline_parallel=split.stages)


def _free(ask: InferenceFitAsk, model: ModelFacts, split: Split, tokens: int, usable: int) -> int:
    return usable - _weights(ask, model, split) - _cache(ask, model, split, tokens)


def _context(ask: InferenceFitAsk, model: ModelFacts) -> int:
    if ask.context_tokens is None and model.context_tokens is None:
        raise refused("context_tokens", "The model's longest context is not known: say how many tokens a sequence has.")
    if ask.context_tokens is not None and model.context_tokens is not None and ask.context_tokens > model.context_tokens:
        raise refused("context_tokens", f"The model's longest context is {model.context_tokens} tokens.")
    return ask.context_tokens or model.context_tokens or 0


def _why_not(ask: InferenceFitAsk, usable: int | None) -> str:
    if usable is None:
        return "The GPU's memory is not known."
    wish = "take fewer sequences, a shorter context, a smaller precision or more GPUs"
    return f"No split over at most {ask.most_gpus} GPUs has room: {wish}."
