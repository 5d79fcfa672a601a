"""
perftest: both units, extra columns, and tables that did not end.
"""

from __future__ import annotations

import pytest

from controlplane.measurements.figures import Measurement, pair
from controlplane.measurements.perftest import parse_write_bandwidth
from controlplane.measurements.reading import UnreadableOutput

LINE = "-" * 87 + "\n"
HEAD = (
    LINE
    + "                    RDMA_Write BW Test\n"
    + " Dual-port       : OFF\t\tDevice         : mlx5_0\n"
    + " Mtu             : 4096[B]\n"
    + LINE
    + " local address: LID 0x11 QPN 0x0127 PSN 0x6e3491 RKey 0x1fff00 VAddr 0x007f0000000000\n"
    + " remote address: LID 0x12 QPN 0x0127 PSN 0x2ab1c4 RKey 0x1fff00 VAddr 0x007f0000000000\n"
    + LINE
)
GBITS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
ROWS = (
    " 65536      5000             392.10             391.55\t\t     0.746822\n"
    " 2          5000             0.11               0.10\t\t     6.450000\n"
)
WHOLE = HEAD + GBITS + ROWS + LINE


def test_gigabits_are_taken_as_they_are() -> None:
    """The columns, and the figures of the largest message for the pair."""
    result = parse_write_bandwidth(WHOLE)
    first = result.sizes[0]
    assert (first.size_bytes, first.iterations) == (65536, 5000)
    both = pair("a", "b")
    assert result.figures(both) == (
        Measurement("rdma_write_bandwidth_average", 391.55, "Gbit/s", both),
        Measurement("rdma_write_bandwidth_peak", 392.10, "Gbit/s", both),
        Measurement("rdma_write_message_rate", 0.746822, "Mpps", both),
    )


@pytest.mark.parametrize("unit", ["MB/sec", "MiB/sec"])
def test_megabytes_are_binary_in_all_versions(unit: str) -> None:
    """Older ones print MB and mean MiB."""
    text = HEAD + GBITS.replace("Gb/sec", unit) + ROWS.replace("391.55", "11920.93") + LINE
    assert parse_write_bandwidth(text).sizes[0].average_gbit_per_s == pytest.approx(100.0, rel=1e-6)


def test_a_peak_that_was_not_looked_for_is_missing() -> None:
    """Runs of a fixed duration print zero."""
    assert parse_write_bandwidth(WHOLE.replace("392.10", "0.00  ")).sizes[0].peak_gbit_per_s is None


def test_further_columns_do_not_move_the_others() -> None:
    """CPU use behind, the service level between."""
    heading = " #bytes    #sl      #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]    CPU_Util[%]\n"
    (size,) = parse_write_bandwidth(HEAD + heading + " 65536  3  1000   392.10   391.55   0.746822   4.20\n" + LINE).sizes
    assert (size.iterations, size.average_gbit_per_s, size.message_rate_mpps) == (1000, 391.55, 0.746822)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (HEAD, "cut off"),
        (HEAD + GBITS + LINE, "cut off"),
        (HEAD + GBITS + ROWS, "cut off"),
        ("Couldn't connect to 192.0.2.7:18515\n" + HEAD, "broke down"),
        (HEAD + GBITS + ROWS + " Completion with error at client\n" + LINE, "broke down"),
        (HEAD + GBITS + ROWS.replace("391.55", "") + LINE, "does not fit"),
        (HEAD + GBITS + ROWS.replace("391.55", "fast") + LINE, "words where numbers"),
        (HEAD + GBITS + ROWS.replace("391.55", "0.00") + LINE, "nothing was sent"),
        (HEAD + GBITS.replace("Gb/sec", "KB/sec") + ROWS + LINE, "known units"),
        (HEAD + " #bytes #iterations    t_min[usec]    t_max[usec]\n 2  1000  1.0  2.0\n" + LINE, "no bandwidth test"),
        (WHOLE + WHOLE, "more than one run"),
    ],
)
def test_what_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, broken down, of another test, or without the numbers."""
    with pytest.raises(UnreadableOutput, match=why):
        parse_write_bandwidth(text)
