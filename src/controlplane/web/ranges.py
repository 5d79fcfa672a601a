"""
Parts of a content as HTTP names them. Pure.

Source: RFC 9110, sections 14.1.2 (byte ranges), 14.2 (Range) and 14.4 (Content-Range).
"""

import re
from dataclasses import dataclass

from controlplane.kit.errors import FieldError, Invalid

CHUNK = re.compile(r"bytes[ ]+([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", re.IGNORECASE | re.ASCII)
WANTED = re.compile(r"bytes[ \t]*=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """
    The bytes `[start_bytes, end_bytes)`.
    """

    start_bytes: int
    """Offset of the first byte."""
    end_bytes: int
    """Offset behind the last byte."""

    @property
    def length_bytes(self) -> int:
        """
        How many bytes.
        """
        return self.end_bytes - self.start_bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    A part of a content that is sent to us, and the size of the whole.
    """

    span: Span
    """Which bytes; never none."""
    total_bytes: int
    """Size of the whole content."""


def parse_chunk(header: str) -> Chunk:
    """
    What a Content-Range header names. Raises Invalid.
    """
    found = CHUNK.fullmatch(header.strip())
    if found is None:
        raise refused("invalid_range", "Write the chunk's place like `bytes 0-1048575/4194304`.")
    first, last, total = (int(one) for one in found.groups())
    if last < first:
        raise refused("invalid_range", "The last byte lies before the first.")
    if last >= total:
        raise refused("invalid_range", "The last byte lies behind the end of the content.")
    return Chunk(Span(first, last + 1), total)


def refused(code: str, words: str) -> Invalid:
    """
    The refusal of a Content-Range header.
    """
    return Invalid(words, errors=[FieldError("header.Content-Range", code, words)])


def parse_wanted(header: str | None, size_bytes: int) -> Span | None:
    """
    The bytes that a Range header asks of a content of this size; an empty span when the content has none of them. None where there is
    no header, or one that need not be heeded: malformed, of another unit, of several parts.
    """
    found = WANTED.fullmatch(header.strip()) if header is not None else None
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        return Span(max(0, size_bytes - int(last)), size_bytes)
    if last and int(last) < int(first):
        return None
    start = min(int(first), size_bytes)
    return Span(start, min(int(last) + 1, size_bytes) if last else size_bytes)
