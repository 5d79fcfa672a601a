"""
When machines that boot through us are called together, what their words make of a run, and what the tools' settings may be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.fabric_checks.states import Attendance, CheckSnapshot, Guest, Meeting, Run, ToolSettings, lacking, tool_settings
from controlplane.fabric_checks.steps.meeting import call_together, ended
from controlplane.kit.outcome import Advance, Wait
from controlplane.nodes.states import ProviderRef

RUN = Run("0-0", "pair", ("a", "b"), "nod_a", "nod_b")
THERE = Attendance("a", 30.0, 20.0, None, 0.0, "", "")
TOLD = {"tools": ["all_reduce_perf", "mpirun", "ssh", "sshd", "ib_write_bw"], "gpus": 8, "devices": ["mlx5_0"]}


def word(result: Any, ago_s: float = 1.0, **more: Any) -> dict[str, Any]:
    """What a machine said so long ago."""
    return {"result": result, "told_for_s": ago_s, **more}


@pytest.mark.parametrize(
    ("first", "second", "came_to"),
    [
        ({}, {}, None),
        (word("passed", output="x"), {}, "passed"),
        (word("passed", output="x"), word("failed"), "passed"),
        ({}, word("failed"), None),
        (word("failed", 5.0), {}, None),
        (word("failed", 21.0), {}, "failed"),
        (word("failed", 1.0), word("passed"), "failed"),
        (word("failed", 1.0), word("not_measured"), "not_measured"),
        (word("passed"), word("not_measured"), "not_measured"),
        ({"came_for_s": None}, {}, None),
        ({"came_for_s": None, "waited_s": 121.0}, {"waited_s": 121.0}, "not_measured"),
        ({"came_for_s": 161.0}, {"came_for_s": 159.0}, None),
        ({"came_for_s": 161.0}, {"came_for_s": 161.0}, "failed"),
    ],
)
def test_what_words_and_silence_make_of_a_run(first: dict[str, Any], second: dict[str, Any], came_to: str | None) -> None:
    """The first machine's word counts, a lack that any finds goes before it, and silence has its limits."""
    ran = ended(RUN, (replace(THERE, **first), replace(THERE, ref="b", **second)), 100)
    assert (None if ran is None else ran.result) == came_to


@pytest.mark.parametrize(
    ("second", "for_s", "goes_on"),
    [
        (Guest("nod_b", arrived=True, lost="", home=False, lacks=""), 5.0, True),
        (Guest("nod_b", arrived=False, lost="", home=False, lacks=""), 5.0, False),
        (Guest("nod_b", arrived=False, lost="it broke", home=False, lacks=""), 5.0, True),
        (Guest("nod_b", arrived=False, lost="", home=False, lacks=""), 3001.0, True),
    ],
)
def test_tools_begin_when_nobody_is_waited_for_any_more(second: Guest, for_s: float, goes_on: bool) -> None:  # noqa: FBT001
    """All have come, or are lost, or had their time."""
    guests = {"a": Guest("nod_a", arrived=True, lost="", home=False, lacks=""), "b": second}
    provider = ProviderRef("prv_1", "redfish", {}, None, 1)
    check = CheckSnapshot("fck_1", "", provider, "ib_write_bw", ((RUN,),), ("a", "b"), cancel=False, overdue=False, end="")
    outcome = call_together(check, Meeting(guests, {}, frozenset(), for_s))
    assert isinstance(outcome, Advance if goes_on else Wait)


@pytest.mark.parametrize(
    "given",
    [
        {"fabric_tools": []},
        {"fabric_tools": {"rail": ["x"]}},
        {"fabric_tools": {"rails": "mlx5_0"}},
        {"fabric_tools": {"rails": ["mlx5_0; rm"]}},
        {"fabric_tools": {"mpirun": ["a b"]}},
        {"fabric_tools": {"timeout_s": True}},
        {"fabric_tools": {"timeout_s": 5}},
    ],
)
def test_settings_are_read_whole_or_not_at_all(given: dict[str, Any]) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="fabric_tools"):
        tool_settings(given)


def test_settings_have_defaults() -> None:
    """What is not given is as a machine of the usual kind needs it."""
    assert tool_settings({}) == ToolSettings()
    found = tool_settings({"fabric_tools": {"rails": ["mlx5_0"], "all_reduce": ["-b", "1G"], "timeout_s": 60}})
    assert found == replace(ToolSettings(), rails=("mlx5_0",), all_reduce=("-b", "1G"), timeout_s=60)


def test_what_a_machine_lacks_is_named() -> None:
    """A tool, a GPU, a device that is not configured, a port that is not up; nothing else is asked for."""
    settings = ToolSettings(rails=("mlx5_0", "mlx5_1"))
    assert lacking("nccl-tests", None, settings, TOLD) == ""
    assert lacking("ib_write_bw", 0, settings, {**TOLD, "tools": ["ib_write_bw"], "gpus": 0}) == ""
    assert lacking("nccl-tests", None, settings, {**TOLD, "tools": ["ib_write_bw"]}) == "no all_reduce_perf in the image"
    assert lacking("nccl-tests", None, settings, {**TOLD, "gpus": 0}) == "no GPU is seen"
    assert lacking("ib_write_bw", 2, settings, TOLD) == "no device is configured for rail 2"
    assert lacking("ib_write_bw", 1, settings, TOLD) == "no RDMA port of mlx5_1 is up"
