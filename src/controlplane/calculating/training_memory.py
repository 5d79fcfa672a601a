"""
How much memory of a GPU training takes: weights, gradients, optimizer, activations.
"""

from typing import Literal

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

SOURCES = [
    Source(
        title="ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
        url="https://arxiv.org/abs/1910.02054",
        section="section 3.1 and figure 1",
    ),
    Source(
        title="Megatron Core developer guide, Distributed Optimizer",
        url="https://docs.nvidia.com/megatron-core/developer-guide/latest/distrib_optimizer.html",
        section="theoretical number of bytes per parameter",
    ),
    Source(
        title="Reducing Activation Recomputation in Large Transformer Models",
        url="https://arxiv.org/abs/2205.05198",
        section="section 4 and table 2",
    ),
]
FORMULAS = [
    "parameters_per_gpu = parameters / (tensor_parallel * pipeline_parallel)",
    "weights_bytes = parameters_per_gpu * weight_precision / 8, over data_parallel from ZeRO stage 3",
    "gradients_bytes = parameters_per_gpu * gradient_precision / 8, over data_parallel from ZeRO stage 2",
    "optimizer_bytes = parameters_per_gpu * optimizer_bytes_per_parameter, over data_parallel from ZeRO stage 1",
    "activations per layer, with s tokens, b sequences, h width, a heads, t = tensor_parallel:",
    "  recompute none: s*b*h * (10 + 24/t + 5*a*s/(h*t)); with sequence_parallel s*b*h/t * (34 + 5*a*s/h)",
    "  recompute selective: s*b*h * (10 + 24/t); with sequence_parallel 34*s*b*h/t",
    "  recompute full: 2*s*b*h",
    "activations_bytes = layers * (per layer): the first stage of a pipeline holds as many micro-batches as there are stages",
]
Recompute = Literal["none", "selective", "full"]
GRADIENTS_SHARED, WEIGHTS_SHARED = 2, 3


class TrainingMemoryAsk(ModelAsk, GpuAsk):
    """
    A model and how its training is spread over GPUs.
    """

    sequence_tokens: int = Field(ge=1, le=10**8, description="Tokens of one sequence.", examples=[8192])
    micro_batch: int = Field(default=1, ge=1, le=100_000, description="Sequences that a GPU works on at once.", examples=[1])
    tensor_parallel: int = Field(default=1, ge=1, le=10_000, description="GPUs that share each layer.", examples=[8])
    pipeline_parallel: int = Field(default=1, ge=1, le=10_000, description="Stages that the layers are cut into.", examples=[4])
    data_parallel: int = Field(default=1, ge=1, le=1_000_000, description="Copies of the model.", examples=[8])
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=1,
        description="What copies share instead of each holding all: 1 the optimizer, 2 also gradients, 3 also weights.",
        examples=[1],
    )
    weight_precision: Precision = Field(default="bf16", description="Precision of the weights in use.", examples=["bf16"])
    gradient_precision: Precision = Field(default="bf16", description="Precision in which gradients are kept.", examples=["fp32"])
    optimizer_bytes_per_parameter: int = Field(
        default=12, ge=0, le=64, description="Adam with an fp32 master copy, momentum and variance is 12.", examples=[12]
    )
    recompute: Recompute = Field(
        default="selective",
        description="Activations that are made again in the backward pass: attention only (as flash attention does), or whole layers.",
        examples=["selective"],
    )
    sequence_parallel: bool = Field(
        default=False, description="Whether what tensor parallelism does not share is shared along the sequence.", examples=[True]
    )


class TrainingMemoryResult(Told):
    """
    Memory of the fullest GPU, and how many there are.
    """

    gpus: int = Field(description="tensor * pipeline * data parallel.", examples=[256])
    parameters_per_gpu: int = Field(description="Parameters of one tensor and pipeline share.", examples=[2_204_803_328])
    weights_bytes: int = Field(description="Weights on one GPU.", examples=[4_409_606_656])
    gradients_bytes: int = Field(description="Gradients on one GPU.", examples=[8_819_213_312])
    optimizer_bytes: int = Field(description="Optimizer state on one GPU.", examples=[3_307_204_992])
    activations_bytes: int | None = Field(description="Activations on one GPU; null: no formula.", examples=[22_817_013_760])
    total_bytes: int | None = Field(description="All of these; null when one is not known.", examples=[39_353_038_720])
    gpu_memory_bytes: int | None = Field(description="What the GPU has; null when not known.", examples=[85_899_345_920])
    fits: bool | None = Field(
        description="Whether the total is less than the GPU has; null when one is not known.", examples=[True]
    )
    unshared_bytes: int = Field(
        description="Weights, gradients and optimizer of the whole model, once.", examples=[1_269_966_716_928]
    )


