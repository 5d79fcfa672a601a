"""
The main job on a Kubernetes that the operator runs, through the public API: register, enrol, order, run a gang, grow, pay, delete, wipe.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text as sql
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, in_transaction
from tests.conftest import Database
from tests.e2e.clouds import SITE, Cloud, running_cloud
from tests.e2e.rack import done
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubectl, kubernetes_kit
from tests.tls_door import Door, tls_door

pytestmark = [UNTIDY]
TOKEN = "an-administrators-token"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "kubernetes.md"
MODELS = {"H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3"}


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """Four nodes of eight GPUs and a Kueue; strangers are not let in."""
    with kubernetes_kit(nodes=4, token=TOKEN) as made:
        yield made


@pytest.fixture
def door(kit: KubernetesKit, tmp_path: Path) -> Iterator[Door]:
    """Where tenants reach the server."""
    with tls_door(kit.handle.port, tmp_path) as made:
        yield made


@pytest.fixture
def cloud(database: Database, tmp_path: Path) -> Iterator[Cloud]:
    """A cloud without machines."""
    with running_cloud(database, tmp_path) as made:
        yield made


def register(cloud: Cloud, kit: KubernetesKit, **config: Any) -> str:
    """The Kubernetes is a provider; its id is returned."""
    body = {
        "name": "kube",
        "adapter": "kubernetes",
        "site": SITE,
        "config": {"settle_s": 0, "gpu_models": MODELS, **config},
        "secrets": {"kubeconfig": kit.kubeconfig},
        "shared": True,
    }
    provider = done(cloud.operator.post("/v1/admin/providers", json=body))
    assert TOKEN not in str(provider)
    return str(provider["id"])


def enrol(cloud: Cloud, provider_id: str, refs: list[str]) -> list[str]:
    """The nodes are in the fleet and free; their ids are returned."""
    place = {"block": "b0", "leaf": "l0", "rack": "r0", "instance_type": "hgx-h100-8", "gpus": 8}
    body = {"provider_id": provider_id, "nodes": [{"ref": ref, **place} for ref in refs]}
    nodes: list[str] = done(cloud.operator.post("/v1/admin/nodes", json=body))["enrolled"]
    for node_id in nodes:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
    return nodes


def example(number: int) -> dict[str, Any]:
    """What the tenants' guide sends: the order, the job, the GPUs of a job, its slices, the kubeconfig."""
    found: dict[str, Any] = json.loads(re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)[number])
    return found


def order(cloud: Cloud, count: int) -> dict[str, Any]:
    """The guide's cluster with so many nodes, once it runs."""
    body = example(0)
    body["spec"]["site"] = SITE
    body["spec"]["node_sets"][0]["count"] = count
    cluster = done(cloud.tenant.post(f"{cloud.project}/clusters", json=body))
    return cloud.until(f"{cloud.project}/clusters/{cluster['id']}", "running")


def run(cloud: Cloud, cluster_id: str, nodes: int) -> dict[str, Any]:
    """The guide's job on so many nodes, once it is over."""
    body = example(1)
    body["spec"] |= {"cluster_id": cluster_id, "nodes": nodes}
    job = done(cloud.tenant.post(f"{cloud.project}/jobs", json=body))
    return cloud.until(f"{cloud.project}/jobs/{job['id']}", "succeeded", "failed", "cancelled")


def remains(kit: KubernetesKit) -> list[str]:
    """What carries our marks at the server."""
    kinds = [
        *("/api/v1/namespaces", "/api/v1/pods", "/api/v1/secrets", "/api/v1/services", "/api/v1/serviceaccounts"),
        *(f"/apis/kueue.x-k8s.io/v1beta2/{kind}" for kind in ("clusterqueues", "resourceflavors", "topologies", "localqueues")),
        *("/apis/batch/v1/jobs", "/apis/networking.k8s.io/v1/networkpolicies", "/apis/rbac.authorization.k8s.io/v1/roles"),
        "/api/v1/nodes",
    ]
    marked = "?labelSelector=controlplane.internal/cluster"
    return [f"{kind}/{one['metadata']['name']}" for kind in kinds for one in kit.ask("GET", kind + marked)["items"]]


