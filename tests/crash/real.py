"""
A small cloud driven by real worker processes on real time, and what a test does with it over HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from sqlalchemy import text

from tests.conftest import Database
from tests.factories.processes import Processes, Running, environment_for, processes, start_api, start_worker, until
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises
from tests.schedules.schedule import RESUME

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
TEMPO = {"lease_s": 3, "step_timeout_s": 1, "lease_grace_s": 1, "observe_interval_s": 2}
PATIENT_S = 3.0
QUIESCE_S = 240.0
"""Twice what it takes by the promise: other tests boot whole hosts on the same two cores meanwhile."""
STANDING = """
    SELECT id, state, step, reason, attempts, attention, due_at - clock_timestamp(), lease_until - clock_timestamp() FROM clusters
    UNION ALL
    SELECT id, state, step, reason, attempts, attention, due_at - clock_timestamp(), lease_until - clock_timestamp() FROM nodes
"""
STORY = """
    SELECT h.resource_id, h.at, h.before, h.after, h.fence, h.reason FROM state_history h
    WHERE h.resource_id IN (SELECT id FROM nodes WHERE state <> 'available') OR h.resource_id IN (
      SELECT a.cluster_id FROM allocations a JOIN nodes n ON n.id = a.node_id WHERE n.state <> 'available')
    ORDER BY h.id DESC LIMIT 40
"""
"""What became of nodes that stand still, and of all that had them, the newest first."""
TENURE = """
    SELECT a.id, a.node_id, a.cluster_id, a.state, a.release_accepted_at, n.allocation_id = a.id AS has_it
    FROM allocations a JOIN nodes n ON n.id = a.node_id WHERE n.state <> 'available' ORDER BY a.id DESC LIMIT 10
"""
OPEN = "SELECT count(*) AS n FROM clusters WHERE state <> 'deleted'"
BUSY = "SELECT count(*) AS n FROM nodes WHERE state <> 'available'"


@dataclass
class Cloud:
    """
    The cloud, its processes and its tenant.
    """

    world: World
    """What the test may look into."""
    running: Processes
    """API servers and workers."""
    environment: dict[str, str]
    """What further processes are told."""
    folder: Path
    """For logs."""
    slowest_s: float = 0.0
    """The longest any request took."""
    statuses: list[int] = field(default_factory=list)
    """Every answer's status."""

    @property
    def project(self) -> str:
        """
        The path of the tenant's project.
        """
        return f"/v1/projects/{self.world.keys.project_id}"

    def ask(self, method: str, path: str, body: object = None, *, key: str = "") -> httpx.Response:
        """
        The API's answer, timed.
        """
        api = self.running.apis[0]
        headers = {"Idempotency-Key": key} if key else {}
        with api.client(self.world.keys.tenant_key, timeout_s=20) as client:
            if method in {"DELETE", "PATCH"}:
                headers["If-Match"] = client.get(self.project + path).headers.get("ETag", "")
            began = time.monotonic()
            answer = client.request(method, self.project + path, json=body, headers=headers)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.statuses.append(answer.status_code)
        return answer

    def order(self, name: str, count: int = 1, kind: str = "slurm") -> str:
        """
        The id of a cluster just ordered; it waits for room.
        """
        keys = self.world.keys
        sets = [{"name": "workers", "instance_type": keys.instance_type, "count": count}]
        spec = {"kind": kind, "site": keys.site, "node_sets": sets, "wait": True}
        answer = self.ask("POST", "/clusters", {"name": name, "spec": spec}, key=f"order-{name}")
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
        return str(answer.json()["id"])

    def serve(self, name: str, cluster_id: str) -> str:
        """
        The id of a service of two replicas just asked for on the cluster, which is a Kubernetes.
        """
        spec = {"cluster_id": cluster_id, "template": {"image": "example.org/echo:1", "gpus_per_node": 2}, "replicas": 2}
        answer = self.ask("POST", "/services", {"name": name, "spec": spec}, key=f"serve-{name}")
        assert answer.is_success, answer.text
        return str(answer.json()["id"])

    def delete(self, cluster_id: str) -> None:
        """
        Deletion was accepted, however often the cluster moved meanwhile.
        """
        until(lambda: self.ask("DELETE", f"/clusters/{cluster_id}").is_success, f"{cluster_id} takes a deletion", within_s=30)

    def state(self, cluster_id: str) -> str:
        """
        Where the cluster stands.
        """
        return str(self.world.rows("SELECT state FROM clusters WHERE id = :id", id=cluster_id)[0].state)

    def until_running(self, *cluster_ids: str) -> None:
        """
        The clusters run.
        """
        for one in cluster_ids:
            try:
                until(lambda this=one: self.state(this) == "running", f"{one} runs", within_s=QUIESCE_S)  # type: ignore[misc]
            except AssertionError as error:
                standing = [tuple(str(part) for part in row) for row in self.world.rows(STANDING)]
                ended = {worker.name: worker.child.poll() for worker in self.running.workers}
                raise AssertionError(f"{error}: {standing}; workers' exit codes: {ended}") from None

    def until_clean(self) -> None:
        """
        Every cluster is deleted and every node wiped; what asks for a person gets one.
        """

        def over() -> bool:
            for table in ("nodes", "clusters", "jobs", "services"):
                self.world.do(lambda session, name=table: session.execute(text(RESUME.format(table=name))))
            return not self.world.rows(OPEN)[0].n and not self.world.rows(BUSY)[0].n

        try:
            until(over, "all is deleted and wiped", within_s=QUIESCE_S)
        except AssertionError as error:
            asked = (
                "SELECT id, state, step, reason, attention, attempts, due_at FROM {} WHERE state NOT IN ('available', 'deleted')"
            )
            standing = [row for table in ("nodes", "clusters") for row in self.world.rows(asked.format(table))[:3]]
            story = [tuple(map(str, row)) for sql in (TENURE, STORY) for row in self.world.rows(sql)]
            raise AssertionError("\n".join(map(str, (error, standing, *story)))) from None

    def broken(self) -> list[str]:
        """
        Promises that do not hold.
        """
        return broken_promises(self.world)

    def kill_workers(self) -> None:
        """
        No worker is left.
        """
        for one in self.running.workers:
            one.kill()

    def another_worker(self, name: str, **more: str) -> Running:
        """
        One more worker has been started.
        """
        one = start_worker(self.environment | more, self.folder, name)
        self.running.workers.append(one)
        return one


@contextmanager
def cloud(
    database: Database, folder: Path, *, workers: int = 2, broker: bool = False, broker_url: str = "", **settings: object
) -> Iterator[Cloud]:
    """
    Six nodes, one API and so many workers until the end of the block. Workers at a broker that is given may never say they are ready.
    """
    world = make_world(database, folder, fleet=str(FLEET), profile="fast", virtual=False)
    told = {**TEMPO, **settings}
    with ExitStack() as stack:
        running = stack.enter_context(
            processes(database, folder, apis=0 if broker_url else 1, workers=workers, broker=broker, **told)
        )
        environment = environment_for(database, folder, broker_url=broker_url or running.broker_url, **told)
        made = Cloud(world, running, environment, folder)
        if broker_url:
            running.apis.append(start_api(environment, folder))
            stack.callback(running.apis[-1].stop)
            running.apis[-1].wait_ready()
            made.another_worker("worker-at-broker")
        stack.callback(made.kill_workers)
        if made.running.workers:
            until(lambda: not world.rows(BUSY)[0].n, "all nodes are available")
        yield made
