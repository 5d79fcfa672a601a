"""
Usage is exact: every grouping and every tiling of time sums to the intervals themselves.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain, combinations, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from controlplane.kit.errors import Invalid
from controlplane.metering import service as metering
from controlplane.metering.service import GroupKey
from tests.factories.metering import START, book, held, opening, seller, tenant

US = timedelta(microseconds=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SPAN_US = 12 * 86_400 * 1_000_000
KEYS: tuple[GroupKey, ...] = ("project", "cluster", "instance_type", "day", "site")
GROUPINGS = list(chain.from_iterable(combinations(KEYS, size) for size in range(len(KEYS) + 1)))
moments = st.one_of(
    st.integers(0, SPAN_US),
    st.integers(0, 12).map(lambda day: day * 86_400_000_000),
    st.integers(0, 12 * 24).map(lambda hour: hour * 3_600_000_000),
)
INTERVALS = st.lists(
    st.tuples(
        moments,
        moments,
        st.sampled_from(["prj_a", "prj_b"]),
        st.sampled_from(["clu_a", "clu_b"]),
        st.sampled_from([("hgx-h100-8", 8), ("gb200-nvl72-4", 4), ("hgx-b200-8", 8)]),
        st.sampled_from(["osl1", "hel1"]),
    ),
    max_size=6,
)
LAW = settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking over a database outlasts the test's time limit
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def totals(rows: list[metering.UsageRow]) -> tuple[int, int, int, dict[str, Decimal]]:
    """
    GPU, node and unpriced microseconds and exact money of all rows together.
    """
    money: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        for cost in row.costs:
            money[cost.currency] += cost.gpu_us_price
    return sum(one.gpu_us for one in rows), sum(one.node_us for one in rows), sum(one.unpriced_gpu_us for one in rows), dict(money)


@LAW
@given(intervals=INTERVALS, cuts=st.lists(moments, min_size=2, max_size=5, unique=True), grouping=st.sampled_from(GROUPINGS))
@example(intervals=[(0, 86_400_000_000, "prj_a", "clu_a", ("hgx-h100-8", 8), "osl1")], cuts=[0, SPAN_US], grouping=("day",))
def test_every_grouping_and_tiling_sums_to_the_intervals(
    session: Session,
    intervals: list[tuple[int, int, str, str, tuple[str, int], str]],
    cuts: list[int],
    grouping: tuple[GroupKey, ...],
) -> None:
    """Windows that tile a stretch, grouped in any way, hold exactly what a plain sum over the intervals says, in time and in money."""
    with session.begin_nested() as savepoint:
        platform, home = seller(session, is_platform=True), seller(session)
        customer = tenant(session, home)
        book(session, platform, [("hgx-h100-8", "2.490001"), ("gb200-nvl72-4", "7")])
        book(session, home, [("hgx-h100-8", "3.333333")], currency="EUR", valid_from=START + 5 * DAY + HOUR)
        expected_gpu = expected_node = expected_unpriced = 0
        expected_money: defaultdict[str, Decimal] = defaultdict(Decimal)
        edges = sorted(cuts)
        change = (5 * DAY + HOUR) // US
        for begin, end, project, cluster, (instance_type, gpus), site in intervals:
            begin_at, end_at = START + begin * US, START + end * US
            one = opening(
                customer,
                project_id=project,
                cluster_id=cluster,
                instance_type=instance_type,
                gpus=gpus,
                site=site,
                not_before=begin_at,
                usable_at=begin_at,
            )
            held(session, one, end_at)
            low, high = max(begin, edges[0]), min(end, edges[-1])
            length = max(high - low, 0)
            expected_node += length
            expected_gpu += length * gpus
            before = max(min(high, change) - low, 0) if length else 0
            if instance_type == "hgx-h100-8":
                expected_money["USD"] += before * gpus * Decimal("2.490001")
                expected_money["EUR"] += (length - before) * gpus * Decimal("3.333333")
            elif instance_type == "gb200-nvl72-4":
                expected_money["USD"] += length * gpus * Decimal(7)
            else:
                expected_unpriced += length * gpus
        rows = [
            row
            for low, high in pairwise(edges)
            for row in metering.usage(session, customer, from_=START + low * US, to=START + high * US, group_by=grouping)
        ]
        gpu, node, unpriced, money = totals(rows)
        assert (gpu, node, unpriced) == (expected_gpu, expected_node, expected_unpriced)
        assert {key: value for key, value in money.items() if value} == {
            key: value for key, value in expected_money.items() if value
        }
        savepoint.rollback()


ZONES = [
    "Pacific/Kiritimati",
    "Etc/GMT+12",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Europe/Oslo",
    "America/New_York",
    "America/St_Johns",
    "Africa/Casablanca",
    "Pacific/Chatham",
    "America/Santiago",
    "UTC",
]


@pytest.mark.parametrize("zone", ZONES)
def test_months_of_every_zone_tile_the_time_line(session: Session, zone: str) -> None:
    """BR-098: 24 monthly periods cut in local time hold every second once, daylight saving both ways."""
    customer = tenant(session, seller(session))
    first, last = datetime(2022, 1, 1, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC)
    held(session, opening(customer, not_before=first, usable_at=first), last)
    edges = [datetime(2022 + month // 12, month % 12 + 1, 1, tzinfo=ZoneInfo(zone)) for month in range(25)]
    parts = [metering.usage(session, customer, from_=low, to=high)[0].node_us for low, high in pairwise(edges)]
    whole = metering.usage(session, customer, from_=edges[0], to=edges[-1])[0].node_us
    assert sum(parts) == whole
    assert parts == [(min(high, last) - max(low, first)) // US for low, high in pairwise([one.astimezone(UTC) for one in edges])]


def test_each_second_is_in_its_own_day_and_month(session: Session) -> None:
    """BR-101: what is entered late is dated when it happened; days are cut at midnight in UTC, half-open."""
    customer = tenant(session, seller(session))
    begin = datetime(2024, 3, 30, 23, 59, 59, 999_999, tzinfo=UTC)
    held(session, opening(customer, usable_at=begin), datetime(2024, 4, 2, tzinfo=UTC))
    rows = metering.usage(session, customer, from_=START, to=START + 60 * DAY, group_by=["day"])
    assert [(row.day, row.node_us) for row in rows] == [
        (date(2024, 3, 30), 1),
        (date(2024, 3, 31), 86_400_000_000),
        (date(2024, 4, 1), 86_400_000_000),
    ]
    april = datetime(2024, 4, 1, tzinfo=UTC)
    assert metering.usage(session, customer, from_=START, to=april)[0].node_us == 86_400_000_001
    assert metering.usage(session, customer, from_=april, to=april + 30 * DAY)[0].node_us == 86_400_000_000


def test_days_are_those_of_utc_in_any_session_zone(session: Session) -> None:
    """The database session's own time zone cuts nothing."""
    customer = tenant(session, seller(session))
    held(session, opening(customer), START + DAY)
    session.connection().exec_driver_sql("SET LOCAL timezone = 'America/New_York'")
    rows = metering.usage(session, customer, from_=START, to=START + 9 * DAY, group_by=["day"])
    assert [(row.day, row.node_us) for row in rows] == [(date(2024, 3, 1), 86_400_000_000)]