def members(kit: KubernetesKit, cluster_id: str) -> set[str]:
    """Names of the nodes that carry the cluster's mark."""
    return {
        one["metadata"]["name"]
        for one in kit.ask("GET", f"/api/v1/nodes?labelSelector=controlplane.internal/cluster={cluster_id}")["items"]
    }


def test_a_gang_runs_on_a_kubernetes_and_nothing_is_left_of_it(cloud: Cloud, kit: KubernetesKit) -> None:
    """Nodes come from the server's inventory, are ordered, run one job, are paid for, deleted, wiped and free again."""
    provider_id = register(cloud, kit)
    nodes = enrol(cloud, provider_id, [f"gpu-{number:05d}" for number in range(4)])
    running = order(cloud, 3)
    path = f"{cloud.project}/clusters/{running['id']}"
    checks = {one["name"]: one["result"] for one in running["status"]["conditions"]}
    assert checks["nodes_answer"] == checks["gpu_count"] == "passed"
    assert len(members(kit, running["id"])) == 3
    ended = run(cloud, running["id"], 3)
    assert ended["status"]["state"] == "succeeded", ended
    assert len(ended["status"]["instances"]) == 3
    text = "".join(one["text"] for one in done(cloud.tenant.get(f"{cloud.project}/jobs/{ended['id']}/logs"))["items"])
    assert sorted(re.findall(r"rank (\d) of 3 with 8 GPUs", text)) == ["0", "1", "2"]
    usage = done(cloud.tenant.get("/v1/usage", params={"group_by": "cluster"}))
    assert float(usage["items"][0]["gpu_seconds"]) > 0
    done(cloud.tenant.delete(path, headers={"If-Match": "*"}))
    cloud.until(path, "deleted")
    assert remains(kit) == []
    for node_id in nodes:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
    used = [len(done(cloud.operator.get(f"/v1/admin/nodes/{node_id}/wipes"))["items"]) for node_id in nodes]
    assert sorted(used) == [1, 2, 2, 2]
    assert all("taints" not in one["spec"] for one in kit.ask("GET", "/api/v1/nodes")["items"])


