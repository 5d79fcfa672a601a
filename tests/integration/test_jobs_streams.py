"""
Following a job's output: nothing is lost or said twice, and a stream ends with the right to read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.web.streams import StreamTempo
from tests.conftest import Database
from tests.factories.jobs import JOB_RIGHTS, JobApi, JobWorld, Keys, job_api, job_world
from tests.factories.streams import Wire, opened

LONG = "#!/bin/bash\necho begun\nsleep 100\necho done\n"
QUICK = StreamTempo(poll_s=0.01, recheck_s=0.05, heartbeat_s=0.05, lifetime_s=30.0, per_principal=2, threads=2)


@dataclass
class Setting:
    """
    A world, its API and one job.
    """

    world: JobWorld
    """Everything below."""
    api: JobApi
    """The customer's key is `one`."""
    job_id: str
    """Prints, waits and prints again."""

    @property
    def path(self) -> str:
        """
        Where its stream is.
        """
        return f"/v1/projects/{self.world.customer.project}/jobs/{self.job_id}/logs/stream"


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """
    A running job that has printed its first line.
    """
    with job_world(database, tmp_path) as world:
        api = job_api(database.engine, QUICK)
        api.keys.known["one"] = world.customer.principal()
        job_id = world.order(LONG)
        world.until(lambda: world.output(job_id) != "", within_s=10)
        yield Setting(world, api, job_id)


async def _event(wire: Wire) -> dict[str, Any] | None:
    """
    The next event that is no comment.
    """
    while True:
        found = await wire.next()
        if found is None or "comment" not in found:
            return found


def test_output_arrives_while_it_is_printed(setting: Setting) -> None:
    """What is there comes at once, what is printed later comes later, and the end is said."""

    async def follow() -> list[Any]:
        async with opened(setting.api, setting.path) as wire:
            seen = [await _event(wire)]
            assert (wire.status, wire.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            await asyncio.to_thread(setting.world.until_state, setting.job_id, "succeeded")
            while (event := await _event(wire)) is not None:
                seen.append(event)
            return seen

    first, second, end = asyncio.run(follow())
    assert (first["id"], first["event"], first["data"]) == ("1:6", "output", {"attempt": 1, "offset": 0, "text": "begun\n"})
    assert (second["id"], second["data"]["text"]) == ("1:11", "done\n")
    assert (end["id"], end["event"]) == ("1:11", "end")
    assert end["data"] == {"state": "succeeded", "exit_code": 0, "failure_class": None}


def test_a_broken_stream_goes_on_where_it_was(setting: Setting) -> None:
    """Last-Event-ID gives what follows and nothing again."""
    setting.world.until_state(setting.job_id, "succeeded")

    async def follow(query: str = "", **headers: str) -> list[str]:
        seen = []
        async with opened(setting.api, setting.path + query, **headers) as wire:
            while (event := await _event(wire)) is not None:
                seen.append(event["data"].get("text", event["event"]))
        return seen

    assert asyncio.run(follow()) == ["begun\ndone\n", "end"]
    assert asyncio.run(follow(Last_Event_ID="1:6")) == ["done\n", "end"]
    assert asyncio.run(follow(Last_Event_ID="1:11")) == ["end"]
    assert asyncio.run(follow("?after=6")) == ["done\n", "end"]
    assert asyncio.run(follow("?after=6", Last_Event_ID="1:0")) == ["begun\ndone\n", "end"]


def test_a_stream_goes_over_from_attempt_to_attempt(setting: Setting) -> None:
    """A restart is told and the next attempt's output follows."""
    setting.world.sim.play("job_fabric_fault", "submit", count=1)
    setting.job_id = setting.world.order(LONG)
    setting.world.until_state(setting.job_id, "succeeded")

    async def follow() -> list[str]:
        seen = []
        async with opened(setting.api, f"{setting.path}?attempt=1") as wire:
            while (event := await _event(wire)) is not None:
                seen.append(f"{event['id']} {event['event']}")
        return seen

    events = asyncio.run(follow())
    assert events[1:] == ["2:0 attempt", "2:11 output", "2:11 end"]
    assert events[0].startswith("1:")


def _revoke(keys: Keys) -> None:
    del keys.known["one"]


def _suspend(keys: Keys) -> None:
    keys.known["one"] = replace(keys.known["one"], suspended=True)


def _demote(keys: Keys) -> None:
    keys.known["one"] = replace(keys.known["one"], permissions=JOB_RIGHTS - {"jobs:logs"})


@pytest.mark.parametrize("lose", [_revoke, _suspend, _demote])
def test_a_stream_ends_with_the_right_to_read_it(setting: Setting, lose: Callable[[Keys], None]) -> None:
    """BR-103: a revoked key, a suspension and a lost permission close what is open, and nothing more is sent."""

    async def follow() -> list[Any]:
        async with opened(setting.api, setting.path) as wire:
            assert await _event(wire) is not None
            lose(setting.api.keys)
            rest = []
            async with asyncio.timeout(5):  # long before its lifetime
                while (event := await _event(wire)) is not None:
                    rest.append(event)
            return rest

    assert asyncio.run(follow()) == []


def test_streams_of_one_principal_are_counted(setting: Setting) -> None:
    """One more than allowed is refused; a closed one makes room, however it was closed."""

    async def follow() -> None:
        async with opened(setting.api, setting.path) as first, opened(setting.api, setting.path) as second:
            assert await _event(first) is not None
            assert await _event(second) is not None
            async with opened(setting.api, setting.path) as third:
                assert await third.next() is None
                assert (third.status, third.headers["retry-after"]) == (429, "5")
        async with opened(setting.api, setting.path) as again:
            assert await _event(again) is not None
            assert again.status == 200

    asyncio.run(follow())


def test_a_silent_stream_says_that_it_lives_and_ends_in_time(setting: Setting) -> None:
    """Comments keep the line open; the lifetime closes it."""
    short = replace(QUICK, lifetime_s=0.3)
    api = job_api(setting.world.database.engine, short)
    api.keys.known["one"] = setting.world.customer.principal()

    async def follow() -> list[Any]:
        seen = []
        async with opened(api, setting.path) as wire:
            while (event := await wire.next()) is not None:
                seen.append(event)
        return seen

    seen = asyncio.run(follow())
    assert seen[0]["event"] == "output"
    assert len(seen) > 1
    assert {"comment": "still here"} in seen


@pytest.mark.parametrize("position", ["1", "x:1", "1:-1", "0:0", "1:1:1", "9" * 300, "1:\x7f"])
def test_positions_of_others_are_refused(setting: Setting, position: str) -> None:
    """422 for what was never an id of this stream."""
    answer = setting.api.call("one", "GET", setting.path, Last_Event_ID=position)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "header.Last-Event-ID")


def test_a_stream_is_refused_like_any_route(setting: Setting) -> None:
    """Before it is opened it answers problems: no key, unknown job, unknown parameter, an attempt that never was."""
    assert setting.api.call("nobody", "GET", setting.path).status_code == 401
    assert setting.api.call("one", "GET", setting.path.replace("job_", "job_x")).status_code == 404
    assert setting.api.call("one", "GET", f"{setting.path}?nonsense=1").status_code == 422
    assert setting.api.call("one", "GET", f"{setting.path}?attempt=9").status_code == 404
