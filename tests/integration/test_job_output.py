"""
What jobs print on a Slurm of one's own: read by the program that workers run, sent to the real application, kept and shown.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.boots import agent
from controlplane.boots.states import BootLinks
from controlplane.jobs import reporting
from controlplane.jobs import service as jobs
from controlplane.jobs.reporting import Piece
from controlplane.jobs.schemas import JobCreate
from controlplane.jobs.states import OUTPUT_CAP_BYTES, PIECE_BYTES, TRUNCATED
from controlplane.kit.errors import NotFound
from controlplane.rendering.slurm.sender import LOOK_S, Sender
from tests.conftest import Database
from tests.factories.serving import MASTER_KEY, serving
from tests.factories.world import World, make_world
from tests.integration.test_bare_nodes import only_bare
from tests.integration.test_dedicated_slurm import OwnRack, order, wanted

ME = pwd.getpwuid(os.getuid()).pw_name


@dataclass
class Place:
    """A job on a tenant's own Slurm, and one of its workers with a home for users."""

    world: World
    job_id: str
    workers: list[str]
    """Instance ids."""
    boots: dict[str, str]
    """Boot ids by instance."""
    folder: Path
    links: Any = None
    senders: dict[str, Sender] = field(default_factory=dict)

    def change(self, **values: Any) -> None:
        """The engine has learnt this of the job."""
        told = ", ".join(f"{name} = :{name}" for name in values)
        self.world.rows(f"UPDATE jobs SET {told} WHERE id = :id RETURNING id", id=self.job_id, **values)

    def go(self, *states: str) -> None:
        """The engine has taken the job through these states."""
        for state in states:
            self.change(state=state, due_at="2099-01-01T00:00:00Z")

    def place(self, instance: str) -> None:
        """The job runs there."""
        self.world.rows("UPDATE jobs SET placement = jsonb_build_array(CAST(:one AS text)) RETURNING id", one=instance)

    def path(self, attempt: int = 1) -> Path:
        """Where the attempt's output is on the worker."""
        return self.folder / f"clu_x.{self.job_id}-{attempt}.out"

    def write(self, content: str) -> None:
        """The job has printed this."""
        with self.path().open("a", encoding="utf-8") as out:
            out.write(content)

    def look(self, now: float, *, rung: bool = False) -> None:
        """The program on the first worker has looked."""
        one = self.workers[0]
        if one not in self.senders:
            self.senders[one] = Sender(agent, self.links.url(self.boots[one]), [f"{ME}:{self.folder}"])
        self.senders[one].look(now, rung=rung)

    def send(self, instance: str, data: bytes, offset: int = 0, *, attempt: int = 1, **more: bool) -> reporting.Taken:
        """What the API makes of a piece from the worker."""
        piece = Piece(f"{self.job_id}-{attempt}", offset, data, **more)
        taken: reporting.Taken = self.world.do(lambda s: reporting.take_output(s, self.boots[instance], piece))
        return taken

    def text(self, attempt: int | None = None) -> str:
        """What its owner reads."""

        def read(session: Any) -> str:
            job = jobs.get_job(session, self.world.tenant, self.world.keys.project_id, self.job_id)
            return jobs.read_logs(session, job, attempt=attempt, after=0, limit_bytes=1_000_000).text

        return str(self.world.do(read))

    def row(self) -> Any:
        """The job's row."""
        return self.world.rows("SELECT log_bytes, log_source, log_closed, issues, due_at <= cp_clock() AS due FROM jobs")[0]


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    """A running job on the first of two workers."""
    world = make_world(database, tmp_path)
    world.settle()
    rack = OwnRack(world, 3)
    only_bare(world)
    rack.settle()
    cluster_id = order(world, wanted(world))
    rack.settle()
    workers = world.rows(
        "SELECT a.instance_id, b.id FROM allocations a JOIN node_sets s ON s.id = a.node_set_id AND s.role = 'worker'"
        " JOIN boots b ON b.allocation_id = a.id AND b.purpose = 'deploy' ORDER BY a.instance_id"
    )
    body = JobCreate(name="own", spec={"cluster_id": cluster_id, "script": "#!/bin/sh\n", "nodes": 1})  # type: ignore[arg-type]
    job_id = world.do(lambda s: jobs.create_job(s, world.tenant, world.keys.project_id, body.order()).id)
    folder = tmp_path / "home"
    folder.mkdir()
    made = Place(world, job_id, [one.instance_id for one in workers], {one.instance_id: one.id for one in workers}, folder)
    made.go("admitted", "starting", "running")
    made.place(made.workers[0])
    yield made
    world.clock.stop()


@pytest.fixture
def served(place: Place, database: Database) -> str:
    """The same with the application on a socket; its URL."""
    with serving(database, machine_url="http://127.0.0.1:1") as app:
        place.links = BootLinks.from_master(app.url, MASTER_KEY, "cp")
        yield app.url  # type: ignore[misc]


