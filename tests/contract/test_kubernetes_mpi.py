"""
MPI programs through Kubeflow's MPI operator: one object, admitted whole, followed to the launcher's end, and nothing left of it. The
operator is a double that does what its controller's text says; a real one is not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import NotFound, Unsupported
from controlplane.providers.launching import Launch
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.contract.own_kubernetes import own_harness
from tests.kubernetes_kit import UNTIDY, kubernetes_kit
from tests.mpi_operator import MpiOperator

pytestmark = UNTIDY
NAMESPACE = "contract-clu-1"
MPIJOBS = f"/apis/kubeflow.org/v2beta1/namespaces/{NAMESPACE}/mpijobs"
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"), Member("gpu-00001", 8, "alc_2")))
RANKS = Launch("mpi", ("sh", "-c", 'echo "$RANK of $WORLD_SIZE on $NODE_RANK of $NNODES says $GREETING"'))
LASTING = replace(RANKS, setup=": sleep 600")
"""The kit takes the number for the length of the run; nothing sleeps."""
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "", 2, 8, 3, 600, env={"GREETING": "hello, you"}, launch=RANKS, image="a/mpi:1")


@pytest.fixture
def peer() -> Iterator[KubernetesHarness]:
    """A cluster of two nodes on a server with the operator."""
    with kubernetes_kit(nodes=2, more=("mpi",)) as kit:
        MpiOperator(kit)
        made = KubernetesHarness(kit)
        made.apply(SPEC)
        yield made
        made.adapter.close()


def pods(peer: KubernetesHarness) -> list[Any]:
    """Those that are there."""
    return list(peer.kit.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"])


def running(peer: KubernetesHarness, job: JobSpec) -> Any:
    """The view of a job that has begun."""
    peer.submit(job)
    return peer.until(lambda: peer.seen(job), lambda view: view.phase == "running", what="running")


def test_every_process_of_a_program_runs_and_its_launcher_is_read(peer: KubernetesHarness) -> None:
    """Six ranks on two nodes, told their rank as under Slurm; the job's end, code and output are the launcher's."""
    assert "launch_mpi" in peer.adapter.capabilities().job_features
    peer.submit(JOB)
    ended = peer.ended(JOB)
    assert (ended.phase, ended.exit_code) == ("succeeded", 0)
    assert ended.started_at is not None
    chunk = peer.adapter.read_output("clu_1", JOB.token, offset=0, limit=10_000)
    assert sorted(chunk.data.decode().splitlines()) == [f"{rank} of 6 on {rank // 3} of 2 says hello, you" for rank in range(6)]
    assert chunk.end
    assert [one.token for one in peer.adapter.list_jobs("clu_1")] == [JOB.token]
    peer.submit(JOB)  # again: what is there is found
    assert len(peer.kit.ask("GET", MPIJOBS)["items"]) == 1


def test_workers_have_the_walls_of_pods_and_the_gpus(peer: KubernetesHarness) -> None:
    """One on each node, as a user whom the image knows and who is not root; the launcher has no GPU and stands beside them."""
    view = running(peer, replace(JOB, launch=LASTING))
    assert view.nodes == ("gpu-00000", "gpu-00001")
    by_role = {one["metadata"]["labels"]["training.kubeflow.org/job-role"]: one for one in pods(peer)}
    assert len(pods(peer)) == 3
    for role, gpus in (("worker", {"nvidia.com/gpu": "8"}), ("launcher", None)):
        spec = by_role[role]["spec"]
        assert spec["securityContext"] | {"fsGroup": 1000, "runAsUser": 1000, "runAsNonRoot": True} == spec["securityContext"]
        assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert spec["nodeSelector"] == {"controlplane.internal/cluster": "clu_1"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["containers"][0]["resources"].get("limits") == gpus
    assert by_role["worker"]["spec"]["containers"][0]["command"][:2] == ["/usr/sbin/sshd", "-De"]


def test_a_program_that_fails_is_the_users_matter_and_is_cleaned_up(peer: KubernetesHarness) -> None:
    """With the launcher's exit code; workers, which would wait for ever, are gone."""
    job = replace(JOB, launch=Launch("mpi", ("sh", "-c", "exit 5")))
    peer.submit(job)
    ended = peer.ended(job)
    assert (ended.phase, ended.failure, ended.exit_code) == ("failed", "user_error", 5)
    peer.until(
        lambda: [one for one in pods(peer) if one["status"]["phase"] == "Running"], lambda left: not left, what="workers gone"
    )


