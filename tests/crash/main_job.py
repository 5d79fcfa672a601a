"""
Stories in one process, through the real edge, with a process that dies at a chosen pass of a chosen crash point: the main job, and a
service's life.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from controlplane.app import create_app
from controlplane.kit import crashpoints
from controlplane.kit.lifecycle import Claim, Result
from controlplane.providers.toolbox import Toolbox
from tests.factories.serving import settings_for
from tests.factories.world import World

SCRIPT = "#!/bin/bash\nsrun sleep 20\n"
LAPSE_S = 70.0
LOOKS = 400
DONE_BEFORE = frozenset({httpx.codes.CONFLICT, httpx.codes.PRECONDITION_FAILED})


class Death(BaseException):
    """
    The process is gone from here on.
    """


@dataclass
class Doom:
    """
    Where a process dies: at chosen passes of one point.
    """

    point: str = ""
    """The crash point; empty: nowhere."""
    passes: frozenset[int] = frozenset()
    """Counted from 1."""
    seen: Counter[str] = field(default_factory=Counter)
    """How often every point was passed."""
    deaths: int = 0
    """How often somebody died."""

    def __call__(self, point: str) -> None:
        """
        The pass is counted; it may be the last.
        """
        self.seen[point] += 1
        if point == self.point and self.seen[point] in self.passes:
            self.deaths += 1
            raise Death(point)


class Dooms(Doom):
    """
    Death at several passes of several points.
    """

    def __init__(self, passes: Mapping[str, frozenset[int]]) -> None:
        super().__init__()
        self._passes = passes
        self.died: Counter[str] = Counter()
        """How often at which point."""

    def __call__(self, point: str) -> None:
        """
        The pass is counted; it may be somebody's last.
        """
        self.seen[point] += 1
        if self.seen[point] in self._passes.get(point, ()):
            self.deaths += 1
            self.died[point] += 1
            raise Death(point)


@dataclass
class Hand:
    """
    One worker process: a look is decide, claim, step and apply of every kind, and all it holds is lost when it dies.
    """

    world: World
    """Where it works."""
    tools: Toolbox
    """Its own."""
    claims: list[tuple[str, Claim]] = field(default_factory=list)
    """What it had claimed when it died."""
    results: list[tuple[str, Result]] = field(default_factory=list)
    """What it had not applied when it died."""

    def look(self) -> int:
        """
        How much was done. Raises Death.
        """
        done = 0
        due = {(row.kind, row.decided) for row in self.world.waiting() if row.pause_s <= 0}
        for name, driver in self.world.drivers.items():
            if (name, True) in due:
                done += driver.decide(100)
            if (name, False) not in due:
                continue
            self.claims = [(name, claim) for claim in driver.claim(100)]
            self.results = []
            while self.claims:
                self.results.append((name, driver.step(self.claims[0][1], self.tools)))
                self.claims.pop(0)
            done += driver.apply([result for _, result in self.results])
            self.results = []
        return done

    def wake_up_late(self) -> int:
        """
        It was only frozen, and goes on where it stood: what it still applies is counted. Raises nothing.
        """
        late = 0
        for name, claim in self.claims:
            self.results.append((name, self.world.drivers[name].step(claim, self.tools)))
        for name, result in self.results:
            late += self.world.drivers[name].apply([result])
        self.claims, self.results = [], []
        return late


class Story:
    """
    What a tenant asks for over HTTP, and workers that bring it about, one of which may die.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.project = f"/v1/projects/{world.keys.project_id}"
        self._app = create_app(settings_for(world.database))
        self._loop = asyncio.Runner()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app),
            base_url="http://controlplane.example",
            headers={"Authorization": f"Bearer {world.keys.tenant_key}"},
        )
        self._number = 0

    def close(self) -> None:
        """
        No connection is left.
        """
        self._loop.run(self._client.aclose())
        self._loop.close()
        self._app.state.runtime.close()

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> httpx.Response:
        """
        The answer of the whole edge, in this process. Raises Death.
        """
        return self._loop.run(self._client.request(method, self.project + path, json=body, headers=headers))

    @contextmanager
    def watched(self, doom: Doom) -> Iterator[None]:
        """
        Passes of crash points are counted, and may be the last, until the end of the block.
        """
        self._number += 1
        take_out = crashpoints.install(doom)
        try:
            yield
        finally:
            take_out()

    def order(self, kind: str, name: str) -> dict[str, Any]:
        """
        The body that orders two nodes.
        """
        keys = self.world.keys
        sets = [{"name": "workers", "instance_type": keys.instance_type, "count": 2}]
        return {"name": f"{name}{self._number}", "spec": {"kind": kind, "site": keys.site, "node_sets": sets}}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None, **headers: str) -> Any:
        """
        The answer's body; a caller who got none repeats the request with the same idempotency key.
        """
        told = {"Idempotency-Key": f"{method}-{path}-{self._number}", **headers}
        answer, repeated = self._persist(method, path, body, **told)
        if repeated and answer.status_code in DONE_BEFORE:
            return None
        assert answer.is_success, answer.text
        return answer.json()

    def _persist(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str
    ) -> tuple[httpx.Response, bool]:
        repeated = False
        while True:
            try:
                return self.send(method, path, body, **headers), repeated
            except Death:
                repeated = True

    def change(self, path: str, method: str, body: Mapping[str, Any] | None) -> None:
        """
        What stands there was changed or deleted, by its version.
        """
        answer, _ = self._persist("GET", path)
        self.ask(method, path, body, **{"If-Match": answer.headers["ETag"]})

    def drive(self, path: str, state: str, *, takeover: bool) -> None:
        """
        Workers have brought it to the state.
        """
        self.work(lambda: self._state(path) == state, takeover=takeover)

    def _state(self, path: str) -> str:
        table, _, row_id = path.partition("/")
        return str(self.world.rows(f"SELECT state FROM {table} WHERE id = :id", id=row_id)[0].state)

    def work(self, over: Callable[[], bool], *, takeover: bool) -> None:
        """
        Workers have done what is due until it is over.

        With `takeover` a worker that dies is only frozen: another takes over once the lease and its grace have lapsed, and when that
        one is through, the first wakes up and tries to go on.
        """
        hand, frozen = Hand(self.world, self.world.toolbox()), []
        for _ in range(LOOKS):
            try:
                done = hand.look()
            except Death:
                if takeover:
                    frozen.append(hand)
                    self.world.clock.advance(LAPSE_S)
                hand = Hand(self.world, self.world.toolbox())
                continue
            if done:
                continue
            if over():
                break
            self._wait()
        else:
            raise AssertionError(f"it does not come to an end: {self.world.waiting()}")
        for one in frozen:
            late = one.wake_up_late()
            assert late == 0, f"a worker that lost its lease still changed {late} rows"

    def alter(self, path: str, method: str, more: str, body: Mapping[str, Any] | None) -> None:
        """
        The change of the cluster is asked for once, a minute after the last; `{}` in `more` is one of its instances.
        """
        self.world.clock.advance(60)
        self._number += 1
        one = self._persist("GET", f"{path}/instances")[0].json()["items"][0]["id"] if "{}" in more else ""
        answer, _ = self._persist("GET", path)
        self.ask(method, path + more.format(one), body, **{"If-Match": answer.headers["ETag"]})

    def _wait(self) -> None:
        pauses = [row.pause_s for row in self.world.waiting()]
        assert pauses, "nothing is due any more, and it is not done"
        self.world.clock.advance(max(0.5, min(pauses)))


