"""
How far the upgrade of a managed Kubernetes is, by what its provider shows, and what an order in the making tells operators.
"""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, Roll, SetSnapshot
from controlplane.clusters.steps import STEPS
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import ClusterSpec, ClusterView, MemberState, MemberView
from controlplane.providers.errors import NotSent, Refused
from controlplane.providers.machines import Check

NEW, OLD = "1.35.1", "1.34.2"
MEMBERS = tuple(
    MemberSnapshot(f"alc_{n}", f"ins_{n}", f"nod_{n}", f"metal-{n}", 8, "active", "active", "nds_1", billed=True) for n in (1, 2)
)


class Peer:
    """It shows these workers, and remembers what it was told."""

    def __init__(self, *workers: tuple[MemberState, str], version: str = "", error: Exception | None = None) -> None:
        members = tuple(MemberView(f"metal-{n}", state, 8, version=has) for n, (state, has) in enumerate(workers, 1))
        self.view = ClusterView("clu_1", members, version=version)
        self.error = error
        self.told: list[ClusterSpec] = []

    def clusters(self, provider: Any) -> Peer:
        del provider
        return self

    def apply_cluster(self, spec: ClusterSpec) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(spec)

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        del cluster_id
        return self.view


def step(peer: Peer, part: str, state: str = "upgrading", for_s: float = 0.0) -> Outcome:
    """What becomes of a cluster of two workers."""
    cluster = ClusterSnapshot(
        id="clu_1",
        state=state,
        step=part,
        tenant_id="ten_1",
        project_id="prj_1",
        kind="kubernetes",
        user="",
        provider=ProviderRef("prv_1", "clusterapi", {}, None, 1),
        members=MEMBERS,
        sets=(SetSnapshot("nds_1", "workers", "hgx-h100-8", 2),),
        observe_interval_s=15.0,
        state_for_s=for_s,
        distribution="managed",
        version=OLD,
        roll=Roll(("nds_1",), 1, 0.0, 0.0, install={"version": NEW}),
    )
    return STEPS[state](cluster, peer)


def test_what_is_told_is_on_record_first() -> None:
    """The row shows where it goes before the provider hears of it; then the whole cluster is told, sets and types included."""
    peer = Peer()
    first = step(peer, "")
    assert isinstance(first.facts, ClusterFacts)
    assert (first.facts.versions["install"], peer.told) == ({"version": NEW}, [])
    assert isinstance(step(peer, "told"), Wait)
    (spec,) = peer.told
    assert (spec.version, [(one.ref, one.node_set, one.instance_type) for one in spec.members]) == (
        NEW,
        [("metal-1", "workers", "hgx-h100-8"), ("metal-2", "workers", "hgx-h100-8")],
    )


@pytest.mark.parametrize(
    ("peer", "over", "done"),
    [
        (Peer(("up", OLD), ("up", OLD)), False, 0),
        (Peer(("up", NEW), ("absent", "")), False, 1),
        (Peer(("up", NEW), ("up", NEW)), False, 2),
        (Peer(("up", NEW), ("down", NEW), version=NEW), False, 2),
        (Peer(("up", NEW), ("up", OLD), version=NEW), False, 1),
        (Peer(("up", NEW), ("up", NEW), version=NEW), True, 2),
    ],
)
def test_it_is_over_when_every_machine_has_it_and_every_member_is_up(peer: Peer, *, over: bool, done: int) -> None:
    """The control planes, which nobody sees, are in the cluster's own version."""
    outcome = step(peer, "applied")
    assert isinstance(outcome, Advance) is over
    assert isinstance(outcome.facts, ClusterFacts)
    assert len(outcome.facts.roll["done"]) == done
    assert outcome.facts.versions == ({"version": NEW, "ahead": {}} if over else {})


def test_a_refusal_is_looked_into_and_silence_stops_nothing() -> None:
    """Nothing is concluded from the refusal alone; what is not known is asked again by whoever runs the step."""
    refused = step(Peer(error=Refused("admission webhook denied the request")), "told")
    assert isinstance(refused, Wait)
    assert (refused.step, refused.detail) == ("refused", "admission webhook denied the request")
    with pytest.raises(NotSent):
        step(Peer(error=NotSent("away")), "told")


@pytest.mark.parametrize(
    ("version", "workers", "takes", "end"),
    [
        (OLD, (OLD, OLD), False, "failed"),
        ("", (OLD, OLD), True, "failed"),
        ("", (OLD, OLD), False, "waits"),
        ("", (NEW, OLD), True, "goes on"),
        (NEW, (OLD, OLD), True, "goes on"),
    ],
)
def test_an_upgrade_that_was_refused_is_over_when_nothing_of_it_is_there(
    version: str, workers: tuple[str, ...], end: str, *, takes: bool
) -> None:
    """Every machine as before, or the provider takes its old version as its word: it runs on, and only the operation has failed."""
    peer = Peer(*(("up", one) for one in workers), version=version, error=None if takes else Refused("no"))
    outcome = step(peer, "refused")
    if end == "failed":
        assert isinstance(outcome, Fail)
        assert (outcome.code, outcome.to, outcome.facts.versions) == ("upgrade_refused", "running", {"ahead": {}})
    else:
        assert isinstance(outcome, Wait)
        assert outcome.step == (None if end == "waits" else "applied")
    assert all(one.version == OLD for one in peer.told)


def test_an_order_in_the_making_tells_operators_what_is_missing() -> None:
    """Hosts that have not joined, and what the provider cannot make."""
    peer = Peer()
    late = MemberView("metal-2", "absent", None, reason="Machine Provisioning; host provisioning")
    peer.view = ClusterView("clu_1", (late,), checks=(Check("topology", "failed", "ReconcileFailed: no such variable"),))
    outcome = step(peer, "applied", "bootstrapping")
    assert isinstance(outcome, Wait)
    assert outcome.detail == "metal-2: Machine Provisioning; host provisioning; topology: ReconcileFailed: no such variable"
    assert "metal" not in outcome.reason


def test_a_provider_that_was_told_is_looked_at_and_told_again_after_a_while() -> None:
    """Sixty looks in a minute, and it is told twice: not at each look, and not never, whoever's look was lost."""
    peer, part = Peer(("up", OLD), ("absent", "")), ""
    for second in range(60):
        outcome = step(peer, part, "bootstrapping", float(second))
        assert isinstance(outcome, Wait)
        part = part if outcome.step is None else outcome.step
    assert len(peer.told) == 2
    assert isinstance(step(Peer(("up", OLD), ("joining", "")), part, "bootstrapping", 61.0), Advance)
