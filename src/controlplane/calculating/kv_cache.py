"""
How much memory keys and values of past tokens take.
"""

from typing import Literal

from pydantic import Field

from controlplane.calculating.answers import Answer, Assumption, Precision, Source, Told, bytes_of, ceil_div, defaults_of
from controlplane.calculating.facts import Catalog, ModelAsk, ModelFacts, inputs_of, model_of, model_sources
from controlplane.calculating.training_memory import check_split

SOURCES = [
    Source(
        title="Efficient Memory Management for Large Language Model Serving with PagedAttention",
        url="https://arxiv.org/abs/2309.06180",
        section="section 3: 800 KB per token of OPT-13B",
    ),
    Source(
        title="Insights into DeepSeek-V3: Scaling Challenges and Reflections on Hardware for AI Architectures",
        url="https://arxiv.org/abs/2505.09343",
        section="section 2.1.2 and table 1",
    ),
    Source(
        title="DeepSeek-V3 Technical Report",
        url="https://arxiv.org/abs/2412.19437",
        section="section 2.1.1: multi-head latent attention",
    ),
]
FORMULAS = [
    "values_per_token_layer = 2 * kv_heads * head_dim; with multi-head latent attention latent_dim",
    "bytes_per_token = layers * values_per_token_layer * precision / 8",
    "total_bytes = bytes_per_token * context_tokens * sequences",
    "on one GPU: layers / pipeline_parallel rounded up; kv_heads / tensor_parallel, at least 1; the latent is whole on every GPU",
]
Attention = Literal["multi-head", "grouped-query", "multi-query", "multi-head latent"]


class KvCacheAsk(ModelAsk):
    """
    A model and what it is to remember.
    """

    context_tokens: int = Field(ge=1, le=10**9, description="Tokens of one sequence, prompt and output together.", examples=[8192])
    sequences: int = Field(default=1, ge=1, le=1_000_000, description="Sequences at once.", examples=[32])
    precision: Precision = Field(default="bf16", description="Precision of cached values.", examples=["bf16"])
    tensor_parallel: int = Field(default=1, ge=1, le=10_000, description="GPUs that share each layer.", examples=[8])
    pipeline_parallel: int = Field(default=1, ge=1, le=10_000, description="Stages that the layers are cut into.", examples=[1])


class KvCacheResult(Told):
    """
    The cache's size.
    """

    attention: Attention = Field(description="How the model's heads share keys and values.", examples=["grouped-query"])
    bytes_per_token: int = Field(description="One token, over all layers.", examples=[327_680])
    bytes_per_sequence: int = Field(description="One sequence.", examples=[2_684_354_560])
    total_bytes: int = Field(description="All sequences.", examples=[85_899_345_920])
    bytes_per_gpu: int = Field(description="On the fullest GPU.", examples=[10_737_418_240])


class KvCacheAnswer(Answer):
    """
    The KV cache calculator's answer.
    """

    result: KvCacheResult = Field(description="The cache's size.")


def kv_cache(ask: KvCacheAsk, catalog: Catalog) -> KvCacheAnswer:
    """
    The size of the cache of keys and values. Raises CannotCalculate, UnknownFacts.
    """
    del catalog
    model = model_of(ask)
    check_split(model, ask.tensor_parallel, ask.pipeline_parallel)
    tokens = ask.context_tokens * ask.sequences
    result = KvCacheResult(
        attention=attention_of(model),
        bytes_per_token=cache_bytes(model, 1, ask.precision),
        bytes_per_sequence=cache_bytes(model, ask.context_tokens, ask.precision),
        total_bytes=cache_bytes(model, tokens, ask.precision),
        bytes_per_gpu=cache_bytes(
            model, tokens, ask.precision, tensor_parallel=ask.tensor_parallel, pipeline_parallel=ask.pipeline_parallel
        ),
    )
    return KvCacheAnswer(
        calculator="kv-cache",
        result=result,
        formulas=FORMULAS,
        inputs=inputs_of(ask, model),
        assumptions=[*defaults_of(ask), *SUPPOSED],
        sources=[*SOURCES, *model_sources(ask)],
        unknown=[],
    )


SUPPOSED = [
    Assumption(
        name="layers", value="all alike", why="Every layer keeps the whole context: no sliding window, no layers without attention."
    ),
    Assumption(name="pages", value="full", why="Rounding up to whole pages and scales of quantized caches are left out."),
]


def attention_of(model: ModelFacts) -> Attention:
    """
    How the model's heads share keys and values.
    """
    if model.latent_dim is not None:
        return "multi-head latent"
    if model.kv_heads == model.attention_heads:
        return "multi-head"
    return "multi-query" if model.kv_heads == 1 else "grouped-query"


def cache_bytes(
    model: ModelFacts, tokens: int, precision: Precision, *, tensor_parallel: int = 1, pipeline_parallel: int = 1
) -> int:
    """
    Bytes of so many tokens on the fullest GPU of those that share the model.
    """
    heads = ceil_div(model.kv_heads, tensor_parallel)
    values = 2 * heads * model.head_dim if model.latent_dim is None else model.latent_dim
    return bytes_of(tokens * ceil_div(model.layers, pipeline_parallel) * values, precision)


def tokens_within(model: ModelFacts, room_bytes: int, precision: Precision, *, tensor_parallel: int, pipeline_parallel: int) -> int:
    """
    How many tokens fit into so many bytes of each GPU.
    """
    eight = cache_bytes(model, 8, precision, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)  # whole bytes
    return max(0, room_bytes) * 8 // eight