class Kubectl:
    """The real kubectl with a tenant's kubeconfig."""

    def __init__(self, directory: Path, text: str) -> None:
        self._file = directory / "kubeconfig"
        self._file.touch(mode=0o600)
        self._file.write_text(text)
        self._home = directory

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Whatever came of the command."""
        env = {"KUBECONFIG": str(self._file), "HOME": str(self._home), "PATH": "/usr/bin:/bin"}
        return subprocess.run([str(kubectl()), *words], env=env, capture_output=True, text=True, check=False, timeout=60)

    def says(self, *words: str) -> str:
        """The output of a command that must be good."""
        done_ = self(*words)
        assert done_.returncode == 0, done_.stderr
        return done_.stdout


def test_a_kubeconfig_opens_the_clusters_own_namespace_for_a_while(
    cloud: Cloud, kit: KubernetesKit, door: Door, tmp_path: Path, database: Database
) -> None:
    """Real kubectl reads pods and logs with it and changes nothing; it is stored nowhere, and ends with the cluster."""
    nodes = enrol(cloud, register(cloud, kit, tenant_url=door.url, tenant_ca_pem=door.ca_pem, kubeconfig_max_s=1800), ["gpu-00000"])
    cluster = order(cloud, 1)
    path = f"{cloud.project}/clusters/{cluster['id']}"
    assert run(cloud, cluster["id"], 1)["status"]["state"] == "succeeded"
    once = {"Idempotency-Key": "kube-1"}
    answer = cloud.tenant.post(f"{path}/kubeconfigs", json=example(4), headers=once)
    got = done(answer)
    assert answer.headers["Cache-Control"] == "no-store"
    left_s = (datetime.fromisoformat(got["expires_at"]) - datetime.now(UTC)).total_seconds()
    assert 840 < left_s < 960
    again = done(cloud.tenant.post(f"{path}/kubeconfigs", json=example(4), headers=once))
    assert (again["kubeconfig"], again["expires_at"]) == (None, None)
    kube = Kubectl(tmp_path, got["kubeconfig"])
    (pod,) = kube.says("get", "pods", "-o", "name").split()
    assert "rank 0 of 1 with 8 GPUs" in kube.says("logs", pod)
    for refused in (
        ("get", "pods", "-A"),
        ("get", "secrets"),
        ("delete", pod),
        ("get", "nodes"),
        ("create", "--validate=false", "-f", str(a_pod(tmp_path))),
    ):
        assert "orbidden" in kube(*refused).stderr, refused
    for lifetime_s, code in ((599, "out_of_range"), (3600, "kubeconfig_too_long")):
        wrong = cloud.tenant.post(f"{path}/kubeconfigs", json={"lifetime_s": lifetime_s})
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "body.lifetime_s"), wrong.text
        assert code in {wrong.json()["errors"][0]["code"], "out_of_range"}
    token = re.search(r"token: (\S+)", got["kubeconfig"])
    assert token is not None
    assert "idempotency_keys" in stored(database, cluster["id"]), "what is looked for can be found"
    assert stored(database, token[1]) == []
    asked = done(cloud.tenant.get("/v1/audit-events", params={"action": "clusters:credentials"}))["items"]
    assert [(one["target"], one["outcome"], one["detail"]["lifetime_s"]) for one in asked] == [
        (cluster["id"], "done", 900),
        (cluster["id"], "done", 3600),
    ]
    done(cloud.tenant.delete(path, headers={"If-Match": "*"}))
    cloud.until(path, "deleted")
    assert kube("get", "pods").returncode != 0
    refused_ = cloud.tenant.post(f"{path}/kubeconfigs", json={})
    assert (refused_.status_code, refused_.json()["code"]) == (409, "wrong_state")
    cloud.until(f"/v1/admin/nodes/{nodes[0]}", "available", client=cloud.operator)


def a_pod(directory: Path) -> Path:
    """A pod that a tenant would like to start by itself."""
    file = directory / "pod.json"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "own"},
        "spec": {"containers": [{"name": "c", "image": "debian"}]},
    }
    file.write_text(json.dumps(pod))
    return file


def stored(database: Database, text: str) -> list[str]:
    """Tables in which some row holds the text, as it is or in bytes."""

    def look(session: Session) -> list[str]:
        tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        forms = {"plain": f"%{text}%", "hex": f"%{text.encode().hex()}%"}
        found = []
        for name in session.execute(sql(tables)).scalars().all():
            query = sql(f'SELECT count(*) FROM "{name}" t WHERE t::text LIKE :plain OR t::text LIKE :hex')
            found += [name] if session.execute(query, forms).scalar_one() else []
        return found

    return in_transaction(database.engine, EVERYTHING, look)


def test_a_cluster_grows_shrinks_and_gets_another_node(cloud: Cloud, kit: KubernetesKit) -> None:
    """Each change is seen at the server, and a node that has left is wiped before it is free."""
    provider_id = register(cloud, kit)
    nodes = enrol(cloud, provider_id, [f"gpu-{number:05d}" for number in range(4)])
    cluster = order(cloud, 1)
    path = f"{cloud.project}/clusters/{cluster['id']}"
    for count in (3, 2):
        change = {"node_sets": [{"name": "workers", "count": count}]}
        done(cloud.tenant.patch(path, json=change, headers={"If-Match": "*"}))
        cloud.until(path, "running")
        assert len(members(kit, cluster["id"])) == count
    before = members(kit, cluster["id"])
    instances = done(cloud.tenant.get(f"{path}/instances"))["items"]
    done(cloud.tenant.post(f"{path}/instances/{instances[0]['id']}/actions/replace", headers={"If-Match": "*"}))
    cloud.until(path, "running")
    after = members(kit, cluster["id"])
    assert len(after) == len(before & after) + 1 == 2
    quota = kit.ask("GET", f"/api/v1/namespaces?labelSelector=controlplane.internal/cluster={cluster['id']}")["items"][0]
    assert quota["metadata"]["annotations"]["controlplane.internal/members"] == "2"
    done(cloud.tenant.delete(path, headers={"If-Match": "*"}))
    cloud.until(path, "deleted")
    for node_id in nodes:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
    assert remains(kit) == []
