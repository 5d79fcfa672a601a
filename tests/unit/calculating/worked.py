"""
Worked examples that others published, beside what the calculators say; `python -m tests.unit.calculating.worked` prints the guide's table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.calculating.registry import CALCULATORS
from controlplane.calculators.service import known_catalog
from controlplane.catalog.service import read_catalog

CATALOG = known_catalog(*read_catalog())
GB, TB, KB, GIB, KIB = 10**9, 10**12, 10**3, 2**30, 2**10
DAY_S, HOUR_S, MINUTE_S = 86_400, 3600, 60
ZERO = "ZeRO, arXiv 1910.02054, figure 1"
MEGATRON = "Megatron-LM, arXiv 2104.04473"
RECOMPUTE = "Activation recomputation, arXiv 2205.05198"
DEEPSEEK = "Insights into DeepSeek-V3, arXiv 2505.09343, table 1"
DALY = "Daly 2006, doi 10.1016/j.future.2004.11.016"
BLOOM = "BigScience, model summary of BLOOM 176B"
SUPERPOD = "DGX SuperPOD data center design, DGX H100"
LLAMA = "Llama 3, arXiv 2407.21783"
PAGED = "vLLM, arXiv 2309.06180"


@dataclass(frozen=True)
class Worked:
    """
    One published figure.
    """

    what: str
    """The case."""
    published: float
    """As printed."""
    unit: str
    """As printed, or KiB, GiB, TiB where the source prints KB, GB, TB and counts in powers of two."""
    ours: Callable[[], float]
    """The calculator's figure in the same unit."""
    within: float
    """The largest relative difference: that of the printed digits, or what the source explains."""
    source: str
    """Where it is printed."""

    def row(self) -> str:
        """
        The line of the guide.
        """
        ours = self.ours()
        cells = (
            self.what,
            f"{self.published:g} {self.unit}",
            f"{ours:.6g} {self.unit}",
            f"{ours / self.published - 1:+.1%}",
            self.source,
        )
        return f"| {' | '.join(cells)} |"


def told(name: str, **inputs: Any) -> Any:
    """
    The result of a calculator.
    """
    return asked(name, **inputs).result


def asked(name: str, **inputs: Any) -> Any:
    """
    The whole answer of a calculator.
    """
    one = CALCULATORS[name]
    return one.answer(one.ask.model_validate(inputs), CATALOG)


