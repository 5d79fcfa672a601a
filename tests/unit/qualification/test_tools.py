"""
Tools by name: every form of output finds its parser, and what a tool calls good by itself.
"""

from __future__ import annotations

import json

import pytest

from controlplane.measurements.reading import UnreadableOutput
from controlplane.measurements.tools import TOOLS, ToolName, own_baseline, read_output
from tests.unit.measurements import smi_samples, test_burn, test_dcgm, test_linpack, test_nccl, test_perftest

OUTPUTS: list[tuple[ToolName, str, str, str]] = [
    ("nccl-tests", test_nccl.WHOLE, "all_reduce", "nccl_all_reduce_bus_bandwidth_largest"),
    ("dcgmi diag", json.dumps(test_dcgm.JSON_4), "", "dcgm_failed"),
    ("dcgmi diag", test_dcgm.TABLE_3, "", "dcgm_failed"),
    ("gpu-burn", test_burn.WHOLE, "", "burn_passed"),
    ("HPL", test_linpack.ROW + test_linpack.CHECK + test_linpack.end(1), "", "hpl_speed"),
    ("ib_write_bw", test_perftest.WHOLE, "", "rdma_write_bandwidth_average"),
    ("nvidia-smi", smi_samples.TEXT, "", "gpu_remap_failed"),
    ("nvidia-smi", smi_samples.XML, "", "gpu_remap_failed"),
]


@pytest.mark.parametrize(("tool", "text", "collective", "metric"), OUTPUTS)
def test_each_output_is_read_by_its_tool(tool: ToolName, text: str, collective: str, metric: str) -> None:
    """Text, tables, JSON and XML are told apart."""
    assert metric in {one.name for one in read_output(tool, text, collective)}


@pytest.mark.parametrize("tool", list(TOOLS))
def test_what_is_of_no_tool_is_refused(tool: ToolName) -> None:
    """Every tool has the one error for it."""
    with pytest.raises(UnreadableOutput):
        read_output(tool, "Segmentation fault\n", "all_reduce" if TOOLS[tool].collective else "")


def test_figures_larger_than_any_real_one_are_refused() -> None:
    """Sums over them could not be told."""
    with pytest.raises(UnreadableOutput, match="larger"):
        read_output("ib_write_bw", test_perftest.WHOLE.replace("391.55", "391e99"))


def test_only_a_tools_own_word_is_good_by_itself() -> None:
    """Passed must be yes, failed must be no, and speeds need a baseline of ours."""
    passed, failed = own_baseline("burn_passed", "yes"), own_baseline("gpu_remap_failed", "yes")
    assert passed is not None
    assert failed is not None
    assert (passed.minimum, passed.maximum, failed.minimum, failed.maximum) == (1.0, None, None, 0.0)
    assert own_baseline("burn_speed", "Gflop/s") is None
    assert own_baseline("gpu_ecc_enabled", "yes") is None
    assert own_baseline("tests_failed", "count") is None
