"""
How long training takes, from parameters, tokens and what GPUs achieve.
"""

from typing import Literal

from pydantic import Field

from controlplane.calculating.answers import Answer, Assumption, Precision, Source, Told, defaults_of
from controlplane.calculating.errors import refused
from controlplane.calculating.facts import (
    Catalog,
    GpuAsk,
    GpuFacts,
    ModelAsk,
    gpu_of,
    gpu_sources,
    inputs_of,
    model_of,
    model_sources,
)

SOURCES = [
    Source(
        title="Scaling Laws for Neural Language Models", url="https://arxiv.org/abs/2001.08361", section="section 2.1: C = 6 N D"
    ),
    Source(
        title="Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
        url="https://arxiv.org/abs/2104.04473",
        section="section 5.1, equation 4: time = 8 T P / (n X) with recomputation",
    ),
    Source(
        title="PaLM: Scaling Language Modeling with Pathways",
        url="https://arxiv.org/abs/2204.02311",
        section="section 4.1 and appendix B: MFU",
    ),
]
FORMULAS = [
    "flops = flops_per_parameter_token * used_parameters * tokens",
    "achieved_tflops_per_gpu = mfu * peak_tflops",
    "time_s = flops / (gpus * achieved_tflops_per_gpu * 10^12 * productive_share)",
    "gpu_hours = gpus * time_s / 3600",
]
TERA = 10**12
DAY_S, HOUR_S = 86_400, 3600
USUAL_MFU = 0.4


class TrainingTimeAsk(ModelAsk, GpuAsk):
    """
    A model, its data and the GPUs.
    """

    tokens: int = Field(ge=1, le=10**17, description="Tokens to train on.", examples=[15_600_000_000_000])
    gpus: int = Field(ge=1, le=10_000_000, description="GPUs at work.", examples=[16384])
    precision: Precision = Field(
        default="bf16", description="Precision of the products, which chooses the peak.", examples=["bf16"]
    )
    mfu: float | None = Field(
        default=None, ge=1e-4, le=1, description="Model FLOPs utilization: share of the peak; null: 0.4.", examples=[0.4]
    )
    achieved_tflops: float | None = Field(
        default=None,
        ge=1e-3,
        le=1e9,
        description="What one GPU achieves, in 10^12/s, measured; instead of mfu and a GPU.",
        examples=[None],
    )
    flops_per_parameter_token: Literal[6, 8] = Field(
        default=6, description="6: forward and backward; 8 when achieved_tflops counts a full recomputation as work.", examples=[6]
    )
    productive_share: float = Field(
        default=1.0,
        ge=1e-4,
        le=1,
        description="Share of time in which training moves on: without failures, restarts and waits.",
        examples=[0.95],
    )


class TrainingTimeResult(Told):
    """
    Work and time.
    """

    flops: float = Field(description="Floating-point operations in all.", examples=[3.8e25])
    peak_tflops: float | None = Field(description="Dense peak of one GPU in 10^12/s; null when not known.", examples=[989.0])
    achieved_tflops: float | None = Field(description="What one GPU achieves in 10^12/s; null when not known.", examples=[395.6])
    mfu: float | None = Field(description="Share of the peak; null when not known.", examples=[0.4])
    time_s: float | None = Field(description="Seconds of training; null when not known.", examples=[5_861_000.0])
    time_days: float | None = Field(description="The same in days.", examples=[67.8])
    gpu_hours: float | None = Field(description="GPU hours held.", examples=[26_700_000.0])
    tokens_per_s: float | None = Field(description="Tokens per second over all GPUs.", examples=[2_661_000.0])


class TrainingTimeAnswer(Answer):
    """
    The training time calculator's answer.
    """

    result: TrainingTimeResult = Field(description="Work and time.")


def training_time(ask: TrainingTimeAsk, catalog: Catalog) -> TrainingTimeAnswer:
    """
    How long training takes; null where the GPU's peak is not known. Raises CannotCalculate, UnknownFacts.
    """
    if ask.mfu is not None and ask.achieved_tflops is not None:
        raise refused("mfu", "Give either mfu or achieved_tflops.")
    model, gpu = model_of(ask), gpu_of(catalog, ask)
    peak = gpu.tflops.get(ask.precision) if gpu else None
    mfu = USUAL_MFU if ask.mfu is None and ask.achieved_tflops is None else ask.mfu
    achieved = peak * mfu if mfu is not None and peak is not None else ask.achieved_tflops
    flops = ask.flops_per_parameter_token * model.used_parameters * ask.tokens
    time_s = None if achieved is None else flops / (ask.gpus * achieved * TERA * ask.productive_share)
    result = TrainingTimeResult(
        flops=float(flops),
        peak_tflops=peak,
        achieved_tflops=achieved,
        mfu=None if achieved is None or peak is None else achieved / peak,
        time_s=time_s,
        time_days=None if time_s is None else time_s / DAY_S,
        gpu_hours=None if time_s is None else ask.gpus * time_s / HOUR_S,
        tokens_per_s=None if time_s is None else ask.tokens / time_s,
    )
    return TrainingTimeAnswer(
        calculator="training-time",
        result=result,
        formulas=FORMULAS,
        inputs=inputs_of(ask, model, gpu) | {"mfu": mfu},
        assumptions=[*defaults_of(ask), *_supposed(ask)],
        sources=[*SOURCES, *model_sources(ask), *gpu_sources(catalog, ask)],
        unknown=_unknown(ask, gpu, peak),
    )


def _supposed(ask: TrainingTimeAsk) -> list[Assumption]:
    told = [
        Assumption(
            name="attention",
            value="not counted",
            why="6 N D leaves out the products of attention scores, which grow with the context.",
        ),
        Assumption(
            name="experts", value="active parameters", why="Of a mixture of experts only the parameters that a token uses count."
        ),
    ]
    if ask.mfu is None and ask.achieved_tflops is None:
        why = "A usual share for dense models on thousands of GPUs; The Llama 3 Herd of Models, table 4, reports 0.38 to 0.43."
        told.insert(0, Assumption(name="mfu", value=str(USUAL_MFU), why=why))
    return told


def _unknown(ask: TrainingTimeAsk, gpu: GpuFacts | None, peak: float | None) -> list[str]:
    if peak is not None:
        return []
    if gpu is not None:
        return [
            f"No {ask.precision} peak is known of this GPU"
            + ("; its utilization is not told." if ask.achieved_tflops else ", so the time is not told.")
        ]
    return [] if ask.achieved_tflops else ["Without a GPU or achieved_tflops the time is not told."]
