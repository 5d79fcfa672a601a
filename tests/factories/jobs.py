"""
A world for jobs: a tenant with a Slurm cluster in the database, the same cluster at a simulated provider, and a driver.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy import Engine, Table, text
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Receive, Scope, Send

from controlplane.jobs import service
from controlplane.jobs.models import JobRow
from controlplane.jobs.routes import router
from controlplane.jobs.schemas import JobCreate
from controlplane.jobs.states import JOB_STATES
from controlplane.jobs.steps import STEPS
from controlplane.kit.access import Principal
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.errors import Unauthenticated
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import Claim, Driver, Kind, Result, Tempo
from controlplane.kit.secrets import Sealer
from controlplane.nodes.states import ProviderRef
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.toolbox import Toolbox
from controlplane.web.endpoint import Edge, refuse_malformed
from controlplane.web.streams import StreamTempo
from tests.conftest import Database, VirtualClock

JOB_RIGHTS = frozenset({"jobs:read", "jobs:create", "jobs:delete", "jobs:logs"})
SCRIPT = "#!/bin/bash\nsrun bash -c 'echo rank $SLURM_PROCID gpus $CUDA_VISIBLE_DEVICES'\n"
TEMPO = Tempo()
SITE = "ams1"

GROUND = (
    "INSERT INTO sites (name, region) VALUES (:site, 'sim-eu') ON CONFLICT DO NOTHING",
    (
        "INSERT INTO gpu_models (name, vendor, memory_gib, memory_bandwidth_gb_s, tflops, tdp_w, source)"
        " VALUES ('H100-SXM5-80GB', 'NVIDIA', 80, 3350, '{}', 700, 'data sheet') ON CONFLICT DO NOTHING"
    ),
    (
        "INSERT INTO instance_types (name, gpu_model, gpus, cpus, memory_gib, nics, nic_gbit_s, nvme_gib, power_kw)"
        " VALUES ('hgx-h100-8', 'H100-SXM5-80GB', 8, 192, 2048, 8, 400, 28800, 10.2) ON CONFLICT DO NOTHING"
    ),
    "INSERT INTO resellers (id, name, is_platform) VALUES (:reseller, 'platform', true) ON CONFLICT DO NOTHING",
    (
        "INSERT INTO providers (id, name, adapter, site, config) VALUES (:provider, :provider, 'simulated', :site, CAST(:config AS jsonb))"
        " ON CONFLICT DO NOTHING"
    ),
)
CUSTOMER = (
    "INSERT INTO tenants (id, reseller_id, name) VALUES (:tenant, :reseller, :tenant)",
    "INSERT INTO projects (id, tenant_id, name) VALUES (:project, :tenant, 'research')",
)
CLUSTER = (
    (
        "INSERT INTO clusters (id, tenant_id, reseller_id, project_id, name, kind, site, spec, provider_id, provider_user, state, due_at)"
        " VALUES (:cluster, :tenant, :reseller, :project, :cluster, :kind, :site, '{}', :provider, :user, :state, NULL)"
    ),
    (
        "INSERT INTO node_sets (id, cluster_id, tenant_id, name, instance_type, count, gpus, gpu_model, unplaced)"
        " VALUES (:node_set, :cluster, :tenant, 'workers', 'hgx-h100-8', :count, 8, 'H100-SXM5-80GB', 0)"
    ),
)
MEMBER = (
    (
        "INSERT INTO nodes (id, provider_id, ref, site, block, leaf, rack, instance_type, gpus, allocation_id, state, due_at)"
        " VALUES (:node, :provider, :ref, :site, 'b', 'l', 'r', 'hgx-h100-8', 8, :allocation, 'active', NULL)"
    ),
    (
        "INSERT INTO allocations (id, instance_id, node_id, tenant_id, reseller_id, project_id, cluster_id, node_set_id, instance_type,"
        " site, gpus, state, network, during) VALUES (:allocation, :instance, :node, :tenant, :reseller, :project, :cluster, :node_set,"
        " 'hgx-h100-8', :site, 8, 'active', 'net', tstzrange(cp_clock(), NULL, '[)'))"
    ),
)


@dataclass
class Customer:
    """
    A tenant with one project and one cluster.
    """

    tenant: str
    """Its id."""
    project: str
    """Its project."""
    cluster: str
    """Its cluster."""
    user: str
    """The account at the provider."""
    instances: dict[str, str] = field(default_factory=dict)
    """Member ref to instance id."""

    def principal(self, *, permissions: frozenset[str] = JOB_RIGHTS, project: bool = False) -> Principal:
        """
        A key of the tenant, or of its project.
        """
        return Principal(
            id=f"prn_{self.tenant}",
            key_id=f"key_{self.tenant}",
            scope_kind="project" if project else "tenant",
            scope_id=self.project if project else self.tenant,
            permissions=permissions,
            reseller_id="rsl_1",
            tenant_id=self.tenant,
            project_id=self.project if project else "",
        )


@dataclass
class JobWorld:
    """
    Database, clock, provider and driver of one test.
    """

    database: Database
    """Emptied."""
    clock: VirtualClock
    """The database's and the provider's."""
    provider: ProviderRef
    """The simulated one."""
    tools: Toolbox
    """Steps reach it by this."""
    sim: SimControl
    """The hand that reaches into it."""
    driver: Driver
    """Of jobs."""
    spare_refs: tuple[str, ...] = ()
    """Machines of the site that no customer has."""
    customers: list[Customer] = field(default_factory=list)
    """The first one is the usual one."""

    @property
    def customer(self) -> Customer:
        """
        The usual one.
        """
        return self.customers[0]

    def now(self) -> datetime:
        """
        The one clock.
        """
        return cast("datetime", self.clock.now())

    def add_customer(
        self, refs: Sequence[str], *, state: str = "running", kind: str = "slurm", count: int | None = None
    ) -> Customer:
        """
        A tenant whose cluster has these machines, in the database and at the provider.
        """
        number = len(self.customers) + 1
        one = Customer(new_id("ten"), new_id("prj"), new_id("clu"), f"user{number}")
        self.customers.append(one)
        self._insert(CUSTOMER, self._given(one))
        self.add_cluster(one, refs, state=state, kind=kind, count=count)
        return one

    def add_cluster(
        self, one: Customer, refs: Sequence[str], *, state: str = "running", kind: str = "slurm", count: int | None = None
    ) -> str:
        """
        A cluster of the customer has these machines, in the database and at the provider: its usual one, or another where it has that.
        """
        cluster_id = new_id("clu") if one.instances else one.cluster
        node_set = {"cluster": cluster_id, "node_set": new_id("nds"), "kind": kind, "state": state, "count": count or len(refs)}
        given = self._given(one) | node_set
        self._insert(CLUSTER, given)
        members = []
        for ref in refs:
            more = {"ref": ref, "node": new_id("nod"), "allocation": new_id("alc"), "instance": new_id("ins")}
            one.instances[ref] = more["instance"]
            members.append(Member(ref, 8, more["allocation"]))
            self._insert(MEMBER, given | more)
        if members:
            spec = ClusterSpec(cluster_id, one.tenant, one.project, one.user, tuple(members))
            self.tools.clusters(self.provider).apply_cluster(spec)
        return cluster_id

    def _insert(self, statements: Sequence[str], given: dict[str, Any]) -> None:
        with self.database.owner.begin() as connection:
            connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
            for statement in statements:
                connection.execute(text(statement), given)

    def _given(self, one: Customer) -> dict[str, Any]:
        return {
            "site": SITE,
            "reseller": "rsl_1",
            "provider": self.provider.id,
            "config": json.dumps(self.provider.config),
            "tenant": one.tenant,
            "project": one.project,
            "cluster": one.cluster,
            "user": one.user,
        }

    def set_cluster_state(self, state: str, one: Customer | None = None) -> None:
        """
        The cluster's row is in the state, however it came there.
        """
        with self.database.owner.begin() as connection:
            connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(
                text("UPDATE clusters SET state = :state WHERE id = :id"), {"state": state, "id": (one or self.customer).cluster}
            )

    def order(self, script: str | None = SCRIPT, *, customer: Customer | None = None, name: str = "train", **spec: Any) -> str:
        """
        A job of the customer is queued; its id is returned.
        """
        one = customer or self.customer
        body = JobCreate(name=name, spec={"cluster_id": one.cluster, "script": script, **spec})  # type: ignore[arg-type]

        def work(session: Session) -> str:
            return service.create_job(session, one.principal(), one.project, body.order()).id

        return in_transaction(self.database.engine, one.principal().wall, work)

    def cancel(self, job_id: str) -> None:
        """
        The customer has asked for the job to stop.
        """
        one = self.customer
        in_transaction(
            self.database.engine,
            one.principal().wall,
            lambda session: service.cancel_job(session, one.principal(), one.project, job_id),
        )

    def job(self, job_id: str) -> JobRow:
        """
        The row now.
        """
        return in_transaction(self.database.engine, EVERYTHING, lambda session: session.get_one(JobRow, job_id))

    def output(self, job_id: str, attempt: int | None = None) -> str:
        """
        All that is stored of what an attempt printed.
        """
        row = self.job(job_id)
        given = {"id": job_id, "attempt": attempt or row.attempt}
        query = text("SELECT data FROM job_logs WHERE job_id = :id AND attempt = :attempt ORDER BY byte_offset")
        pieces = in_transaction(self.database.engine, EVERYTHING, lambda session: session.execute(query, given).scalars().all())
        return b"".join(bytes(one) for one in pieces).decode()

    def history(self, job_id: str) -> list[str]:
        """
        The states the job came to, in order.
        """
        return self._column("SELECT after FROM state_history WHERE resource_id = :id ORDER BY id", job_id)

    def events(self, job_id: str) -> list[str]:
        """
        Types of its events, in order.
        """
        return self._column("SELECT type FROM events WHERE resource_id = :id ORDER BY id", job_id)

    def _column(self, query: str, job_id: str) -> list[str]:
        def work(session: Session) -> list[str]:
            return list(session.execute(text(query), {"id": job_id}).scalars())

        return in_transaction(self.database.engine, EVERYTHING, work)

    def submissions(self) -> list[tuple[str, int]]:
        """
        (token, how often it exists) of everything that was ever submitted to the provider.
        """
        jobs = [one for customer in self.customers for one in self.tools.jobs(self.provider).list_jobs(customer.cluster)]
        tokens = [one.token for one in jobs]
        return sorted((token, tokens.count(token)) for token in set(tokens))

    def take(self) -> Claim:
        """
        The one due row, claimed.
        """
        (claim,) = self.driver.claim(10)
        return claim

    def step(self, claim: Claim) -> Result:
        """
        What the claim's step says.
        """
        return self.driver.step(claim, self.tools)

    def once(self) -> int:
        """
        Everything that is due now was looked at once; the number of rows is returned.
        """
        decided = self.driver.decide(100)
        return decided + self.driver.apply([self.driver.step(claim, self.tools) for claim in self.driver.claim(100)])

    def settle(self, *, most: int = 400) -> None:
        """
        Nothing is due any more at this instant.
        """
        for _ in range(most):
            if not self.once():
                return
        raise AssertionError("it never comes to rest")

    def until(self, holds: Callable[[], bool], *, within_s: float = 600.0, every_s: float = 2.0) -> None:
        """
        Time goes on and everything due is done until the condition holds.
        """
        passed_s = 0.0
        self.settle()
        while not holds():
            assert passed_s < within_s, f"not within {within_s} s"
            self.clock.advance(every_s)
            passed_s += every_s
            self.settle()

    def until_state(self, job_id: str, *states: str, within_s: float = 600.0) -> JobRow:
        """
        Time goes on until the job is in one of the states.
        """
        self.until(lambda: self.job(job_id).state in states, within_s=within_s)
        return self.job(job_id)

    def pass_lease(self) -> None:
        """
        Every present claim has lapsed and may be taken over.
        """
        self.clock.advance(TEMPO.lease_s + TEMPO.grace_s + 1)


@contextmanager
def job_world(database: Database, folder: Path, *, nodes: int = 4, **config: Any) -> Iterator[JobWorld]:
    """
    A world whose first customer has a running cluster of so many nodes.
    """
    clock = database.virtual_clock()
    path = folder / "sim.db"
    settings = {"path": str(path), "fleet": "demo", "members_need_deployment": False, **config}
    provider = ProviderRef("prv_sim", "simulated", settings, None, 1)
    tools = Toolbox(deployment="test", now=lambda: cast("datetime", clock.now()), open_secrets=lambda _id, _sealed: {})
    refs = [one.ref for one in tools.machines(provider).list_machines().machines][: nodes + 8]
    sim = SimControl(path, now=lambda: cast("datetime", clock.now()))
    kind = Kind(
        table=JOB_STATES,
        rows=cast("Table", JobRow.__table__),
        steps=STEPS,
        snapshots=service.snapshots,
        apply=service.apply,
        decisions={"queued": service.admit},
    )
    world = JobWorld(database, clock, provider, tools, sim, Driver(database.engine, kind, TEMPO), tuple(refs[nodes:]))
    try:
        with database.owner.begin() as connection:
            connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
            for statement in GROUND:
                connection.execute(
                    text(statement),
                    {"site": SITE, "reseller": "rsl_1", "provider": provider.id, "config": json.dumps(provider.config)},
                )
        world.add_customer(refs[:nodes])
        yield world
    finally:
        sim.close()
        tools.adapter(provider).close()
        clock.stop()


class Keys:
    """
    An authenticator over principals that a test hands out and takes back.
    """

    def __init__(self) -> None:
        self.known: dict[str, Principal] = {}

    def authenticate(
        self, authorization: str | None, client: IPv4Address | IPv6Address | None, *, reseller_id: str | None = None
    ) -> Principal:
        """The port's."""
        del client
        principal = self.known.get((authorization or "").removeprefix("Bearer "))
        if principal is None or (reseller_id is not None and principal.reseller_id != reseller_id):
            raise Unauthenticated("Send a valid API key.")
        return principal


