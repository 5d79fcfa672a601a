"""
Engine proposals: the parallelism of the fit in each engine's own words.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.calculating.worked import asked, told

LLAMA: dict[str, Any] = {"model": "llama-3.1-70b", "gpu_model": "H100-SXM5-80GB", "context_tokens": 8192, "sequences": 16}
HUGE: dict[str, Any] = {"model": "llama-3.1-405b", "gpu_model": "H100-SXM5-80GB", "context_tokens": 8192}


def option(command: list[str], name: str) -> str:
    """The word after the option."""
    return command[command.index(name) + 1]


@pytest.mark.parametrize(
    ("engine", "program", "tensor", "stages", "length", "most"),
    [
        ("vllm", "vllm", "--tensor-parallel-size", "--pipeline-parallel-size", "--max-model-len", "--max-num-seqs"),
        ("sglang", "python3", "--tp-size", "--pp-size", "--context-length", "--max-running-requests"),
        ("tensorrt-llm", "trtllm-serve", "--tp_size", "--pp_size", "--max_seq_len", "--max_batch_size"),
    ],
)
def test_each_engine_gets_its_own_words(engine: str, program: str, tensor: str, stages: str, length: str, most: str) -> None:
    """70B in bf16 takes four H100; parallelism, length and sequences stand under the engine's names."""
    one = told("engine", **LLAMA, engine=engine)
    assert one.command[0] == program
    assert "meta-llama/Llama-3.1-70B-Instruct" in one.command
    assert [option(one.command, name) for name in (tensor, stages, length, most)] == ["4", "1", "8192", "16"]
    assert one.gpus == one.fit.gpus == 4


def test_triton_reads_it_from_its_model_repository() -> None:
    """The command names the repository; the engine's settings and the backend stand in its files."""
    one = told("engine", **LLAMA, engine="triton", kv_precision="fp8")
    files = {file.path: file.content for file in one.files}
    settings = json.loads(files["model_repository/model/1/model.json"])
    assert (settings["tensor_parallel_size"], settings["max_model_len"], settings["kv_cache_dtype"]) == (4, 8192, "fp8")
    assert 'backend: "vllm"' in files["model_repository/model/config.pbtxt"]


def test_copies_multiply_gpus() -> None:
    """Two copies take twice the GPUs: the engine's own data parallelism, or two servers."""
    inside = told("engine", **LLAMA, engine="vllm", data_parallel=2)
    assert (inside.gpus, option(inside.command, "--data-parallel-size")) == (8, "2")
    beside = told("engine", **LLAMA, engine="tensorrt-llm", data_parallel=2)
    assert beside.gpus == 8
    assert "2 servers" in beside.notes[0]


def test_a_copy_over_two_nodes_says_so() -> None:
    """405B in bf16 spans two nodes: eight-fold tensor parallel in two stages, and a note for whoever starts it."""
    one = told("engine", **HUGE, engine="vllm")
    assert (one.fit.nodes, one.fit.tensor_parallel, one.fit.pipeline_parallel) == (2, 8, 2)
    assert option(one.command, "--distributed-executor-backend") == "ray"
    assert "spans nodes" in one.notes[0]
    assert option(told("engine", **HUGE, engine="sglang").command, "--nnodes") == "2"


def test_fp8_is_quantized_by_the_engine_or_read_as_stored() -> None:
    """Published bf16 weights are turned into fp8 by the engine; DeepSeek's are stored so; another folder must hold them."""
    small = HUGE | {"weight_precision": "fp8", "kv_precision": "fp8"}
    made = told("engine", **small, engine="vllm").command
    assert (option(made, "--quantization"), option(made, "--kv-cache-dtype")) == ("fp8", "fp8")
    assert option(told("engine", **small, engine="sglang").command, "--kv-cache-dtype") == "fp8_e4m3"
    assert told("engine", **small, engine="tensorrt-llm").files[0].content == "kv_cache_config:\n  dtype: fp8\n"
    stored = told(
        "engine", model="deepseek-v3", gpu_model="H200-SXM5-141GB", weight_precision="fp8", context_tokens=8192, engine="sglang"
    )
    assert "--quantization" not in stored.command
    assert (stored.fit.gpus, stored.notes) == (8, [])
    other = told("engine", **small, engine="vllm", model_path="/models/llama-fp8")
    assert "--quantization" not in other.command
    assert "must be stored as fp8" in other.notes[0]


def test_what_does_not_fit_is_not_started() -> None:
    """Without room there is no command, and the reason says what to change."""
    answer = asked("engine", **HUGE, engine="vllm", most_gpus=8)
    assert (answer.result.fit.fits, answer.result.gpus, answer.result.command) == (False, None, [])
    assert "at most 8 GPUs" in answer.result.fit.reason


def test_the_static_share_leaves_the_overhead_out() -> None:
    """SGLang's share holds weights and cache alone: 70 of 80 GiB."""
    assert option(told("engine", **LLAMA, engine="sglang").command, "--mem-fraction-static") == "0.875"
