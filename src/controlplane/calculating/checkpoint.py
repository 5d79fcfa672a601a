"""
How large a checkpoint is, how often it should be written, and how fast storage must take it.
"""

from math import sqrt

from pydantic import Field

from controlplane.calculating.answers import Answer, Assumption, Precision, Source, Told, bytes_of, defaults_of
from controlplane.calculating.facts import Catalog, ModelAsk, inputs_of, model_of, model_sources

HOUR_S = 3600
GIGA = 10**9
SOURCES = [
    Source(
        title="Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
        url="https://arxiv.org/abs/2104.04473",
        section="section 5.10, checkpoint loading and saving",
    ),
    Source(
        title="J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974)",
        url="https://doi.org/10.1145/361147.361115",
        section="the whole note",
    ),
    Source(
        title="J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006)",
        url="https://doi.org/10.1016/j.future.2004.11.016",
        section="the higher-order estimate, and figures 3 to 5",
    ),
]
FORMULAS = [
    "checkpoint_bytes = parameters * (weight_precision / 8 + optimizer_bytes_per_parameter)",
    "mtbf_s = node_mtbf_h * 3600 / nodes",
    "write_s = checkpoint_bytes / write_bytes_per_s",
    "young_interval_s = sqrt(2 * write_s * mtbf_s)",
    "daly_interval_s = young_interval_s * (1 + sqrt(x) / 3 + x / 9) - write_s, x = write_s / (2 * mtbf_s); mtbf_s where x >= 1",
    "lost_share = write_s / young_interval_s + young_interval_s / (2 * mtbf_s) = sqrt(2 * write_s / mtbf_s)",
    "needed_write_gb_s = checkpoint_bytes / (largest_lost_share ^ 2 * mtbf_s / 2) / 10^9",
]


class CheckpointAsk(ModelAsk):
    """
    A model, what is written of it, and how often nodes fail.
    """

    weight_precision: Precision = Field(
        default="bf16", description="Precision of the weights in the checkpoint.", examples=["bf16"]
    )
    optimizer_bytes_per_parameter: int = Field(
        default=12,
        ge=0,
        le=64,
        description="What the optimizer keeps: Adam with an fp32 master copy, momentum and variance is 12; 0 for weights alone.",
        examples=[12],
    )
    nodes: int = Field(default=1, ge=1, le=1_000_000, description="Nodes of the job: any of them failing stops it.", examples=[128])
    node_mtbf_h: float | None = Field(
        default=None,
        ge=1e-3,
        le=1e7,
        description="Mean time between failures of one node in hours; null: no interval.",
        examples=[6000.0],
    )
    write_gb_s: float | None = Field(
        default=None,
        ge=1e-6,
        le=1e6,
        description="Rate at which storage takes the whole checkpoint, in 10^9 bytes/s.",
        examples=[100.0],
    )
    largest_lost_share: float = Field(
        default=0.05, ge=1e-4, lt=1, description="Share of time that writing and repeating lost work may take.", examples=[0.05]
    )


class CheckpointResult(Told):
    """
    A checkpoint's size, interval and rate.
    """

    checkpoint_bytes: int = Field(description="One checkpoint.", examples=[987_751_890_944])
    weights_bytes: int = Field(description="The weights in it.", examples=[141_107_412_992])
    optimizer_bytes: int = Field(description="The optimizer's state in it.", examples=[846_644_477_952])
    mtbf_s: float | None = Field(description="Mean time between failures of the whole job.", examples=[168750.0])
    write_s: float | None = Field(description="Time that one checkpoint takes while the job waits.", examples=[9.88])
    young_interval_s: float | None = Field(description="Best time between checkpoints, first order.", examples=[1826.0])
    daly_interval_s: float | None = Field(description="Best time between checkpoints, higher order.", examples=[1819.4])
    lost_share: float | None = Field(description="Share of time lost at the best interval, first order.", examples=[0.0108])
    needed_write_gb_s: float | None = Field(
        description="Slowest storage that keeps to largest_lost_share, 10^9 bytes/s.", examples=[4.68]
    )
    needed_write_gb_s_per_node: float | None = Field(description="The same for each node.", examples=[0.037])


class CheckpointAnswer(Answer):
    """
    The checkpoint calculator's answer.
    """

    result: CheckpointResult = Field(description="Size, interval and rate.")


def checkpoint(ask: CheckpointAsk, catalog: Catalog) -> CheckpointAnswer:
    """
    The size of a checkpoint and, where failures are known, when to write it and how fast. Raises CannotCalculate, UnknownFacts.
    """
    del catalog
    model = model_of(ask)
    weights = bytes_of(model.parameters, ask.weight_precision)
    optimizer = model.parameters * ask.optimizer_bytes_per_parameter
    whole = weights + optimizer
    mtbf_s = None if ask.node_mtbf_h is None else ask.node_mtbf_h * HOUR_S / ask.nodes
    write_s = None if ask.write_gb_s is None else whole / (ask.write_gb_s * GIGA)
    needed = None if mtbf_s is None else whole / (ask.largest_lost_share**2 * mtbf_s / 2) / GIGA
    result = CheckpointResult(
        checkpoint_bytes=whole,
        weights_bytes=weights,
        optimizer_bytes=optimizer,
        mtbf_s=mtbf_s,
        write_s=write_s,
        young_interval_s=young_s(write_s, mtbf_s) if write_s and mtbf_s else None,
        daly_interval_s=daly_s(write_s, mtbf_s) if write_s and mtbf_s else None,
        lost_share=min(1.0, sqrt(2 * write_s / mtbf_s)) if write_s and mtbf_s else None,
        needed_write_gb_s=needed,
        needed_write_gb_s_per_node=None if needed is None else needed / ask.nodes,
    )
    return CheckpointAnswer(
        calculator="checkpoint",
        result=result,
        formulas=FORMULAS,
        inputs=inputs_of(ask, model),
        assumptions=[*defaults_of(ask), *_supposed()],
        sources=[*SOURCES, *model_sources(ask)],
        unknown=_unknown(ask),
    )


def young_s(write_s: float, mtbf_s: float) -> float:
    """
    The first-order best time of work between two checkpoints.
    """
    return sqrt(2 * write_s * mtbf_s)


def daly_s(write_s: float, mtbf_s: float) -> float:
    """
    The higher-order best time of work between two checkpoints; the time between failures where writing takes longer than that allows.
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    x = write_s / (2 * mtbf_s)
    return young_s(write_s, mtbf_s) * (1 + sqrt(x) / 3 + x / 9) - write_s


def _supposed() -> list[Assumption]:
    return [
        Assumption(
            name="writing",
            value="synchronous",
            why="The job waits while a checkpoint is written; an asynchronous writer loses less.",
        ),
        Assumption(
            name="failures", value="Poisson", why="Nodes fail independently at a constant rate, and one failure stops the job."
        ),
        Assumption(name="restart", value="0 s", why="The time to start again after a failure does not move the best interval."),
    ]


def _unknown(ask: CheckpointAsk) -> list[str]:
    missing = {
        "node_mtbf_h": "Without node_mtbf_h there is no interval and no needed rate.",
        "write_gb_s": "Without write_gb_s there is no time to write and no interval.",
    }
    return [words for name, words in missing.items() if getattr(ask, name) is None]
