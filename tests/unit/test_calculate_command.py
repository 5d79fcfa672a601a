"""
`controlplane calculate` at a terminal, without settings and without a database.
"""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from controlplane.calculating.registry import CALCULATORS
from controlplane.calculating.table import shown_value
from controlplane.cli import app
from controlplane.kit.errors import Invalid

KV = ["calculate", "kv-cache", "--param", "model=deepseek-v3", "-p", "context_tokens=1000"]


def test_it_lists_the_calculators() -> None:
    """Without a name every calculator is shown with its inputs."""
    shown = CliRunner().invoke(app, ["calculate"]).output
    for name, one in CALCULATORS.items():
        assert name in shown
        assert " ".join(one.ask.model_fields) in shown


def test_it_prints_a_table_for_people() -> None:
    """Results in two units, then formulas, assumptions and sources."""
    done = CliRunner().invoke(app, KV)
    assert done.exit_code == 0
    assert "70,272 bytes (68.62 KiB)" in done.output
    assert done.output.index("formulas:") < done.output.index("assumptions:") < done.output.index("sources:")


def test_it_prints_what_the_api_answers() -> None:
    """With --json the answer is JSON, whole."""
    answer = json.loads(CliRunner().invoke(app, [*KV, "--json"]).output)
    assert answer["result"]["total_bytes"] == 70_272_000
    assert answer["inputs"]["facts"]["latent_dim"] == 576


def test_files_of_an_engine_are_shown() -> None:
    """What the engine reads stands below the results."""
    asks = ("engine=triton", "model=llama-3.1-8b", "gpu_model=L40S", "context_tokens=4096")
    done = CliRunner().invoke(app, ["calculate", "engine", *(word for one in asks for word in ("-p", one))])
    assert "model_repository/model/1/model.json:" in done.output
    assert "fit.tensor_parallel" in done.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cow"], "no calculator 'cow'"),
        (["kv-cache", "-p", "context_tokens"], "name=value"),
        (["kv-cache", "-p", "context_tokens=many"], "context_tokens"),
        (["kv-cache", "-p", "context_tokens=1", "-p", "horns=2"], "horns"),
        (["kv-cache", "-p", "context_tokens=1", "-p", "model=cow"], "one of: llama-3.1-8b"),
    ],
)
def test_a_wrong_input_is_told_in_words(words: list[str], told: str) -> None:
    """The refusal is the domain's, which the command line prints as words."""
    done = CliRunner().invoke(app, ["calculate", *words])
    assert isinstance(done.exception, Invalid)
    assert told in str(done.exception)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("total_bytes", 2**30, "1,073,741,824 bytes (1.00 GiB)"),
        ("bytes_per_token", 70_272, "70,272 bytes (68.62 KiB)"),
        ("time_s", 172_800.0, "172,800 s (2.0 days)"),
        ("write_s", 90.0, "90 s (1.5 min)"),
        ("mtbf_s", 7200, "7,200 s (2.0 h)"),
        ("needed_write_gb_s", 4.5, "4.5"),
        ("tokens_per_s", 1000.0, "1,000"),
        ("fits", True, "yes"),
        ("gpus", None, "not told"),
        ("attention", "multi-head", "multi-head"),
        ("command", ["vllm", "serve"], "vllm serve"),
        ("notes", [], "none"),
    ],
)
def test_values_read_easily(name: str, value: object, shown: str) -> None:
    """Bytes and times are shown in a second unit."""
    assert shown_value(name, value) == shown
