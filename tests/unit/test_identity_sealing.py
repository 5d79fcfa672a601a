"""
Secrets at rest.
"""

from __future__ import annotations

import base64
import copy
import json
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.kit.secrets import MasterKeys, NotOpened, Sealer, Secret

OLD, NEW = b"o" * 32, b"n" * 32
PLACE = {"table": "providers", "column": "sealed", "row": "prv_1"}
sealer = Sealer(MasterKeys({1: OLD}))


@given(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_what_is_sealed_opens_at_its_place(plain: bytes, table: str, column: str, row: str) -> None:
    """
    The value comes back as it was, and never the same bytes twice.
    """
    place = {"table": table, "column": column, "row": row}
    first, second = sealer.seal(plain, **place), sealer.seal(plain, **place)
    assert sealer.open(first, **place) == sealer.open(second, **place) == plain
    assert first != second


@pytest.mark.parametrize(
    "elsewhere",
    [{"table": "other"}, {"column": "other"}, {"row": "prv_2"}, {"table": "providerss", "column": "ealed"}],
)
def test_what_is_sealed_opens_nowhere_else(elsewhere: dict[str, str]) -> None:
    """
    Moved to another table, column or row, it does not open; not even where the names run together alike.
    """
    sealed = sealer.seal(b"token", **PLACE)
    with pytest.raises(NotOpened):
        sealer.open(sealed, **(PLACE | elsewhere))


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    """
    Whatever single bit is flipped, or wherever it is cut, it does not open.
    """
    sealed = sealer.seal(b"token", **PLACE)
    place = data.draw(st.integers(0, len(sealed) - 1))
    flipped = sealed[:place] + bytes([sealed[place] ^ (1 << data.draw(st.integers(0, 7)))]) + sealed[place + 1 :]
    for damaged in (flipped, sealed[:place]):
        with pytest.raises(NotOpened):
            sealer.open(damaged, **PLACE)


def test_keys_rotate() -> None:
    """
    A second version opens what the first sealed, seals anew, and then the first may go.
    """
    both, new = Sealer(MasterKeys({1: OLD, 2: NEW})), Sealer(MasterKeys({2: NEW}))
    sealed = sealer.seal(b"token", **PLACE)
    assert both.open(sealed, **PLACE) == b"token"
    assert not both.is_current(sealed)
    anew = both.reseal(sealed, **PLACE)
    assert both.is_current(anew)
    assert new.open(anew, **PLACE) == b"token"
    with pytest.raises(NotOpened):
        new.open(sealed, **PLACE)


def test_another_master_key_opens_nothing() -> None:
    """
    With a wrong key of the same version the value stays closed.
    """
    with pytest.raises(NotOpened):
        Sealer(MasterKeys({1: NEW})).open(sealer.seal(b"token", **PLACE), **PLACE)


@pytest.mark.parametrize("bad", ["", "not base64 !", base64.b64encode(b"short").decode()])
def test_a_bad_master_key_is_refused_without_being_shown(bad: str) -> None:
    """
    The settings' key must be 32 bytes in base64; the refusal does not repeat it.
    """
    with pytest.raises(ValueError, match="key") as caught:
        Sealer.from_base64(bad)
    assert not bad or bad not in str(caught.value)
    assert Sealer.from_base64(base64.b64encode(OLD).decode()).open(sealer.seal(b"x", **PLACE), **PLACE) == b"x"


def test_a_secret_shows_itself_to_nobody_by_accident() -> None:
    """
    No printing, formatting, pickling or JSON of a Secret holds the value.
    """
    secret = Secret("hunter2-canary")
    shown = [repr(secret), str(secret), f"{secret}", f"{[secret]}", json.dumps({"a": secret}, default=str)]
    assert not [one for one in shown if "hunter2" in one]
    leaks: tuple[Callable[[object], object], ...] = (pickle.dumps, copy.copy)
    for leak in leaks:
        with pytest.raises(TypeError):
            leak(secret)
    assert secret.text() == "hunter2-canary"
    assert secret == Secret(b"hunter2-canary")
    assert secret != Secret("other")