class MainJob(Story):
    """
    Order two nodes, run a job, grow to three, delete, until all nodes are wiped.
    """

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """
        The job was done, by other processes where the first ones died.
        """
        with self.watched(doom):
            cluster = self.ask("POST", "/clusters", self.order("slurm", "train"))
            self.drive(f"clusters/{cluster['id']}", "running", takeover=takeover)
            job = self.ask("POST", "/jobs", self._job(cluster["id"]))
            self.drive(f"jobs/{job['id']}", "succeeded", takeover=takeover)
            self.change(f"/clusters/{cluster['id']}", "PATCH", {"node_sets": [{"name": "workers", "count": 3}]})
            self.drive(f"clusters/{cluster['id']}", "running", takeover=takeover)
            self.change(f"/clusters/{cluster['id']}", "DELETE", None)
            self.drive(f"clusters/{cluster['id']}", "deleted", takeover=takeover)
            self._settle(takeover=takeover)

    def _job(self, cluster_id: str) -> dict[str, Any]:
        spec = {"cluster_id": cluster_id, "nodes": 2, "gpus_per_node": 8, "script": SCRIPT, "time_limit_s": 3600}
        return {"name": "gang", "spec": spec}

    def _settle(self, *, takeover: bool) -> None:
        busy = "SELECT 1 FROM nodes WHERE state <> 'available' LIMIT 1"
        self.work(lambda: not self.world.rows(busy), takeover=takeover)


VERBS: tuple[tuple[str, dict[str, Any] | None, str], ...] = (
    ("rollback", {}, "running"),
    ("scale", {"replicas": 3}, "running"),
    ("suspend", None, "suspended"),
    ("resume", None, "running"),
)
"""Of a whole life, with the state that each comes to."""


class ServiceLife(Story):
    """
    On a Kubernetes cluster that stands: start a service, change it, delete it; in a whole life also roll back, scale, suspend, resume.
    """

    def __init__(self, world: World, *, whole: bool) -> None:
        super().__init__(world)
        self._whole = whole
        self.cluster: str = self.ask("POST", "/clusters", self.order("kubernetes", "serve"))["id"]
        """Where services run."""
        self.drive(f"clusters/{self.cluster}", "running", takeover=False)

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """
        The service has lived, by other processes where the first ones died.
        """
        with self.watched(doom):
            made = self.ask("POST", "/services", self.service())
            path, place = f"/services/{made['id']}", f"services/{made['id']}"
            self.drive(place, "running", takeover=takeover)
            template = {**self.service()["spec"]["template"], "image": "example.org/echo:2"}
            self.change(path, "PATCH", {"spec": {"template": template}})
            self.drive(place, "running", takeover=takeover)
            for verb, body, state in VERBS if self._whole else ():
                self.ask("POST", f"{path}/actions/{verb}", body)
                self.drive(place, state, takeover=takeover)
            self.change(path, "DELETE", None)
            self.drive(place, "deleted", takeover=takeover)

    def service(self) -> dict[str, Any]:
        """
        The body that starts two replicas.
        """
        template = {"image": "example.org/echo:1", "gpus_per_node": 2}
        return {"name": f"chat{self._number}", "spec": {"cluster_id": self.cluster, "template": template, "replicas": 2}}
