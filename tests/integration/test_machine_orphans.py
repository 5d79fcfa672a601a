"""
Deployments that come back on machines that were given back, on a simulated region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.clusters import service as clusters
from controlplane.nodes.service import read_providers
from controlplane.nodes.states import ProviderRef
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.machines import Deployment, MachineView
from tests.conftest import Database
from tests.factories.world import World, make_world
from workers.sweeps import Suspects, check_providers

ROUND_S = 61.0


@dataclass
class Site:
    """
    A region from which tenants have gone, and one worker process that looks at it.
    """

    world: World
    """Everything in it."""
    suspects: Suspects = field(default_factory=dict)
    """What the worker remembers."""

    @property
    def sim(self) -> SimControl:
        """The hand that reaches into the provider."""
        return SimControl(self.world.region.world, now=self.world.clock)

    @property
    def provider(self) -> ProviderRef:
        """The one that all is about."""
        (row,) = self.world.rows("SELECT DISTINCT provider_id FROM allocations a JOIN nodes n ON n.id = a.node_id")
        found: ProviderRef = self.world.do(lambda s: read_providers(s, [row.provider_id]))[row.provider_id]
        return found

    def gone(self, count: int) -> list[tuple[str, str]]:
        """(machine, allocation) of a cluster that ran and is deleted; its nodes are free."""
        keys, owner = self.world.keys, self.world.tenant
        wanted = clusters.Order("gone", "slurm", keys.site, (clusters.SetOrder("workers", keys.instance_type, count),), wait=False)
        view, _ = self.world.do(lambda s: clusters.order_cluster(s, owner, keys.project_id, wanted))
        self.world.settle()
        self.world.do(lambda s: clusters.delete_cluster(s, owner, keys.project_id, view.row.id, lambda _: None))
        self.world.settle()
        rows = self.world.rows(
            "SELECT n.ref, a.id FROM allocations a JOIN nodes n ON n.id = a.node_id WHERE a.state = 'ended' ORDER BY 1"
        )
        return [(row.ref, row.id) for row in rows]

    def arrive(self, ref: str, token: str) -> None:
        """A deployment that was under way all the time reaches a provider that keeps no memory of what it ended."""
        self.sim.play("deletion_forgotten", "deploy")
        tenancy = Deployment(ref, token, str(self.world.tenant.tenant_id), "clu_late", f"net-{self.world.tenant.tenant_id}")
        self.world.tools.machines(self.provider).deploy(tenancy)

    def look(self, after_s: float = ROUND_S) -> None:
        """The next look of the worker at what its providers have."""
        self.world.clock.advance(after_s)
        assert check_providers(self.world.engine, self.world.tools, self.suspects) >= 1

    def machine(self, ref: str) -> MachineView:
        """What the provider has there."""
        return self.world.tools.machines(self.provider).observe(ref)

    def node(self, ref: str) -> str:
        """The state of the machine's node."""
        return str(self.world.rows("SELECT state FROM nodes WHERE ref = :ref", ref=ref)[0].state)

    def told(self) -> list[tuple[str, str, str | None]]:
        """What operators heard of deployments: verb, machine and reason."""
        rows = self.world.rows(
            "SELECT type, data->>'ref' AS ref, data->>'why' AS why FROM events WHERE type LIKE 'provider.%deploy%' ORDER BY xact, id"
        )
        return [(row.type.removeprefix("provider."), row.ref, row.why) for row in rows]

    def findings(self) -> list[tuple[str, str]]:
        """What stands at the provider of deployments: code and machine."""
        (row,) = self.world.rows("SELECT findings FROM providers WHERE id = :p", p=self.provider.id)
        found: list[dict[str, Any]] = row.findings
        return [(one["code"], one["ref"]) for one in found if one["code"].endswith("_deployment")]


@pytest.fixture
def site(database: Database, tmp_path: Path) -> Iterator[Site]:
    """
    A demo region on virtual time, all nodes free.
    """
    made = make_world(database, tmp_path)
    made.settle()
    yield Site(made)
    made.clock.stop()


