"""
dcgmi diag: JSON and table of DCGM 3 and 4.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.measurements.dcgm import DiagResult, parse_dcgm_json
from controlplane.measurements.dcgm_table import parse_dcgm_table
from controlplane.measurements.figures import NODE, Measurement, gpu
from controlplane.measurements.reading import UnreadableOutput

BAR = "+---------------------------+------------------------------------------------+\n"
TITLE = (
    BAR
    + "| Diagnostic                | Result                                         |\n"
    + "+===========================+================================================+\n"
    + "|-----  Metadata  ----------+------------------------------------------------|\n"
)


def row(name: str, words: str) -> str:
    """A row of the table."""
    return f"| {name:<25} | {words:<46} |\n"


def section(name: str) -> str:
    """A heading inside the table."""
    return f"+-----  {name}  ".ljust(28, "-") + "+" + "-" * 48 + "+\n"


TABLE_3 = (
    "Successfully ran diagnostic for group.\n"
    + TITLE
    + row("DCGM Version", "3.3.6")
    + row("Driver Version Detected", "550.54.14")
    + section("Deployment")
    + row("Denylist", "Pass")
    + section("Hardware")
    + row("GPU Memory", "Pass - GPUs: 0, 2   ")
    + row("", "Fail - GPU: 1   ")
    + row("Warning", "GPU 1 had an error that nobody could ")
    + row("", "correct - Run a field diagnostic")
    + row("Diagnostic", "Pass - All")
    + section("Stress")
    + row("Targeted Stress", "Skip - All")
    + BAR
)
TABLE_4 = (
    "Successfully ran diagnostic for group.\n"
    + TITLE
    + row("DCGM Version", "4.2.3")
    + row("Number of CPUs Detected", "2")
    + section("Hardware")
    + row("memory", "Fail")
    + row("", "GPU0: Pass")
    + row("", "GPU1: Fail")
    + row("Warning: GPU1", "Too many rows wait for a reset on this GPU, it")
    + row("", "needs one now")
    + row("", "CPU0: Pass")
    + row("diagnostic", "Skip")
    + BAR
)
JSON_3: dict[str, Any] = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"status": "Pass"}]}]},
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "GPU Memory",
                        "results": [
                            {"gpu_id": "0", "status": "Pass", "info": "all of it"},
                            {"gpu_id": "1", "status": "Fail", "warnings": [{"warning": "an error\tthat stays", "error_id": 42}]},
                        ],
                    },
                    {"name": "PCIe", "results": [{"gpu_ids": "0,1", "status": "Warn", "warnings": "slow link"}]},
                    {"name": "Pulse Test", "results": [{"gpu_id": "0", "status": "Skip"}, {"gpu_id": "1", "status": "Not Run"}]},
                ],
            },
        ]
    },
    "DCGM Version": "3.3.6",
    "Driver Version Detected": "550.54.14",
}
JSON_4: dict[str, Any] = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "memory",
                        "results": [
                            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass", "info": ["fine"]},
                            {
                                "entity_group": "GPU",
                                "entity_group_id": 1,
                                "entity_id": 1,
                                "status": "Fail",
                                "warnings": [{"warning": "rows wait"}],
                            },
                            {"entity_group": "CPU", "entity_group_id": 7, "entity_id": 0, "status": "Pass"},
                        ],
                        "test_summary": {"status": "Fail"},
                    }
                ],
            }
        ]
    },
    "entity_groups": [],
    "metadata": {"version": "4.2.3", "Driver Version Detected": "570.86.15"},
}
NOT_RUN = {"DCGM Diagnostic": {"runtime_error": "Error: Diagnostic could not be run while DCGM is paused."}}


def told(result: DiagResult) -> list[tuple[str, int | None, str | None, str]]:
    """Its verdicts, short."""
    return [(one.name, one.gpu_index, one.part, one.verdict) for one in result.tests]


def test_json_of_dcgm_3() -> None:
    """Verdicts of the node, of one GPU and of a list of them, with warnings in all their forms."""
    result = parse_dcgm_json(json.dumps(JSON_3))
    assert (result.dcgm_version, result.driver_version, result.failed) == ("3.3.6", "550.54.14", True)
    assert told(result) == [
        ("Denylist", None, None, "pass"),
        ("GPU Memory", 0, None, "pass"),
        ("GPU Memory", 1, None, "fail"),
        ("PCIe", 0, None, "warn"),
        ("PCIe", 1, None, "warn"),
        ("Pulse Test", 0, None, "skip"),
        ("Pulse Test", 1, None, "not_run"),
    ]
    assert [one.messages for one in result.tests[2:4]] == [("an error that stays",), ("slow link",)]


def test_json_of_dcgm_4() -> None:
    """Verdicts of entities and of the whole test, versions in a place of their own."""
    result = parse_dcgm_json(json.dumps(JSON_4))
    assert (result.dcgm_version, result.driver_version) == ("4.2.3", "570.86.15")
    assert told(result) == [
        ("memory", 0, None, "pass"),
        ("memory", 1, None, "fail"),
        ("memory", None, "CPU0", "pass"),
        ("memory", None, None, "fail"),
    ]


def test_table_of_dcgm_3() -> None:
    """Lists of GPUs, messages over several rows, and a test with the name of the table's heading."""
    result = parse_dcgm_table(TABLE_3)
    assert (result.dcgm_version, result.driver_version, result.failed) == ("3.3.6", "550.54.14", True)
    assert told(result) == [
        ("Denylist", None, None, "pass"),
        ("GPU Memory", 0, None, "pass"),
        ("GPU Memory", 2, None, "pass"),
        ("GPU Memory", 1, None, "fail"),
        ("Diagnostic", None, None, "pass"),
        ("Targeted Stress", None, None, "skip"),
    ]
    assert result.tests[0].category == "Deployment"


