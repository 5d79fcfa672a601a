"""
What an upgrade to another release believes, and how long it waits for a host that is upgraded in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.clusters.states import ClusterFacts, Roll
from controlplane.clusters.steps import STEPS
from controlplane.clusters.steps.releasing import IN_PLACE_LIMIT_S
from controlplane.kit.outcome import Advance, Fail, Wait
from controlplane.providers.clusters import ClusterView, MemberView
from tests.unit.test_dedicated_steps import HEAD, OTHER, WORKER, Slurm, snapshot

INSTALL = {"release": "23.11", "fetch": "", "install": "put it"}
PLAN = Roll(("nds_1",), 1, 100.0, 100.0, install=INSTALL)


def told(head: str, **workers: str) -> Slurm:
    """A Slurm whose daemons say these versions."""
    slurm = Slurm()
    members = tuple(MemberView(name.replace("_", "-"), "up", 8, 0, version=version) for name, version in workers.items())
    slurm.view = ClusterView("clu_1", members, None, (), head)
    return slurm


def upgrading(*members: Any, roll: Roll = PLAN, **changes: Any) -> Any:
    """A cluster that is being upgraded."""
    return snapshot(*members, state="upgrading", roll=roll, release="22.05", **changes)


@pytest.mark.parametrize(("after_s", "ends"), [(IN_PLACE_LIMIT_S - 1, Wait), (IN_PLACE_LIMIT_S, Fail)])
def test_a_head_that_is_upgraded_is_waited_for_and_then_a_person_asked(after_s: float, ends: type) -> None:
    """It is not asked anything meanwhile, as it may have no controller; what its program said is at hand for operators."""
    busy = replace(HEAD, current=False, trouble="no space left")
    outcome = STEPS["upgrading"](upgrading(busy, WORKER, step="head", state_for_s=after_s), None)
    assert isinstance(outcome, ends)
    assert "no space left" in outcome.detail
    if isinstance(outcome, Fail):
        assert outcome.code == "upgrade_head_failed"


@pytest.mark.parametrize(("second", "whole"), [("23.11.4", True), ("22.05.8", False), ("", False)])
def test_files_change_their_words_only_when_every_worker_has_the_release(second: str, whole: bool) -> None:  # noqa: FBT001 - a case
    """One that is older, or that nobody has heard of, keeps the whole cluster to the older release's words."""
    roll = replace(PLAN, head_done=True, done=("alc_1", "alc_2"))
    outcome = STEPS["upgrading"](upgrading(HEAD, WORKER, OTHER, roll=roll, step=""), told("23.11.4", ins_1="23.11.4", ins_2=second))
    assert isinstance(outcome.facts, ClusterFacts)
    assert (outcome.facts.follow == "all") is whole
    assert isinstance(outcome, Wait if whole else Advance)
