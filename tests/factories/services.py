"""
A world for services: a tenant with a Kubernetes cluster in the database, the same cluster at a simulated provider, a driver and the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Table, text

from controlplane.jobs.sealing import open_secret
from controlplane.kit.lifecycle import Driver, Kind
from controlplane.kit.secrets import Sealer
from controlplane.services import driving
from controlplane.services.models import ServiceRow
from controlplane.services.routes import router
from controlplane.services.states import SERVICE_STATES
from controlplane.services.steps import STEPS
from tests.conftest import Database
from tests.factories.jobs import TEMPO, Customer, JobApi, JobWorld, job_api, job_world

ENGINE = {"engine": "vllm", "model": "llama-3.1-8b", "context_tokens": 8192, "sequences": 4}
SERVICE_RIGHTS = frozenset(f"services:{verb}" for verb in ("read", "create", "update", "delete", "logs"))


@dataclass
class ServiceWorld:
    """
    Two customers with a cluster each; the first one's key is `one`, the second's `two`.
    """

    jobs: JobWorld
    """Database, clock and provider."""
    api: JobApi
    """Services over HTTP."""
    driver: Driver
    """Of services."""
    customer: Customer
    """The usual one: two nodes of 8 GPUs."""
    other: Customer
    """Another tenant: one node."""

    @property
    def path(self) -> str:
        """
        The first customer's services.
        """
        return f"/v1/projects/{self.customer.project}/services"

    def body(self, name: str = "chat", **spec: Any) -> dict[str, Any]:
        """
        A service to start: two replicas with one GPU each.
        """
        template = {"image": "example.org/echo:1", "gpus_per_node": 1, **spec.pop("template", {})}
        return {"name": name, "spec": {"cluster_id": self.customer.cluster, "template": template, "replicas": 2, **spec}}

    def call(self, method: str, path: str, body: Any = None, key: str = "one", **headers: str) -> Any:
        """
        Status and body of an answer.
        """
        answer = self.api.call(key, method, path, body, **headers)
        return answer.status_code, answer.json()

    def start(self, body: dict[str, Any] | None = None) -> str:
        """
        The path of a service that was accepted.
        """
        status, made = self.call("POST", self.path, body or self.body())
        assert status == 202, made
        return f"{self.path}/{made['id']}"

    def get(self, path: str) -> Any:
        """
        What is there.
        """
        status, body = self.call("GET", path)
        assert status == 200, body
        return body

    def act(self, path: str, verb: str, body: Any = None) -> Any:
        """
        The service after a verb that was accepted.
        """
        status, made = self.call("POST", f"{path}/actions/{verb}", body)
        assert status == 202, made
        return made

    def once(self) -> int:
        """
        Everything that is due now was looked at once.
        """
        decided = self.driver.decide(100)
        return decided + self.driver.apply([self.driver.step(claim, self.jobs.tools) for claim in self.driver.claim(100)])

    def until(self, holds: Callable[[], object], *, within_s: float = 900.0) -> None:
        """
        Time goes on and everything due is done until the condition holds.
        """
        passed = 0.0
        while not holds():
            assert passed < within_s, f"not within {within_s} s"
            if not self.once():
                self.jobs.clock.advance(2.0)
                passed += 2.0

    def until_state(self, path: str, *states: str, within_s: float = 900.0) -> Any:
        """
        The service once it is in one of the states.
        """
        self.until(lambda: self.get(path)["status"]["state"] in states, within_s=within_s)
        return self.get(path)

    def rows(self, query: str, **given: Any) -> list[Any]:
        """
        What the database holds, past all walls.
        """
        with self.jobs.database.owner.begin() as connection:
            connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
            return list(connection.execute(text(query), given).all())


@contextmanager
def service_world(database: Database, folder: Path, *, sealer: Sealer | None = None) -> Iterator[ServiceWorld]:
    """
    The world with its first customer's cluster running; where a sealer is given, projects can keep secrets.
    """
    with job_world(database, folder, nodes=1) as world:
        customer = world.add_customer(world.spare_refs[:2], kind="kubernetes")
        other = world.add_customer(world.spare_refs[2:3], kind="kubernetes")
        kind = Kind(
            table=SERVICE_STATES,
            rows=cast("Table", ServiceRow.__table__),
            steps=STEPS,
            snapshots=driving.snapshots,
            apply=driving.apply,
            decisions={"pending": driving.admit},
            ends=driving.OPERATION_ENDS,
        )
        api = job_api(database.engine, None, router, sealer=sealer)
        if sealer is not None:
            world.tools.open_job_secret = lambda row, sealed: open_secret(sealer, row, sealed)
        api.keys.known["one"] = customer.principal(permissions=SERVICE_RIGHTS)
        api.keys.known["two"] = other.principal(permissions=SERVICE_RIGHTS)
        yield ServiceWorld(world, api, Driver(database.engine, kind, TEMPO), customer, other)
