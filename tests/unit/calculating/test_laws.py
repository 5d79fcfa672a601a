"""
Laws that hold for any numbers: more never takes less, parts add up, and units agree.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.calculating.answers import BITS, GIB
from controlplane.calculating.checkpoint import daly_s, young_s
from tests.unit.calculating.worked import told

LAWS = settings(max_examples=60, deadline=None)
SIZES = st.integers(1, 10**12)
WIDTHS = st.sampled_from((1, 2, 4, 8))


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """A dense model of any size whose heads eight GPUs can share."""
    kv_heads = draw(st.sampled_from((1, 2, 4, 8, 16)))
    return {
        "parameters": draw(SIZES),
        "layers": draw(st.integers(8, 128)),
        "hidden_size": 128 * draw(st.integers(1, 128)),
        "attention_heads": kv_heads * draw(st.sampled_from((8, 16))),
        "kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from((64, 128))),
    }


@LAWS
@given(facts=models(), tokens=st.integers(1, 100_000), sequences=st.integers(1, 1000), more=st.integers(1, 1000))
def test_a_cache_adds_up(facts: dict[str, Any], tokens: int, sequences: int, more: int) -> None:
    """Sequences add up to the whole, the same tokens in other portions take the same, and more tokens take more."""
    one = told("kv-cache", facts=facts, context_tokens=tokens, sequences=sequences)
    assert one.total_bytes == one.bytes_per_sequence * sequences == one.bytes_per_token * tokens * sequences
    turned = told("kv-cache", facts=facts, context_tokens=sequences, sequences=tokens) if tokens <= 1_000_000 else one
    assert turned.total_bytes == one.total_bytes
    assert told("kv-cache", facts=facts, context_tokens=tokens + more, sequences=sequences).total_bytes > one.total_bytes


@LAWS
@given(facts=models(), tensor=WIDTHS, stages=WIDTHS, precision=st.sampled_from(sorted(BITS)))
def test_no_split_loses_any_of_a_cache(facts: dict[str, Any], tensor: int, stages: int, precision: Any) -> None:
    """All GPUs together hold at least the whole, and none more than the whole."""
    inputs = {
        "facts": facts,
        "context_tokens": 1000,
        "precision": precision,
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
    }
    one = told("kv-cache", **inputs)
    assert one.bytes_per_gpu * tensor * stages >= one.total_bytes >= one.bytes_per_gpu


@LAWS
@given(facts=models(), tensor=WIDTHS, stages=WIDTHS, copies=st.integers(1, 512))
def test_sharing_more_never_takes_more(facts: dict[str, Any], tensor: int, stages: int, copies: int) -> None:
    """Each ZeRO stage takes at most what the one before takes; parts add up; all shares together are at least the model."""
    inputs = {
        "facts": facts,
        "sequence_tokens": 128,
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
        "data_parallel": copies,
    }
    stages_of = [told("training-memory", **inputs, zero_stage=stage) for stage in range(4)]
    for less, more in zip(stages_of[1:], stages_of, strict=False):
        assert less.total_bytes <= more.total_bytes
    for one in stages_of:
        assert one.total_bytes == one.weights_bytes + one.gradients_bytes + one.optimizer_bytes + one.activations_bytes
    fully = stages_of[3]
    assert (fully.weights_bytes + fully.gradients_bytes + fully.optimizer_bytes) * fully.gpus >= fully.unshared_bytes


@LAWS
@given(facts=models(), tokens=st.integers(1, 10**14), gpus=st.integers(1, 100_000), tflops=st.floats(1, 10_000))
def test_time_goes_with_work_over_speed(facts: dict[str, Any], tokens: int, gpus: int, tflops: float) -> None:
    """Twice the GPUs halve the time and leave the GPU hours; twice the tokens double both; units agree."""
    inputs = {"facts": facts, "achieved_tflops": tflops}
    one = told("training-time", **inputs, tokens=tokens, gpus=gpus)
    wide = told("training-time", **inputs, tokens=tokens, gpus=2 * gpus)
    long = told("training-time", **inputs, tokens=2 * tokens, gpus=gpus)
    assert wide.time_s == pytest.approx(one.time_s / 2)
    assert wide.gpu_hours == pytest.approx(one.gpu_hours)
    assert long.time_s == pytest.approx(2 * one.time_s)
    assert one.time_days * 24 * gpus == pytest.approx(one.gpu_hours)


@LAWS
@given(share=st.floats(0.001, 0.5), mtbf_h=st.floats(0.1, 10_000), nodes=st.integers(1, 10_000))
def test_the_needed_rate_loses_just_the_share(share: float, mtbf_h: float, nodes: int) -> None:
    """Storage at the needed rate loses exactly the share that was asked for."""
    inputs = {"model": "llama-3.1-70b", "node_mtbf_h": mtbf_h, "nodes": nodes, "largest_lost_share": share}
    needed = told("checkpoint", **inputs).needed_write_gb_s
    if 1e-6 <= needed <= 1e6:
        assert told("checkpoint", **inputs, write_gb_s=needed).lost_share == pytest.approx(share)


@LAWS
@given(write_s=st.floats(0.1, 1e5), mtbf_s=st.floats(1, 1e7))
def test_both_intervals_agree_where_writing_is_short(write_s: float, mtbf_s: float) -> None:
    """Daly's interval is finite and positive, and Young's where a write is short against failures."""
    interval = daly_s(write_s, mtbf_s)
    assert 0 < interval <= max(mtbf_s, young_s(write_s, mtbf_s) * 2)
    if write_s < mtbf_s / 10_000:
        assert interval == pytest.approx(young_s(write_s, mtbf_s), rel=0.02)


@LAWS
@given(facts=models(), memory=st.integers(16, 300), sequences=st.integers(1, 64), node=st.sampled_from((1, 2, 4, 8)))
def test_what_fits_fits_and_nothing_smaller_does(facts: dict[str, Any], memory: int, sequences: int, node: int) -> None:
    """The answer's bytes are within the GPU; heads divide; tensor parallelism stays in a node; more memory never takes more GPUs."""
    inputs = {"facts": facts, "context_tokens": 4096, "sequences": sequences, "gpus_per_node": node, "most_gpus": 512}
    one = told("inference-fit", **inputs, gpu={"memory_bytes": memory * GIB})
    if not one.fits:
        assert one.gpus is None
        return
    assert one.weights_bytes_per_gpu + one.cache_bytes_per_gpu + one.free_bytes_per_gpu == one.usable_bytes_per_gpu
    assert one.free_bytes_per_gpu >= 0
    assert one.most_sequences >= sequences
    assert node % one.tensor_parallel == 0 == facts["attention_heads"] % one.tensor_parallel
    assert one.gpus == one.tensor_parallel * one.pipeline_parallel
    assert one.gpus <= node or one.gpus % node == 0
    assert told("inference-fit", **inputs, gpu={"memory_bytes": 2 * memory * GIB}).gpus <= one.gpus
    if one.gpus > 1 and one.pipeline_parallel == 1:
        fewer = told("inference-fit", **(inputs | {"most_gpus": one.gpus - 1}), gpu={"memory_bytes": memory * GIB})
        assert fewer.fits is False


@LAWS
@given(node_w=st.integers(1, 20_000), rack_w=st.integers(1, 200_000), fixed_w=st.integers(0, 5000), nodes=st.integers(1, 5000))
def test_no_rack_draws_more_than_it_may(node_w: int, rack_w: int, fixed_w: int, nodes: int) -> None:
    """A full rack is within its power, one node more would not be, and the racks hold all nodes."""
    one = told("rack-power", node_w=node_w, rack_w=rack_w, fixed_w=fixed_w, nodes=nodes)
    if one.nodes_per_rack == 0:
        assert one.racks is None
        return
    assert one.full_rack_w <= rack_w < one.full_rack_w + node_w
    assert (one.racks - 1) * one.nodes_per_rack < nodes <= one.racks * one.nodes_per_rack
    assert one.total_w == nodes * node_w + one.racks * fixed_w
