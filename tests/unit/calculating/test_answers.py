"""
What an answer carries, what is refused, and what stays unknown.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from controlplane.calculating.errors import CannotCalculate, EngineArchived, UnknownFacts
from controlplane.calculating.registry import CALCULATORS
from tests.unit.calculating.worked import asked, shape, told

ASKS: dict[str, dict[str, Any]] = {
    "checkpoint": {"model": "llama-3.1-70b"},
    "training-memory": {"model": "llama-3.1-70b", "sequence_tokens": 8192},
    "training-time": {"model": "llama-3.1-70b", "tokens": 1000, "gpus": 8, "gpu_model": "H100-SXM5-80GB"},
    "kv-cache": {"model": "llama-3.1-70b", "context_tokens": 8192},
    "inference-fit": {"model": "llama-3.1-70b", "gpu_model": "H100-SXM5-80GB", "context_tokens": 8192},
    "rack-power": {"instance_type": "hgx-h100-8", "rack_w": 42_000},
    "engine": {"model": "llama-3.1-70b", "gpu_model": "H100-SXM5-80GB", "context_tokens": 8192, "engine": "vllm"},
}


@pytest.mark.parametrize("name", CALCULATORS)
def test_an_answer_tells_all_that_it_rests_on(name: str) -> None:
    """Formulas, sources with addresses, every default among the assumptions, and every input as used with the facts behind names."""
    answer = asked(name, **ASKS[name])
    assert answer.calculator == name
    assert answer.formulas
    assert any(one.url.startswith("https://") for one in answer.sources)
    supposed = {one.name for one in answer.assumptions}
    for field, one in CALCULATORS[name].ask.model_fields.items():
        assert field in answer.inputs
        assert field in supposed or field in ASKS[name] or one.default is None
    if "model" in ASKS[name]:
        assert answer.inputs["facts"]["layers"] == 80
    if "gpu_model" in ASKS[name]:
        assert answer.inputs["gpu"]["memory_bytes"] == 80 * 2**30
        assert any("H100" in one.title for one in answer.sources)


@pytest.mark.parametrize("name", ASKS)
def test_unknown_inputs_are_refused(name: str) -> None:
    """A misspelt input is never passed over."""
    with pytest.raises(ValidationError, match="cow"):
        CALCULATORS[name].ask.model_validate(ASKS[name] | {"cow": 1})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("kv-cache", {"model": ""}),
        ("kv-cache", {"model": 7}),
        ("kv-cache", {"context_tokens": True}),
        ("kv-cache", {"context_tokens": 8192.0}),
        ("kv-cache", {"sequences": 0}),
        ("kv-cache", {"facts": {"layers": 1}}),
        ("kv-cache", {"facts": shape(1, heads=8, kv_heads=3)}),
        ("kv-cache", {"facts": shape(1, active_parameters=2)}),
        ("training-memory", {"zero_stage": 4}),
        ("training-time", {"mfu": 0.0}),
        ("training-time", {"productive_share": float("nan")}),
        ("training-time", {"gpu": {"tflops": {"fp8": 0.0}}}),
        ("training-time", {"gpu": {"tflops": {"fp9": 1.0}}}),
        ("checkpoint", {"write_gb_s": 0.0}),
        ("rack-power", {"reserve_share": 1.0}),
        ("inference-fit", {"memory_utilization": 1.1}),
        ("engine", {"engine": "cow"}),
        ("engine", {"model_path": "--trust-remote-code"}),
        ("engine", {"model_path": "a b"}),
    ],
)
def test_inputs_are_strict(name: str, wrong: dict[str, Any]) -> None:
    """Wrong types and numbers out of bounds are refused, and the refusal names the input."""
    with pytest.raises(ValidationError) as refusal:
        CALCULATORS[name].ask.model_validate(ASKS[name] | wrong)
    assert {one["loc"][0] for one in refusal.value.errors()} == set(wrong)


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("kv-cache", {"facts": shape(1)}, "model"),
        ("kv-cache", {"model": None}, "model"),
        ("kv-cache", {"tensor_parallel": 7}, "tensor_parallel"),
        ("kv-cache", {"pipeline_parallel": 81}, "pipeline_parallel"),
        ("training-memory", {"tensor_parallel": 3}, "tensor_parallel"),
        ("training-time", {"mfu": 0.4, "achieved_tflops": 400.0}, "mfu"),
        ("training-time", {"gpu": {"tdp_w": 1}}, "gpu_model"),
        ("inference-fit", {"gpu_model": None}, "gpu_model"),
        ("inference-fit", {"context_tokens": 200_000}, "context_tokens"),
        ("inference-fit", {"model": None, "facts": shape(1), "context_tokens": None}, "context_tokens"),
        ("rack-power", {"node_w": 1}, "instance_type"),
        ("engine", {"kv_precision": "fp4"}, "kv_precision"),
        ("engine", {"model": None, "facts": shape(1)}, "model_path"),
    ],
)
def test_numbers_that_do_not_go_together_are_named(name: str, change: dict[str, Any], field: str) -> None:
    """The refusal names the input."""
    with pytest.raises(CannotCalculate) as refusal:
        asked(name, **(ASKS[name] | change))
    assert refusal.value.errors[0].field == f"body.{field}"


@pytest.mark.parametrize(
    ("name", "field"), [("kv-cache", "model"), ("training-time", "gpu_model"), ("rack-power", "instance_type")]
)
def test_an_unknown_name_is_told_with_those_that_are_known(name: str, field: str) -> None:
    """Nothing is made up for a name that nothing is known of."""
    with pytest.raises(UnknownFacts, match="one of: "):
        asked(name, **(ASKS[name] | {field: "no-such"}))


def test_an_archived_engine_is_refused_with_a_hint() -> None:
    """TGI is not proposed; others are named."""
    with pytest.raises(EngineArchived, match="vllm"):
        asked("engine", **(ASKS["engine"] | {"engine": "tgi"}))


@pytest.mark.parametrize(
    ("name", "change", "missing"),
    [
        ("training-time", {"gpu_model": "A100-SXM4-80GB", "precision": "fp8"}, "time_s"),
        ("training-time", {"gpu_model": None}, "gpu_hours"),
        ("training-time", {"gpu_model": None, "gpu": {"memory_bytes": 1}}, "time_s"),
        ("training-memory", {"model": "mixtral-8x7b"}, "total_bytes"),
        ("training-memory", {}, "fits"),
        ("inference-fit", {"gpu_model": None, "gpu": {"tdp_w": 700}}, "fits"),
        ("rack-power", {"instance_type": None, "gpu_model": "H100-SXM5-80GB"}, "racks"),
        ("checkpoint", {}, "daly_interval_s"),
    ],
)
def test_what_is_not_known_is_null_and_said(name: str, change: dict[str, Any], missing: str) -> None:
    """A figure that would rest on something unknown is null, and the answer says what is missing."""
    answer = asked(name, **(ASKS[name] | change))
    assert getattr(answer.result, missing) is None
    assert answer.unknown


def test_a_measured_rate_needs_no_peak() -> None:
    """The time follows from what was measured, and its share of the peak stays unknown."""
    one = told("training-time", **(ASKS["training-time"] | {"gpu_model": None, "achieved_tflops": 400.0}))
    assert one.time_s is not None
    assert one.mfu is None


def test_power_of_a_gpu_and_the_rest_of_the_node() -> None:
    """Eight H100 of 700 W and a host of 4.6 kW are the planned power of the instance type."""
    by_gpu = told("rack-power", gpu_model="H100-SXM5-80GB", gpus_per_node=8, host_w=4600, rack_w=42_000, node_units=8)
    assert by_gpu.node_w == told("rack-power", **ASKS["rack-power"]).node_w
    assert (by_gpu.nodes_per_rack, by_gpu.limited_by) == (4, "power")
    assert told("rack-power", node_w=1000, rack_w=42_000, node_units=8).limited_by == "height"


def test_only_active_parameters_are_work() -> None:
    """Of a mixture of experts, what a token does not visit takes memory and no time."""
    inputs = {"tokens": 10**12, "gpus": 1, "achieved_tflops": 100.0}
    assert told("training-time", model="mixtral-8x7b", **inputs).flops == 6 * 12_879_925_248 * 10**12
    assert told("checkpoint", model="mixtral-8x7b").weights_bytes == 2 * 46_702_792_704


def test_the_largest_stage_of_a_pipeline_counts() -> None:
    """Nine layers in two stages are five and four: the cache and the weights of five decide."""
    facts = shape(9_000_000, layers=9, hidden=64, heads=1)
    cache = told("kv-cache", facts=facts, context_tokens=1, pipeline_parallel=2)
    assert (cache.bytes_per_token, cache.bytes_per_gpu) == (9 * 2 * 64 * 2, 5 * 2 * 64 * 2)
    small = {"memory_bytes": 12_000_000}
    fitted = told("inference-fit", facts=facts, context_tokens=1, gpu=small, memory_utilization=1.0, overhead_mib_per_gpu=0)
    assert (fitted.pipeline_parallel, fitted.weights_bytes_per_gpu) == (2, 10_000_000)


def test_a_model_fits_to_the_byte() -> None:
    """Weights and cache that fill a GPU fit; one byte less of memory takes another GPU, whichever overhead is set."""
    facts = shape(8_000_000, layers=8, hidden=64, heads=8)
    whole = 2 * 8_000_000 + 8 * 2 * 64 * 2
    inputs = {"facts": facts, "context_tokens": 1, "memory_utilization": 1.0}
    for overhead_mib in (0, 3):
        for missing, gpus in ((0, 1), (1, 2)):
            gpu = {"memory_bytes": whole + overhead_mib * 2**20 - missing}
            assert told("inference-fit", **inputs, gpu=gpu, overhead_mib_per_gpu=overhead_mib).gpus == gpus


@pytest.mark.parametrize(
    ("heads", "kv_heads", "node", "gpus", "tensor"),
    [(12, 12, 8, 4, 4), (12, 12, 6, 3, 3), (24, 6, 8, 4, 2), (24, 8, 6, 4, 2), (8, 8, 2, 4, 2), (8, 8, 4, 4, 4)],
)
def test_tensor_parallelism_goes_evenly(heads: int, kv_heads: int, node: int, gpus: int, tensor: int) -> None:
    """It divides the heads and the node, and stays in it; beyond, stages are added, over whole nodes."""
    facts = shape(12_000_000, layers=12, hidden=384, heads=heads, kv_heads=kv_heads)
    inputs = {"facts": facts, "context_tokens": 1, "memory_utilization": 1.0, "overhead_mib_per_gpu": 0, "gpus_per_node": node}
    one = told("inference-fit", **inputs, gpu={"memory_bytes": 8_500_000})
    assert (one.gpus, one.tensor_parallel) == (gpus, tensor)


def test_a_copy_over_several_nodes_takes_whole_ones() -> None:
    """Twelve heads go four ways on a node of eight: what would fit on twelve GPUs takes sixteen, for half a node serves nobody else."""
    facts = shape(12_000_000, layers=12, hidden=384, heads=12)
    inputs = {"facts": facts, "context_tokens": 1, "memory_utilization": 1.0, "overhead_mib_per_gpu": 0, "gpus_per_node": 8}
    one = told("inference-fit", **inputs, gpu={"memory_bytes": 2_100_000}, most_gpus=64)
    assert (one.gpus, one.nodes, one.tensor_parallel, one.pipeline_parallel) == (16, 2, 4, 4)
