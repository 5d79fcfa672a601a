"""
Laws of all parsers: only their own error, and a part of an output never gives other figures than the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.measurements.burn import parse_burn
from controlplane.measurements.dcgm import parse_dcgm_json
from controlplane.measurements.dcgm_table import parse_dcgm_table
from controlplane.measurements.figures import HasFigures
from controlplane.measurements.linpack import parse_linpack
from controlplane.measurements.nccl import parse_nccl
from controlplane.measurements.perftest import parse_write_bandwidth
from controlplane.measurements.reading import UnreadableOutput
from controlplane.measurements.smi_text import parse_smi_text
from controlplane.measurements.smi_xml import parse_smi_xml
from tests.unit.measurements import smi_samples, test_burn, test_dcgm, test_linpack, test_nccl, test_perftest

Parser = Callable[[str], HasFigures]


def all_reduce(text: str) -> HasFigures:
    """The parser of nccl-tests for one collective."""
    return parse_nccl(text, "all_reduce")


PARSERS: dict[str, tuple[Parser, str]] = {
    "nccl": (all_reduce, test_nccl.WHOLE),
    "nccl, old": (all_reduce, test_nccl.OLD),
    "burn": (parse_burn, test_burn.WHOLE),
    "linpack": (parse_linpack, test_linpack.ROW + test_linpack.CHECK + test_linpack.end(1)),
    "linpack, two problems": (parse_linpack, (test_linpack.NVIDIA_ROW + test_linpack.NVIDIA_CHECK) * 2 + test_linpack.end(2)),
    "perftest": (parse_write_bandwidth, test_perftest.WHOLE),
    "dcgm json 3": (parse_dcgm_json, json.dumps(test_dcgm.JSON_3)),
    "dcgm json 4": (parse_dcgm_json, json.dumps(test_dcgm.JSON_4)),
    "dcgm table 3": (parse_dcgm_table, test_dcgm.TABLE_3),
    "dcgm table 4": (parse_dcgm_table, test_dcgm.TABLE_4),
    "smi text": (parse_smi_text, smi_samples.TEXT),
    "smi xml": (parse_smi_xml, smi_samples.XML),
}
EVERY = pytest.mark.parametrize(("parse", "sample"), PARSERS.values(), ids=PARSERS.keys())


@EVERY
def test_no_beginning_of_an_output_gives_other_figures(parse: Parser, sample: str) -> None:
    """Cut anywhere, it is refused, or all that matters was there."""
    all_of_it = parse(sample)
    for end in range(len(sample)):
        with suppress(UnreadableOutput):
            assert parse(sample[:end]) == all_of_it, end


@EVERY
@given(data=st.data())
def test_no_text_makes_another_error(parse: Parser, sample: str, data: st.DataObject) -> None:
    """Pieces of an output in any order with anything between: figures or the typed error."""
    pieces = sample.splitlines(keepends=True) if "\n" in sample else [sample[at : at + 40] for at in range(0, len(sample), 40)]
    noise = st.text(max_size=20) | st.sampled_from(
        ["9" * 25, "1e999", "-1", "nan", "²", "\u0663", "\x00", "\r", "|", "&a;", "<!x", '"']
    )
    text = "".join(data.draw(st.lists(st.sampled_from(pieces) | noise, max_size=30)))
    with suppress(UnreadableOutput):
        parse(text).figures()


@EVERY
@given(data=st.data())
def test_no_change_makes_another_error(parse: Parser, sample: str, data: st.DataObject) -> None:
    """Any piece replaced by anything: figures or the typed error."""
    start = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(start, min(len(sample), start + 60)))
    odd = st.text(max_size=30) | st.sampled_from(
        ["9" * 18, "9" * 25, "1e300", "1e999", "-1", "nan", "²", "\u0663", "\ud800", "N/A", "[]"]
    )
    with suppress(UnreadableOutput):
        parse(sample[:start] + data.draw(odd) + sample[end:]).figures()


@EVERY
def test_line_ends_of_other_systems_change_nothing(parse: Parser, sample: str) -> None:
    """Terminals add carriage returns."""
    assert parse(sample.replace("\n", "\r\n")) == parse(sample)
