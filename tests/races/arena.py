"""
Two API servers and two workers over one database, and a cloud under them that can be made anew while they run.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from controlplane.providers.adapters.simulated import judge
from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import Database
from tests.factories.processes import Processes, until
from tests.factories.world import World, make_world

FLEET = """
fleet: arena
region: test
templates:
  h100:
    instance_type: hgx-h100-8
    gpu_model: H100-SXM5-80GB
    gpus: 8
    memory_gib: 2048
    cpus: 192
    nvme_gib: 28800
    fabric_ports: 8
    power_w: 10200
    nvlink_domain: node
    firmware: {bios: "2.4.1", bmc: "1.18.3"}
sites:
  - name: one
    blocks:
      - {template: h100, leaves: LEAVES, racks_per_leaf: 1, nodes_per_rack: NODES}
"""
TYPE = "hgx-h100-8"
SITE = "one"
LANES = 24
MOVING = ("pending", "placing", "provisioning", "bootstrapping", "verifying", "updating", "deleting")


@dataclass
class Tenant:
    """
    A customer.
    """

    id: str
    """`ten_…`."""
    key: str
    """Its owner's key."""
    project_id: str
    """Its project."""


@dataclass
class Arena:
    """
    What one race is run on.
    """

    running: Processes
    """API servers and workers."""
    database: Database
    """Their database."""
    world: World
    """The cloud, as made."""
    clients: dict[tuple[str, int], httpx.Client] = field(default_factory=dict)
    """By key and API server."""
    turn: Any = field(default_factory=itertools.count)
    """Whose turn it is."""
    lock: Any = field(default_factory=threading.Lock)
    """Held while clients are made."""

    @property
    def tenant(self) -> Tenant:
        """
        The demo tenant.
        """
        keys = self.world.keys
        return Tenant(keys.tenant_id, keys.tenant_key, keys.project_id)

    def client(self, key: str, api: int) -> httpx.Client:
        """
        The key's client at one of the API servers.
        """
        with self.lock:
            if (key, api) not in self.clients:
                self.clients[key, api] = self.running.apis[api].client(key)
            return self.clients[key, api]

    def ask(self, key: str, method: str, path: str, body: Any = None, *, api: int | None = None, **headers: str) -> httpx.Response:
        """
        The answer of one of the API servers, in turn.
        """
        number = next(self.turn) % len(self.running.apis) if api is None else api
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client(key, number).request(method, path, json=body, headers=names)

    def order(self, who: Tenant, name: str, *, nodes: int = 1, wait: bool = False, **more: Any) -> httpx.Response:
        """
        The answer to an order for a cluster.
        """
        return self.ask(who.key, "POST", f"/v1/projects/{who.project_id}/clusters", cluster_body(name, nodes, wait=wait), **more)

    def delete(self, who: Tenant, cluster_id: str) -> httpx.Response:
        """
        The answer to a delete.
        """
        return self.ask(who.key, "DELETE", f"/v1/projects/{who.project_id}/clusters/{cluster_id}", If_Match="*")

    def limit(self, scope_id: str, **limits: int | None) -> None:
        """
        The scope has these limits and no others.
        """
        path = f"/v1/admin/quotas/{scope_id}"
        operator = self.world.keys.operator_key
        shown = self.ask(operator, "GET", path)
        body = {"limits": [{"resource": name, "gpu_model": "", "site": "", "limit": limit} for name, limit in limits.items()]}
        changed = self.ask(operator, "PUT", path, body, If_Match=shown.headers["etag"])
        assert changed.status_code == 200, changed.text

    def new_reseller(self, name: str, *, domains: Sequence[str] = ()) -> tuple[str, str]:
        """
        Id and key of a reseller without limits of its own.
        """
        brand = {"name": name.title(), "logo_url": "", "colour": "#0a7cff", "support_email": f"help@{name}.example"}
        body = {"name": name, "brand": brand, "domains": list(domains), "admin": {"name": "Ann", "email": f"ann@{name}.example"}}
        made = self.ask(self.world.keys.operator_key, "POST", "/v1/admin/resellers", body)
        assert made.status_code == 201, made.text
        return made.json()["id"], made.json()["admin"]["key"]["key"]

    def new_tenant(self, name: str, *, seller_key: str = "", clusters: int | None = 100_000) -> Tenant:
        """
        A customer of the reseller, or of the platform, with a project and wide limits.
        """
        limits = {"gpus": 100_000, "clusters": clusters, "keys": 100, "operations": 100_000}
        body = {"name": name, "limits": limits, "owner": {"name": "Ola", "email": f"ola@{name}.example"}}
        place = "/v1/reseller/tenants" if seller_key else "/v1/admin/tenants"
        made = self.ask(seller_key or self.world.keys.operator_key, "POST", place, body)
        assert made.status_code == 201, made.text
        key = made.json()["owner"]["key"]["key"]
        project = self.ask(key, "POST", "/v1/projects", {"name": "main"})
        assert project.status_code == 201, project.text
        return Tenant(made.json()["id"], key, project.json()["id"])

    def settled(self, *, within_s: float = 120.0) -> None:
        """
        No cluster is moving any more.
        """
        until(lambda: not self._count_in("clusters", MOVING), "clusters come to rest", within_s=within_s)

    def idle(self, *, within_s: float = 120.0) -> None:
        """
        Every node can be had again.
        """
        self.settled(within_s=within_s)
        whole = self.world.rows("SELECT count(*) AS n FROM nodes")[0].n
        until(lambda: self._count_in("nodes", ("available",)) == whole, "nodes come back", within_s=within_s)

    def states(self) -> Counter[str]:
        """
        How many clusters are in each state.
        """
        return Counter({row.state: row.n for row in self.world.rows("SELECT state, count(*) AS n FROM clusters GROUP BY 1")})

    def allocations(self) -> int:
        """
        How many nodes are held.
        """
        return int(self.world.rows("SELECT count(*) AS n FROM allocations WHERE state <> 'ended'")[0].n)

    def ledger(self) -> Any:
        """
        The simulator's own book.
        """
        control = SimControl(self.world.region.world)
        try:
            return control.ledger()
        finally:
            control.close()

    def findings(self) -> list[str]:
        """
        What the simulator's ledger says was broken.
        """
        return [f"{one.promise} {one.subject}: {one.words}" for one in judge.all_findings(self.ledger())]

    def close(self) -> None:
        """
        No client is left.
        """
        for client in self.clients.values():
            client.close()
        self.clients.clear()

    def _count_in(self, table: str, states: Sequence[str]) -> int:
        rows = self.world.rows(f"SELECT count(*) AS n FROM {table} WHERE state = ANY(:states)", states=list(states))
        return int(rows[0].n)