def test_table_of_dcgm_4() -> None:
    """A row for the test and one for each entity, also after a message."""
    assert told(parse_dcgm_table(TABLE_4)) == [
        ("memory", None, None, "fail"),
        ("memory", 0, None, "pass"),
        ("memory", 1, None, "fail"),
        ("memory", None, "CPU0", "pass"),
        ("diagnostic", None, None, "skip"),
    ]


def test_figures_keep_the_worst_verdict_of_each_subject() -> None:
    """A warning is no pass, what was skipped is missing, and another part of the node is the node's."""
    found = parse_dcgm_json(json.dumps(JSON_3)).figures()
    assert Measurement("dcgm_gpu_memory_passed", 1, "yes", gpu(0)) in found
    assert Measurement("dcgm_gpu_memory_passed", 0, "yes", gpu(1)) in found
    assert Measurement("dcgm_pcie_passed", 0, "yes", gpu(0)) in found
    assert Measurement("dcgm_pulse_test_passed", None, "yes", gpu(0)) in found
    assert Measurement("dcgm_denylist_passed", 1, "yes", NODE) in found
    assert Measurement("dcgm_verdicts_wrong", 3, "count", NODE) in found
    assert Measurement("dcgm_verdicts_missing", 2, "count", NODE) in found
    assert Measurement("dcgm_failed", 1, "yes", NODE) in found
    assert Measurement("dcgm_memory_passed", 0, "yes", NODE) in parse_dcgm_json(json.dumps(JSON_4)).figures()


def test_repeated_runs_are_one_result() -> None:
    """All their verdicts, and the reason when they were aborted."""
    twice = {"iterations": [JSON_4, JSON_4], "Overall Result": "Fail", "warning": "Error in diagnostic"}
    result = parse_dcgm_json(json.dumps(twice))
    assert (len(result.tests), result.aborted, result.failed) == (8, "Error in diagnostic", True)
    lost = "\nRunning iteration 1 of 2...\n" + TABLE_3 + "Aborting the iterative runs of the diagnostic due to failure: no\n"
    assert parse_dcgm_table(lost).aborted is not None
    assert len(parse_dcgm_table(TABLE_4 * 2).tests) == 10


def changed(**results: Any) -> str:
    """JSON of DCGM 4 with one test that has these fields."""
    return json.dumps(
        {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": "memory", **results}]}]}}
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (json.dumps(JSON_3)[:-1], "not one whole JSON"),
        ("[" * 200_000, "not one whole JSON"),
        ("[]", "unknown form"),
        ("{}", "not a diagnostic"),
        (json.dumps(NOT_RUN), "did not run: Error: Diagnostic could not be run while DCGM is paused"),
        (json.dumps({"DCGM Diagnostic": {"test_categories": []}}), "no verdict"),
        (json.dumps({"DCGM Diagnostic": {}}), "unknown form"),
        (changed(results=[]), "no verdict"),
        (changed(results=[{"status": "Great"}]), "unknown word"),
        (changed(results=[{"status": 1}]), "unknown word"),
        (changed(results=[{"status": "Pass", "entity_group": "GPU"}]), "no known GPU"),
        (changed(results=[{"status": "Pass", "gpu_ids": "0,x"}]), "no known GPU"),
        (json.dumps({"iterations": [], "Overall Result": "Pass"}), "no overall result"),
        (json.dumps({"iterations": [JSON_4]}), "no overall result"),
    ],
)
def test_json_that_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, of a diagnostic that did not run, or of a form nobody knows."""
    with pytest.raises(UnreadableOutput, match=why):
        parse_dcgm_json(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("Error: Diagnostic could not be run while DCGM is paused.\n", "did not run"),
        (TABLE_3.removesuffix(BAR), "cut off"),
        (TABLE_3.removesuffix("\n"), "cut off"),
        ("Successfully ran diagnostic for group.\n" + TITLE + BAR, "no verdict"),
        (TABLE_3.replace("Skip - All", "Fine - All"), "unknown word"),
        (TABLE_3.replace("Fail - GPU: 1", "Lost - GPU: 1"), "unknown word"),
        (TABLE_3.replace(row("Denylist", "Pass"), "| Denylist\n"), "row of the table is cut"),
    ],
)
def test_a_table_that_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, of a diagnostic that did not run, or with unknown verdicts."""
    with pytest.raises(UnreadableOutput, match=why):
        parse_dcgm_table(text)
