"""
HPL: the reference program's and NVIDIA's rows, and solutions that do not hold.
"""

from __future__ import annotations

import pytest

from controlplane.measurements.figures import NODE, Measurement
from controlplane.measurements.linpack import parse_linpack
from controlplane.measurements.reading import UnreadableOutput

LINE = "-" * 80 + "\n"
RULE = "=" * 80 + "\n"
ROW = (
    RULE
    + "T/V                N    NB     P     Q               Time                 Gflops\n"
    + LINE
    + "WR11C2R4       40960   192     2     2              98.50             4.6500e+02\n"
    + "HPL_pdgesv() start time Mon Mar  2 10:00:00 2026\n\n"
    + LINE
)
CHECK = "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   2.11200000e-03 ...... PASSED\n"
NVIDIA_ROW = (
    RULE
    + " Prog= 11.72%       N_left=   50000        Time=   7.51    Time_left=  56.60       iGF= 58777.00 GF= 53382.00\n"
    + "T/V                N    NB     P     Q         Time          Gflops (   per GPU)\n"
    + LINE
    + "WC0           376832  1024     4     2        85.42       4.176e+05 ( 5.220e+04)\n"
    + LINE
)
NVIDIA_CHECK = (
    "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   0.000320172243 ...... PASSED\n"
    "||Ax-b||_oo  . . . . . . . . . . . . . . . . . = 0.0000000009839921\n"
)


def end(tests: int) -> str:
    """The last lines of a run of that many tests."""
    return (
        RULE
        + f"\nFinished {tests:6} tests with the following results:\n"
        + f"         {tests:6} tests completed and passed residual checks,\n"
        + "              0 tests completed and failed residual checks,\n"
        + "              0 tests skipped because of illegal input values.\n"
        + LINE
        + "\nEnd of Tests.\n"
        + RULE
    )


def test_the_reference_program_is_read() -> None:
    """Shape, time, speed and residual."""
    (run,) = parse_linpack(ROW + CHECK + end(1)).runs
    assert (run.variant, run.order, run.block, run.grid_rows, run.grid_columns) == ("WR11C2R4", 40960, 192, 2, 2)
    assert (run.time_s, run.speed_gflop_per_s, run.speed_per_gpu_gflop_per_s) == (98.5, 465.0, None)
    assert (run.residual, run.passed) == (2.112e-03, True)


def test_nvidias_program_adds_the_speed_of_a_gpu() -> None:
    """In brackets behind the speed."""
    (run,) = parse_linpack(NVIDIA_ROW + NVIDIA_CHECK + end(1)).runs
    assert (run.variant, run.speed_gflop_per_s, run.speed_per_gpu_gflop_per_s) == ("WC0", 417600.0, 52200.0)
    assert (run.residual, run.passed) == (0.000320172243, True)


def test_figures_are_of_the_fastest_problem() -> None:
    """Of two that hold."""
    result = parse_linpack(ROW + CHECK + ROW.replace("4.6500e+02", "4.9000e+02") + CHECK + end(2))
    assert result.figures()[0] == Measurement("hpl_speed", 490.0, "Gflop/s", NODE)
    assert result.figures()[-1] == Measurement("hpl_passed", 1, "yes", NODE)


@pytest.mark.parametrize("check", [CHECK.replace("PASSED", "FAILED"), CHECK.replace("2.11200000e-03", "-nan")])
def test_a_solution_that_does_not_hold_has_no_speed(check: str) -> None:
    """Too large a residual, or none that is a number, even where the tool says PASSED."""
    result = parse_linpack(ROW + check + end(1))
    assert result.failed
    assert Measurement("hpl_speed", None, "Gflop/s", NODE) in result.figures()
    assert Measurement("hpl_passed", 0, "yes", NODE) in result.figures()


def test_all_three_checks_of_older_versions_count() -> None:
    """One that fails is enough, whichever it is."""
    checks = [CHECK.replace("PASSED", "FAILED"), CHECK, CHECK.replace("2.112", "9.5")]
    (run,) = parse_linpack(ROW + "".join(checks) + end(1)).runs
    assert (run.passed, run.residual) == (False, 9.5e-03)


def test_a_run_told_not_to_check_is_not_measured() -> None:
    """Its solution may be anything."""
    unchecked = end(1).replace("with the following results:", "without checking,")
    result = parse_linpack(ROW + unchecked)
    assert not result.failed
    assert [one.value for one in result.figures()] == [None] * 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\n\n", "empty"),
        (ROW + CHECK, "cut off"),
        (ROW + CHECK + end(1).partition("End of Tests.")[0], "cut off"),
        (end(1), "not as many"),
        (ROW + CHECK + end(2), "not as many"),
        (ROW + CHECK + ROW + end(2), "check of a problem is missing"),
        (CHECK + ROW + end(1), "before what it checks"),
        (ROW + CHECK + end(1).replace("0 tests skipped", "1 tests skipped"), "skipped"),
        (ROW.replace("4.6500e+02", "inf") + CHECK + end(1), "words where numbers"),
        (ROW.replace("4.6500e+02", "") + CHECK + end(1), "seven columns"),
        (ROW.replace("98.50", "-98.5") + CHECK + end(1), "cannot be"),
        ((ROW + CHECK + end(1)) * 2, "more than one run"),
    ],
)
def test_what_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, skipped, or without the numbers."""
    with pytest.raises(UnreadableOutput, match=why):
        parse_linpack(text)
