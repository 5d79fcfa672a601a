"""
What becomes of a change that a provider turned down, by what the provider shows of those that leave and those that come.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters.refusals import Refusal
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, SetSnapshot
from controlplane.clusters.steps import STEPS
from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import ClusterSpec, ClusterView, MemberState, MemberView
from controlplane.providers.errors import NotSent, Refused

STATES: tuple[MemberState, ...] = ("up", "draining", "drained", "down", "joining", "absent", "unknown")
STAYS = MemberSnapshot("alc_1", "ins_1", "nod_1", "metal-1", 8, "active", "active", "nds_1", billed=True)
OLD = MemberSnapshot("alc_2", "ins_2", "nod_2", "metal-2", 8, "active", "active", "nds_1", billed=True)
NEW = MemberSnapshot("alc_3", "ins_3", "nod_3", "metal-3", 8, "active", "active", "nds_1", billed=False)


class Peer:
    """It shows these members, and remembers what it was told."""

    def __init__(self, old: MemberState, new: MemberState, error: Exception | None = None, blind: Exception | None = None) -> None:
        shown: dict[str, MemberState] = {"metal-1": "up", "metal-2": old, "metal-3": new}
        self.view = ClusterView("clu_1", tuple(MemberView(ref, state, 8) for ref, state in shown.items()))
        self.error, self.blind = error, blind
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
        if self.blind is not None:
            raise self.blind
        return self.view


def step(peer: Peer, part: str) -> Outcome:
    """What becomes of a cluster of two, one of which another was to replace."""
    cluster = ClusterSnapshot(
        id="clu_1",
        state="updating",
        step=part,
        tenant_id="ten_1",
        project_id="prj_1",
        kind="slurm",
        user="t1",
        provider=ProviderRef("prv_1", "slurm", {}, None, 1),
        members=(STAYS, OLD, NEW),
        sets=(SetSnapshot("nds_1", "workers", "hgx-h100-8", 2),),
        observe_interval_s=15.0,
        leaving=frozenset({"alc_2"}),
        refusal=Refusal("provider_refused", "denied: no") if part in {"refused", "undoing", "undone"} else None,
    )
    return STEPS["updating"](cluster, peer)


def test_a_refusal_is_no_answer_to_what_is_there() -> None:
    """It is kept, with the provider's words for operators only; a look that is refused says nothing about the change."""
    outcome = step(Peer("up", "absent", error=Refused("denied: no")), "")
    assert isinstance(outcome, Wait)
    assert (outcome.step, outcome.detail) == ("refused", "denied: no")
    assert "denied" not in outcome.reason
    blind = step(Peer("up", "absent", blind=Refused("may not look")), "applied")
    assert isinstance(blind, Wait)
    assert blind.step is None


@given(old=st.sampled_from(STATES), new=st.sampled_from(STATES))
def test_one_look_decides_the_direction(old: MemberState, new: MemberState) -> None:
    """Forward where the new one is in or the old one is out, else back; nobody is told anything by that look."""
    peer = Peer(old, new)
    outcome = step(peer, "refused")
    assert isinstance(outcome, Wait)
    assert outcome.step == ("applied" if new != "absent" or old == "absent" else "undoing")
    assert (outcome.detail, peer.told) == ("denied: no", [])


@given(old=st.sampled_from(STATES), new=st.sampled_from(STATES), refuses=st.booleans())
def test_it_ends_only_when_nothing_of_it_is_there(old: MemberState, new: MemberState, *, refuses: bool) -> None:
    """The old members are told, and it has failed once the newcomer is out; only the newcomer is given back, whatever the others show."""
    peer = Peer(old, new, error=Refused("denied again") if refuses else None)
    outcome = step(peer, "undoing")
    if not refuses:
        assert [[one.ref for one in spec.members] for spec in peer.told] == [["metal-1", "metal-2"]]
        outcome = step(peer, "undone")
    if new != "absent" or (refuses and old in {"draining", "drained"}):
        assert isinstance(outcome, Wait)
        assert (outcome.step, outcome.facts) == ("undoing", None)
        return
    assert isinstance(outcome, Fail)
    assert isinstance(outcome.facts, ClusterFacts)
    assert (outcome.code, outcome.detail) == ("provider_refused", "denied: no")
    assert (outcome.facts.release, outcome.facts.release_reason) == (("alc_3",), "change_refused")
    assert outcome.to == ("running" if old == "up" else "")


@pytest.mark.parametrize("part", ["refused", "undoing", "undone"])
def test_silence_ends_nothing(part: str) -> None:
    """What does not answer is asked again by whoever runs the step; what may not be looked at is waited for."""
    away = NotSent("away")
    with pytest.raises(NotSent):
        step(Peer("up", "absent", error=away, blind=away), part)
    if part != "undoing":
        assert isinstance(step(Peer("up", "absent", blind=Refused("may not look")), part), Wait)
