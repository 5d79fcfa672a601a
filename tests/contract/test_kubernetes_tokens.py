"""
Kubeconfigs as the adapter gets them from the server: for whom, for how long, and when there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.credentials import SupportsKubeconfigs
from controlplane.providers.errors import AuthFailed, Busy, NotFound, Refused, Unknown, Unsupported
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit

pytestmark = UNTIDY
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"),))
DOOR = "https://kube.example.org:6443"
ROOT = "/api/v1/namespaces/contract-clu-1"


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """A node, and a server that lets in nobody whom it does not know."""
    with kubernetes_kit(nodes=1, token="an-administrators-token") as made:
        yield made


@pytest.fixture
def adapter(kit: KubernetesKit) -> Iterator[KubernetesAdapter]:
    """It has made a cluster, and says where tenants reach the server."""
    made = kit.adapter(tenant_url=DOOR, tenant_ca_pem="-----BEGIN CERTIFICATE-----\n", kubeconfig_max_s=1800)
    made.apply_cluster(SPEC)
    yield made
    made.close()


def _user(text: str) -> str:
    token: str = yaml.safe_load(text)["users"][0]["user"]["token"]
    return token


def _can(kit: KubernetesKit, token: str, verb: str, resource: str, namespace: str) -> bool:
    asked = {"verb": verb, "resource": resource, "namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}
    answer: Any = kit.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, "application/json", token=token)
    return bool(answer["status"]["allowed"])


def test_a_kubeconfig_names_the_door_the_namespace_and_a_new_token(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """It ends when it was asked to, and holds the tenant's role and nothing else."""
    assert isinstance(adapter, SupportsKubeconfigs)
    made = adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900)
    assert 840 < (made.expires_at - datetime.now(UTC)).total_seconds() < 960
    whole = yaml.safe_load(made.text)
    assert whole["clusters"][0]["cluster"]["server"] == DOOR
    assert whole["contexts"][0]["context"]["namespace"] == "contract-clu-1"
    assert set(whole["users"][0]["user"]) == {"token"}
    assert made.text not in repr(made)
    token = _user(made.text)
    assert _can(kit, token, "list", "pods", "contract-clu-1")
    for verb, resource, namespace in (
        ("create", "pods", "contract-clu-1"),
        ("get", "secrets", "contract-clu-1"),
        ("create", "serviceaccounts/token", "contract-clu-1"),
        ("list", "pods", "default"),
        ("list", "pods", ""),
    ):
        assert not _can(kit, token, verb, resource, namespace), (verb, resource, namespace)
    assert token != _user(adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900).text)


def test_a_kubeconfig_is_not_for_others_nor_for_longer_than_allowed(adapter: KubernetesAdapter) -> None:
    """Another tenant, a cluster that is not there, and a lifetime above the ceiling."""
    with pytest.raises(Refused):
        adapter.issue_kubeconfig("clu_1", "ten_two", lifetime_s=900)
    with pytest.raises(NotFound):
        adapter.issue_kubeconfig("clu_2", "ten_one", lifetime_s=900)
    with pytest.raises(Refused) as wrong:
        adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=1801)
    assert wrong.value.code == "kubeconfig_too_long"


def test_a_namespace_without_the_account_gets_it(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """As clusters have it that were made before there were kubeconfigs, or where somebody removed it: older tokens end with it."""
    before = _user(adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900).text)
    kit.ask("DELETE", f"{ROOT}/serviceaccounts/tenant")
    after = _user(adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900).text)
    assert _can(kit, after, "list", "pods", "contract-clu-1")
    with pytest.raises(OSError, match="401"):
        _can(kit, before, "list", "pods", "contract-clu-1")


def test_no_token_is_made_for_a_server_without_tls(kit: KubernetesKit) -> None:
    """Kubectl would not show it, and others would show it to everybody on the way."""
    plain = kit.adapter()
    plain.apply_cluster(SPEC)
    with pytest.raises(Unsupported):
        plain.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900)
    assert not [path for _, path in kit.asked() if path.split("?")[0].endswith("/token")]
    plain.close()


def test_nothing_is_issued_for_a_cluster_that_goes(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """A namespace that is held by a finalizer lets nobody in any more."""
    held = {"metadata": {"name": "held", "finalizers": ["example.org/held"]}}
    kit.ask("POST", f"{ROOT}/configmaps", held, "application/json")
    adapter.delete_cluster("clu_1")
    with pytest.raises(Busy):
        adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900)
    assert not [path for _, path in kit.asked() if path.split("?")[0].endswith("/token")]


@pytest.mark.parametrize(("status", "error"), [(403, AuthFailed), (500, Unknown), (429, Busy)])
def test_a_server_that_makes_no_token_is_told_by_its_kind(
    kit: KubernetesKit, adapter: KubernetesAdapter, status: int, error: type[Exception]
) -> None:
    """And a repeat heals it."""
    kit.handle.post("/_emu/faults", [{"method": "POST", "path": "/token", "times": 1, "status": status}])
    with pytest.raises(error):
        adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900)
    assert adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900).text