def test_a_launcher_past_its_time_is_told_as_that(peer: KubernetesHarness) -> None:
    """The operator passes the limit to the launcher's Job, and its reason back."""
    running(peer, replace(JOB, launch=LASTING))
    (one,) = peer.kit.ask("GET", MPIJOBS)["items"]
    assert one["spec"]["runPolicy"]["activeDeadlineSeconds"] == 600
    ends = [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}]
    peer.kit.ask("PATCH", f"{MPIJOBS}/{one['metadata']['name']}/status", {"status": {"conditions": ends}})
    ended = peer.until(lambda: peer.seen(JOB), lambda view: view.phase == "failed", what="failed")
    assert ended.failure == "time_limit"


def followed(peer: KubernetesHarness, job: JobSpec) -> Any:
    """The view of a job that runs, once the watches tell of it."""
    found = running(peer, job)
    return peer.until(lambda: glanced(peer, job), lambda view: view == found, what="the watches tell")


def glanced(peer: KubernetesHarness, job: JobSpec) -> Any:
    """What a glance tells; where it tells nothing its job was looked at, as a step does."""
    told = peer.adapter.glance(job.cluster_id, job.token)
    if told is None:
        peer.seen(job)
    return told


def watched(peer: KubernetesHarness) -> list[str]:
    """What was listed or asked for, watches left out."""
    return [path for _, path in peer.kit.asked() if "watch=true" not in path]


@pytest.fixture(params=["shared", "own"])
def either(request: pytest.FixtureRequest, peer: KubernetesHarness) -> Iterator[tuple[KubernetesHarness, ClusterSpec]]:
    """A cluster with the operator on both grounds."""
    if request.param == "shared":
        yield peer, SPEC
        return
    with own_harness(more=("mpi",)) as own:
        spec = own.cluster(2)
        MpiOperator(own.kit)
        yield own, spec


def test_following_one_costs_no_call(either: tuple[KubernetesHarness, ClusterSpec]) -> None:
    """Its watch opens with it: from then on looks are told what it does, to its end, and its output is one call."""
    peer, spec = either
    job = replace(JOB, cluster_id=spec.cluster_id, tenant_id=spec.tenant_id)
    assert not [path for _, path in peer.kit.asked() if "/mpijobs?" in path]
    assert followed(peer, replace(job, launch=LASTING)).nodes == tuple(one.ref for one in spec.members)
    peer.adapter.cancel(spec.cluster_id, job.token)
    peer.until(lambda: peer.seen(job), lambda view: view.phase == "cancelled", what="cancelled")
    peer.adapter.take_news()
    last = replace(job, token="job_2-1")
    peer.submit(last)
    before = len(watched(peer))
    ended = peer.until(
        lambda: peer.adapter.glance(spec.cluster_id, last.token),
        lambda view: view is not None and view.phase == "succeeded",
        what="told",
    )
    assert watched(peer)[before:] == []
    assert last.token in peer.adapter.take_news()
    assert ended.exit_code == 0
    peer.until(
        lambda: peer.adapter.glance(spec.cluster_id, last.token), lambda view: view is not None and not view.nodes, what="alone"
    )
    chunk = peer.adapter.read_output(spec.cluster_id, last.token, offset=0, limit=1000)
    assert (chunk.end, len(chunk.data.splitlines())) == (True, 6)
    assert [one.endswith("/log") or "/log?" in one for one in watched(peer)[before:]] == [True]


