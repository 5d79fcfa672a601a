"""
The whole main job in one process, through the real edge, with a process that dies at a chosen pass of a chosen crash point.
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


class MainJob:
    """
    Order two nodes, run a job, grow to three, delete, until all nodes are wiped.
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

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """
        The job was done, by other processes where the first ones died.

        With `takeover` a worker that dies is only frozen: another takes over once the lease and its grace have lapsed, and when that
        one is through, the first wakes up and tries to go on.
        """
        self._number += 1
        with self._watched(doom):
            cluster = self._ask("POST", "/clusters", self._order())
            self._drive(f"clusters/{cluster['id']}", "running", takeover=takeover)
            job = self._ask("POST", "/jobs", self._job(cluster["id"]))
            self._drive(f"jobs/{job['id']}", "succeeded", takeover=takeover)
            self._change(cluster["id"], "PATCH", {"node_sets": [{"name": "workers", "count": 3}]})
            self._drive(f"clusters/{cluster['id']}", "running", takeover=takeover)
            self._change(cluster["id"], "DELETE", None)
            self._drive(f"clusters/{cluster['id']}", "deleted", takeover=takeover)
            self._settle(takeover=takeover)

    @contextmanager
    def _watched(self, doom: Doom) -> Iterator[None]:
        take_out = crashpoints.install(doom)
        try:
            yield
        finally:
            take_out()

    def _order(self) -> dict[str, Any]:
        keys = self.world.keys
        sets = [{"name": "workers", "instance_type": keys.instance_type, "count": 2}]
        return {"name": f"train{self._number}", "spec": {"kind": "slurm", "site": keys.site, "node_sets": sets}}

    def _job(self, cluster_id: str) -> dict[str, Any]:
        spec = {"cluster_id": cluster_id, "nodes": 2, "gpus_per_node": 8, "script": SCRIPT, "time_limit_s": 3600}
        return {"name": "gang", "spec": spec}

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, **headers: str) -> Any:
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

    def _change(self, cluster_id: str, method: str, body: Mapping[str, Any] | None) -> None:
        answer, _ = self._persist("GET", f"/clusters/{cluster_id}")
        self._ask(method, f"/clusters/{cluster_id}", body, **{"If-Match": answer.headers["ETag"]})

    def _drive(self, path: str, state: str, *, takeover: bool) -> None:
        self._work(lambda: self._state(path) == state, takeover=takeover)

    def _state(self, path: str) -> str:
        table, _, row_id = path.partition("/")
        return str(self.world.rows(f"SELECT state FROM {table} WHERE id = :id", id=row_id)[0].state)

    def _settle(self, *, takeover: bool) -> None:
        busy = "SELECT 1 FROM nodes WHERE state <> 'available' LIMIT 1"
        self._work(lambda: not self.world.rows(busy), takeover=takeover)

    def _work(self, over: Callable[[], bool], *, takeover: bool) -> None:
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

    def _wait(self) -> None:
        pauses = [row.pause_s for row in self.world.waiting()]
        assert pauses, "nothing is due any more, and it is not done"
        self.world.clock.advance(max(0.5, min(pauses)))
