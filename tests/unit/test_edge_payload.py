"""
What may stand in a JSON body.
"""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.kit.errors import Invalid
from controlplane.web.payload import LARGEST_INTEGER, MOST_DEPTH, MOST_VALUES, check_json

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NUMBERS = st.integers(-LARGEST_INTEGER, LARGEST_INTEGER) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5)
)


def refused(body: bytes) -> str:
    """The code with which the body is refused."""
    with pytest.raises(Invalid) as caught:
        check_json(body)
    assert caught.value.errors[0].field == "body"
    return caught.value.errors[0].code


@given(value=JSON, ascii_only=st.booleans())
def test_what_can_be_stored_passes(value: Any, ascii_only: bool) -> None:  # noqa: FBT001
    """Every JSON value without odd characters or numbers is let through, escaped or not."""
    check_json(json.dumps(value, ensure_ascii=ascii_only).encode())


@given(value=JSON, bad=st.sampled_from(["\0", "\ud800", "\udfff", "a\0b", "x\udc00y"]), as_key=st.booleans(), nested=st.booleans())
def test_unstorable_characters_are_found_anywhere(value: Any, bad: str, as_key: bool, nested: bool) -> None:  # noqa: FBT001
    """A NUL or half a surrogate pair is found as key or value, at any depth, beside any other content."""
    wrong: Any = {bad: value} if as_key else [value, bad]
    code = refused(json.dumps({"deep": [wrong]} if nested else wrong).encode())
    assert code in {"nul_character", "lone_surrogate"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"a": 1, "a": 2}', "duplicate_key"),
        (b'[{"b": {"k": 1, "j": 2, "k": 1}}]', "duplicate_key"),
        (b"NaN", "not_a_number"),
        (b'{"a": -Infinity}', "not_a_number"),
        (b"1e999", "number_out_of_range"),
        (b"-1e999", "number_out_of_range"),
        (b"0." + b"1" * 100, "number_out_of_range"),
        (b"9223372036854775808", "integer_too_large"),
        (b"9" * 5000, "integer_too_large"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'"\xed\xa0\x80"', "invalid_utf8"),
        (b'"\xc0\x80"', "invalid_utf8"),
        (b'"\x00"', "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        (b"{", "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b"{} {}", "invalid_json"),
        (b'"unfinished', "invalid_json"),
        (rb'"\\\u0000"', "nul_character"),
        (rb'"\ud83d"', "lone_surrogate"),
    ],
)
def test_refusals_have_a_code(body: bytes, code: str) -> None:
    """Each kind of body that no room could store is refused under its own code."""
    assert refused(body) == code


@pytest.mark.parametrize(
    "body", [rb'"\\u0000"', rb'"\ud83d\ude00"', b"9223372036854775807", b"-9223372036854775807 ", b'"[[[[[[["']
)
def test_what_only_looks_wrong_passes(body: bytes) -> None:
    """An escaped backslash, a whole pair, the largest integer and brackets inside text are fine."""
    check_json(body)


def test_depth_is_limited_before_parsing() -> None:
    """32 levels pass, 33 do not, and neither a hundred thousand nor brackets in text disturb the count."""
    check_json(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)
    assert refused(b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1)) == "too_deep"
    assert refused(b'{"a":' * 10_000 + b"1" + b"}" * 10_000) == "too_deep"
    assert refused(b"[" * 100_000) == "too_many_values"
    check_json(json.dumps(["[" * 100, "]]{{", '"[[['] * 20).encode())


def test_values_are_limited() -> None:
    """20,000 values pass, one more does not, however they are nested; commas inside text are not counted."""
    check_json(json.dumps([0] * (MOST_VALUES - 1)).encode())
    assert refused(json.dumps([0] * MOST_VALUES).encode()) == "too_many_values"
    assert refused(json.dumps([[]] * MOST_VALUES).encode()) == "too_many_values"
    assert refused(json.dumps({str(n): [n] for n in range(MOST_VALUES // 2)}).encode()) == "too_many_values"
    check_json(json.dumps(["," * 50_000]).encode())


def test_a_small_body_costs_microseconds() -> None:
    """The whole check of an ordinary body is far below the cost of anything else in a request."""
    spec = {"kind": "slurm", "site": "osl1", "node_sets": [{"name": "w", "instance_type": "hgx-h100-8", "count": 4}], "wait": True}
    body = json.dumps({"name": "train-7b", "labels": {"team": "vision"}, "spec": spec}).encode()
    best = math.inf
    for _ in range(50):
        started_at = time.perf_counter()
        for _ in range(20):
            check_json(body)
        best = min(best, (time.perf_counter() - started_at) / 20)
    assert best < 50e-6
