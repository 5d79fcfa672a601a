"""
Which hosts a change of a Slurm of one's own waits for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, SetSnapshot
from controlplane.clusters.steps import STEPS
from controlplane.kit.outcome import Advance, Wait
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import ClusterView, MemberView

HEAD = MemberSnapshot("alc_0", "ins_0", "nod_0", "ins-0", 8, "active", "active", "nds_0", billed=True, role="head")
WORKER = MemberSnapshot("alc_1", "ins_1", "nod_1", "ins-1", 8, "active", "active", "nds_1", billed=True)
OTHER = replace(WORKER, allocation_id="alc_2", instance_id="ins_2", node_id="nod_2", ref="ins-2")


class Slurm:
    """A head that knows these workers."""

    def __init__(self, *refs: str) -> None:
        self.view = ClusterView("clu_1", tuple(MemberView(one, "up", 8, 0) for one in refs), None, ())

    def clusters(self, provider: Any) -> Slurm:
        del provider
        return self

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        del cluster_id
        return self.view


def snapshot(*members: MemberSnapshot, **changes: Any) -> ClusterSnapshot:
    """A cluster that is being changed and whose hosts were told."""
    sets = (SetSnapshot("nds_0", "head", "t", 1), SetSnapshot("nds_1", "workers", "t", len(members) - 1))
    peer = ProviderRef("prv_1", "slurm", {}, None, 1)
    given: dict[str, Any] = {"state": "updating", "step": "renewed", "dedicated": True, **changes}
    return ClusterSnapshot(
        id="clu_1",
        tenant_id="ten_1",
        project_id="prj_1",
        kind="slurm",
        user="tenant",
        provider=peer,
        members=members,
        sets=sets,
        observe_interval_s=15.0,
        **given,
    )


@pytest.mark.parametrize(
    ("late", "waits"),
    [
        (HEAD, True),
        (OTHER, True),
        (replace(HEAD, node_state="restarting"), True),
        (replace(OTHER, node_health="drain"), False),
        (replace(OTHER, node_state="stopped"), False),
    ],
)
def test_a_change_waits_for_hosts_that_can_follow(late: MemberSnapshot, waits: bool) -> None:  # noqa: FBT001 - a case
    """The head always, workers that run; not those that are sick or switched off: they ask for their files when they are back."""
    members = [HEAD, WORKER, OTHER]
    members[0 if late.role == "head" else 2] = replace(late, current=False, trouble="/etc/hosts: read-only")
    outcome = STEPS["updating"](snapshot(*members), Slurm("ins-1", "ins-2"))
    assert isinstance(outcome, Wait if waits else Advance)
    if isinstance(outcome, Wait):
        assert outcome.reason.startswith("1 of 3 hosts")
        assert "read-only" in outcome.detail


def test_nothing_is_given_back_while_the_head_names_it() -> None:
    """A worker that leaves is released only by a look that no longer shows it, and then by no other name."""
    cluster = snapshot(HEAD, WORKER, OTHER, leaving=frozenset({"alc_2"}))
    cluster = replace(cluster, sets=(cluster.sets[0], replace(cluster.sets[1], wanted=1)))
    named = STEPS["updating"](cluster, Slurm("ins-1", "ins-2"))
    assert isinstance(named, Wait)
    assert (named.reason, named.facts) == ("1 of 1 nodes are still known to the head.", None)
    gone = STEPS["updating"](cluster, Slurm("ins-1"))
    assert isinstance(gone.facts, ClusterFacts)
    assert gone.facts.release == ("alc_2",)
