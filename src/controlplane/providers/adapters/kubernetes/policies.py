"""
How pods of a namespace that was taken over get to its nodes, and to no others: the API server itself adds our node selector and toleration
to each pod that comes in, whoever makes it. Such pods know nothing of us, so nothing else could.

Both fields are atomic, which an apply configuration may not touch, so the policy is a JSON patch.

Source: kubernetes.io, "Mutating Admission Policy" (v1 since 1.36, v1beta1 before); PodSpec: `tolerations` is an atomic list, `nodeSelector`
an atomic map; kubelet: a pod whose node selector does not fit its node is not run, also where it names the node itself.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from controlplane.providers.errors import Busy
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.names import ADOPTED, CLUSTER, Names, core, grouped
from controlplane.providers.kube.work.walls import Part, toleration

Json = dict[str, Any]
GROUP = "admissionregistration.k8s.io"
SPOKEN = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
"""Versions in which the policy is the same, the better one first."""
POLICY, BINDING = "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"
FACTS_KEPT_S = 60.0
"""How long what the server offers is remembered."""
LOOK_AGAIN_S = 2.0
"""API servers learn of a policy from each other's store, within moments."""


class Policies:
    """
    The pod policies of one server. Safe to share between threads.
    """

    def __init__(self, kube: Kube, names: Names) -> None:
        self._kube = kube
        self._names = names
        self._lock = threading.Lock()
        self._known: tuple[float, str] | None = None

    def api(self) -> str:
        """
        Group and version in which the server has such policies, as it was within the last minute; empty for none.
        """
        with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > FACTS_KEPT_S:
                self._known = (time.monotonic(), self._discovered())
            return self._known[1]

    def put(self, cluster_id: str, namespace: str) -> None:
        """
        The server has the namespace's policy. Raises Busy where it has none of that kind just now.
        """
        api = self.api()
        if not api:
            raise Busy(f"the server has no {POLICY}", retry_in_s=30.0, code="provider_no_pod_policies")
        for part in policy(self._names, cluster_id, namespace, api):
            self._kube.apply(part.path, part.body)

    def is_there(self, cluster_id: str) -> bool:
        """
        Whether the server has the cluster's policy and what puts it into force.
        """
        api, name = self.api(), self._names.outside(cluster_id)
        found = [self._kube.find(grouped(api, kind, name)) for kind in (POLICY, BINDING)] if api else [None]
        return all(one is not None and self._names.marks(one, cluster_id) for one in found)

    def remove(self, cluster_id: str) -> None:
        """
        The server has no policy of the cluster. What binds it goes first, so that no pod meets half of it.
        """
        api, name = self.api(), self._names.outside(cluster_id)
        for kind in (BINDING, POLICY) if api else ():
            found = self._kube.find(grouped(api, kind, name))
            if found is not None and self._names.marks(found, cluster_id):
                self._kube.delete(grouped(api, kind, name), uid=found["metadata"]["uid"])

    def prove(self, cluster_id: str, namespace: str, *, there: bool) -> None:
        """
        A pod that comes into the namespace is given what the policy gives, or, for `there` false, is not. The server is asked what it would
        make of one; none is made. Raises Busy while that is not so.
        """
        made = self._kube.rehearse(core(namespace, "pods"), rehearsal(self._names, cluster_id, namespace))
        if steered(made, cluster_id) != there:
            words = "does not reach" if there else "still reaches"
            raise Busy(f"the pod policy {words} pods of {namespace}", retry_in_s=LOOK_AGAIN_S, code="provider_policy_not_seen")

    def _discovered(self) -> str:
        groups = self._kube.get("/apis").get("groups") or []
        served = {str(one.get("groupVersion")) for group in groups for one in group.get("versions") or []}
        for api in SPOKEN:
            if api in served:
                kinds = {one.get("name") for one in self._kube.get(f"/apis/{api}").get("resources") or []}
                if {POLICY, BINDING} <= kinds:
                    return api
        return ""


def policy(names: Names, cluster_id: str, namespace: str, api: str) -> tuple[Part, ...]:
    """
    The policy and what puts it into force, for pods of this namespace alone. A pod that cannot be given both is turned away.
    """
    name = names.outside(cluster_id)
    wanted = toleration(cluster_id)
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}
    where = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    key, value = _quoted(CLUSTER), _quoted(cluster_id)
    tolerates = (
        "has(object.spec.tolerations) && object.spec.tolerations.exists(t, "
        f"has(t.key) && t.key == {key} && has(t.value) && t.value == {value} "
        f"&& (!has(t.effect) || t.effect == {_quoted(wanted['effect'])}))"
    )
    selects = f"has(object.spec.nodeSelector) && {key} in object.spec.nodeSelector && object.spec.nodeSelector[{key}] == {value}"
    added = "{" + ", ".join(f"{_quoted(field)}: {_quoted(told)}" for field, told in sorted(wanted.items())) + "}"
    to_tolerations = (
        "has(object.spec.tolerations) "
        f'? [JSONPatch{{op: "add", path: "/spec/tolerations/-", value: {added}}}] '
        f': [JSONPatch{{op: "add", path: "/spec/tolerations", value: [{added}]}}]'
    )
    to_selector = (
        "has(object.spec.nodeSelector) "
        f'? [JSONPatch{{op: "add", path: "/spec/nodeSelector/" + jsonpatch.escapeKey({key}), value: {value}}}] '
        f': [JSONPatch{{op: "add", path: "/spec/nodeSelector", value: {{{key}: {value}}}}}]'
    )
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": where, "resourceRules": [pods]},
        "matchConditions": [{"name": "not-steered-yet", "expression": f"!({tolerates}) || !({selects})"}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": one}} for one in (to_tolerations, to_selector)],
    }
    return (
        _part(names, cluster_id, api, ("MutatingAdmissionPolicy", POLICY), spec),
        _part(names, cluster_id, api, ("MutatingAdmissionPolicyBinding", BINDING), {"policyName": name}),
    )


def rehearsal(names: Names, cluster_id: str, namespace: str) -> Json:
    """
    A pod that is never made, and that every level of Pod Security lets in.
    """
    secure = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "none", "image": "none", "securityContext": secure}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{names.outside(cluster_id)}-rehearsal", "namespace": namespace},
        "spec": {"automountServiceAccountToken": False, "containers": [container]},
    }


def steered(pod: Json, cluster_id: str) -> bool:
    """
    Whether the pod goes to the cluster's nodes and to no others.
    """
    spec = pod.get("spec", {})
    return (spec.get("nodeSelector") or {}).get(CLUSTER) == cluster_id and toleration(cluster_id) in (spec.get("tolerations") or [])


def is_adopted(thing: Json) -> bool:
    """
    Whether the namespace was there before us, or the node came with one, or to one, that was.
    """
    told = thing.get("metadata", {})
    return ADOPTED in (told.get("labels") or {}) or ADOPTED in (told.get("annotations") or {})


def _part(names: Names, cluster_id: str, api: str, kind: tuple[str, str], spec: Json) -> Part:
    name, (called, plural) = names.outside(cluster_id), kind
    metadata = {"name": name, "labels": names.labels(cluster_id)}
    return Part(grouped(api, plural, name), {"apiVersion": api, "kind": called, "metadata": metadata, "spec": spec})


def _quoted(text: str) -> str:
    """
    As a string of CEL; what is quoted here has been checked to be a plain word.
    """
    return json.dumps(text)