def test_a_deployment_that_came_back_is_ended_and_its_node_put_aside(site: Site) -> None:
    """After two whole looks its node is out of use, and then its machine is detached and off; nothing is wiped by a guess."""
    (ref, token), *_ = site.gone(2)
    site.world.clock.advance(600)
    site.arrive(ref, token)
    wiped = site.world.rows("SELECT count(*) FROM wipes")
    site.look()
    assert (site.machine(ref).phase, site.node(ref)) == ("deployed", "available")
    assert site.findings() == [("orphan_deployment", ref)]
    site.sim.play("partial_list", "list_machines", params={"share": 0.9})
    site.look()
    assert (site.machine(ref).token, site.node(ref), site.told()) == (token, "available", [])
    site.sim.play("refuse_before_effect", "release")
    site.look()
    assert (site.machine(ref).phase in {"deploying", "deployed"}, site.node(ref)) == (True, "quarantined")
    site.look()
    site.world.clock.advance(600)
    assert (site.machine(ref).phase, site.machine(ref).power, site.machine(ref).network) == ("released", "off", None)
    site.look()
    assert (site.told(), site.findings()) == ([("deployment_reaped", ref, None)], [])
    assert site.world.rows("SELECT count(*) FROM wipes") == wiped
    moves = site.world.rows(
        "SELECT after FROM state_history h JOIN nodes n ON n.id = h.resource_id WHERE n.ref = :r ORDER BY h.id", r=ref
    )
    assert [one.after for one in moves][-2:] == ["available", "quarantined"]


def test_what_a_list_shows_that_is_not_there_any_more_costs_no_node(site: Site) -> None:
    """A list may be older than it says: the machine itself is looked at before anything is done to its node."""
    (ref, token), *_ = site.gone(1)
    site.world.clock.advance(600)
    site.arrive(ref, token)
    site.look()
    site.world.tools.machines(site.provider).release(ref, token, accepted_at=site.world.clock())
    site.sim.play("stale_read", "list_machines", params={"seconds": 30.0 + ROUND_S})
    site.look()
    assert (site.node(ref), site.told()) == ("available", [])


def test_what_no_row_speaks_of_young_and_too_many_stay(site: Site) -> None:
    """A deployment without an allocation, one on another machine than its own and four at once are left alone and told of, once."""
    gone = site.gone(6)
    for ref, token in gone[:4]:
        site.arrive(ref, token)
    site.arrive(gone[4][0], "alc_stranger")
    site.arrive(gone[5][0], gone[0][1])
    site.look()
    assert site.findings() == [("unknown_deployment", ref) for ref, _ in gone[4:]]
    site.world.clock.advance(600)
    for _ in range(3):
        site.look()
    assert {site.node(ref) for ref, _ in gone} == {"available"}
    assert {site.machine(ref).phase for ref, _ in gone} == {"deployed"}
    many = [("orphan_deployment", ref, "too_many") for ref, _ in gone[:4]]
    strange = [("orphan_deployment", ref, "unknown_deployment") for ref, _ in gone[4:]]
    assert sorted(site.told()) == sorted([*many, *strange])
    assert site.findings() == [
        *(("orphan_deployment", ref) for ref, _ in gone[:4]),
        *(("unknown_deployment", ref) for ref, _ in gone[4:]),
    ]


def test_nodes_that_somebody_is_at_are_left_to_them(site: Site) -> None:
    """A node with a person is not touched; a deployment that is wanted never is."""
    (ref, token), *_ = site.gone(1)
    site.world.clock.advance(600)
    site.arrive(ref, token)
    for state in ("quarantined", "maintenance"):
        site.world.do(lambda s, to=state: s.execute(text("UPDATE nodes SET state = :to WHERE ref = :ref"), {"to": to, "ref": ref}))
    for _ in range(3):
        site.look()
    assert (site.machine(ref).phase, site.node(ref)) == ("deployed", "maintenance")
    assert site.told() == [("orphan_deployment", ref, "node_not_free")]
    assert site.findings() == [("orphan_deployment", ref)]
