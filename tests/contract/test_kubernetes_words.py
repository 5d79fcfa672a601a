"""
Why a job waits on a Kubernetes, told apart: no node of that kind at all, or a quota that is used up.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.kubernetes_kit import UNTIDY, kubernetes_kit

pytestmark = UNTIDY
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"),))
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 500\n", 1, 8, 1, 600)


@pytest.fixture
def peer() -> Iterator[KubernetesHarness]:
    """Two nodes, of which the cluster has one, behind an adapter that knows how one model is labelled; Kueue is left alone."""
    with kubernetes_kit(nodes=2) as kit:
        made = KubernetesHarness(kit)
        made.adapter.close()
        made.adapter = kit.adapter(queues="off", gpu_models={"GB300": "NVIDIA-GB300"})
        made.apply(SPEC)
        yield made
        made.adapter.close()


def test_no_node_of_that_kind_is_told_from_a_quota_that_is_used_up(peer: KubernetesHarness) -> None:
    """A label that no node has; and a job behind one that holds all GPUs of the cluster, whose pods the server does not take."""
    wrong = JobSpec("job_2-1", "clu_1", "ten_one", "", JOB.script, 1, 8, 1, 600, gpu_model="GB300")
    peer.submit(wrong)
    peer.until(lambda: peer.seen(wrong), lambda view: view.reason == "NoSuchNode", what="no such node")
    assert peer.seen(wrong).phase == "pending"
    peer.adapter.cancel("clu_1", wrong.token)
    peer.ended(wrong)
    peer.submit(JOB)
    peer.until(lambda: peer.seen(JOB), lambda view: view.phase == "running", what="running")
    behind = JobSpec("job_3-1", "clu_1", "ten_one", "", JOB.script, 1, 8, 1, 600)
    peer.submit(behind)
    peer.until(lambda: peer.seen(behind), lambda view: view.reason == "PodsMissing", what="its quota is used up")
    assert (peer.seen(behind).phase, peer.seen(JOB).phase) == ("pending", "running")
