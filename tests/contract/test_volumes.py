"""
Volumes that operators offer, as Kubernetes and a real Slurm are told of them; and nothing that they do not offer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import NotFound, Refused
from controlplane.providers.volumes import Mount
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.contract.slurm_harness import SlurmHarness
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit
from tests.slurm_kit import session_kit

OFFERED = {
    "data": {"storage_class": "lustre", "size_gib": 100},
    "models": {"storage_class": "nfs", "size_gib": 50, "access": "ReadOnlyMany", "read_only": True},
}
MOUNTS = (Mount("data", "/data"), Mount("models", "/models"))
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"),))
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\ntrue\n", 1, 8, 1, 600, mounts=MOUNTS)
CLAIMS = "/api/v1/namespaces/contract-clu-1/persistentvolumeclaims"


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """Two free nodes and a queue."""
    with kubernetes_kit(nodes=2) as made:
        yield made


@pytest.fixture
def adapter(kit: KubernetesKit) -> Iterator[KubernetesAdapter]:
    """It offers two volumes, and the cluster stands."""
    made = kit.adapter(volumes=OFFERED)
    made.apply_cluster(SPEC)
    yield made
    made.close()


@UNTIDY
def test_a_cluster_gets_its_own_claim_once_a_job_mounts_it(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Of the operator's class and size, however often it is mounted; what may only be read is mounted so; it goes with the cluster."""
    said = adapter.capabilities()
    assert ("mounts" in said.job_features, said.volumes) == (True, ("data", "models"))
    assert kit.ask("GET", CLAIMS)["items"] == []
    adapter.submit(JOB)
    adapter.submit(replace(JOB, token="job_2-1"))
    made = {one["metadata"]["name"]: one["spec"] for one in kit.ask("GET", CLAIMS)["items"]}
    assert set(made) == {"volume-data", "volume-models"}
    assert made["volume-data"]["accessModes"] == ["ReadWriteMany"]
    assert made["volume-data"]["resources"]["requests"]["storage"] == "100Gi"
    pod = kit.ask("GET", "/apis/batch/v1/namespaces/contract-clu-1/jobs/job-1-1")["spec"]["template"]["spec"]
    assert not [one for one in pod["volumes"] if set(one) & {"hostPath", "nfs", "csi"}]
    mounted = {one["mountPath"]: one.get("readOnly", False) for one in pod["containers"][0]["volumeMounts"]}
    assert (mounted["/data"], mounted["/models"]) == (False, True)
    deleting = KubernetesHarness(kit)
    deleting.gone("clu_1")
    deleting.adapter.close()
    assert kit.ask("GET", "/api/v1/persistentvolumeclaims")["items"] == []


@UNTIDY
@pytest.mark.parametrize(
    "mount",
    [
        Mount("other", "/data"),
        Mount("../data", "/data"),
        Mount("data", "/"),
        Mount("data", "/a/../../etc"),
        Mount("data", "/proc"),
        Mount("data", "/controlplane/script"),
        Mount("data", "/models"),
    ],
)
def test_what_is_not_offered_is_refused_and_leaves_nothing(kit: KubernetesKit, adapter: KubernetesAdapter, mount: Mount) -> None:
    """Whoever asks the adapter past the API: no claim, no job."""
    with pytest.raises(Refused) as wrong:
        adapter.submit(replace(JOB, mounts=(Mount("models", "/models"), mount)))
    assert wrong.value.code in {"job_volume_unknown", "job_mount_invalid"}
    assert kit.ask("GET", CLAIMS)["items"] == []
    with pytest.raises(NotFound):
        adapter.find_job("clu_1", JOB.token)


@UNTIDY
def test_somebody_elses_claim_is_not_mounted(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """One of that name without our marks could lead anywhere."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "of-another-tenant"}
    kit.ask("POST", CLAIMS, {"metadata": {"name": "volume-data"}, "spec": spec}, "application/json")
    with pytest.raises(Refused):
        adapter.submit(JOB)
    with pytest.raises(NotFound):
        adapter.find_job("clu_1", JOB.token)


@pytest.fixture
def slurm() -> Iterator[SlurmHarness]:
    """The session's Slurm, whose nodes are said to have Pyxis and two folders for containers."""
    harness = SlurmHarness(session_kit())
    harness.adapter.close()
    folders = {"data": {"path": "/shared/{user}/data"}, "models": {"path": "/shared/models", "read_only": True}}
    harness.adapter = harness.kit.adapter(lambda: datetime.now(UTC), mint=True, containers="pyxis", volumes=folders)
    try:
        yield harness
    finally:
        harness.close()


@pytest.mark.slurm
def test_slurm_is_told_the_operators_folders(slurm: SlurmHarness) -> None:
    """As Pyxis takes them, the user's own where the operator says so; nothing is mounted without a container."""
    spec = slurm.cluster(1)
    said = slurm.adapter.capabilities()
    assert ("mounts" in said.job_features, said.volumes) == (True, ("data", "models"))
    mounts = (Mount("data", "/data"), Mount("data", "/again", read_only=True), Mount("models", "/models"))
    job = slurm.job(spec, "true", image="example.org/train:1", mounts=mounts)
    number = slurm.submit(job)
    script = slurm.kit.slurm("scontrol", "write", "batch_script", number, "-")
    folder = f"/shared/{spec.user}/data"
    assert f"--container-mounts={folder}:/data,{folder}:/again:ro,/shared/models:/models:ro" in script
    for wrong in (
        replace(job, image=""),
        replace(job, mounts=(Mount("data", "/a,/etc:/b"),)),
        replace(job, mounts=(Mount("x", "/x"),)),
    ):
        with pytest.raises(Refused):
            slurm.adapter.submit(replace(wrong, token=slurm.new_id("job") + "-1"))
