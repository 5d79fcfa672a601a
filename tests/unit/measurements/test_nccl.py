"""
nccl-tests: layouts of several versions, wrong data, and runs that did not end.
"""

from __future__ import annotations

import pytest

from controlplane.measurements.figures import NODE, Measurement, pair
from controlplane.measurements.nccl import NcclResult, parse_nccl
from controlplane.measurements.reading import UnreadableOutput

HEAD = """\
# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4101 on       gpu-a device  0 [0000:19:00] NVIDIA H100 80GB HBM3
gpu-a:4101:4133 [0] NCCL INFO Channel 00/24 :  0  1  2  3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
ROWS = """\
           8             2     float     sum      -1    31.05    0.00    0.00       0    30.20    0.00    0.00       0
     1048576        262144     float     sum      -1    48.10   21.80   38.15       0    47.90   21.89   38.31       0
  1073741824     268435456     float     sum      -1   3951.2  271.75  475.56       0   3960.0  271.15  474.51       0
"""
FOOT = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 171.09
#
# Collective test concluded: all_reduce_perf
"""
WHOLE = HEAD + ROWS + FOOT

OLD = """\
# nThread 1 nGpus 2 minBytes 1024 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256   float     sum    10.50    0.10    0.10  4e-07    10.10    0.10    0.10    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.0994
#
"""
NEW = """\
# Collective test starting: broadcast_perf
#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time\
   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%            timestamp
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)     (us)\
  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)  %Y-%m-%d %H:%M:%S
        4096          4096      int8    none       3    12.00    0.34    0.34     N/A    11.00    13.00    13.00     2.00    12.50\
    0.33    0.33     N/A    11.00    14.00    14.00     2.50  2026-03-01 10:11:12
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.335 OK
"""


def figure(result: NcclResult, name: str) -> float | None:
    """Its value."""
    return next(one.value for one in result.figures() if one.name == name)


def test_rows_and_verdict_are_read() -> None:
    """Sizes, both ways, and the footer."""
    result = parse_nccl(WHOLE, "all_reduce")
    last = result.sizes[-1]
    assert (last.size_bytes, last.count, last.data_type, last.operation, last.root) == (2**30, 2**28, "float", "sum", None)
    assert last.out_of_place.bus_bandwidth_gb_per_s == 475.56
    assert last.out_of_place.algorithm_bandwidth_gb_per_s == 271.75
    assert last.in_place.time_us == 3960.0
    assert (result.average_bus_bandwidth_gb_per_s, result.wrong_values, result.failed) == (171.09, 0, False)


def test_figures_name_their_pair() -> None:
    """The slower way at the largest size, the best of all, the smallest message's time."""
    both = pair("a", "b")
    assert parse_nccl(WHOLE, "all_reduce").figures(both) == (
        Measurement("nccl_all_reduce_bus_bandwidth_largest", 474.51, "GB/s", both),
        Measurement("nccl_all_reduce_bus_bandwidth_best", 475.56, "GB/s", both),
        Measurement("nccl_all_reduce_bus_bandwidth_average", 171.09, "GB/s", both),
        Measurement("nccl_all_reduce_time_smallest", 31.05, "us", both),
        Measurement("nccl_all_reduce_wrong_values", 0, "count", both),
        Measurement("nccl_all_reduce_failed", 0, "yes", both),
    )


def test_old_layout_has_an_error_instead_of_a_count() -> None:
    """Without a root, with the largest deviation; what was not counted is not measured."""
    result = parse_nccl(OLD, "all_reduce")
    (row,) = result.sizes
    assert (row.root, row.out_of_place.largest_error, row.in_place.largest_error) == (None, 4e-07, None)
    assert (result.wrong_values, result.failed) == (None, False)
    assert Measurement("nccl_all_reduce_wrong_values", None, "count", NODE) in result.figures()


def test_new_layout_with_iteration_times_and_moments() -> None:
    """More columns and a time of day do not move the others; data that was not checked is no zero."""
    result = parse_nccl(NEW, "broadcast")
    (row,) = result.sizes
    assert (row.root, row.operation, row.in_place.time_us, row.in_place.bus_bandwidth_gb_per_s) == (3, None, 12.5, 0.33)
    assert (result.wrong_values, result.failed) == (None, False)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + ROWS.replace("38.31       0", "38.31     128") + FOOT,
        HEAD + ROWS + FOOT.replace(": 0 OK", ": 4 FAILED"),
        HEAD + ROWS + FOOT.replace("171.09", "171.09 FAILED"),
    ],
)
def test_a_failed_run_has_no_speed(text: str) -> None:
    """Wrong data, or a run that judges itself too slow: marked, and no speed is kept."""
    result = parse_nccl(text, "all_reduce")
    assert result.failed
    assert figure(result, "nccl_all_reduce_failed") == 1
    assert figure(result, "nccl_all_reduce_bus_bandwidth_largest") is None
    assert figure(result, "nccl_all_reduce_time_smallest") is None


def test_ranks_before_lines_are_no_obstacle() -> None:
    """As mpirun --tag-output prints."""
    tagged = "".join(f"[1,0]<stdout>: {line}\n" for line in WHOLE.splitlines())
    assert parse_nccl(tagged, "all_reduce") == parse_nccl(WHOLE, "all_reduce")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (HEAD + ROWS, "cut off"),
        (HEAD + FOOT, "no table"),
        (HEAD + ROWS + "gpu-a: Test NCCL failure common.cu:466 'unhandled system error'\n" + FOOT, "broke down"),
        (WHOLE + WHOLE, "more than one run"),
        (WHOLE.replace("all_reduce_perf", "all_gather_perf"), "not all_reduce"),
        (WHOLE.replace("30.20", "     "), "does not fit"),
        (WHOLE.replace("30.20", "30.20 7"), "does not fit"),
        (WHOLE.replace("475.56", "1e999"), "words where numbers"),
        (WHOLE.replace("475.56", "475,56"), "words where numbers"),
        (WHOLE.replace("475.56", "nan"), "words where numbers"),
        (WHOLE.replace("(us)", "(ms)"), "known units"),
        (WHOLE.replace("busbw", "fastbw"), "no known version"),
        (WHOLE.replace(": 171.09", ": -nan"), "no number"),
    ],
)
def test_what_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, broken down, of another test, or with odd rows."""
    with pytest.raises(UnreadableOutput, match=why) as caught:
        parse_nccl(text, "all_reduce")
    assert caught.value.tool == "nccl-tests"