@pytest.mark.usefixtures("served")
def test_output_is_read_while_the_job_runs_and_whole_after_it(place: Place) -> None:
    """What is printed is there at the next look, nothing before the job is known to run there; a job's end is soon asked about."""
    place.write("begun\n")
    place.place(place.workers[1])
    place.look(0.0)
    assert place.text() == ""
    place.place(place.workers[0])
    place.look(1.0)  # left alone for a moment
    assert place.text() == ""
    place.look(10.0)
    assert place.text() == "begun\n"
    place.write("more\n" * 40_000)
    place.look(11.0)
    assert place.row().log_bytes == 6 + 200_000 > 3 * PIECE_BYTES
    place.write("bye\n")
    for second in range(100, 1000, 100):
        place.look(float(second))
    place.change(verdict="succeeded")
    place.go("completing")
    place.look(901.0)
    assert (place.row().log_bytes, place.row().log_closed, place.row().due) == (6 + 200_000 + 4, False, False)
    place.look(902.0, rung=True)
    place.look(902.0 + 2 * LOOK_S, rung=True)
    assert (place.row().log_closed, place.row().due) == (True, True)
    place.write("too late\n")
    place.look(2000.0)
    assert place.row().log_bytes == 6 + 200_000 + 4


@pytest.mark.usefixtures("served")
def test_only_plain_files_of_the_jobs_user_are_read(place: Place) -> None:
    """A link in the file's place would show its owner what only root may read."""
    secret = place.folder / "secret"
    secret.write_text("canary", encoding="utf-8")
    place.path().symlink_to(secret)
    place.look(0.0)
    place.path().unlink()
    place.path().hardlink_to(secret)
    place.look(10.0)
    place.path().unlink()
    os.mkfifo(place.path())
    place.look(20.0)
    if os.geteuid() == 0:
        place.path().unlink()
        place.path().write_text("canary", encoding="utf-8")
        os.chown(place.path(), 12_345, 12_345)
        place.look(30.0)
    assert (place.text(), place.row().log_bytes) == ("", 0)


@pytest.mark.usefixtures("served")
def test_a_job_that_is_started_again_there_goes_on_behind(place: Place) -> None:
    """The scheduler empties the file when it starts the job again; what was sent stays."""
    place.write("first run\n")
    place.look(0.0)
    place.path().write_text("again\n", encoding="utf-8")
    place.look(5.0)
    place.look(6.0)
    assert place.text() == "first run\nagain\n"


def test_a_job_that_moves_goes_on_behind_and_the_old_worker_is_not_heard(place: Place) -> None:
    """Bytes are counted for each worker by itself."""
    old, new = place.workers
    assert place.send(old, b"abc").next == 3
    assert place.send(old, b"abc").next == 3  # sent twice, kept once
    assert place.send(old, b"zzz", 9).next == 3  # does not follow
    place.place(new)
    assert place.send(old, b"late", 3).next == 3
    assert place.send(new, b"de").next == 2
    assert (place.text(), place.row().log_source) == ("abcde", new)


def test_an_end_is_believed_of_attempts_that_are_over(place: Place) -> None:
    """A worker may say that nothing follows as early as it likes; older attempts and ended jobs want nothing."""
    one = place.workers[0]
    taken = place.send(one, b"abc", end=True)
    assert (taken.over, taken.closed, place.row().log_closed) == (False, False, False)
    place.change(attempt=2)
    assert (place.send(one, b"x", 3).closed, place.text(1)) == (True, "abc")
    place.go("completing", "succeeded")
    assert place.send(one, b"x", attempt=2).closed
    with pytest.raises(NotFound):
        place.send(one, b"x", attempt=3)


def test_more_than_is_kept_is_cut_off_once(place: Place) -> None:
    """The first 16 MiB are kept, the job says so, and no more is wanted."""
    one = place.workers[0]
    place.change(log_bytes=OUTPUT_CAP_BYTES - 2, log_source=one)
    assert place.send(one, b"ab", OUTPUT_CAP_BYTES - 2).closed is False
    assert place.send(one, b"c", OUTPUT_CAP_BYTES).closed
    assert place.send(one, b"d", OUTPUT_CAP_BYTES + 1).closed
    row = place.row()
    assert (row.log_bytes, [one["code"] for one in row.issues]) == (OUTPUT_CAP_BYTES + len(TRUNCATED), ["output_truncated"])


def test_machines_of_others_are_answered_like_a_path_that_is_not_there(place: Place, served: str) -> None:
    """A wrong token, another's job, a boot that has ended, a node that was given back: all the same, and nothing is kept."""
    token = place.links.token(place.boots[place.workers[0]])
    name = f"{place.job_id}-1"
    octets = {"Content-Type": "application/octet-stream"}

    def ask(given: str, attempt: str, query: str = "offset=0") -> int:
        url = f"{served}/v1/job-output/{given}/{attempt}?{query}"
        return httpx.post(url, content=b"x", headers=octets, timeout=30).status_code

    assert [ask(token[:-1] + ("A" if token[-1] != "A" else "B"), name), ask(token, "job_x-1"), ask(token, "../x")] == [404] * 3
    assert [ask(token, name, query) for query in ("", "offset=-1", "offset=1e3", "offset=0&begin=1")] == [422] * 4
    place.world.rows("UPDATE jobs SET tenant_id = (SELECT id FROM tenants WHERE id <> tenant_id LIMIT 1) RETURNING id")
    assert ask(token, name) == 404
    place.world.rows("UPDATE jobs SET tenant_id = (SELECT tenant_id FROM clusters LIMIT 1) RETURNING id")
    boot = {"id": place.boots[place.workers[0]]}
    place.world.rows("UPDATE boots SET state = 'ended' WHERE id = :id RETURNING id", **boot)
    assert ask(token, name) == 404
    place.world.rows("UPDATE boots SET state = 'ready' WHERE id = :id RETURNING id", **boot)
    place.world.rows("UPDATE allocations SET state = 'releasing' RETURNING id")
    assert (ask(token, name), place.row().log_bytes) == (404, 0)
