"""
What our credential must be allowed to do, and whether the server says that it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.providers.kube.client import Kube

Json = dict[str, Any]
REVIEWS = "/apis/authorization.k8s.io/v1"
EVERYWHERE = "no-such-namespace-of-the-control-plane"
"""Rules that hold in a namespace that is not there hold in all."""
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


class Rights:
    """
    What the server says of our credential in one namespace, or everywhere.
    """

    def __init__(self, kube: Kube, namespace: str = EVERYWHERE) -> None:
        self._kube = kube
        self._namespace = namespace
        self._lock = threading.Lock()
        self._fine_until: dict[tuple[Need, ...], float] = {}

    def missing(self, needs: tuple[Need, ...]) -> tuple[str, ...]:
        """
        What we may not do of what we must, as `verb resource`; empty for nothing. One request where the server lists our rules, and one
        more for each right that is not among them.
        """
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
        answer = self._kube.create(f"{REVIEWS}/selfsubjectrulesreviews", rules_review(self._namespace))
        return list((answer.get("status") or {}).get("resourceRules") or [])

    def _may(self, need: Need, verb: str) -> bool:
        answer = self._kube.create(f"{REVIEWS}/selfsubjectaccessreviews", access_review(need, verb))
        return (answer.get("status") or {}).get("allowed") is True


def rules_review(namespace: str = EVERYWHERE) -> Json:
    """
    Asks for all rules that hold for us in the namespace.
    """
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}


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
