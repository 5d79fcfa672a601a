"""
The values of all slurmrestd versions fold into one form.
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.slurm.folding import (
    ShapeError,
    exit_status,
    gpus,
    moment,
    number,
    text,
    whole,
    words,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["set", "infinite", "number", "id", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.integers(min_value=0, max_value=2**31))
def test_a_number_folds_the_same_from_every_version(value: int) -> None:
    """Plain, spelled out, and as text."""
    spelled = {"set": True, "infinite": False, "number": value}
    folded = {number(value), number(spelled), number(str(value))}
    assert folded == ({None} if value == 0xFFFE else {math.inf} if value == 0xFFFF else {value})


@pytest.mark.parametrize(
    "value", [None, "", 4294967294, {"set": False}, {"set": False, "infinite": False, "number": 0}, {}, math.nan]
)
def test_unset_is_none(value: Any) -> None:
    """Each version's way to say nothing."""
    assert number(value) is None


@pytest.mark.parametrize("value", [-1, 4294967295, {"set": False, "infinite": True, "number": 0}, {"infinite": True}, math.inf])
def test_without_limit_is_infinite(value: Any) -> None:
    """Each version's way to say no limit."""
    assert number(value) == math.inf


@given(JSON)
def test_any_json_is_folded_or_a_shape_error(value: Any) -> None:
    """No answer makes another exception."""
    for fold in (number, whole, moment, words, text, exit_status):
        with suppress(ShapeError, OverflowError):
            fold(value)


@pytest.mark.parametrize(
    ("value", "pair"),
    [
        (0, (0, 0)),
        (768, (3, 0)),
        (9, (0, 9)),
        (4021, (0, 53)),
        (13568, (53, 0)),
        (None, (0, 0)),
        ({"return_code": {"set": True, "number": 3}, "signal": {"id": {"set": False}}}, (3, 0)),
        ({"return_code": {"set": False}, "signal": {"id": {"set": True, "number": 15}, "name": "TERM"}}, (0, 15)),
        ({"return_code": 2, "signal": {"signal_id": 9}}, (2, 9)),
    ],
)
def test_an_exit_code_is_unpacked(value: Any, pair: tuple[int, int]) -> None:
    """One packed number as from wait(), or spelled out."""
    assert exit_status(value) == pair


def test_zero_is_no_time() -> None:
    """22.05 writes 0 for none, later ones a set 0."""
    assert moment(0) is moment({"set": True, "number": 0}) is moment(None) is None
    assert moment(1) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("", (0, ())),
        ("gpu:h100:8", (8, ("h100",))),
        ("gpu:8", (8, ())),
        ("gpu:h100:8(S:0-1),nic:4", (8, ("h100",))),
        ("gpu:a100:2,gpu:h100:6", (8, ("a100", "h100"))),
        ("gres/gpu:h100:8", (8, ("h100",))),
    ],
)
def test_gpus_are_counted(gres: str, found: tuple[int, tuple[str, ...]]) -> None:
    """With and without a type, beside other resources."""
    assert gpus(gres) == found


def test_states_are_upper_case_words() -> None:
    """A word, a list of words, nothing."""
    assert words("idle") == words(["IDLE"]) == ("IDLE",)
    assert words(None) == words("") == ()
    with pytest.raises(ShapeError):
        words(7)