def test_a_failure_is_asked_for(peer: KubernetesHarness) -> None:
    """Its workers are gone by then, and with them what took their machines: glances tell nothing, the look tells the class."""
    followed(peer, replace(JOB, launch=LASTING))
    job = replace(JOB, token="job_2-1", gpus_per_node=0, launch=Launch("mpi", ("sh", "-c", "exit 5")))
    peer.submit(job)
    peer.until(lambda: peer.seen(job), lambda view: view.phase == "failed", what="failed")
    assert peer.adapter.glance("clu_1", job.token) is None
    assert (peer.seen(job).failure, peer.seen(job).exit_code) == ("user_error", 5)


def test_one_that_is_removed_is_recalled_no_more(peer: KubernetesHarness) -> None:
    """Whoever removed it: the watch tells, and the look finds nothing."""
    followed(peer, replace(JOB, launch=LASTING))
    (one,) = peer.kit.ask("GET", MPIJOBS)["items"]
    peer.kit.ask("DELETE", f"{MPIJOBS}/{one['metadata']['name']}?propagationPolicy=Background", {})
    peer.until(lambda: peer.adapter.glance("clu_1", JOB.token), lambda view: view is None, what="forgotten")
    with pytest.raises(NotFound):
        peer.seen(JOB)


def test_a_gap_in_its_watch_is_a_gap_for_it_alone(peer: KubernetesHarness) -> None:
    """A kind that cannot be listed any more tells nothing of its jobs, while Jobs beside it are told as ever."""
    plain = JobSpec("job_2-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 600\n", 1, 0, 1, 600)
    peer.submit(plain)
    followed(peer, replace(JOB, launch=LASTING))
    peer.until(lambda: peer.adapter.glance("clu_1", plain.token), lambda view: view is not None, what="told")
    peer.kit.handle.post("/_emu/faults", [{"path": "/apis/kubeflow.org/v2beta1/mpijobs", "times": 100_000, "status": 404}])
    peer.kit.handle.post("/_emu/drop-watches")
    peer.until(lambda: peer.adapter.glance("clu_1", JOB.token), lambda view: view is None, what="not believed")
    peer.until(lambda: peer.adapter.glance("clu_1", plain.token), lambda view: view is not None, what="told again")
    assert peer.adapter.glance("clu_1", JOB.token) is None
    assert peer.seen(JOB).phase == "running"


def test_a_cancelled_one_ends_and_is_not_started_again(peer: KubernetesHarness) -> None:
    """Neither by the operator nor by Kueue; its end can be read, and everything goes with the object."""
    running(peer, replace(JOB, launch=LASTING))
    peer.adapter.cancel("clu_1", JOB.token)
    peer.until(lambda: peer.seen(JOB), lambda view: view.phase == "cancelled", what="cancelled")
    (one,) = peer.kit.ask("GET", MPIJOBS)["items"]
    assert one["spec"]["runPolicy"]["suspend"] is True
    peer.kit.ask("DELETE", f"{MPIJOBS}/{one['metadata']['name']}?propagationPolicy=Background", {})
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    peer.until(lambda: peer.kit.ask("GET", secret)["items"], lambda left: not left, what="its secret gone")
    with pytest.raises(NotFound):
        peer.seen(JOB)


@pytest.mark.parametrize(("kueue", "more"), [(True, ()), (False, ("mpi",))])
def test_without_operator_or_queue_it_is_refused(kueue: bool, more: tuple[str, ...]) -> None:  # noqa: FBT001 - a case
    """Before anything is sent: nobody would start it, or nobody would start it whole."""
    with kubernetes_kit(nodes=2, kueue=kueue, more=more) as kit:
        harness = KubernetesHarness(kit)
        harness.apply(SPEC)
        assert "launch_mpi" not in harness.adapter.capabilities().job_features
        with pytest.raises(Unsupported) as caught:
            harness.adapter.submit(replace(JOB, nodes=1))
        assert caught.value.code == "job_feature_unsupported"
        with pytest.raises(NotFound):
            harness.seen(JOB)
        harness.adapter.close()