@dataclass
class JobApi:
    """
    The jobs room over HTTP.
    """

    app: ASGIApp
    """Serves its routes, and those of routers that a test adds."""
    keys: Keys
    """Who may call."""
    nudges: list[tuple[str, str]]
    """What workers were told."""

    def call(self, key: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """
        The answer to one request.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                sent = None if body is None else json.dumps(body).encode()
                kind = {} if body is None else {"Content-Type": "application/json"}
                return await client.request(method, path, content=sent, headers={"Authorization": f"Bearer {key}", **kind, **named})

        return asyncio.run(ask())


def job_api(engine: Engine, tempo: StreamTempo | None = None, *routers: APIRouter, sealer: Sealer | None = None) -> JobApi:
    """
    An application that serves jobs as the real one does, as far as the edge goes.
    """
    app, keys, nudges = FastAPI(), Keys(), list[tuple[str, str]]()
    app.state.edge = Edge(engine, keys, nudges.extend, sealer=sealer)
    app.state.stream_tempo = tempo or StreamTempo(poll_s=0.01, recheck_s=0.05)
    app.add_exception_handler(RequestValidationError, cast("Any", refuse_malformed))
    for one in (router, *routers):
        app.include_router(one)
    limiter = SimpleNamespace(check_key=lambda _principal, *, cheap: None)

    async def edge(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"request_id": "req_test", "client": ip_address("192.0.2.7"), "limiter": limiter, "body": b""}
        await app(scope, receive, send)

    return JobApi(edge, keys, nudges)
