"""
When a Kubernetes of one's own counts as running, and when a worker that leaves it may be given back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.clusters.offers import Offers
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, SetSnapshot
from controlplane.clusters.steps import STEPS
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import ClusterView, MemberState, MemberView
from controlplane.providers.errors import NotSent

LEAD = MemberSnapshot("alc_0", "ins_0", "nod_0", "ins-0", 8, "active", "active", "nds_0", billed=True, role="control_plane")
WORKER = MemberSnapshot("alc_1", "ins_1", "nod_1", "ins-1", 8, "active", "active", "nds_1", billed=True)
OTHER = replace(WORKER, allocation_id="alc_2", instance_id="ins_2", node_id="nod_2", ref="ins-2")
GPUS = {"ins-0": 0}


class Api:
    """It shows these nodes."""

    def __init__(self, **states: MemberState) -> None:
        names = {name.replace("_", "-"): state for name, state in states.items()}
        members = tuple(MemberView(name, state, GPUS.get(name, 8), 0) for name, state in names.items())
        self.view = ClusterView("clu_1", members, None, ())

    def clusters(self, provider: Any) -> Api:
        del provider
        return self

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        del cluster_id
        if not self.view.members:
            raise NotSent("connection refused")
        return self.view


def step(
    api: Api,
    state: str,
    *,
    leaving: bool = False,
    coming: bool = False,
    told: str = "",
    features: tuple[str, ...] | None = None,
) -> Outcome:
    """What becomes of a cluster of a control plane and two workers, one of which may leave or be new."""
    cluster = ClusterSnapshot(
        id="clu_1",
        state=state,
        step=told,
        tenant_id="ten_1",
        project_id="prj_1",
        kind="kubernetes",
        user="",
        provider=ProviderRef("prv_1", "kubernetes", {}, None, 1, features),
        offers=Offers(features),
        members=(LEAD, WORKER, replace(OTHER, billed=not coming)),
        sets=(SetSnapshot("nds_0", "cp", "t", 1), SetSnapshot("nds_1", "workers", "t", 1 if leaving else 2)),
        observe_interval_s=15.0,
        leaving=frozenset({"alc_2"}) if leaving else frozenset(),
        dedicated=True,
    )
    return STEPS[state](cluster, api)


def test_every_host_has_joined_before_any_is_verified() -> None:
    """A control plane that is no Node is missed like a worker."""
    assert isinstance(step(Api(ins_1="up", ins_2="up"), "bootstrapping"), Wait)
    assert isinstance(step(Api(ins_0="joining", ins_1="up", ins_2="down"), "bootstrapping"), Advance)


def test_it_runs_when_every_host_is_ready() -> None:
    """With all workers' GPUs; those of a control plane are nobody's."""
    assert isinstance(step(Api(ins_0="down", ins_1="up", ins_2="up"), "verifying"), Wait)
    whole = step(Api(ins_0="up", ins_1="up", ins_2="up"), "verifying")
    assert isinstance(whole, Advance)
    assert isinstance(whole.facts, ClusterFacts)
    assert {one["name"]: one["detail"] for one in whole.facts.checks or ()}["gpu_count"] == "16 of 16"


@pytest.mark.parametrize(("state", "renews"), [("up", False), ("draining", False), ("drained", True), ("down", True)])
def test_a_worker_is_emptied_before_it_is_unnamed(state: MemberState, renews: bool) -> None:  # noqa: FBT001 - a case
    """Or is dead."""
    outcome = step(Api(ins_0="up", ins_1="up", ins_2=state), "updating", leaving=True, told="told")
    assert isinstance(outcome, Wait)
    assert (outcome.facts == ClusterFacts(renew="final")) is renews


def test_nothing_is_given_back_while_the_api_shows_it() -> None:
    """Then it is, and nothing else."""
    shown = step(Api(ins_0="up", ins_1="up", ins_2="drained"), "updating", leaving=True, told="renewed")
    assert isinstance(shown, Wait)
    assert shown.facts is None
    gone = step(Api(ins_0="up", ins_1="up"), "updating", leaving=True, told="renewed")
    assert isinstance(gone.facts, ClusterFacts)
    assert gone.facts.release == ("alc_2",)


@pytest.mark.parametrize("state", ["joining", "down"])
def test_a_new_worker_is_waited_for_until_it_is_ready(state: MemberState) -> None:
    """Then it is in use and billed."""
    assert isinstance(step(Api(ins_0="up", ins_1="up", ins_2=state), "updating", coming=True, told="renewed"), Wait)
    ready = step(Api(ins_0="up", ins_1="up", ins_2="up"), "updating", coming=True, told="renewed")
    assert isinstance(ready, Advance)
    assert isinstance(ready.facts, ClusterFacts)
    assert set(ready.facts.usable_at) == {"alc_2"}


@pytest.mark.parametrize("state", ["verifying", "running"])
def test_what_jobs_may_ask_for_is_learnt_from_looks(state: str) -> None:
    """Once, and again when it is another; a look that does not tell changes nothing."""
    api = Api(ins_0="up", ins_1="up", ins_2="up")
    told = step(api, state).facts
    assert isinstance(told, ClusterFacts)
    assert told.job_features is None
    api.view = replace(api.view, job_features=("gangs", "image"))
    told = step(api, state).facts
    assert isinstance(told, ClusterFacts)
    assert told.job_features == ("gangs", "image")
    told = step(api, state, features=("gangs", "image")).facts
    assert isinstance(told, ClusterFacts)
    assert told.job_features is None
    api.view = replace(api.view, volumes=("data",), mig={"1g.10gb": 7})
    told = step(api, state, features=("gangs", "image")).facts
    assert isinstance(told, ClusterFacts)
    assert (told.job_features, told.volumes, told.mig) == (("gangs", "image"), ("data",), {"1g.10gb": 7})


@pytest.mark.parametrize("state", ["running", "degraded"])
def test_an_api_that_is_silent_twice_is_told_to_its_owner(state: str) -> None:
    """Nothing is known, so nothing is taken away or replaced; one call that failed says nothing, and an answer ends it."""
    first = step(Api(), state)
    assert isinstance(first, Wait)
    assert first.facts is None
    second = step(Api(), state, told=first.step or "")
    assert isinstance(second, Wait)
    assert isinstance(second.facts, ClusterFacts)
    assert [one["code"] for one in second.facts.issues or ()] == ["api_silent"]
    assert second.facts.health == ()
    back = step(Api(ins_0="up", ins_1="up", ins_2="up"), state, told=first.step or "")
    assert isinstance(back.facts, ClusterFacts)
    assert back.facts.issues == () or isinstance(back, Advance)
