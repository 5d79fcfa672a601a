"""
What jobs that have ended cost the looks at their cluster: nothing, however many there are.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.kubernetes_kit import UNTIDY, kubernetes_kit

pytestmark = UNTIDY
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"),))
JOB = JobSpec("job_0-1", "clu_1", "ten_one", "", "#!/bin/bash\ntrue\n", 1, 1, 1, 600)
PODS = "/api/v1/namespaces/contract-clu-1/pods"


def test_pods_that_have_ended_are_not_listed() -> None:
    """A look at the cluster, and its end, read one page of pods though ended ones would fill more; one that runs is counted."""
    with kubernetes_kit(nodes=1) as kit:
        peer = KubernetesHarness(kit)
        peer.adapter.close()
        peer.adapter = kit.adapter(queues="off", watches="off", page_size=2)
        peer.apply(SPEC)
        for number in range(5):
            job = replace(JOB, token=f"job_{number}-1")
            peer.submit(job)
            peer.ended(job)
        running = replace(JOB, token="job_9-1", script="#!/bin/bash\nsleep 500\n")
        peer.submit(running)
        peer.until(lambda: peer.seen(running), lambda view: view.phase == "running", what="running")
        before = len(kit.asked())
        assert [one.jobs for one in peer.adapter.observe_cluster("clu_1").members] == [1]
        assert sum(path.startswith(PODS) for _, path in kit.asked()[before:]) == 1
        peer.adapter.close()
