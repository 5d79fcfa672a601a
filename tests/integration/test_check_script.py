"""
The check's script under a real shell, with tools that print what the real ones printed, hang, break or are not there.
"""

from __future__ import annotations

import json
import os
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from controlplane.measurements.tools import read_output
from controlplane.qualification.states import BURN_KINDS
from tests.factories.burning import ALL, fit_out, prints, tool

SCRIPT = files("controlplane.boots") / "scripts" / "check.sh"
Said = dict[str, tuple[str, str]]


def check(home: Path, env: dict[str, str], burn_in: str = ALL, *, purpose: str = "check", gpus: int = 2) -> tuple[int, Said]:
    """The script's exit code and what it reported: name to (result, detail)."""
    checks, outputs = home / "checks.jsonl", home / "outputs"
    outputs.mkdir(exist_ok=True)
    given = {
        "BOOT_PURPOSE": purpose,
        "BOOT_CHECKS": str(checks),
        "BOOT_OUTPUTS": str(outputs),
        "BURN_IN": burn_in,
        "EXPECTED_GPUS": str(gpus),
        **env,
    }
    done = subprocess.run(
        ["bash", "-eET", "-o", "pipefail", str(SCRIPT)], env={**os.environ, **given}, check=False, capture_output=True, timeout=60
    )
    lines = checks.read_text().splitlines() if checks.exists() else []
    said = [json.loads(line) for line in lines]
    assert len({one["name"] for one in said}) == len(said)
    return done.returncode, {one["name"]: (one["result"], one["detail"]) for one in said}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A machine with every tool."""
    return fit_out(tmp_path)


def test_every_tool_runs_and_its_output_is_whole(tmp_path: Path, env: dict[str, str]) -> None:
    """Each test passes, and what stands in the folder is read by the same parsers that the ledger uses."""
    code, said = check(tmp_path, env)
    assert code == 0
    assert {name: result for name, (result, _) in said.items()} == {
        **dict.fromkeys(("gpu_count", "links", *BURN_KINDS), "passed"),
        "fabric_bandwidth": "not_measured",
    }
    outputs = {one.name: one.read_bytes().decode() for one in (tmp_path / "outputs").iterdir()}
    assert set(outputs) == {*BURN_KINDS, "rdma_loopback.mlx5_0", "rdma_loopback.mlx5_1"} - {"rdma_loopback"}
    for name, text in outputs.items():
        kind = BURN_KINDS[name.partition(".")[0]]  # type: ignore[index]
        assert read_output(kind.tool, text, kind.collective)


def test_tools_are_told_what_the_policy_says(tmp_path: Path, env: dict[str, str]) -> None:
    """The burn's seconds and the diagnosis's level are those of the order, and only what was ordered runs."""
    for name in ("gpu_burn", "dcgmi"):
        tool(tmp_path / "tools", name, f'echo "$PWD" "$@" >{tmp_path}/{name}.told; echo x')
    _, said = check(tmp_path, env, "gpu_diagnosis 20 3\ngpu_burn 20 17")
    assert (tmp_path / "dcgmi.told").read_text().split()[1:] == ["diag", "-r", "3", "-j"]
    assert (tmp_path / "gpu_burn.told").read_text().split() == [str(tmp_path / "tools"), "17"]
    assert set(said) == {"gpu_count", "links", "gpu_diagnosis", "gpu_burn", "fabric_bandwidth"}


def test_what_is_not_there_is_not_measured(tmp_path: Path, env: dict[str, str]) -> None:
    """No tool, no input file, no port that is up: never passed, never failed, and the rest runs."""
    for name in ("dcgmi", "gpu_burn", "all_reduce_perf"):
        (tmp_path / "tools" / name).unlink()
    (tmp_path / "hpl" / "HPL.dat").unlink()
    for device in ("mlx5_0", "mlx5_1"):
        (tmp_path / "sys" / device / "ports/1/state").write_text("1: DOWN\n")
    code, said = check(tmp_path, env)
    assert code == 0
    assert said["gpu_state"][0] == "passed"
    assert said["gpu_burn"] == ("not_measured", "no gpu_burn in the image")
    assert said["linpack"] == ("not_measured", "no HPL.dat in the image")
    assert said["rdma_loopback"] == ("not_measured", "no RDMA port is up")
    assert [one.name for one in (tmp_path / "outputs").iterdir()] == ["gpu_state"]


def test_a_machine_that_shows_no_gpu_measures_none(tmp_path: Path, env: dict[str, str]) -> None:
    """Tools without their hardware are not run: the count has failed, the tests are not measured."""
    tool(tmp_path / "tools", "nvidia-smi", "echo 'No devices were found'; exit 6")
    _, said = check(tmp_path, env)
    assert said["gpu_count"] == ("failed", "0 of 2")
    assert {said[name] for name in ("gpu_state", "gpu_diagnosis", "gpu_burn", "gpu_collectives")} == {
        ("not_measured", "no GPU is seen")
    }


def test_a_tool_that_hangs_is_ended_and_has_failed(tmp_path: Path, env: dict[str, str]) -> None:
    """With its children; half an output is not sent, and the tests behind it run."""
    tool(tmp_path / "tools", "gpu_burn", "echo half; tail -f /dev/null & echo $! >" + str(tmp_path / "child") + "; wait")
    code, said = check(tmp_path, env, "gpu_burn 1 10\ngpu_collectives 20 0")
    assert code == 0
    assert said["gpu_burn"][0] == "failed"
    assert said["gpu_burn"][1].startswith("not over after 1 s")
    assert said["gpu_collectives"][0] == "passed"
    assert [one.name for one in (tmp_path / "outputs").iterdir()] == ["gpu_collectives"]
    stat = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_tool_that_breaks_has_failed_with_its_words(tmp_path: Path, env: dict[str, str]) -> None:
    """A bad exit is a failure though there is output, which is sent all the same; silence is one too."""
    prints(tmp_path / "tools", "dcgmi", 'it "broke"\n', code=3)
    tool(tmp_path / "tools", "gpu_burn", "exit 0")
    half = f'[ "$2" = mlx5_1 ] || {{ echo "No such device" >&2; exit 1; }}; cat {tmp_path}/tools/ib_write_bw.text'
    tool(tmp_path / "tools", "ib_write_bw", half)
    tool(tmp_path / "tools", "sleep", "exit 0")
    _, said = check(tmp_path, env, "gpu_diagnosis 20 2\ngpu_burn 20 10\nrdma_loopback 20 0")
    assert said["gpu_diagnosis"] == ("failed", "exit code 3: it broke")
    assert said["gpu_burn"] == ("failed", "it printed nothing")
    assert said["rdma_loopback"][0] == "failed"
    assert "mlx5_0: exit code 1: No such device" in said["rdma_loopback"][1]
    assert {one.name for one in (tmp_path / "outputs").iterdir()} == {"gpu_diagnosis", "rdma_loopback.mlx5_1"}


def test_a_boot_for_something_else_checks_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    """The script refuses a boot that is not a check, and says that it does not know a test of a newer policy."""
    assert check(tmp_path, env, purpose="wipe") == (2, {})
    _, said = check(tmp_path, env, "gpu_telepathy 20 0")
    assert said["gpu_telepathy"] == ("not_measured", "this script does not know the test")
