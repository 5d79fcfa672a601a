"""
Prices are dated: each moment costs what held then, and the past is never repriced.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, Wall, raise_wall
from controlplane.kit.errors import Invalid, NotFound
from controlplane.kit.paging import PageAsk
from controlplane.metering import service as metering
from controlplane.metering.errors import PriceInPast
from controlplane.metering.models import PriceBookRow
from controlplane.metering.service import Amount, Price
from tests.conftest import Database
from tests.factories.metering import START, book, held, opening, seller, tenant

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
H100 = "hgx-h100-8"


@pytest.fixture
def platform(session: Session) -> str:
    """The operator's own reseller."""
    return seller(session, is_platform=True)


def costs(session: Session, tenant_id: str, hours: int = 24) -> dict[str, Decimal]:
    """
    What the tenant's first hours cost.
    """
    (row,) = metering.usage(session, tenant_id, from_=START, to=START + hours * HOUR)
    return {one.currency: one.amount for one in row.costs}


def test_an_interval_is_cut_where_the_price_changes(session: Session, platform: str) -> None:
    """Each part costs what held at its time, the changing moment itself is the new price's."""
    customer = tenant(session, platform)
    book(session, platform, [(H100, "2")])
    book_later(session, platform, "3", START + 10 * HOUR)
    held(session, opening(customer), START + 24 * HOUR)
    assert costs(session, customer) == {"USD": 8 * (10 * Decimal(2) + 14 * Decimal(3))}
    assert costs(session, customer, 10) == {"USD": Decimal(160)}


def book_later(session: Session, reseller_id: str, price: str, valid_from: object, *, name: str = H100) -> None:
    """
    A version that an earlier operator entered in time: the row is written as it would stand now.
    """
    fresh = book(session, reseller_id, [(name, price)], valid_from=None)
    session.execute(text("UPDATE price_books SET valid_from = :at WHERE id = :id"), {"at": valid_from, "id": fresh.id})
    session.expire_all()


def test_a_sellers_list_overlays_the_platforms_line_by_line(session: Session, platform: str) -> None:
    """Its own lines win, all others are the platform's, and a line it drops later is the platform's again."""
    home = seller(session)
    customer, direct = tenant(session, home), tenant(session, platform)
    book(session, platform, [(H100, "2"), ("hgx-b200-8", "5")])
    book(session, home, [(H100, "4")])
    book_later(session, home, "6", START + 12 * HOUR, name="hgx-b200-8")
    for one in (customer, direct):
        held(session, opening(one), START + 24 * HOUR)
        held(session, opening(one, instance_type="hgx-b200-8"), START + 24 * HOUR)
    assert costs(session, direct) == {"USD": 8 * 24 * (Decimal(2) + 5)}
    assert costs(session, customer) == {"USD": 8 * 12 * (Decimal(4) + 5) + 8 * 12 * (Decimal(2) + 6)}


def test_what_has_no_price_is_shown_as_unpriced(session: Session, platform: str) -> None:
    """Never as zero: before the first list, and what no list names. A price of zero is a price."""
    customer = tenant(session, platform)
    book(session, platform, [(H100, "0")], valid_from=START + HOUR)
    held(session, opening(customer), START + 3 * HOUR)
    held(session, opening(customer, instance_type="hgx-h200-8"), START + HOUR)
    (row,) = metering.usage(session, customer, from_=START, to=START + DAY)
    assert row.unpriced_gpu_us == 2 * 8 * 3_600_000_000
    assert [(one.currency, one.amount) for one in row.costs] == [("USD", Decimal(0))]


def test_money_of_thirds_is_exact(session: Session, platform: str) -> None:
    """A microsecond at a price of six places is not lost, and no float is met on the way."""
    customer = tenant(session, platform)
    book(session, platform, [(H100, "0.000001")])
    held(session, opening(customer, gpus=1), START + timedelta(microseconds=1))
    (row,) = metering.usage(session, customer, from_=START, to=START + DAY)
    assert row.costs[0].gpu_us_price == Decimal("0.000001")
    assert row.costs[0].amount * 3_600_000_000 == pytest.approx(Decimal("0.000001"), rel=Decimal("1e-50"))


def test_the_past_is_never_repriced(session: Session, platform: str) -> None:
    """Only a first version may start in the past; of two that start together the later one holds."""
    home = seller(session)
    book(session, home, [(H100, "2")])
    with pytest.raises(PriceInPast):
        book(session, home, [(H100, "1")], valid_from=START)
    coming = session.execute(text("SELECT cp_clock()")).scalar_one() + DAY
    book(session, home, [(H100, "3")], valid_from=coming)
    book(session, home, [(H100, "4")], valid_from=coming)
    assert [one.per_gpu_hour for one in metering.current_prices(session, home)] == [Decimal(2)]
    assert [one.per_gpu_hour for one in metering.current_prices(session, home, at=coming)] == [Decimal(4)]
    assert [one.per_gpu_hour for one in metering.current_prices(session, home, at=coming - timedelta(microseconds=1))] == [
        Decimal(2)
    ]
    numbers = [one.number for one in metering.list_price_books(session, PageAsk(), reseller_id=home).items]
    assert numbers == [1, 2, 3]


def test_lists_that_cannot_be_are_refused(session: Session, platform: str) -> None:
    """Unknown sellers, unknown instance types and a line given twice."""
    with pytest.raises(NotFound):
        book(session, "rsl_none", [(H100, "2")])
    with pytest.raises(Invalid):
        book(session, platform, [("hgx-cow-8", "2")])
    with pytest.raises(Invalid):
        metering.create_price_book(session, None, "USD", None, [Price(H100, "spot", Decimal(1)), Price(H100, "spot", Decimal(2))])


def test_parallel_versions_are_numbered_in_turn(database: Database) -> None:
    """No two are version 2, and none fails for having been entered beside another."""
    with Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        home = seller(session)
        book(session, home, [(H100, "2")])

    def enter(price: int) -> None:
        with Session(database.engine) as session, session.begin():
            raise_wall(session, EVERYTHING)
            metering.create_price_book(session, home, "USD", None, [Price(H100, "on_demand", Decimal(price))])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(enter, range(12)))
    with Session(database.engine) as session:
        raise_wall(session, EVERYTHING)
        assert sorted(session.query(PriceBookRow.number).all()) == [(number,) for number in range(1, 14)]


def test_an_estimate_is_todays_price(session: Session, platform: str) -> None:
    """What a dry run shows: the tenant's own seller's price, none where there is none."""
    home = seller(session)
    customer = tenant(session, home)
    book(session, platform, [(H100, "2"), ("hgx-b200-8", "5")])
    book(session, home, [(H100, "2.5")], currency="EUR")
    assert metering.estimate(session, customer, instance_type=H100, gpus=16, hours=Decimal(2)) == Amount(Decimal(80), "EUR")
    assert metering.estimate(session, customer, instance_type="hgx-b200-8", gpus=8) == Amount(Decimal(40), "USD")
    assert metering.estimate(session, customer, instance_type=H100, gpus=16, mode="spot") is None


def test_a_tenant_sees_the_platforms_and_its_sellers_lists_only(session: Session, platform: str) -> None:
    """The wall of the database hides other sellers' lists."""
    home, other = seller(session), seller(session)
    customer = tenant(session, home)
    for one in (platform, home, other):
        book(session, one, [(H100, "2")])
    session.flush()
    raise_wall(session, Wall(tenant_id=customer))
    seen = {one.reseller_id for one in metering.list_price_books(session, PageAsk()).items}
    assert seen == {platform, home}
    assert metering.estimate(session, customer, instance_type=H100, gpus=1) is not None
