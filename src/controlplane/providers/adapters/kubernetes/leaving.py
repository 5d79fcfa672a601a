"""
What we have put into a namespace that goes on without us is taken out of it: walls, rights, and whatever ran there for us.
"""

from __future__ import annotations

from typing import Any

from controlplane.providers.adapters.kubernetes.shared import NOT_ENDED, Shared
from controlplane.providers.errors import Busy
from controlplane.providers.kube.client import Conflict, Kube
from controlplane.providers.kube.work import devices, mpi
from controlplane.providers.kube.work.names import CLUSTER, OWNER, Names, core, grouped
from controlplane.providers.kube.work.walls import NETWORK, RBAC

Json = dict[str, Any]
WORK = (
    ("batch/v1", "jobs"),
    (mpi.API, mpi.PLURAL),
    ("apps/v1", "deployments"),
    ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    ("keda.sh/v1alpha1", "scaledobjects"),
    ("autoscaling/v2", "horizontalpodautoscalers"),
)
"""What starts pods, or has them started."""
WALLS = (
    ("v1", "services"),
    ("v1", "secrets"),
    ("v1", "resourcequotas"),
    (NETWORK, "networkpolicies"),
    (RBAC, "rolebindings"),
    (RBAC, "roles"),
    ("v1", "serviceaccounts"),
)
"""What stands besides. Rights go before the account that has them."""
BUILT_IN = frozenset({"v1", "batch/v1", "apps/v1", "autoscaling/v2", NETWORK, RBAC})


class Leaving:
    """
    Our objects in namespaces that are let go.
    """

    def __init__(self, kube: Kube, names: Names, shared: Shared) -> None:
        self._kube = kube
        self._names = names
        self._shared = shared

    def clear(self, cluster_id: str, namespace: str) -> None:
        """
        Nothing of the cluster is in the namespace but claims of storage, which hold somebody's data: they stay without our marks. Busy
        while pods of ours end.
        """
        served = self._served()
        for api, kind in WORK:
            if api in served:
                self._delete(cluster_id, namespace, api, kind)
        labels = self._names.selector(cluster_id)
        left = self._kube.list_all(core(namespace, "pods"), labels=labels, fields=NOT_ENDED)
        if left:
            raise Busy(f"{len(left)} pods of ours still end in {namespace}", retry_in_s=2.0)
        for api, kind in WALLS:
            self._delete(cluster_id, namespace, api, kind)
        claims = [one for one in sorted(served) if one.startswith(f"{devices.GROUP}/")]
        for api in claims[:1] if self._shared.settings().gpus_by == "dra" else ():
            self._delete(cluster_id, namespace, api, "resourceclaimtemplates")
        kueue = self._shared.kueue()
        if kueue is not None:
            self._delete(cluster_id, namespace, kueue.api, "localqueues")
        self._free_claims(cluster_id, namespace)

    def _delete(self, cluster_id: str, namespace: str, api: str, kind: str) -> None:
        for one in self._kube.list_all(_path(api, namespace, kind), labels=self._names.selector(cluster_id)):
            if not one["metadata"].get("deletionTimestamp"):
                self._kube.delete(_path(api, namespace, kind, one["metadata"]["name"]), uid=one["metadata"]["uid"])

    def _free_claims(self, cluster_id: str, namespace: str) -> None:
        if not self._shared.settings().volumes:
            return
        for one in self._kube.list_all(core(namespace, "persistentvolumeclaims"), labels=self._names.selector(cluster_id)):
            meta = one["metadata"]
            patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "labels": dict.fromkeys((CLUSTER, OWNER))}}
            try:
                self._kube.patch(core(namespace, "persistentvolumeclaims", meta["name"]), patch)
            except Conflict as error:
                raise Busy(f"the claim {meta['name']} was changed meanwhile", retry_in_s=1.0) from error

    def _served(self) -> set[str]:
        groups = self._kube.get("/apis").get("groups") or []
        return {*BUILT_IN} | {str(one.get("groupVersion")) for group in groups for one in group.get("versions") or []}


def _path(api: str, namespace: str, kind: str, name: str = "") -> str:
    return core(namespace, kind, name) if api == "v1" else grouped(api, kind, name, namespace=namespace)
