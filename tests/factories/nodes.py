"""
A little fleet for tests of what operators do: a simulated provider in one site, some of its machines, and everybody's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from controlplane.activity.routes import router as activity
from controlplane.catalog import service as catalog
from controlplane.clusters.routes import router as clusters
from controlplane.kit.ids import new_id
from controlplane.kit.outcome import Outcome
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service
from controlplane.nodes.routes import router as nodes
from controlplane.nodes.states import NODE_STATES, Expected, NodeSnapshot, ProviderRef
from controlplane.nodes.steps import STEPS
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.toolbox import Toolbox
from tests.factories.identity import Branch, Caller, Tree, make_tree, small_app, work

SITE = "ams1"
TYPE = "hgx-h100-8"
REFS = ("ams1-b1-l1-r1-n01", "ams1-b1-l1-r1-n02", "ams1-b1-l1-r1-n03")
MASTER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass
class Fleet:
    """
    One provider with three enrolled machines, and an application with the routes that look at them.
    """

    engine: Engine
    """The application role's."""
    tree: Tree
    """Everybody's keys."""
    app: FastAPI
    """Nodes, clusters and activity."""
    provider_id: str
    """`prv_…`."""
    node_ids: tuple[str, ...]
    """In the order of `REFS`."""
    sealer: Sealer
    """Of the application."""

    def call(self, key: str | None = None) -> Caller:
        """
        Calls with the key; the operator's when none is given.
        """
        return Caller(self.app, key or self.tree.operator_key)

    def do(self, job: Callable[[Session], Any]) -> Any:
        """
        What the job returned, in one committed transaction that sees everything.
        """
        return work(self.engine, job)

    def sql(self, statement: str, **given: Any) -> None:
        """
        The statement has taken effect.
        """
        self.do(lambda session: session.execute(text(statement), given))

    def one(self, query: str, **given: Any) -> Any:
        """
        The one value that the query finds.
        """
        return self.do(lambda session: session.execute(text(query), given).scalar_one())

    def put(self, state: str, *, node: int = 0, **columns: Any) -> str:
        """
        The node came to the state by lawful moves, with a verified wipe on the way; its id is returned.
        """
        node_id = self.node_ids[node]
        assignments = "".join(f", {name} = :{name}" for name in columns)
        move = text("UPDATE nodes SET state = :state, due_at = NULL, deadline_at = NULL WHERE id = :id")
        wipe = text("INSERT INTO wipes (id, node_id, verified) VALUES (:wipe, :id, true)")
        with self.engine.begin() as connection:
            before = connection.execute(text("SELECT state FROM nodes WHERE id = :id"), {"id": node_id}).scalar_one()
            for after in path_between(before, state):
                if after == "available":
                    connection.execute(wipe, {"wipe": new_id("wip"), "id": node_id})
                connection.execute(move, {"state": after, "id": node_id})
            connection.execute(text(f"UPDATE nodes SET id = id{assignments} WHERE id = :id"), {"id": node_id, **columns})
        return node_id


def path_between(before: str, after: str) -> list[str]:
    """
    The states on a shortest lawful way of a node, without the first.
    """
    ways: dict[str, list[str]] = {before: []}
    todo = [before]
    while after not in ways:
        state = todo.pop(0)
        for following in sorted(NODE_STATES.by_name[state].moves - set(ways)):
            ways[following] = [*ways[state], following]
            todo.append(following)
    return ways[after]


def make_fleet(database: Any, folder: Path) -> Fleet:
    """
    The fleet, its people and the application.
    """
    tree = make_tree(database.engine)
    sealer = Sealer.from_base64(MASTER_KEY)

    def ground(session: Session) -> tuple[str, tuple[str, ...]]:
        catalog.load_catalog(session)
        catalog.ensure_site(session, SITE, "sim-eu")
        row = service.register_provider(session, new_provider(folder))
        ids = service.enroll(session, row.id, SITE, [new_node(ref) for ref in REFS])
        return row.id, tuple(ids)

    provider_id, ids = work(database.engine, ground)
    app = small_app(database.engine, nodes)
    app.state.edge = replace(app.state.edge, sealer=sealer)
    app.include_router(clusters)
    app.include_router(activity)
    return Fleet(database.engine, tree, app, provider_id, ids, sealer)


def new_provider(folder: Path, **changes: Any) -> service.NewProvider:
    """
    A simulated provider, not asked yet.
    """
    made = service.NewProvider(
        name="sim-ams1",
        adapter="simulated",
        site=SITE,
        config={"path": str(folder / "region.sqlite"), "fleet": "demo"},
        sealed=None,
        capabilities={},
        shared=True,
        provider_id=changes.pop("provider_id", "prv_test"),
    )
    return replace(made, **changes)


def new_node(ref: str, **changes: Any) -> service.NewNode:
    """
    A machine of the provider.
    """
    return replace(service.NewNode(ref, "b1", "b1-l1", "b1-r1", None, TYPE, 8), **changes)


def hold_for(fleet: Fleet, branch: Branch, node: int = 0) -> str:
    """
    The tenant holds the node for a cluster; the allocation's id is returned.
    """
    allocation = f"alc_{node}"
    fleet.sql(
        "INSERT INTO allocations (id, instance_id, node_id, tenant_id, reseller_id, project_id, cluster_id, node_set_id,"
        " instance_type, site, gpus, state, network, during, charged) VALUES (:id, :instance, :node, :tenant, :reseller, :project,"
        " 'clu_x', 'nds_x', :type, :site, 8, 'active', 'net', tstzrange(cp_clock(), NULL, '[)'), false)",
        id=allocation,
        instance=f"ins_{node}",
        node=fleet.node_ids[node],
        tenant=branch.tenant_id,
        reseller=branch.reseller_id,
        project=branch.project_id,
        type=TYPE,
        site=SITE,
    )
    fleet.sql("UPDATE nodes SET allocation_id = :a WHERE id = :n", a=allocation, n=fleet.node_ids[node])
    return allocation


@dataclass
class StepGround:
    """
    What a step of the first machine works on: a simulated provider on a clock that the test moves.
    """

    provider: ProviderRef
    """The provider."""
    tools: Toolbox
    """How steps reach it."""
    sim: SimControl
    """The hand that reaches into it."""
    clock: list[datetime]
    """Its one entry is the time."""

    def later(self, seconds: float) -> None:
        """
        Time has passed.
        """
        self.clock[0] += timedelta(seconds=seconds)

    def snapshot(self, state: str, **changes: Any) -> NodeSnapshot:
        """
        What a step of the first machine gets.
        """
        made = NodeSnapshot(
            id="nod_1",
            state=state,
            step="",
            ref=REFS[0],
            provider=self.provider,
            expected=Expected("H100-SXM5-80GB", 8, 2048),
            task_id="tsk_1",
        )
        return replace(made, **changes)

    def run(self, state: str, **changes: Any) -> Outcome:
        """
        What the state's step says.
        """
        return STEPS[state](self.snapshot(state, **changes), self.tools)


@contextmanager
def step_ground(folder: Path, **config: Any) -> Iterator[StepGround]:
    """
    A ground of its own.
    """
    path = folder / "region.sqlite"
    clock = [NOW]
    provider = ProviderRef("prv_test", "simulated", {"path": str(path), "fleet": "demo", **config}, None, 1)
    tools = Toolbox(deployment="test", now=lambda: clock[0], open_secrets=lambda _id, _sealed: {})
    tools.adapter(provider)
    sim = SimControl(path, now=lambda: clock[0])
    try:
        yield StepGround(provider, tools, sim, clock)
    finally:
        sim.close()
        tools.adapter(provider).close()