def test_groups_name_what_they_hold(session: Session) -> None:
    """Keys asked for are set, the others are not; another reseller's tenants are not in a reseller's sums."""
    home, other = seller(session), seller(session)
    customer, neighbour, stranger = tenant(session, home), tenant(session, home), tenant(session, other)
    held(session, opening(customer, project_id="prj_a", site="osl1"), START + HOUR)
    held(session, opening(customer, project_id="prj_b", site="hel1"), START + 2 * HOUR)
    held(session, opening(neighbour), START + HOUR)
    held(session, opening(stranger), START + HOUR)
    rows = metering.usage(session, customer, from_=START, to=START + DAY, group_by=["site", "project"])
    assert [(row.project_id, row.site, row.gpu_us // 8_000_000, row.tenant_id, row.day) for row in rows] == [
        ("prj_a", "osl1", 3600, None, None),
        ("prj_b", "hel1", 7200, None, None),
    ]
    rows = metering.usage(session, None, from_=START, to=START + DAY, group_by=["tenant"], reseller_id=home)
    assert {row.tenant_id for row in rows} == {customer, neighbour}
    (row,) = metering.usage(session, customer, from_=START, to=START + DAY, project_id="prj_b")
    assert row.node_us == 7_200_000_000


def test_nothing_held_is_one_row_of_zero(session: Session) -> None:
    """A sum of nothing is zero, and groups of nothing are none."""
    customer = tenant(session, seller(session))
    (row,) = metering.usage(session, customer, from_=START, to=START + DAY)
    assert (row.gpu_us, row.node_us, row.unpriced_gpu_us, row.costs) == (0, 0, 0, ())
    assert metering.usage(session, customer, from_=START, to=START + DAY, group_by=["project"]) == []


def test_windows_that_cannot_be_are_refused(session: Session) -> None:
    """Empty and reversed windows, and days over decades."""
    customer = tenant(session, seller(session))
    for low, high, keys in ((START, START, ()), (START + DAY, START, ()), (START, START + 500 * DAY, ("day",))):
        with pytest.raises(Invalid):
            metering.usage(session, customer, from_=low, to=high, group_by=keys)  # type: ignore[arg-type]
