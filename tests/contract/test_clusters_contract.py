"""
What every adapter of the Clusters port must do.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.providers.clusters import Clusters, MemberView
from controlplane.providers.errors import Busy, NotFound, ProviderError
from tests.contract.harness import Harness

pytestmark = pytest.mark.needs("clusters")


def _states(members: tuple[MemberView, ...]) -> dict[str, str]:
    return {one.ref: one.state for one in members}


def _member(harness: Harness, cluster_id: str, ref: str) -> MemberView:
    found: MemberView = next(one for one in harness.adapter.observe_cluster(cluster_id).members if one.ref == ref)
    return found


def test_it_is_a_clusters_adapter(harness: Harness) -> None:
    """The adapter has every method of the port."""
    assert isinstance(harness.adapter, Clusters)


def test_it_says_what_it_can_do(harness: Harness) -> None:
    """Version and products come from the peer."""
    able = harness.adapter.capabilities()
    assert able.version
    assert able.products


def test_an_unknown_cluster_is_not_found(harness: Harness) -> None:
    """NotFound is what an absent cluster answers."""
    with pytest.raises(NotFound):
        harness.adapter.observe_cluster(harness.new_id("clu"))


def test_deleting_what_is_not_there_is_a_success(harness: Harness) -> None:
    """Delete means: ensure absent."""
    absent = harness.new_id("clu")
    harness.adapter.delete_cluster(absent)
    with pytest.raises(NotFound):
        harness.adapter.observe_cluster(absent)


def test_a_cluster_converges_to_its_members(harness: Harness) -> None:
    """All members come up with their GPUs, and the cluster is verified once they are."""
    spec = harness.cluster(2)
    view = harness.until(lambda: harness.view(spec), lambda seen: seen.verified_at, what="verified")
    assert view.cluster_id == spec.cluster_id
    assert _states(view.members) == {one.ref: "up" for one in spec.members}
    assert {one.gpus for one in view.members} == {harness.gpus_per_node}
    assert "failed" not in {one.result for one in view.checks}


def test_the_instant_of_verification_never_moves(harness: Harness) -> None:
    """It is evidence for money: later looks and repeated applies show the same."""
    spec = harness.cluster(2)
    first = harness.until(lambda: harness.view(spec), lambda seen: seen.verified_at, what="verified").verified_at
    harness.pass_time()
    harness.apply(spec)
    assert harness.view(spec).verified_at == first


def test_applying_the_same_again_changes_nothing(harness: Harness) -> None:
    """Declarative: the second apply finds the cluster as wanted."""
    spec = harness.cluster(2)
    before = harness.until(lambda: harness.view(spec), lambda seen: seen.verified_at, what="verified")
    harness.adapter.apply_cluster(spec)
    assert harness.view(spec) == before


def test_a_cluster_grows(harness: Harness) -> None:
    """A member that is added comes up beside the others."""
    spec = harness.cluster(1)
    added = harness.make_members(spec.cluster_id, spec.tenant_id, harness.free_refs(1))
    view = harness.apply(replace(spec, members=spec.members + added))
    assert len(view.members) == 2


@pytest.mark.needs("late_members")
def test_a_late_member_says_since_when_it_is_up(harness: Harness) -> None:
    """Its own instant, after the cluster's: its meter starts there."""
    spec = harness.cluster(1)
    verified = harness.until(lambda: harness.view(spec), lambda seen: seen.verified_at, what="verified").verified_at
    harness.pass_time()
    added = harness.make_members(spec.cluster_id, spec.tenant_id, harness.free_refs(1))
    harness.apply(replace(spec, members=spec.members + added))
    # who writes it down may be told of a conflict, and then the next look does
    view = harness.until(lambda: harness.view(spec), lambda seen: all(one.up_since for one in seen.members), what="since when")
    since = {one.ref: one.up_since for one in view.members if one.up_since is not None}
    assert verified is not None
    assert since[spec.members[0].ref] <= verified < since[added[0].ref]


def test_a_cluster_shrinks_to_exactly_its_members(harness: Harness) -> None:
    """A member that is not wanted any more is gone, and free for another cluster."""
    spec = harness.cluster(2)
    view = harness.apply(replace(spec, members=spec.members[:1]))
    assert [one.ref for one in view.members] == [spec.members[0].ref]


