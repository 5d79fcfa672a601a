"""
gpu-burn: progress, verdicts, and GPUs that are called fine though they did nothing.
"""

from __future__ import annotations

import pytest

from controlplane.measurements.burn import parse_burn
from controlplane.measurements.figures import NODE, Measurement, gpu
from controlplane.measurements.reading import UnreadableOutput

HEAD = """\
Using compare file: compare.ptx
Burning for 60 seconds.
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000001)
Initialized device 0 with 81079 MB of memory (80507 MB available, using 72456 MB of it), using FLOATS
"""
FIRST = "\r10.0%  proc'd: 500 (0 Gflop/s) - 480 (51000 Gflop/s)   errors: 0 - 2  (WARNING!)  temps: -- - 61 C "
SECOND = "\r11.7%  proc'd: 900 (50950 Gflop/s) - 870 (50400 Gflop/s)   errors: 0 - 3  (WARNING!)  temps: 58 C - 66 C "
SUMMARY = "\n\tSummary at:   Mon Mar  2 10:00:00 UTC 2026\n\n"
THIRD = "\r100.0%  proc'd: 5000 (51234 Gflop/s) - 4900 (50500 Gflop/s)   errors: 0 - 1  (WARNING!)  temps: 63 C - 64 C "
STOP = "\nKilling processes with SIGTERM (soft kill)\nFreed memory for dev 0\nUninitted cublas\ndone\n"
TAIL = "\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n"
WHOLE = HEAD + FIRST + SECOND + SUMMARY + THIRD + STOP + TAIL


def test_each_gpu_has_its_speed_heat_and_errors() -> None:
    """The last speed, the highest temperature, and errors added over the summaries that reset them."""
    result = parse_burn(WHOLE)
    good, bad = result.gpus
    assert (result.planned_s, result.failed) == (60, True)
    assert (good.products, good.speed_gflop_per_s, good.hottest_c, good.errors, good.passed) == (5000, 51234, 63, 0, True)
    assert (bad.called_faulty, bad.hottest_c, bad.errors, bad.passed) == (True, 66, 4, False)


def test_figures_are_of_gpus() -> None:
    """A failed GPU has no speed."""
    found = parse_burn(WHOLE).figures()
    assert Measurement("burn_gpus", 2, "count", NODE) in found
    assert Measurement("burn_speed", 51234, "Gflop/s", gpu(0)) in found
    assert Measurement("burn_speed", None, "Gflop/s", gpu(1)) in found
    assert Measurement("burn_passed", 0, "yes", gpu(1)) in found
    assert Measurement("burn_errors", 4, "count", gpu(1)) in found


def test_a_gpu_that_did_nothing_is_not_measured() -> None:
    """The tool calls it OK all the same."""
    idle = HEAD + "\r100.0%  proc'd: 0 (0 Gflop/s) - 900 (1 Gflop/s)   errors: 0 - 0   temps: 30 C - 60 C \n" + TAIL
    first = parse_burn(idle.replace("FAULTY", "OK")).gpus[0]
    assert (first.called_faulty, first.passed, first.speed_gflop_per_s) == (False, None, None)


def test_verdicts_without_any_report_measure_nothing() -> None:
    """OK without evidence is not a pass."""
    result = parse_burn(HEAD + TAIL.replace("FAULTY", "OK"))
    assert [one.passed for one in result.gpus] == [None, None]
    assert Measurement("burn_passed", None, "yes", gpu(0)) in result.figures()


def test_a_gpu_whose_process_died_failed() -> None:
    """Even where the list of verdicts says OK."""
    dead = THIRD.replace("4900 (50500 Gflop/s)", "-1 (0 Gflop/s)").replace("1  (WARNING!)", "0  (DIED!)")
    result = parse_burn(HEAD + dead + STOP + TAIL.replace("FAULTY", "OK"))
    assert (result.gpus[1].died, result.gpus[1].errors, result.gpus[1].passed) == (True, None, False)
    assert result.gpus[0].passed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" \n", "empty"),
        (HEAD + FIRST + SECOND, "cut off"),
        (WHOLE.removesuffix("\tGPU 1: FAULTY\n"), "cut off"),
        (HEAD + FIRST + "\n\nNo clients are alive!  Aborting\n", "every GPU died"),
        (HEAD + FIRST[:70] + SECOND + STOP + TAIL, "progress is cut"),
        (HEAD + FIRST + STOP + "\nTested 1 GPUs:\n\tGPU 0: OK\n", "different numbers"),
        (WHOLE + TAIL, "more than one run"),
        (HEAD + STOP + "\nTested 2 GPUs:\n\tGPU 1: OK\n\tGPU 0: OK\n", "out of order"),
    ],
)
def test_what_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, dead, or in disagreement with itself."""
    with pytest.raises(UnreadableOutput, match=why):
        parse_burn(text)
