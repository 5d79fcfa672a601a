"""
How usage and prices are written and read.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from controlplane.metering.schemas import GivenMoment, PriceBookCreate, seconds
from controlplane.metering.service import group_keys
from controlplane.metering.states import price_of

MOMENT: TypeAdapter[object] = TypeAdapter(GivenMoment)


@given(us=st.integers(0, 10**20))
def test_seconds_are_written_without_loss(us: int) -> None:
    """Decimal seconds read back to the same microseconds."""
    assert Decimal(seconds(us)) * 1_000_000 == us


def test_an_hour_of_a_gpu_costs_its_price() -> None:
    """The unit of money is the GPU-hour."""
    assert price_of(3_600_000_000 * Decimal("2.49")) == Decimal("2.49")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "1772323200",
        "2026-03-01",
        "2026-03-01T00:00:00",
        "2026-02-30T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
    ],
)
def test_moments_in_other_forms_are_refused(text: str) -> None:
    """A moment has a date, a time and a zone, and lies where it can be computed with."""
    with pytest.raises(ValidationError):
        MOMENT.validate_python(text)


def test_a_moment_is_read_in_utc() -> None:
    """Any offset is the same moment in UTC."""
    assert str(MOMENT.validate_python("2026-03-01T01:30:00.000001+01:30")) == "2026-03-01 00:00:00.000001+00:00"


@pytest.mark.parametrize("price", ["-1", "1e3", "NaN", "1.0000001", "", " 1", 2.5, 1])
def test_prices_are_plain_decimals(price: object) -> None:
    """Never a float, never negative, never finer than is stored."""
    with pytest.raises(ValidationError):
        PriceBookCreate.model_validate({"currency": "USD", "prices": [{"instance_type": "a", "per_gpu_hour": price}]})


def test_groups_are_each_named_once_in_our_order() -> None:
    """The order of the words does not matter."""
    assert group_keys("day,project,day") == ["project", "day"]
    assert group_keys("", per_tenant=True) == ["tenant"]
    assert group_keys("") == []
