"""
What is played on a management cluster of Cluster API: faults of its API server, of the line to it, and of what goes on behind it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.matrix.cases import COUNTS, Case

LOOKS = ("cluster:get", "hosts:list", "machines:list", "nodes:list", "secrets:get")
TELLS = (*LOOKS, "host:patch", "cluster:patch")
HOST = ("host:get", "host:patch")
CALLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "enrol": (("enrolled", "inspecting", "qualifying"), HOST),
    "deploy": (("deploying",), HOST),
    "order": (("bootstrapping", "verifying"), TELLS),
    "kubeconfig": (("asked",), ("cluster:get", "secrets:get", "serviceaccounts:post")),
    "watch": (("running", "degraded"), LOOKS),
    "grow": (("updating",), TELLS),
    "shrink": (("updating",), (*TELLS, "machine:patch")),
    "replace": (("updating",), (*TELLS, "machine:patch")),
    "upgrade": (("upgrading",), (*TELLS,)),
    "delete": (("deleting",), ("cluster:get", "cluster:delete", "hosts:list", "host:patch")),
    "release": (("releasing",), HOST),
    "wipe": (("cleaning",), HOST),
    "adopt": (("adopting",), (*TELLS, "clusters:list")),
    "let_go": (("deleting",), ("clusters:list", "cluster:get", "hosts:list", "host:patch", "cluster:patch")),
}
"""In which states of a cluster, or of its nodes, an operation happens, and what it asks then."""
OPERATIONS = tuple(CALLS)
STATUS: Mapping[str, tuple[int, str, str]] = {
    "says_401": (401, "Unauthorized", "Unauthorized"),
    "says_403": (403, "Forbidden", 'clusters is forbidden: User "plane" cannot patch resource'),
    "says_404": (404, "NotFound", "it is not found"),
    "says_409": (409, "Conflict", "the object has been modified; please apply your changes to the latest version and try again"),
    "says_410": (410, "Expired", "The provided continue parameter is too old"),
    "says_422": (422, "Invalid", "spec.topology.workers: Invalid value"),
    "says_429": (429, "TooManyRequests", "too many requests, please try again later"),
    "says_429_with_retry_after": (429, "TooManyRequests", "too many requests, please try again later"),
    "says_500": (500, "InternalError", "etcdserver: leader changed"),
    "says_503": (503, "ServiceUnavailable", "the server is currently unable to handle the request"),
    "webhook_denies": (403, "Forbidden", 'admission webhook "validation.cluster.cluster.x-k8s.io" denied the request: no'),
    "webhook_away": (500, "InternalError", 'Internal error occurred: failed calling webhook "default.cluster.cluster.x-k8s.io"'),
}
"""What the server answers instead of doing it: status, reason, message."""
LOST = ("effect_then_500", "effect_then_reset", "effect_then_silence", "effect_then_garbage")
BODIES = ("page_404", "html", "truncated", "a_list")
LINE = (*STATUS, *BODIES, *LOST, "reset", "silence", "away")
"""What can befall every request."""
CHANGES = ("twice", "late")
"""What can befall requests that change something."""
FINAL = frozenset({"says_403", "says_404", "says_422", "webhook_denies"})
"""What the server means: people may be asked."""
RISES = frozenset({"says_404", *CHANGES})
"""After these a Cluster may be there that was seen to be gone, until it is reaped."""
WORLD: Mapping[str, tuple[str, ...]] = {
    "host_in_trouble": ("enrol", "deploy", "order", "grow", "replace", "release", "wipe", "adopt", "let_go"),
    "metal3_stands_still": ("deploy", "order", "grow", "replace", "shrink", "delete", "release", "wipe"),
    "controllers_stand_still": ("order", "grow", "replace", "shrink", "upgrade", "delete"),
    "finalizer_hangs": ("delete",),
    "budget_holds": ("shrink", "replace", "upgrade", "delete"),
    "never_joins": ("order", "grow", "replace", "upgrade"),
    "node_silent": ("order", "watch", "grow", "upgrade", "shrink", "adopt"),
    "machine_deleted": ("watch", "grow", "upgrade", "shrink"),
    "owner_cordons": ("watch", "shrink", "upgrade", "grow", "adopt"),
    "kubeconfig_renewed": ("order", "watch", "kubeconfig", "upgrade", "grow", "adopt"),
    "kubeconfig_revoked": ("order", "watch", "kubeconfig", "upgrade", "grow", "adopt"),
    "kubeconfig_garbled": ("order", "watch", "kubeconfig", "upgrade", "adopt"),
}
"""What goes wrong at the peer although every request succeeds, and in which operations."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    A case's numbers.
    """

    states: tuple[str, ...]
    """In which states it is played."""
    call: str
    """On which requests; empty for all."""
    skip: int
    """How many of them go by first."""
    count: int | None
    """How often it is played; None: until it is healed."""
    workers: int
    """Of the cluster."""


def plan(case: Case) -> Plan:
    """
    The numbers of the case, the same each time.
    """
    dice = random.Random(case.name)
    states, calls = CALLS[case.operation]
    fitting = [one for one in calls if case.fault not in CHANGES or not one.endswith((":get", ":list"))]
    call = dice.choice(fitting)
    count = dice.choice(COUNTS)
    if case.fault == "away":
        call, count = "", None if count is None else count + 3
    workers = 2 if case.operation == "shrink" else dice.choice((1, 1, 2))
    skip = dice.choice((0, 0, 0, 1)) if call and case.operation != "kubeconfig" else 0
    return Plan(states, call, skip, count, workers)


def goes_by(case: Case) -> bool:
    """
    Whether the fault ends by itself, and what was hindered can be done again: nobody may be asked for that.
    """
    return case.fault in {*LINE, *CHANGES} - FINAL and plan(case).count is not None


def machines(cases: Sequence[Case]) -> int:
    """
    How many hosts these cases need side by side.
    """
    more = {"grow": 1, "replace": 2}
    return sum(plan(one).workers + more.get(one.operation, 0) for one in cases) + 2


def faults_here(operation: str) -> Sequence[str]:
    """
    The faults that make sense in the operation.
    """
    if operation not in CALLS:
        return ()
    changes = any(not one.endswith((":get", ":list")) for one in CALLS[operation][1])
    return (*LINE, *(CHANGES if changes else ()), *(name for name, where in WORLD.items() if operation in where))