def shape(parameters: int, *, layers: int = 1, hidden: int = 64, heads: int = 1, **more: Any) -> dict[str, Any]:
    """
    The numbers of a model of which only these matter.
    """
    rest = {"kv_heads": heads, "head_dim": max(1, hidden // heads)}
    return {"parameters": parameters, "layers": layers, "hidden_size": hidden, "attention_heads": heads, **rest, **more}


def zero(stage: int) -> float:
    """
    7.5B parameters on 64 GPUs: model states per GPU.
    """
    one = told(
        "training-memory", facts=shape(7_500_000_000), sequence_tokens=1, data_parallel=64, zero_stage=stage, recompute="full"
    )
    return float(one.weights_bytes + one.gradients_bytes + one.optimizer_bytes) / GB


def states(*, stage: int, copies: int) -> float:
    """
    Bytes per parameter with bf16 weights and fp32 gradients.
    """
    facts = shape(1_000_000_000)
    one = told(
        "training-memory",
        facts=facts,
        sequence_tokens=1,
        data_parallel=copies,
        zero_stage=stage,
        gradient_precision="fp32",
        recompute="full",
    )
    return float(one.weights_bytes + one.gradients_bytes + one.optimizer_bytes) / 1e9


def saved(layers: int, hidden: int, heads: int) -> float:
    """
    Percent of activations that selective recomputation does not keep.
    """
    facts = shape(1, layers=layers, hidden=hidden, heads=heads)
    kept = {
        how: told("training-memory", facts=facts, sequence_tokens=2048, recompute=how).activations_bytes
        for how in ("none", "selective")
    }
    return 100 * (1 - kept["selective"] / kept["none"])


def days(parameters: int, tokens: int, gpus: int, tflops: float) -> float:
    """
    Days of training with activations made again.
    """
    facts = shape(parameters)
    one = told("training-time", facts=facts, tokens=tokens, gpus=gpus, achieved_tflops=tflops, flops_per_parameter_token=8)
    return float(one.time_days)


def llama_hours() -> float:
    """
    Million GPU hours of the 405B model at the middle of the MFU that its makers report.
    """
    one = told("training-time", model="llama-3.1-405b", tokens=15_600_000_000_000, gpus=16384, gpu_model="H100-SXM5-80GB", mfu=0.4)
    return float(one.gpu_hours) / 1e6


def cache(model: str, unit: float, tokens: int = 1) -> float:
    """
    A cache's size.
    """
    return float(told("kv-cache", model=model, context_tokens=tokens).total_bytes) / unit


def daly(mtbf_h: float) -> float:
    """
    Minutes between checkpoints that take 5 minutes to write.
    """
    facts = shape(1_000_000_000)
    rate = 14e9 / (5 * MINUTE_S) / 1e9
    return float(told("checkpoint", facts=facts, node_mtbf_h=mtbf_h, write_gb_s=rate).daly_interval_s) / MINUTE_S


def flops(parameters: int, tokens: int) -> float:
    """
    Operations in all.
    """
    return float(told("training-time", facts=shape(parameters), tokens=tokens, gpus=1, achieved_tflops=1.0).flops)


def gpus_of_405b(precision: str) -> float:
    """
    H100 GPUs that serve the 405B model.
    """
    inputs = {"model": "llama-3.1-405b", "gpu_model": "H100-SXM5-80GB", "context_tokens": 8192, "weight_precision": precision}
    return float(told("inference-fit", **inputs).gpus)


def rack(rack_w: int) -> float:
    """
    Power of a rack that is full of DGX H100.
    """
    return float(told("rack-power", instance_type="hgx-h100-8", rack_w=rack_w).full_rack_w) / 1000


EXAMPLES = (
    Worked("7.5B, 64 GPUs, Adam, no ZeRO: model states per GPU", 120, "GB", lambda: zero(0), 0.005, ZERO),
    Worked("the same, ZeRO stage 1", 31.4, "GB", lambda: zero(1), 0.005, ZERO),
    Worked("the same, ZeRO stage 2", 16.6, "GB", lambda: zero(2), 0.005, ZERO),
    Worked("the same, ZeRO stage 3", 1.9, "GB", lambda: zero(3), 0.02, ZERO),
    Worked(
        "bytes per parameter, fp32 gradients",
        18,
        "bytes",
        lambda: states(stage=0, copies=8),
        1e-9,
        "Megatron Core, Distributed Optimizer",
    ),
    Worked(
        "the same, optimizer shared by 8 copies", 7.5, "bytes", lambda: states(stage=1, copies=8), 1e-9, "Megatron Core: 6 + 12/d"
    ),
    Worked(
        "GPT-3 175B: activations saved by selective recomputation",
        70,
        "%",
        lambda: saved(96, 12288, 96),
        0.01,
        f"{RECOMPUTE}, section 5",
    ),
    Worked("MT-NLG 530B: the same", 65, "%", lambda: saved(105, 20480, 128), 0.01, f"{RECOMPUTE}, section 5"),
    Worked(
        "GPT-3 175B, 300B tokens: work",
        3.14e23,
        "FLOP",
        lambda: flops(174_600_000_000, 300_000_000_000),
        0.005,
        "GPT-3, arXiv 2005.14165, table D.1",
    ),
    Worked(
        "GPT-3 13B, 300B tokens: work",
        2.31e22,
        "FLOP",
        lambda: flops(12_850_000_000, 300_000_000_000),
        0.005,
        "GPT-3, arXiv 2005.14165, table D.1",
    ),
    Worked(
        "Llama 3 405B, 15.6T tokens: work",
        3.8e25,
        "FLOP",
        lambda: flops(405_000_000_000, 15_600_000_000_000),
        0.005,
        f"{LLAMA}, section 1",
    ),
    Worked(
        "GPT-3 175B, 300B tokens, 1,024 A100 at 140 TFLOP/s",
        34,
        "days",
        lambda: days(175_000_000_000, 300_000_000_000, 1024, 140.0),
        0.01,
        f"{MEGATRON}, section 5.1",
    ),
    Worked(
        "1T, 450B tokens, 3,072 A100 at 163 TFLOP/s",
        84,
        "days",
        lambda: days(1_008_000_000_000, 450_000_000_000, 3072, 163.0),
        0.01,
        f"{MEGATRON}, section 5.1",
    ),
    Worked(
        "Llama 3.1 405B at MFU 0.40 (published: all hours, with what failed)",
        30.84,
        "million GPU hours",
        llama_hours,
        0.15,
        "Llama 3.1 model card",
    ),
    Worked("OPT-13B: cache of a token", 800, "KiB", lambda: cache("opt-13b", KIB), 0.005, f"{PAGED}, section 3"),
    Worked("OPT-13B: cache of 2,048 tokens", 1.6, "GiB", lambda: cache("opt-13b", GIB, 2048), 0.03, f"{PAGED}, section 3"),
    Worked("DeepSeek-V3 (MLA): cache of a token", 70.272, "KB", lambda: cache("deepseek-v3", KB), 1e-9, DEEPSEEK),
    Worked("Qwen2.5 72B (GQA): cache of a token", 327.68, "KB", lambda: cache("qwen2.5-72b", KB), 1e-9, DEEPSEEK),
    Worked("Llama 3.1 405B (GQA): cache of a token", 516.096, "KB", lambda: cache("llama-3.1-405b", KB), 1e-9, DEEPSEEK),
    Worked(
        "Llama 3.1 8B: cache of 128,000 tokens",
        15.62,
        "GiB",
        lambda: cache("llama-3.1-8b", GIB, 128_000),
        0.001,
        "Hugging Face, Llama 3.1 blog",
    ),
    Worked(
        "Llama 3.1 70B: cache of 128,000 tokens",
        39.06,
        "GiB",
        lambda: cache("llama-3.1-70b", GIB, 128_000),
        0.001,
        "Hugging Face, Llama 3.1 blog",
    ),
    Worked(
        "BLOOM 176B: weights in bf16", 329, "GiB", lambda: told("checkpoint", model="bloom-176b").weights_bytes / GIB, 0.005, BLOOM
    ),
    Worked(
        "BLOOM 176B: whole checkpoint",
        2.3,
        "TiB",
        lambda: told("checkpoint", model="bloom-176b").checkpoint_bytes / 2**40,
        0.03,
        BLOOM,
    ),
    Worked(
        "1T: whole checkpoint",
        13.8,
        "TB",
        lambda: told("checkpoint", facts=shape(1_008_000_000_000)).checkpoint_bytes / TB,
        0.03,
        f"{MEGATRON}, section 5.10",
    ),
    Worked("checkpoint of 5 min, failure every 24 h: interval", 117, "min", lambda: daly(24), 0.01, f"{DALY}, figure 3"),
    Worked("checkpoint of 5 min, failure every 6 h: interval", 57, "min", lambda: daly(6), 0.01, f"{DALY}, figure 4"),
    Worked("checkpoint of 5 min, failure every 15 min: interval", 9.1, "min", lambda: daly(0.25), 0.03, f"{DALY}, figure 5"),
    Worked("Llama 3 405B in bf16 on H100", 16, "GPUs", lambda: gpus_of_405b("bf16"), 0, f"{LLAMA}, section 6.1"),
    Worked(
        "Llama 3 405B in fp8 on H100", 8, "GPUs", lambda: gpus_of_405b("fp8"), 0, "Meta, Introducing Llama 3.1: one server node"
    ),
    Worked("rack of DGX H100 at 42 kW: 4 systems", 40.8, "kW", lambda: rack(42_000), 1e-9, SUPERPOD),
    Worked("rack of DGX H100 at 25 kW: 2 systems", 20.4, "kW", lambda: rack(25_000), 1e-9, SUPERPOD),
)


def table() -> str:
    """
    The guide's table.
    """
    head = ("| case | published | ours | difference | source |", "|---|---|---|---|---|")
    return "\n".join((*head, *(one.row() for one in EXAMPLES)))


if __name__ == "__main__":
    print(table())
