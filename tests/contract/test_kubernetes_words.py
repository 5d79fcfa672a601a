"""
Why a job waits on a Kubernetes, told apart: no node of that kind at all, or a quota that is used up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from controlplane.jobs.hopeless import HOPELESS
from controlplane.jobs.states import JobFacts
from controlplane.jobs.steps import STEPS
from controlplane.kit.outcome import Advance, Wait
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.toolbox import Toolbox
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.factories.job_steps import JOB as KNOWN_JOB
from tests.kubernetes_kit import UNTIDY, kubernetes_kit

pytestmark = UNTIDY
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"),))
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 500\n", 1, 8, 1, 600)
SNAPSHOT = replace(
    KNOWN_JOB,
    id="job_4",
    state="starting",
    attempt=1,
    tenant_id="ten_one",
    user="",
    provider=ProviderRef("prv_1", "kubernetes", {}, None, 1),
    script=JOB.script,
    nodes=1,
    tasks_per_node=1,
    time_limit_s=7200,
    env={},
    gpu_model="",
    max_restarts=3,
    restarts=0,
    instances={},
)


class Tools(Toolbox):
    """
    A toolbox that reaches the kit.
    """

    def __init__(self, adapter: Any) -> None:
        self._made = adapter

    def adapter(self, provider: Any) -> Any:
        """The one adapter."""
        del provider
        return self._made


@pytest.fixture
def peer() -> Iterator[KubernetesHarness]:
    """Two nodes, of which the cluster has one, behind an adapter that knows one model's label, leaves Kueue alone and always asks."""
    with kubernetes_kit(nodes=2) as kit:
        made = KubernetesHarness(kit)
        made.adapter.close()
        made.adapter = kit.adapter(queues="off", watches="off", gpu_models={"GB300": "NVIDIA-GB300"})
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


def test_an_image_that_cannot_be_pulled_ends_the_job_as_failed(peer: KubernetesHarness) -> None:
    """The kubelet's word is shown, the job is given up in time, and its suspended Job is read as a failure, not as a cancel."""
    job, tools = replace(JOB, token=SNAPSHOT.token), cast("Toolbox", Tools(peer.adapter))
    peer.kit.handle.post("/_emu/pause", {"kubelet": True})
    peer.submit(job)
    pods = "/api/v1/pods?labelSelector=batch.kubernetes.io/job-name"
    (pod,) = peer.until(
        lambda: peer.kit.ask("GET", pods)["items"], lambda seen: seen and "nodeName" in seen[0]["spec"], what="placed"
    )
    waiting = {"name": "job", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
    peer.kit.ask("PATCH", path, {"status": {"containerStatuses": [waiting]}})
    first = STEPS["starting"](replace(SNAPSHOT, state_age_s=10), tools)
    assert isinstance(first, Wait)
    assert (first.reason, first.step) == ("The image cannot be pulled (ImagePullBackOff).", "image_not_pulled@10")
    assert first.step is not None
    known = HOPELESS["image_not_pulled"]
    late = STEPS["starting"](replace(SNAPSHOT, step=first.step, state_age_s=10 + known.patience_s), tools)
    assert isinstance(late.facts, JobFacts)
    assert late.facts.issue == ("image_not_pulled", known.words)
    given_up = replace(SNAPSHOT, step=first.step, hopeless="image_not_pulled")
    STEPS["starting"](given_up, tools)
    peer.kit.handle.post("/_emu/pause", {"kubelet": False})
    assert peer.ended(job).phase == "cancelled"
    done = STEPS["starting"](given_up, tools)
    assert isinstance(done, Advance)
    assert isinstance(done.facts, JobFacts)
    assert (done.to, done.facts.verdict, done.facts.failure_class) == ("completing", "failed", "user_error")