class TrainingMemoryAnswer(Answer):
    """
    The training memory calculator's answer.
    """

    result: TrainingMemoryResult = Field(description="Memory of the fullest GPU.")


def training_memory(ask: TrainingMemoryAsk, catalog: Catalog) -> TrainingMemoryAnswer:
    """
    The memory that training takes on the fullest GPU. Raises CannotCalculate, UnknownFacts.
    """
    model, gpu = model_of(ask), gpu_of(catalog, ask)
    check_split(model, ask.tensor_parallel, ask.pipeline_parallel)
    share = ceil_div(model.parameters, ask.tensor_parallel * ask.pipeline_parallel)
    weights = _shared(bytes_of(share, ask.weight_precision), ask, WEIGHTS_SHARED)
    gradients = _shared(bytes_of(share, ask.gradient_precision), ask, GRADIENTS_SHARED)
    optimizer = _shared(share * ask.optimizer_bytes_per_parameter, ask, 1)
    activations = None if model.experts else activations_of(ask, model)
    total = None if activations is None else weights + gradients + optimizer + activations
    memory = gpu.memory_bytes if gpu else None
    whole = bytes_of(model.parameters, ask.weight_precision) + bytes_of(model.parameters, ask.gradient_precision)
    result = TrainingMemoryResult(
        gpus=ask.tensor_parallel * ask.pipeline_parallel * ask.data_parallel,
        parameters_per_gpu=share,
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        total_bytes=total,
        gpu_memory_bytes=memory,
        fits=None if total is None or memory is None else total < memory,
        unshared_bytes=whole + model.parameters * ask.optimizer_bytes_per_parameter,
    )
    return TrainingMemoryAnswer(
        calculator="training-memory",
        result=result,
        formulas=FORMULAS,
        inputs=inputs_of(ask, model, gpu),
        assumptions=[*defaults_of(ask), *_supposed()],
        sources=[*SOURCES, *model_sources(ask), *gpu_sources(catalog, ask)],
        unknown=_unknown(model, memory),
    )


def check_split(model: ModelFacts, tensor_parallel: int, pipeline_parallel: int) -> None:
    """
    Returns when the model can be cut so. Raises CannotCalculate.
    """
    if model.attention_heads % tensor_parallel:
        raise refused(
            "tensor_parallel", f"{model.attention_heads} attention heads cannot be shared evenly by {tensor_parallel} GPUs."
        )
    if pipeline_parallel > model.layers:
        raise refused("pipeline_parallel", f"{model.layers} layers cannot be cut into {pipeline_parallel} stages.")


def activations_of(ask: TrainingMemoryAsk, model: ModelFacts) -> int:
    """
    Bytes of activations that the first stage keeps.
    """
    token_values = ask.sequence_tokens * ask.micro_batch * model.hidden_size
    scores = 5 * model.attention_heads * ask.sequence_tokens**2 * ask.micro_batch
    t = ask.tensor_parallel
    if ask.recompute == "full":
        return model.layers * 2 * token_values
    kept = scores if ask.recompute == "none" else 0
    if ask.sequence_parallel:
        return ceil_div(model.layers * (34 * token_values + kept), t)
    return ceil_div(model.layers * (10 * t * token_values + 24 * token_values + kept), t)


def _shared(amount: int, ask: TrainingMemoryAsk, from_stage: int) -> int:
    return ceil_div(amount, ask.data_parallel) if ask.zero_stage >= from_stage else amount


def _supposed() -> list[Assumption]:
    return [
        Assumption(
            name="layer",
            value="GPT",
            why="The activation formula is for a layer with full attention heads and an inner width of 4 h.",
        ),
        Assumption(name="activation_precision", value="16 bit", why="Activations take 2 bytes per value, dropout masks 1."),
        Assumption(name="schedule", value="1F1B", why="No interleaving, which would add up to one more micro-batch share."),
        Assumption(
            name="left out",
            value="buffers",
            why="Communication buffers, kernels' workspace, fragments and embeddings' activations.",
        ),
    ]


def _unknown(model: ModelFacts, memory: int | None) -> list[str]:
    told = []
    if model.experts:
        told.append("Activations of mixture-of-experts layers depend on routing; no published formula is used.")
    if memory is None:
        told.append("No GPU with known memory was named, so whether it fits is not told.")
    return told
