"""
Parts of contents as HTTP names them.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.kit.errors import Invalid
from controlplane.web.ranges import Chunk, Span, parse_chunk, parse_wanted

SIZES = st.integers(1, 2**53)


@st.composite
def spans(draw: st.DrawFn) -> tuple[Span, int]:
    """A part that is not empty, and the size of the whole."""
    total = draw(SIZES)
    start = draw(st.integers(0, total - 1))
    return Span(start, draw(st.integers(start + 1, total))), total


@given(spans())
def test_a_chunks_place_is_read_as_it_is_written(given_: tuple[Span, int]) -> None:
    """Writing and reading a place are each other's inverse."""
    span, total = given_
    assert parse_chunk(f"bytes {span.start_bytes}-{span.end_bytes - 1}/{total}") == Chunk(span, total)


@pytest.mark.parametrize(
    "header",
    [
        *("", "bytes", "bytes */10", "bytes 0-9/*", "bytes 5-4/10", "bytes 0-10/10", "bytes 0-9/0", "items 0-9/10"),
        *("bytes=0-9/10", "bytes 0-9", "bytes -9/10", "bytes 0-9/10, bytes 0-9/10", "bytes \u0660-\u0669/10", "bytes 1e1-20/30"),
        f"bytes 0-9/{10**19}",
    ],
)
def test_any_other_place_is_refused(header: str) -> None:
    """What is no place, or lies outside of the whole, is named as a refused header."""
    with pytest.raises(Invalid) as refused:
        parse_chunk(header)
    assert refused.value.errors[0].field == "header.Content-Range"


@given(spans())
def test_a_wanted_part_is_given_as_it_is_asked_for(given_: tuple[Span, int]) -> None:
    """A range within the content is that range, however it is written."""
    span, size = given_
    first, last = span.start_bytes, span.end_bytes - 1
    assert parse_wanted(f"bytes={first}-{last}", size) == span
    assert parse_wanted(f" BYTES = {first}-{last} ", size) == span
    assert parse_wanted(f"bytes={first}-", size) == Span(first, size)
    assert parse_wanted(f"bytes=-{size - first}", size) == Span(first, size)
    assert parse_wanted(f"bytes={first}-{last + size}", size) == Span(first, size)
    assert parse_wanted(f"bytes=-{size + 1 + first}", size) == Span(0, size)


@given(SIZES, st.integers(0, 10**17))
def test_a_part_that_is_not_there_is_empty(size: int, beyond: int) -> None:
    """Asking for bytes behind the end, or for the last none, is a range that cannot be satisfied."""
    for header in (f"bytes={size + beyond}-", f"bytes={size + beyond}-{size + beyond}", "bytes=-0"):
        part = parse_wanted(header, size)
        assert part is not None
        assert part.length_bytes == 0


@pytest.mark.parametrize(
    "header",
    [None, "", "bytes", "bytes=", "bytes=-", "bytes=5-4", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b", "bytes=0-1;q=1", "bytes=--1"],
)
def test_what_need_not_be_heeded_is_not(header: str | None) -> None:
    """Malformed ranges, other units and several parts leave the whole content."""
    assert parse_wanted(header, 10) is None


@given(st.text(max_size=40), SIZES)
def test_no_header_leads_outside_of_the_content(header: str, size: int) -> None:
    """Whatever is sent, a part lies within the content."""
    part = parse_wanted(header, size)
    assert part is None or 0 <= part.start_bytes <= part.end_bytes <= size
