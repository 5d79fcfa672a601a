"""
Six nodes, two tenants and virtual time, with faults to play, workers to kill and minutes to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from controlplane.activity.routes import router as activity
from controlplane.clusters import adopting, scaling
from controlplane.clusters import service as clusters
from controlplane.identity import service as identity
from controlplane.jobs import service as jobs
from controlplane.jobs.ordering import JobOrder
from controlplane.kit import crashpoints
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.ledger import Ledger
from controlplane.quotas import service as quotas
from controlplane.services import service as services
from controlplane.services.schemas import Rollout, Template
from tests.conftest import Database
from tests.factories.identity import Caller, small_app
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises
from workers.sweeps import check_providers, discover

FLEET = Path(__file__).resolve().parents[1] / "schedules" / "fleet.yaml"
NODES = 6
LAPSED_S = 66.0
"""After so long a dead worker's claims are taken over."""
SCRIPT = "#!/bin/bash\necho begun\nsleep 300\necho done\n"


class Killed(BaseException):
    """
    A worker process dies here.
    """


@dataclass
class Grounds:
    """
    The region under test.
    """

    world: World
    """Everything in it."""
    sim: SimControl
    """The hand that reaches into its provider."""

    # What tenants do

    def order(
        self, name: str = "train", count: int = 2, *, wait: bool = False, who: int = 0, kind: str = "", product: str = "slurm"
    ) -> str:
        """
        The id of a cluster just ordered by one of the two tenants.
        """
        tenant, project = self.world.people[who]
        sets = (clusters.SetOrder("workers", kind or self.world.keys.instance_type, count),)
        wanted = clusters.Order(name, product, self.world.keys.site, sets, wait)
        view, _ = self.world.do(lambda session: clusters.order_cluster(session, tenant, project, wanted))
        return str(view.row.id)

    def take_over(self, refs: Iterable[str]) -> str:
        """
        The id of a cluster that somebody had on these machines, which is being taken over for the first tenant.
        """
        self.sim.stand("theirs", list(refs))
        check_providers(self.world.engine, self.world.tools)
        discover(self.world.engine, self.world.tools)
        (found,) = self.world.rows("SELECT id, provider_id FROM found_clusters")
        operator = identity.KeyAuthenticator(self.world.engine).authenticate(f"Bearer {self.world.keys.operator_key}", None)
        wish = adopting.Wish(self.world.keys.tenant_id, self.world.keys.project_id, "theirs")
        return str(self.world.do(lambda session: adopting.adopt(session, operator, found.provider_id, found.id, wish))[0])

    def delete(self, cluster_id: str, *, who: int = 0) -> datetime:
        """
        The deletion was accepted; when is returned.
        """
        tenant, project = self.world.people[who]
        self.world.do(lambda session: clusters.delete_cluster(session, tenant, project, cluster_id, lambda _: None))
        return self.world.clock()  # type: ignore[no-any-return]

    def resize(self, cluster_id: str, count: int) -> None:
        """
        The cluster was asked to have so many nodes.
        """
        tenant, project = self.world.people[0]
        self.world.do(
            lambda session: scaling.change_cluster(session, tenant, project, cluster_id, lambda _: None, counts={"workers": count})
        )

    def submit(self, cluster_id: str, nodes: int = 1, *, script: str = SCRIPT) -> str:
        """
        The id of a job just submitted to the cluster.
        """
        tenant, project = self.world.people[0]
        spec = {
            "cluster_id": cluster_id,
            "nodes": nodes,
            "gpus_per_node": 8,
            "tasks_per_node": 8,
            "script": script,
            "env": {},
            "time_limit_s": 36_000,
            "restart": {"max_restarts": 3},
        }
        order = JobOrder("job", {}, cluster_id, nodes, 8, spec)
        return str(self.world.do(lambda session: jobs.create_job(session, tenant, project, order)).id)

    def serve(self, cluster_id: str) -> str:
        """
        The id of a service of two replicas just asked for on the cluster, which is a Kubernetes.
        """
        tenant, project = self.world.people[0]
        template = Template(image="example.org/echo:1", gpus_per_node=2).document()
        order = services.ServiceOrder("chat", {}, cluster_id, 2, None, Rollout().settled(template), template)
        return str(self.world.do(lambda session: services.create_service(session, tenant, project, order)).row.id)

    def end_service(self, service_id: str) -> None:
        """
        The service's deletion was accepted.
        """
        tenant, project = self.world.people[0]
        self.world.do(lambda session: services.delete_service(session, tenant, project, service_id, lambda _: None))

    def limit_gpus(self, most: int) -> None:
        """
        The first tenant's project may hold so many GPUs.
        """

        def work(session: Session) -> None:
            scope = quotas.find_scope(session, self.world.keys.project_id)
            assert scope is not None
            quotas.set_limit(session, scope, "gpus", most)

        self.world.do(work)

    # What operators see

    def operator(self, method: str, path: str, body: Any = None) -> Any:
        """
        What an operator's request is answered.
        """
        call = Caller(small_app(self.world.engine, activity), self.world.keys.operator_key)
        answer = call(method, path, body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def attention(self) -> dict[str, str]:
        """
        What operators are shown as needing a person: the reason by id.
        """
        return {one["id"]: one["attention"] for one in self.operator("GET", "/v1/admin/attention?limit=200")["items"]}

    def resume_all(self) -> int:
        """
        An operator lets everything go on that waits for a person; how much that was is returned.
        """
        stuck = [one for one in self.attention() if not one.startswith("prv")]
        for one in stuck:
            self.operator("POST", f"/v1/admin/attention/{one}/actions/resume")
        return len(stuck)

    # What there is

    def states(self, table: str) -> list[str]:
        """
        The states of all rows, sorted.
        """
        return sorted(row.state for row in self.world.rows(f"SELECT state FROM {table}"))

    def state(self, table: str, row_id: str) -> str:
        """
        The state of one row.
        """
        return str(self.world.rows(f"SELECT state FROM {table} WHERE id = :id", id=row_id)[0].state)

    def ledger(self) -> Ledger:
        """
        What physically happened.
        """
        return self.sim.ledger()

    def changes(self, operation: str) -> list[Any]:
        """
        The calls of this kind that the provider got.
        """
        return list(self.sim.calls(operation=operation))

    def used(self) -> int:
        """
        GPUs that the first tenant's project counts as held.
        """
        rows = self.world.rows(
            "SELECT used FROM quotas WHERE scope_id = :p AND resource = 'gpus' AND gpu_model = '' AND site = ''",
            p=self.world.keys.project_id,
        )
        return int(rows[0].used) if rows else 0

    def metered(self, cluster_id: str) -> list[tuple[datetime, datetime | None]]:
        """
        From when to when each of the cluster's nodes was billed.
        """
        rows = self.world.rows(
            "SELECT lower(during) AS since, upper(during) AS until FROM meter_intervals WHERE cluster_id = :c AND NOT isempty(during)",
            c=cluster_id,
        )
        return [(row.since, row.until) for row in rows]

    # Time

    def restart(self) -> None:
        """
        The workers are new processes, which know nothing of what was before.
        """
        self.world.tools = self.world.toolbox()

    def heal(self) -> None:
        """
        The provider is well again.
        """
        self.sim.heal()
        self.restart()

    def work(self, seconds: float, *, until: Callable[[], bool] | None = None, at_least_s: float = 0.001) -> float:
        """
        The workers have worked for so many seconds, or until it holds; the seconds that passed are returned.

        A worker that dies takes what it had claimed with it, and another begins at once. `at_least_s` makes workers lazy: they look
        only so often, which costs the test less.
        """
        passed = 0.0
        while until is None or not until():
            if self._look():
                continue
            if passed >= seconds:
                break
            pauses = [row.pause_s for row in self.world.waiting() if row.pause_s > 0]
            pause = max(min([*pauses, seconds - passed, 60.0]), min(at_least_s, seconds - passed), 0.001)
            self.world.clock.advance(pause)
            passed += pause
        return passed

    def _look(self) -> int:
        try:
            return self.world.tick()
        except Killed:
            self.restart()
            return 0

    def silence(self, seconds: float) -> None:
        """
        So many seconds have passed and nobody worked.
        """
        self.world.clock.advance(seconds)

    def overstay(self, seconds: float = 3600.0) -> None:
        """
        Everything under way has been there longer than so many seconds, with a few looks before and after.
        """
        self.work(10)
        self.silence(seconds)
        self.work(10)

    @contextmanager
    def killing(self, point: str, *, times: int = 1, skip: int = 0) -> Iterator[list[str]]:
        """
        Workers die at the point: `times` of them, after it was passed `skip` times. Yields where they died.
        """
        died: list[str] = []
        passed = 0

        def hook(reached: str) -> None:
            nonlocal passed
            if reached != point:
                return
            passed += 1
            if passed > skip and len(died) < times:
                died.append(reached)
                raise Killed(reached)

        take_out = crashpoints.install(hook)
        try:
            yield died
        finally:
            take_out()

    def run_out(self, *, people: bool = False) -> None:
        """
        Everything is deleted, all has settled, and every promise holds. With `people`, operators see to what asks for them.
        """
        for row in self.world.rows("SELECT id, project_id FROM clusters WHERE state NOT IN ('deleting', 'deleted')"):
            self.delete(row.id, who=[project for _, project in self.world.people].index(row.project_id))
        self.world.settle()
        while people and self.resume_all():
            self.world.settle()
        # one that runs is looked at now and then for ever, so nothing settles by it: it has to notice that its cluster is gone
        self.work(120, until=lambda: set(self.states("services")) <= {"deleted"})
        broken = broken_promises(self.world)
        assert not broken, broken
        left = self.world.rows("SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')")
        assert not left, left

    def close(self) -> None:
        """
        Real time again, and no file is held.
        """
        self.sim.close()
        self.world.clock.stop()


def make_grounds(database: Database, folder: Path, *, profile: str = "instant", settled: bool = True) -> Grounds:
    """
    The region, with all its nodes free unless told otherwise.
    """
    world = make_world(database, folder, fleet=str(FLEET), profile=profile)
    grounds = Grounds(world, SimControl(world.region.world, now=world.clock))
    if settled:
        grounds.work(30 * 3600, until=lambda: set(grounds.states("nodes")) == {"available"}, at_least_s=300)
        assert grounds.states("nodes") == ["available"] * NODES
    return grounds


def tokens(ledger: Ledger, cluster_ids: Iterable[str]) -> list[str]:
    """
    The allocations that were ever deployed for the clusters, once for every deployment.
    """
    wanted = set(cluster_ids)
    return [one.token for one in ledger.tenancies if one.cluster_id in wanted]