def cluster_body(name: str, nodes: int = 1, *, wait: bool = False) -> dict[str, Any]:
    """
    An order.
    """
    sets = [{"name": "workers", "instance_type": TYPE, "count": nodes}]
    return {"name": name, "labels": {}, "spec": {"kind": "slurm", "site": SITE, "node_sets": sets, "wait": wait}}


def write_fleet(folder: Path, nodes: int) -> Path:
    """
    A fleet file with so many nodes in one site.
    """
    leaves = max(1, nodes // 8)
    path = folder / f"fleet-{nodes}.yaml"
    path.write_text(FLEET.replace("LEAVES", str(leaves)).replace("NODES", str(nodes // leaves)), encoding="utf-8")
    return path


def make_arena(running: Processes, database: Database, folder: Path, nodes: int, *, profile: str = "instant") -> Arena:
    """
    A new cloud of free nodes under the running processes, and a tenant with wide limits.
    """
    _reset(database)
    world = make_world(database, folder, fleet=str(write_fleet(folder, nodes)), profile=profile, virtual=False)
    arena = Arena(running, database, world)
    arena.idle()
    wide: dict[str, int | None] = {"gpus": 100_000, "clusters": 100_000, "operations": 100_000, "keys": 100}
    for scope in (world.keys.tenant_id, *{row.id for row in world.rows("SELECT id FROM resellers")}):
        arena.limit(scope, **wide)
    return arena


def _reset(database: Database) -> None:
    def emptied() -> bool:
        try:
            database.reset()
        except OperationalError:  # a worker was in the way
            return False
        return True

    until(emptied, "the database is empty", within_s=30)


def all_at_once(count: int, work: Callable[[int], Any], *, lanes: int = LANES) -> list[Any]:
    """
    What the work answered for 0 to count - 1, done by many threads at once.
    """
    with ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(work, range(count)))


def connections_of(database: Database) -> int:
    """
    How many connections the application's role has.
    """
    with database.owner.connect() as connection:
        sql = text("SELECT count(*) FROM pg_stat_activity WHERE usename = :role")
        return int(connection.execute(sql, {"role": database.role}).scalar_one())