def test_a_listing_holds_the_cluster_while_it_is_there(harness: Harness) -> None:
    """Complete, with our id; without it once the cluster was seen gone."""
    spec = harness.cluster(1)
    listed = harness.adapter.list_clusters()
    assert listed.complete
    assert spec.cluster_id in listed.cluster_ids
    harness.gone(spec.cluster_id)
    assert spec.cluster_id not in harness.adapter.list_clusters().cluster_ids


def test_a_deleted_cluster_is_seen_gone_and_may_be_deleted_again(harness: Harness) -> None:
    """The second delete is a success too."""
    spec = harness.cluster(1)
    harness.gone(spec.cluster_id)
    harness.adapter.delete_cluster(spec.cluster_id)
    with pytest.raises(NotFound):
        harness.adapter.observe_cluster(spec.cluster_id)


def test_a_member_cannot_be_taken_by_another_tenants_cluster(harness: Harness) -> None:
    """The apply fails, or the other cluster never gets the machine; the first cluster keeps it."""
    spec = harness.cluster(1)
    thief = replace(spec, cluster_id=harness.new_id("clu"), tenant_id=harness.tenants[1], user=harness.user_of(harness.tenants[1]))
    with pytest.raises(ProviderError):
        harness.adapter.apply_cluster(thief)
    assert _states(harness.view(spec).members) == {spec.members[0].ref: "up"}


def test_a_drain_of_ours_is_marked_and_lifted(harness: Harness) -> None:
    """Drained with our prefix, then up again."""
    spec = harness.cluster(2)
    ref = spec.members[0].ref
    harness.adapter.drain(spec.cluster_id, (ref,), reason="repair")
    drained = harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "drained", what="drained")
    assert drained.drained_by_us
    assert "repair" in drained.reason
    assert _member(harness, spec.cluster_id, spec.members[1].ref).state == "up"
    harness.adapter.undrain(spec.cluster_id, (ref,))
    harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "up", what="up again")


def test_drain_and_undrain_may_be_repeated(harness: Harness) -> None:
    """Twice is as good as once."""
    spec = harness.cluster(1)
    ref = spec.members[0].ref
    for _ in range(2):
        harness.adapter.drain(spec.cluster_id, (ref,), reason="first")
    drained = harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "drained", what="drained")
    assert drained.drained_by_us
    for _ in range(2):
        harness.adapter.undrain(spec.cluster_id, (ref,))
    back = harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "up", what="up again")
    assert (back.state, back.drained_by_us) == ("up", False)


@pytest.mark.needs("admin_drain")
def test_an_administrators_drain_is_never_undone(harness: Harness) -> None:
    """Neither our drain on top nor our undrain touches it; only the administrator lifts it."""
    spec = harness.cluster(1)
    ref = spec.members[0].ref
    harness.admin_drain(ref, "disk swap, ask Kim")
    harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "drained", what="drained")
    harness.adapter.drain(spec.cluster_id, (ref,), reason="repair")
    harness.adapter.undrain(spec.cluster_id, (ref,))
    harness.pass_time()
    seen = _member(harness, spec.cluster_id, ref)
    assert (seen.state, seen.drained_by_us) == ("drained", False)
    assert "ask Kim" in seen.reason
    harness.admin_undrain(ref)
    harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "up", what="up again")


@pytest.mark.needs("node_death")
def test_a_dead_machine_is_seen_down_and_comes_back(harness: Harness) -> None:
    """Down while dead; it stays a member, and the cluster's instants stay."""
    spec = harness.cluster(2)
    ref = spec.members[0].ref
    verified = harness.until(lambda: harness.view(spec), lambda seen: seen.verified_at, what="verified").verified_at
    harness.node_dies(ref)
    harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "down", what="down")
    harness.node_returns(ref)
    harness.until(lambda: _member(harness, spec.cluster_id, ref), lambda seen: seen.state == "up", what="up again")
    assert harness.view(spec).verified_at == verified


@pytest.mark.needs("jobs")
def test_a_member_with_a_running_job_is_not_taken_away(harness: Harness) -> None:
    """Busy while it runs, gone once it has ended; the job is not harmed."""
    spec = harness.cluster(2)
    job = harness.job(spec, "sleep 20")
    harness.submit(job)
    harness.until(lambda: harness.seen(job), lambda view: view.phase == "running", what="running")
    smaller = replace(spec, members=spec.members[:1])
    with pytest.raises(Busy):
        harness.adapter.apply_cluster(smaller)
    assert harness.ended(job).phase == "succeeded"
    assert len(harness.apply(smaller).members) == 1
