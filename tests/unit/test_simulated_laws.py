"""
Laws of the simulated world that hold whatever is called, in whatever order, under whatever fault.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.simulated import judge
from controlplane.providers.adapters.simulated.adapter import SimulatedProvider, build
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.faults import PRESETS
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import ProviderError
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
REFS = ("ams1-b1-l1-r1-n01", "ams1-b1-l1-r1-n02")
OFTEN = ["deploy", "release", "wipe", "apply"] * 3
# Few machines, few tokens and mostly no fault: calls must meet each other before a law can be broken.
STEP = st.tuples(
    st.sampled_from([*OFTEN, "qualify", "delete", "submit", "cancel", "look", "power"]),
    st.sampled_from([0, 0, 0, 1]),
    st.integers(1, 3),
    st.sampled_from([1, 0, 400, 4000]),
    st.sampled_from([*[None] * len(PRESETS), *sorted(PRESETS)]),
)


class World:
    """A world on a clock that the steps move."""

    def __init__(self, directory: object, profile: str) -> None:
        self.moment = START
        path = f"{directory}/world.sqlite"
        self.sim: SimulatedProvider = build(
            AdapterInput("prv_1", {"path": path, "profile": profile}, {}, "test", lambda: self.moment)
        )
        self.control = SimControl(path, now=lambda: self.moment)

    def step(self, name: str, which: int, number: int) -> None:
        """One call, whatever it answers."""
        sim, ref, token = self.sim, REFS[which], f"alc_{which}_{number}"
        cluster, tenant = f"clu_{number}", f"ten_{number}"
        with contextlib.suppress(ProviderError):
            if name == "deploy":
                sim.deploy(Deployment(ref, token, tenant, cluster, f"net_{tenant}"))
            elif name == "release":
                sim.release(ref, token, accepted_at=self.moment)
            elif name == "wipe":
                sim.wipe(ref, f"w{number}")
            elif name == "qualify":
                sim.qualify(ref, f"q{number}")
            elif name == "power":
                sim.power(ref, on=number % 2 == 0, token=f"p{number}")
            else:
                self._cluster_step(name, cluster, tenant, ref, token)

    def _cluster_step(self, name: str, cluster: str, tenant: str, ref: str, token: str) -> None:
        if name == "apply":
            self.sim.apply_cluster(ClusterSpec(cluster, tenant, "prj", tenant, (Member(ref, 8, token),)))
        elif name == "delete":
            self.sim.delete_cluster(cluster)
        elif name == "submit":
            self.sim.submit(JobSpec(f"job_{token}-1", cluster, tenant, tenant, "#!/bin/sh\nsleep 30\n", 1, 8, 1, 60))
        elif name == "cancel":
            self.sim.cancel(cluster, f"job_{token}-1")
        else:
            self.sim.observe_cluster(cluster)
            self.sim.list_jobs(cluster)


@pytest.mark.parametrize("profile", ["instant", "realistic"])
@given(steps=st.lists(STEP, min_size=10, max_size=30))
@settings(max_examples=50, deadline=None)
def test_the_world_keeps_its_own_laws(
    tmp_path_factory: pytest.TempPathFactory, profile: str, steps: list[tuple[str, int, int, int, str | None]]
) -> None:
    """
    One machine is never reached by two; no object is doubled; power goes after the network; once healed and released nothing is left.
    """
    world = World(tmp_path_factory.mktemp("world"), profile)
    for name, which, number, seconds, fault in steps:
        if fault is not None:
            world.control.play(fault, count=1)
        world.step(name, which, number)
        world.moment += timedelta(seconds=seconds)
        told = world.control.ledger()
        assert judge.overlapping_reach(told) == []
        assert judge.double_objects(told) == []
        assert judge.early_power(told) == []
    world.control.heal()
    world.moment += timedelta(seconds=30_000)
    world.sim.list_machines()
    for cluster in world.sim.list_clusters().cluster_ids:
        world.sim.delete_cluster(cluster)
    for token in judge.live_objects(world.control.ledger()).deployments:
        world.sim.release(REFS[int(token.split("_")[1])], token, accepted_at=world.moment)
    world.moment += timedelta(seconds=30_000)
    assert judge.live_objects(world.control.ledger()) == judge.Live(frozenset(), frozenset(), frozenset())
    for ref in REFS:
        world.sim.wipe(ref, "w-last")
    world.moment += timedelta(seconds=30_000)
    assert [world.control.contents(ref) for ref in REFS] == [(), ()]
    assert {world.sim.observe(ref).phase for ref in REFS} == {"wiped"}
    world.sim.close()
    world.control.close()
