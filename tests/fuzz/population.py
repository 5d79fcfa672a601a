"""
A small cloud that is lived in, and the ids that random requests may name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.clusters import service as clusters
from controlplane.identity import service as identity
from controlplane.images.keeping import verify
from controlplane.images.store import LocalImageStore
from controlplane.jobs import checkpointing
from controlplane.jobs import service as jobs
from controlplane.jobs.ordering import JobOrder
from controlplane.jobs.states import NewCheckpoint
from controlplane.kit.access import Principal
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.kit.errors import Unauthenticated
from controlplane.services import service as services
from controlplane.services.schemas import Template
from tests.conftest import Database
from tests.factories.images import content_of, filled_image
from tests.factories.world import World, make_world

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
JOB = {
    "nodes": 1,
    "gpus_per_node": 8,
    "tasks_per_node": 1,
    "script": "#!/bin/bash\necho done\n",
    "env": {},
    "time_limit_s": 60,
    "restart": {"max_restarts": 0},
}
SAVED = NewCheckpoint(1, "full", "/data/1", None)
IDS = {
    "project_id": "SELECT id FROM projects",
    "cluster_id": "SELECT id FROM clusters",
    "job_id": "SELECT id FROM jobs",
    "array_id": "SELECT id FROM job_arrays",
    "service_id": "SELECT id FROM services",
    "checkpoint_id": "SELECT id FROM checkpoints",
    "check_id": "SELECT id FROM fabric_checks",
    "node_id": "SELECT id FROM nodes",
    "provider_id": "SELECT id FROM providers",
    "operation_id": "SELECT id FROM operations",
    "resource_id": "SELECT id FROM clusters UNION ALL SELECT id FROM nodes UNION ALL SELECT id FROM jobs",
    "tenant_id": "SELECT id FROM tenants",
    "reseller_id": "SELECT id FROM resellers",
    "scope_id": "SELECT id FROM tenants UNION ALL SELECT id FROM resellers UNION ALL SELECT id FROM projects",
    "image_id": "SELECT id FROM images WHERE state <> 'deleted'",
    "key_id": "SELECT id FROM api_keys",
    "member_id": "SELECT id FROM principals",
    "hold_id": "SELECT id FROM node_holds",
    "freeze_id": "SELECT id FROM automation_freezes",
    "instance_id": "SELECT instance_id FROM allocations",
    "boot_id": "SELECT id FROM boots",
    "name": "SELECT name FROM sites UNION ALL SELECT name FROM instance_types",
}


@dataclass
class Population:
    """
    Who is there and what exists.
    """

    world: World
    """The cloud."""
    keys: dict[str, str]
    """Key texts by audience."""
    kept: frozenset[str]
    """What must go on existing, so that the keys go on working."""
    ids: dict[str, list[str]] = field(default_factory=dict)
    """Known ids by the name of the path parameter."""

    def look(self) -> None:
        """
        The ids are those that exist now.
        """
        with Session(self.world.engine) as session:
            raise_wall(session, EVERYTHING)
            for name, sql in IDS.items():
                self.ids[name] = sorted(str(one) for one in session.execute(text(sql)).scalars())

    def pick(self, name: str, chance: random.Random, *, harmless: bool) -> str | None:
        """
        Some id that exists; of those that must go on existing only for what is harmless.
        """
        known = [one for one in self.ids.get(name, ()) if harmless or one not in self.kept]
        return chance.choice(known) if known else None

    def works(self) -> bool:
        """
        Whether every key is still what it was.
        """
        authenticator = identity.KeyAuthenticator(self.world.engine, cache_s=0)
        try:
            return not any(authenticator.authenticate(f"Bearer {key}", None).suspended for key in self.keys.values())
        except Unauthenticated:
            return False


def populate(database: Database, folder: Path) -> Population:
    """
    Two tenants with clusters, jobs, services, images, keys and members, and a reseller with a tenant of its own, on six nodes.
    """
    world = make_world(database, folder, fleet=str(FLEET), virtual=False)
    keys = {"operator": world.keys.operator_key, "reseller": world.keys.reseller_key, "tenant": world.keys.tenant_key}
    authenticator = identity.KeyAuthenticator(database.engine)
    seller = authenticator.authenticate(f"Bearer {keys['reseller']}", None)
    store = LocalImageStore(folder / "images")
    _work(world)
    for number, (tenant, project) in enumerate(world.people):
        sets = (clusters.SetOrder("workers", world.keys.instance_type, 1),)
        order = clusters.Order(f"c{number}", "slurm", world.keys.site, sets, wait=False)
        view, _ = world.do(lambda s, t=tenant, p=project, o=order: clusters.order_cluster(s, t, p, o))
        _work(world)
        spec = {**JOB, "cluster_id": view.row.id}
        job = JobOrder(f"j{number}", {}, view.row.id, 1, 8, spec)
        row = world.do(lambda s, t=tenant, p=project, j=job: jobs.create_job(s, t, p, j))
        world.do(lambda s, t=tenant, p=project, j=row.id: checkpointing.register(s, t, p, j, SAVED))
        filled_image(database.engine, store, tenant, content_of(1000), f"i{number}")
        _serve(world, tenant, project, number)
    verify(database.engine, store)
    _work(world)
    customer = world.do(lambda s: identity.create_tenant(s, seller, identity.Described("customer"), limits={"gpus": 8}))
    world.do(lambda s: identity.create_owner(s, seller, customer.id, name="Cy", email="cy@customer.example"))
    kept = {world.keys.tenant_id, world.keys.project_id}
    for key in keys.values():
        one = authenticator.authenticate(f"Bearer {key}", None)
        kept |= {one.id, one.key_id, one.reseller_id, one.scope_id}
    made = Population(world, keys, frozenset(kept - {""}))
    made.look()
    return made


def _serve(world: World, tenant: Principal, project: str, number: int) -> None:
    """
    A service on a cluster of its own. The simulated region makes no Kubernetes, so one of another kind is given out as one.
    """
    order = clusters.Order(
        f"k{number}", "slurm", world.keys.site, (clusters.SetOrder("workers", world.keys.instance_type, 1),), wait=False
    )
    view, _ = world.do(lambda s: clusters.order_cluster(s, tenant, project, order))
    _work(world)
    world.do(lambda s: s.execute(text("UPDATE clusters SET kind = 'kubernetes' WHERE id = :id"), {"id": view.row.id}))
    template = Template(image="example.org/echo:1", port=8000).document()
    rollout = {"surge": 0, "unavailable": 1, "timeout_s": 3600}
    new = services.ServiceOrder(f"s{number}", {}, view.row.id, 1, None, rollout, template)
    world.do(lambda s: services.create_service(s, tenant, project, new))


def _work(world: World) -> None:
    for _ in range(60):
        if not world.tick():
            return
