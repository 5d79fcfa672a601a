"""
Events: an order that never changes, however late a transaction commits, and nobody hears of what is not theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from controlplane.activity import service
from controlplane.activity.service import EventFilter, OperationFilter
from controlplane.kit.access import Principal
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.kit.errors import Invalid
from controlplane.kit.events import Event, record
from controlplane.kit.operations import NewOperation, start_operation
from controlplane.kit.paging import PageAsk, encode_token
from controlplane.web.streams import StreamTempo
from tests.conftest import Database
from tests.factories.identity import principal_of
from tests.factories.nodes import Fleet, make_fleet

OPERATOR = Principal("prn_1", "key_1", "platform", "platform", frozenset({"events:read"}))
ANY = EventFilter()


class Writer:
    """
    A connection that writes events and commits when it is told.
    """

    def __init__(self, database: Database) -> None:
        self._session = Session(database.engine)
        raise_wall(self._session, EVERYTHING)

    def write(self, name: str) -> None:
        """
        The event is written, not committed.
        """
        record(self._session, [Event("thing.happened", "thing", name)])

    def commit(self) -> None:
        """
        What was written is committed.
        """
        self._session.commit()
        raise_wall(self._session, EVERYTHING)

    def close(self) -> None:
        """
        What was not committed is forgotten.
        """
        self._session.close()


class Reader:
    """
    Follows the events from where it stopped.
    """

    def __init__(self, database: Database, limit: int = 200) -> None:
        self._database = database
        self._limit = limit
        self.after: str | None = None
        self.heard: list[str] = []

    def read(self) -> list[str]:
        """
        What is new, by resource.
        """
        with Session(self._database.engine) as session:
            raise_wall(session, EVERYTHING)
            feed = service.list_events(session, OPERATOR, ANY, after=self.after, limit=self._limit)
        self.after = feed.next_after
        new = [one.event.resource_id for one in feed.items]
        self.heard += new
        return new


@pytest.fixture
def writers(database: Database) -> Iterator[tuple[Writer, Writer]]:
    """
    Two writers whose transactions end with the test.
    """
    two = Writer(database), Writer(database)
    yield two
    for one in two:
        one.close()


def test_a_slow_committer_is_waited_for(database: Database, writers: tuple[Writer, Writer]) -> None:
    """An event of a transaction that began first and commits last is told in its place: what is younger is held back until then."""
    (slow, quick), reader = writers, Reader(database)
    slow.write("slow-1")
    quick.write("quick")
    quick.commit()
    assert reader.read() == []
    slow.write("slow-2")
    slow.commit()
    assert reader.read() == ["slow-1", "slow-2", "quick"]
    assert reader.read() == []


def test_what_is_rolled_back_was_never_told(database: Database, writers: tuple[Writer, Writer]) -> None:
    """A transaction that fails holds nothing up for good and tells nothing."""
    (failing, quick), reader = writers, Reader(database)
    failing.write("never")
    quick.write("quick")
    quick.commit()
    failing.close()
    assert reader.read() == ["quick"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schedule=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["write", "write", "commit", "read"])), max_size=30),
    limit=st.integers(1, 4),
)
def test_every_reader_hears_the_same(database: Database, schedule: list[tuple[int, str]], limit: int) -> None:
    """Whatever writers do meanwhile, a reader that keeps its position hears every event once, in the order of one that reads at the end."""
    database.reset()
    reader = Reader(database, limit)
    with ExitStack() as stack:
        writers = [stack.enter_context(closing(Writer(database))) for _ in range(3)]
        for number, (who, what) in enumerate(schedule):
            if what == "read":
                reader.read()
            elif what == "write":
                writers[who].write(str(number))
            else:
                writers[who].commit()
        for one in writers:
            one.commit()
    while reader.read():
        pass
    late = Reader(database)
    late.read()
    assert reader.heard == late.heard
    assert sorted(late.heard) == sorted(str(number) for number, (_, what) in enumerate(schedule) if what == "write")


def test_a_position_of_nobodys_is_refused(database: Database) -> None:
    """What was never handed out is malformed, not an error of ours."""
    for text in ("", "1", "1.", ".1", "1.2.3", "-1.2", "1." + "9" * 19, "9" * 21 + ".1", "\u0661.\u0662"):
        with pytest.raises(Invalid):
            service.read_position(encode_token(text))


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Fleet:
    """
    Two tenants of two resellers.
    """
    return make_fleet(database, tmp_path)


def _tell(fleet: Fleet, **of: Any) -> None:
    fleet.do(lambda session: record(session, [Event("job.running", "job", of.pop("id", "job_1"), data={"n": 1}, **of)]))


def test_everybody_hears_their_own(fleet: Fleet) -> None:
    """A tenant hears of its own, its reseller of its tenants', a project's key of its project's, operators of everything."""
    left, right = fleet.tree.left, fleet.tree.right
    _tell(fleet, id="job_left", tenant_id=left.tenant_id, project_id=left.project_id)
    _tell(fleet, id="job_left_other", tenant_id=left.tenant_id, project_id="prj_other")
    _tell(fleet, id="job_right", tenant_id=right.tenant_id, project_id=right.project_id)
    _tell(fleet, id="job_nobody")
    heard = {
        key: [one["resource_id"] for one in fleet.call(key)("GET", "/v1/events?type=job.running").json()["items"]]
        for key in (left.owner_key, left.reseller_key, right.owner_key, fleet.tree.operator_key)
    }
    assert list(heard.values()) == [
        ["job_left", "job_left_other"],
        ["job_left", "job_left_other"],
        ["job_right"],
        ["job_left", "job_left_other", "job_right", "job_nobody"],
    ]
    scoped = Principal("prn_2", "key_2", "project", left.project_id, frozenset(), left.reseller_id, left.tenant_id, left.project_id)
    with Session(fleet.engine) as session:
        raise_wall(session, scoped.wall)
        feed = service.list_events(session, scoped, EventFilter("job.running"), after=None, limit=10)
    assert [one.event.resource_id for one in feed.items] == ["job_left"]


