"""
What our credential must be allowed to do, and whether the server says that it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.kubernetes.client import Kube

Json = dict[str, Any]
REVIEWS = "/apis/authorization.k8s.io/v1"
EVERYWHERE = "no-such-namespace-of-the-control-plane"
"""Rules that hold in a namespace that is not there hold in all."""
LOOK, MAKE = ("get", "list", "watch"), ("create", "patch")
KUEUE = "kueue.x-k8s.io"
KEPT_S = 600.0
"""How long an answer without gaps is believed."""


@dataclass(frozen=True, slots=True)
class Need:
    """
    One kind of object and what we do with it.
    """

    group: str
    """API group; empty for the core's."""
    resource: str
    """Plural, with its subresource after a slash."""
    verbs: tuple[str, ...]
    """All of them."""
    namespace: str = ""
    """Where; empty for everywhere."""


NEEDS = (
    Need("", "namespaces", ("get", "list", "delete", *MAKE)),
    Need("", "nodes", ("get", "list", "patch")),
    Need("", "pods", LOOK),
    Need("", "pods/log", LOOK),
    Need("", "pods/eviction", ("create",)),
    Need("", "events", LOOK),
    Need("", "configmaps", LOOK),
    Need("", "resourcequotas", (*LOOK, *MAKE)),
    Need("", "services", ("get", "delete", *MAKE)),
    Need("", "secrets", ("list", "delete", *MAKE)),
    Need("", "serviceaccounts", MAKE),
    Need("", "serviceaccounts/token", ("create",)),
    Need("batch", "jobs", (*LOOK, *MAKE)),
    Need("apps", "deployments", ("get", "list", "delete", *MAKE)),
    Need("autoscaling", "horizontalpodautoscalers", ("get", "delete", *MAKE)),
    Need("networking.k8s.io", "networkpolicies", MAKE),
    Need("rbac.authorization.k8s.io", "roles", MAKE),
    Need("rbac.authorization.k8s.io", "rolebindings", MAKE),
    Need("coordination.k8s.io", "leases", ("get",), "kube-node-lease"),
    Need(KUEUE, "localqueues", LOOK),
    Need(KUEUE, "workloads", LOOK),
)
"""Always; what the tenants' role holds is among it, because a server lets nobody give away more than they have."""
QUEUE_NEEDS = (
    Need(KUEUE, "clusterqueues", ("get", "delete", *MAKE)),
    Need(KUEUE, "resourceflavors", ("get", "delete", *MAKE)),
    Need(KUEUE, "topologies", ("get", "delete", *MAKE)),
    Need(KUEUE, "localqueues", MAKE),
    Need(KUEUE, "workloadpriorityclasses", MAKE),
    Need(KUEUE, "workloads", ("patch",)),
)
"""With Kueue."""
VOLUME_NEEDS = (Need("", "persistentvolumeclaims", ("get", "create")),)
"""Where volumes are offered; they go with their namespace."""
CLAIM_NEEDS = (
    Need("resource.k8s.io", "resourceslices", ("list",)),
    Need("resource.k8s.io", "resourceclaimtemplates", ("get", "list", "delete", *MAKE)),
)
"""Where GPUs are claimed."""
GROUP_NEEDS: Mapping[str, tuple[Need, ...]] = {
    "leaderworkerset.x-k8s.io": (Need("leaderworkerset.x-k8s.io", "leaderworkersets", ("get", "list", "delete", *MAKE)),),
    "keda.sh": (Need("keda.sh", "scaledobjects", ("get", "delete", *MAKE)),),
}
"""Where the server has the API group: replicas over several nodes, and scaling by queries."""


class Rights:
    """
    What the server says of our credential.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._lock = threading.Lock()
        self._fine_until: dict[tuple[Need, ...], float] = {}

    def missing(self, *, queues: bool, groups: Collection[str], volumes: bool = False, claims: bool = False) -> tuple[str, ...]:
        """
        What we may not do and must with the API groups that the server has, as `verb resource`; empty for nothing. One request where the
        server lists our rules, and one more for each right that is not among them.
        """
        needs = (*NEEDS, *(QUEUE_NEEDS if queues else ()), *(VOLUME_NEEDS if volumes else ()), *(CLAIM_NEEDS if claims else ()))
        needs += tuple(one for group, some in GROUP_NEEDS.items() if group in groups for one in some)
        with self._lock:
            if time.monotonic() < self._fine_until.get(needs, 0.0):
                return ()
        rules = self._rules()
        wanted = [(one, verb) for one in needs for verb in one.verbs]
        unlisted = [(one, verb) for one, verb in wanted if not _among(rules, one, verb)]
        gaps = tuple(f"{verb} {one.resource}" for one, verb in unlisted if not self._may(one, verb))
        if not gaps:
            with self._lock:
                self._fine_until[needs] = time.monotonic() + KEPT_S
        return gaps

    def _rules(self) -> list[Json]:
        answer = self._kube.create(f"{REVIEWS}/selfsubjectrulesreviews", rules_review())
        return list((answer.get("status") or {}).get("resourceRules") or [])

    def _may(self, need: Need, verb: str) -> bool:
        answer = self._kube.create(f"{REVIEWS}/selfsubjectaccessreviews", access_review(need, verb))
        return (answer.get("status") or {}).get("allowed") is True


def rules_review() -> Json:
    """
    Asks for all rules that hold for us everywhere.
    """
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": EVERYWHERE}}


def access_review(need: Need, verb: str) -> Json:
    """
    Asks for one right.
    """
    resource, _, sub = need.resource.partition("/")
    asked = {"group": need.group, "resource": resource, "verb": verb}
    asked |= ({"subresource": sub} if sub else {}) | ({"namespace": need.namespace} if need.namespace else {})
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}


def _among(rules: Iterable[Json], need: Need, verb: str) -> bool:
    return any(
        _has(rule.get("verbs"), verb)
        and _has(rule.get("apiGroups"), need.group)
        and _has(rule.get("resources"), need.resource)
        and not rule.get("resourceNames")
        for rule in rules
    )


def _has(listed: Sequence[str] | None, wanted: str) -> bool:
    return "*" in (listed or ()) or wanted in (listed or ())
