"""
A credential with exactly the rights that the adapter asks for does all of its work; with less it makes no product and says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter, build
from controlplane.providers.adapters.kubernetes.rights import (
    ADOPTION_GROUP_NEEDS,
    GROUP_NEEDS,
    NEEDS,
    QUEUE_NEEDS,
    VOLUME_NEEDS,
    adoption_needs,
)
from controlplane.providers.adoption import Adoption
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import Busy, NotFound, Unsupported
from controlplane.providers.kube.rights import Need
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput
from controlplane.providers.services import Scaling, ServiceSpec
from controlplane.providers.volumes import Mount
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubeconfig, kubernetes_kit
from tests.kubernetes_standing import stand, state

pytestmark = UNTIDY
NODE = "gpu-00000"
RBAC = "rbac.authorization.k8s.io"
ALL = (*NEEDS, *QUEUE_NEEDS, *VOLUME_NEEDS, *(one for some in GROUP_NEEDS.values() for one in some))
TAKING = (*ALL, *adoption_needs(ADOPTION_GROUP_NEEDS, policies="v1", volumes=True))
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """One node, and a server that knows who asks."""
    with kubernetes_kit(nodes=1, token="an-administrators-token", more=("lws", "keda", "metrics")) as made:
        yield made


def _bind(kit: KubernetesKit, name: str, needs: list[Need], namespace: str = "") -> None:
    rules = [{"apiGroups": [one.group], "resources": [one.resource], "verbs": list(one.verbs)} for one in needs]
    root = f"/apis/{RBAC}/v1" + (f"/namespaces/{namespace}" if namespace else "")
    kind, plural = ("Role", "roles") if namespace else ("ClusterRole", "clusterroles")
    role: dict[str, Any] = {"metadata": {"name": name}, "rules": rules}
    account = {"kind": "ServiceAccount", "name": "plane", "namespace": "default"}
    binding = {"metadata": {"name": name}, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": [account]}
    kit.ask("POST", f"{root}/{plural}", role, "application/json")
    kit.ask("POST", f"{root}/{plural[:-1]}bindings", binding, "application/json")


def _adapter(kit: KubernetesKit, needs: tuple[Need, ...]) -> KubernetesAdapter:
    """It shows the token of an account that has these rights and no other."""
    kit.ask("POST", ACCOUNTS, {"metadata": {"name": "plane"}}, "application/json")
    _bind(kit, "plane", [one for one in needs if not one.namespace])
    for one in needs:
        if one.namespace:
            _bind(kit, f"plane-{one.resource}", [one], one.namespace)
    made = kit.ask("POST", f"{ACCOUNTS}/plane/token", {"spec": {"expirationSeconds": 3600}}, "application/json")
    text = kubeconfig(kit.handle.url, {"token": made["status"]["token"]})
    config: dict[str, Any] = {
        "settle_s": 0,
        "tenant_url": "https://kube.example.org",
        "prometheus_url": "http://prometheus.example.org",
    }
    config |= {"volumes": {"data": {"storage_class": "lustre", "size_gib": 1}}}
    return build(AdapterInput("prv_1", config, {"kubeconfig": text}, "contract", lambda: datetime.now(UTC)))


def test_the_rights_that_are_asked_for_are_enough(kit: KubernetesKit) -> None:
    """A whole tenancy: node, cluster, job, services, kubeconfig, deletion, wipe."""
    adapter = _adapter(kit, ALL)
    said = adapter.capabilities()
    assert said.products == ("kubernetes",)
    assert not [note for note in said.notes if "may not" in note and "ordered" in note]
    assert said.adopts == ()
    with pytest.raises(Unsupported, match="may not"):
        adapter.list_standing()
    adapter.qualify(NODE, "qua_1")
    adapter.deploy(Deployment(NODE, "alc_1", "ten_one", "clu_1", network=""))
    adapter.apply_cluster(ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member(NODE, 8, "alc_1"),)))
    mounts = (Mount("data", "/data"),)
    adapter.submit(
        JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 20\n", 1, 8, 1, 600, priority="high", mounts=mounts)
    )
    assert adapter.find_job("clu_1", "job_1-1").token == "job_1-1"
    for turn, scaling in enumerate((Scaling(1, 2, "cpu_cores", 80.0), Scaling(1, 2, "requests_running", 80.0), None), 1):
        serves = ServiceSpec("svc_1", "clu_1", "ten_one", turn, turn, "a/b:1", 8000, 1, scaling=scaling)
        adapter.apply_service(serves)
    assert adapter.list_services("clu_1") == ("svc_1",)
    adapter.observe_service("clu_1", "svc_1")
    adapter.delete_service("clu_1", "svc_1")
    adapter.drain("clu_1", (NODE,), reason="a look")
    adapter.undrain("clu_1", (NODE,))
    assert adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=600).text
    adapter.cancel("clu_1", "job_1-1")
    for _ in range(200):
        try:
            adapter.delete_cluster("clu_1")
            adapter.observe_cluster("clu_1")
        except Busy:
            continue
        except NotFound:
            break
    adapter.release(NODE, "alc_1", accepted_at=datetime.now(UTC))
    adapter.wipe(NODE, "wip_1")
    assert adapter.observe(NODE).phase in {"wiping", "wiped"}
    adapter.close()


@pytest.mark.parametrize(
    "gap", ["nodes", "pods/eviction", "serviceaccounts/token", "leases", "clusterqueues", "deployments", "leaderworkersets"]
)
def test_a_right_that_is_missing_is_named_and_nothing_is_ordered(kit: KubernetesKit, gap: str) -> None:
    """Before an order could end half-way."""
    less = tuple(
        Need(one.group, one.resource, ("get", "list")) if one.resource == gap else one
        for one in ALL
        if one.resource != gap or gap == "nodes"
    )
    adapter = _adapter(kit, less)
    said = adapter.capabilities()
    assert said.products == ()
    assert [note for note in said.notes if "may not" in note and gap in note]
    adapter.close()


def test_rights_that_were_complete_are_not_asked_for_again_at_once(kit: KubernetesKit) -> None:
    """A provider is asked how it is every minute; one request tells its rights, and then none for a while."""
    adapter = _adapter(kit, TAKING)
    adapter.capabilities()
    reviews = [path for _, path in kit.asked() if "reviews" in path]
    assert len(reviews) == 3, "all rules at once, twice, and the one that holds in one namespace only"
    adapter.capabilities()
    assert len([path for _, path in kit.asked() if "reviews" in path]) == 3
    adapter.close()


def test_the_rights_for_taking_over_are_enough() -> None:
    """A namespace that exists is seen, taken over, and let go with nothing left."""
    with kubernetes_kit(nodes=2, token="an-administrators-token", more=("policies", "lws", "keda")) as kit:
        stand(kit)
        before, adapter = state(kit), _adapter(kit, TAKING)
        assert adapter.capabilities().adopts == ("kubernetes",)
        (found,) = adapter.list_standing()
        assert found.obstacles == ()
        members = tuple(Member(one.ref, 8, f"alc_{number}", one.node_set) for number, one in enumerate(found.hosts))
        adapter.adopt_cluster(Adoption(found.ref, found.uid, ClusterSpec("clu_1", "ten_one", "prj_one", "", members)))
        job = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 20\n", 1, 2, 1, 600, mounts=(Mount("data", "/data"),))
        adapter.submit(job)
        for _ in range(200):
            try:
                adapter.let_go("clu_1")
            except Busy:
                continue
            break
        adapter.close()
        left = state(kit)
        assert [one for one in left if one.startswith(" persistentvolumeclaims theirs/")], "somebody's data"
        assert [one for one in left if "theirs" in one and one not in before and "claim" not in one] == []
        assert not [one for one in left.values() if "clu_1" in json.dumps(one)]