def test_the_first_wall_stands_alone(fleet: Fleet) -> None:
    """Even in a transaction that sees every row, a tenant and a reseller are shown their own events and operations only."""
    left, right = fleet.tree.left, fleet.tree.right
    for one in (left, right):
        _tell(fleet, id=f"job_{one.tenant_id}", tenant_id=one.tenant_id, project_id=one.project_id)
        new = NewOperation("cluster.create", "cluster", f"clu_{one.tenant_id}", "prn_1", one.tenant_id, one.project_id)
        fleet.do(partial(start_operation, new=new))
    for key in (left.owner_key, left.reseller_key):
        who = principal_of(fleet.engine, key)
        told = fleet.do(partial(service.list_events, principal=who, which=EventFilter("job.running"), after=None, limit=10))
        assert [one.event.tenant_id for one in told.items] == [left.tenant_id]
        page = fleet.do(partial(service.list_operations, principal=who, which=OperationFilter(), ask=PageAsk()))
        assert [one.tenant_id for one in page.items] == [left.tenant_id]


def test_pages_go_on_where_they_stopped(fleet: Fleet) -> None:
    """Small pages say that more is there, and together hold everything once; the position goes on working afterwards."""
    for number in range(5):
        _tell(fleet, id=f"job_{number}")
    call, seen, after = fleet.call(), [], ""
    while True:
        body = call("GET", f"/v1/events?type=job.running&limit=2{after}").json()
        seen += [one["resource_id"] for one in body["items"]]
        after = f"&after={body['next_after']}"
        if not body["more"]:
            break
    assert seen == [f"job_{number}" for number in range(5)]
    _tell(fleet, id="job_late")
    assert [one["resource_id"] for one in call("GET", f"/v1/events?type=job.running{after}").json()["items"]] == ["job_late"]
    assert call("GET", "/v1/events?after=nonsense").status_code == 422


def _stream(app: FastAPI, key: str, query: str = "", last: str = "") -> str:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": f"Bearer {key}"} | ({"Last-Event-ID": last} if last else {})
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            return await client.get(f"/v1/events/stream{query}", headers=headers)

    return asyncio.run(ask()).text


def test_a_stream_goes_on_behind_a_position(fleet: Fleet) -> None:
    """A stream without a position begins now and says where; with one it tells what came since, and nothing that is not the key's."""
    fleet.app.state.stream_tempo = StreamTempo(poll_s=0.05, lifetime_s=0.3)
    left, right = fleet.tree.left, fleet.tree.right
    _tell(fleet, id="job_before", tenant_id=left.tenant_id)
    begun = _stream(fleet.app, left.owner_key)
    assert "event: start" in begun
    assert "job_before" not in begun
    position = begun.split("id: ")[1].split("\n")[0]
    _tell(fleet, id="job_mine", tenant_id=left.tenant_id)
    _tell(fleet, id="job_other", tenant_id=right.tenant_id)
    told = _stream(fleet.app, left.owner_key, last=position)
    assert "job_mine" in told
    assert "job_other" not in told
    assert "job_before" not in told
    assert "job_mine" in _stream(fleet.app, left.owner_key, f"?after={position}")
    assert "job_mine" not in _stream(fleet.app, left.owner_key, f"?after={position}&type=job.failed")
