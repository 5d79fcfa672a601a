"""
Faults the simulated provider plays: presets by name, and rules that say when one is played.

Rules are rows of the world's file, so every process plays them. Whether a chance falls is a function of the rule's seed and of how
often the rule has matched: a run with the same calls in the same order meets the same faults.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from controlplane.providers.adapters.simulated.durations import uniforms
from controlplane.providers.errors import (
    AuthFailed,
    Busy,
    NoCapacity,
    NotFound,
    NotSent,
    ProviderError,
    Refused,
    Transient,
    Unknown,
)

CANARY_HOST = "bmc-canary-7f3a.oob.sim.internal"
CANARY_ADDRESS = "10.255.77.31"
LEAK_CANARIES = (CANARY_HOST, CANARY_ADDRESS)
"""In the detail of every fault that is played: a tenant must never see them."""

READS = (
    *("list_machines", "observe", "capabilities", "observe_cluster", "list_clusters", "find_job", "list_jobs", "read_output"),
    "list_standing",
)
CHANGES = (
    *("inspect", "qualify", "deploy", "release", "wipe", "power"),
    *("apply_cluster", "delete_cluster", "drain", "undrain", "submit", "cancel"),
    *("adopt_cluster", "let_go"),
)
OPERATIONS = (*READS, *CHANGES)
"""Every method of the ports for machines, clusters and jobs."""
FABRIC_READS = ("observe_fabric", "observe_port", "observe_ports")
FABRIC_CHANGES = ("attach", "detach")
FABRIC_OPERATIONS = (*FABRIC_READS, *FABRIC_CHANGES)
"""Every method of the port for fabrics."""

CHECK_READS = ("observe_checks",)
CHECK_CHANGES = ("prepare_checks", "begin_checks", "end_checks")
CHECK_OPERATIONS = (*CHECK_READS, *CHECK_CHANGES)
"""Every method of the port for checks between machines."""

SERVICE_READS = ("observe_service", "list_services", "read_replica")
SERVICE_CHANGES = ("apply_service", "delete_service")
SERVICE_OPERATIONS = (*SERVICE_READS, *SERVICE_CHANGES)
"""Every method of the port for services."""

When = Literal["before", "after", "world", "late", "twice", "read"]


@dataclass(frozen=True, slots=True)
class Preset:
    """
    One kind of fault.
    """

    when: When
    """
    `before`: the error comes instead of the effect; `after`: the effect happens and the answer is lost; `late`: the answer is lost
    and the effect comes later; `twice`: the request arrives twice; `world`: the call succeeds and the work goes wrong; `read`: the
    answer to a read is old or short.
    """
    error: Callable[[str, Mapping[str, Any]], ProviderError] | None = None
    """The error the port prescribes for it."""
    text: str = ""
    """What the peer, or the line to it, said."""
    operations: tuple[str, ...] = OPERATIONS
    """Where it can be played."""
    on_fabrics: tuple[str, ...] = ()
    """Where it can be played on a fabric."""
    on_checks: tuple[str, ...] = ()
    """Where it can be played on checks between machines."""
    on_services: tuple[str, ...] = ()
    """Where it can be played on services."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """Its numbers and their defaults."""

    @property
    def anywhere(self) -> tuple[str, ...]:
        """
        Every method that it can befall.
        """
        return (*self.operations, *self.on_fabrics, *self.on_checks, *self.on_services)


def _unknown(detail: str, _: Mapping[str, Any]) -> ProviderError:
    return Unknown(detail, retry_in_s=1.0)


def _busy(detail: str, params: Mapping[str, Any]) -> ProviderError:
    return Busy(detail, retry_in_s=float(params["retry_in_s"]))


def _plain(kind: type[ProviderError]) -> Callable[[str, Mapping[str, Any]], ProviderError]:
    return lambda detail, _: kind(detail)


def _lost(text: str, when: When = "after", **params: Any) -> Preset:
    return _line(when, _unknown, text, **params)


def _line(when: When, error: Callable[[str, Mapping[str, Any]], ProviderError], text: str, **params: Any) -> Preset:
    """
    A fault of the line to the peer: it can befall every call.
    """
    return Preset(
        when, error, text, on_fabrics=FABRIC_OPERATIONS, on_checks=CHECK_OPERATIONS, on_services=SERVICE_OPERATIONS, params=params
    )


def _world(*operations: str, **params: Any) -> Preset:
    return Preset("world", operations=operations, params=params)


PRESETS: Mapping[str, Preset] = {
    # the line to the peer
    "refuse_before_effect": _line("before", _plain(NotSent), "connection refused"),
    "refused_final": _line("before", _plain(Refused), "400 the request is not acceptable"),
    "no_capacity": _line("before", _plain(NoCapacity), "507 no room"),
    "5xx_before_effect": _lost("503 service unavailable", "before"),
    "timeout_before_effect": _lost("no answer in 20 s", "before"),
    "effect_then_5xx": _lost("502 bad gateway"),
    "effect_then_timeout": _lost("no answer in 20 s"),
    "effect_then_reset": _lost("connection reset by peer"),
    "late_success": _lost("no answer in 20 s", "late", seconds=60.0),
    "delay": Preset(
        "world",
        operations=CHANGES,
        on_fabrics=FABRIC_CHANGES,
        on_checks=CHECK_CHANGES,
        on_services=SERVICE_CHANGES,
        params={"seconds": 60.0},
    ),
    "duplicate_effect": Preset(
        "twice", operations=CHANGES, on_fabrics=FABRIC_CHANGES, on_checks=CHECK_CHANGES, on_services=SERVICE_CHANGES
    ),
    "stale_read": Preset(
        "read",
        operations=READS,
        on_fabrics=FABRIC_READS,
        on_checks=CHECK_READS,
        on_services=SERVICE_READS,
        params={"seconds": 60.0},
    ),
    "partial_list": Preset(
        "read",
        operations=("list_machines", "list_clusters", "list_jobs"),
        on_fabrics=("observe_fabric",),
        on_services=("list_services",),
        params={"share": 0.5},
    ),
    "flapping_404": _line("before", _plain(NotFound), "404 not found"),
    "auth_401_mid_operation": _line("before", _plain(AuthFailed), "401 unauthorized"),
    "busy_429_with_retry_after": _line("before", _busy, "429 too many requests, Retry-After given", retry_in_s=7.0),
    "busy_429_without": _line("before", _plain(Busy), "429 too many requests"),
    "ok_with_error_inside": _lost("200 whose body says error", "before"),
    "truncated_json": _lost("200 with a body cut short"),
    "invalid_json": _lost("200 with a body that is no JSON"),
    "wrong_type": _lost("200 with text/html"),
    "huge_body": _lost("200 with a body over 64 MiB"),
    # machines
    "inspect_never_finishes": _world("inspect"),
    "qualify_never_finishes": _world("qualify"),
    "qualify_fails": _world("qualify"),
    "deploy_never_finishes": _world("deploy"),
    "deploy_fails": _world("deploy"),
    "power_off_never": _world("release", "power"),
    "wipe_fails": _world("wipe"),
    "wipe_check_fails": _world("wipe", place="gpu_memory"),
    "wipe_never_finishes": _world("wipe"),
    "wipe_empty_report": _world("wipe"),
    "wipe_lies": _world("wipe"),
    "gpu_reset_in_use": Preset(
        "before", _busy, "GPU reset refused: device in use", ("wipe", "qualify"), params={"retry_in_s": 5.0}
    ),
    "node_dies": _world("deploy", "apply_cluster", "submit", "observe", after_s=0.0, for_s=300.0),
    # clusters and jobs
    "join_never": _world("apply_cluster"),
    "job_node_fault": _world("submit", after_s=5.0, for_s=300.0),
    "job_requeue": _world("submit", after_s=5.0, for_s=300.0),
    "job_out_of_memory": _world("submit", after_s=5.0),
    "job_time_limit": _world("submit"),
    "job_preempted": _world("submit", after_s=5.0),
    "job_fabric_fault": _world("submit", after_s=5.0),
}
"""Every fault of machines, clusters and jobs by name."""

FABRIC_PRESETS: Mapping[str, Preset] = {
    "attach_lies": Preset("world", operations=(), on_fabrics=("attach",)),
    "attach_half_made": Preset("world", operations=(), on_fabrics=("attach",)),
    "detach_lies": Preset("world", operations=(), on_fabrics=("detach",)),
    "switch_forgets": Preset("world", operations=(), on_fabrics=("observe_port", "observe_ports", *FABRIC_CHANGES)),
}
"""Faults that only a fabric has; most of the others befall it too. A switch that forgets has just started anew when the call comes."""

CHECK_PRESETS: Mapping[str, Preset] = {
    "check_tool_missing": Preset("world", operations=(), on_checks=("begin_checks",)),
    "check_run_breaks": Preset("world", operations=(), on_checks=("begin_checks",)),
    "check_output_cut": Preset("world", operations=(), on_checks=("begin_checks",)),
}
"""Faults of checks between machines."""

SERVICE_PRESETS: Mapping[str, Preset] = {
    f"service_{fate}": Preset("world", operations=(), on_services=("apply_service",))
    for fate in ("image_pull", "crash_loop", "out_of_memory", "never_ready")
}
"""Faults of services: what befalls the replicas of the version that the call tells of."""

FORGOTTEN = "deletion_forgotten"
LATE_PRESETS: Mapping[str, Preset] = {FORGOTTEN: Preset("world", operations=("deploy",), on_services=("apply_service",))}
"""A call that begins anew a service that was deleted, or a tenancy that was over, as at a peer that keeps no memory of either."""
_BY_NAME: Mapping[str, Preset] = {**PRESETS, **FABRIC_PRESETS, **CHECK_PRESETS, **SERVICE_PRESETS, **LATE_PRESETS}


@dataclass(frozen=True, slots=True)
class Rule:
    """
    When a fault is played.
    """

    fault: str
    """The preset's name."""
    operation: str = "*"
    """Glob over the ports' method names."""
    target: str = "*"
    """Glob over the machine, the cluster id or the job token the call is about."""
    tenant: str | None = None
    """Only calls for this tenant; calls that name none never match then."""
    count: int | None = 1
    """How often it is played at most; None: always."""
    after: int = 0
    """How many matching calls go by first."""
    probability: float = 1.0
    """The chance of each matching call."""
    seed: int = 0
    """Decides the chances."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Numbers that differ from the preset's."""


@dataclass(frozen=True, slots=True)
class Played:
    """
    A fault that is played on one call.
    """

    name: str
    """The preset's name."""
    preset: Preset
    """What it is."""
    params: Mapping[str, Any]
    """Its numbers."""

    def error(self, operation: str, target: str) -> ProviderError:
        """
        The error of the port, with a detail that no tenant may see.
        """
        assert self.preset.error is not None
        detail = f"{operation} {target}: {self.preset.text} [{CANARY_HOST} {CANARY_ADDRESS}]"
        return self.preset.error(detail, self.params)


def add_rule(db: sqlite3.Connection, rule: Rule) -> int:
    """
    The rule is in force; its number is returned. Raises ValueError for one that could never be played.
    """
    preset = _BY_NAME.get(rule.fault)
    if preset is None:
        raise ValueError(f"no fault is called {rule.fault!r}; there are {', '.join(_BY_NAME)}")
    if not any(fnmatchcase(one, rule.operation) for one in preset.anywhere):
        raise ValueError(f"{rule.fault} is never played on {rule.operation!r}; only on {', '.join(preset.anywhere)}")
    for name in rule.params:
        if name not in preset.params:
            raise ValueError(f"{rule.fault} has no number {name!r}; it has {', '.join(preset.params) or 'none'}")
    if not 0.0 <= rule.probability <= 1.0 or rule.after < 0 or (rule.count is not None and rule.count < 1):
        raise ValueError("probability must be in [0, 1], after at least 0, count at least 1")
    made = db.execute(
        "INSERT INTO rules (fault, operation, target, tenant_id, remaining, skip, probability, seed, params)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(rule.fault, rule.operation, rule.target, rule.tenant, rule.count, rule.after, rule.probability, rule.seed),
            json.dumps(dict(rule.params)),
        ),
    ).lastrowid
    return int(made or 0)


def draw(db: sqlite3.Connection, operation: str, target: str, tenant: str) -> Played | None:
    """
    The fault to play on this call, of the oldest rule that matches and falls; its rule is counted down.
    """
    for row in db.execute("SELECT * FROM rules WHERE remaining IS NULL OR remaining > 0 ORDER BY id").fetchall():
        preset = _BY_NAME[row["fault"]]
        if not (
            operation in preset.anywhere
            and fnmatchcase(operation, row["operation"])
            and fnmatchcase(target, row["target"])
            and row["tenant_id"] in {None, tenant}
        ):
            continue
        db.execute("UPDATE rules SET matched = matched + 1 WHERE id = ?", (row["id"],))
        if row["matched"] < row["skip"] or uniforms(row["seed"], row["id"], row["matched"])[0] >= row["probability"]:
            continue
        db.execute("UPDATE rules SET played = played + 1, remaining = remaining - 1 WHERE id = ?", (row["id"],))
        return Played(row["fault"], preset, {**preset.params, **json.loads(row["params"])})
    return None


def short(error: Exception) -> str:
    """
    How the ledger writes down an error.
    """
    return f"{type(error).__name__}: {getattr(error, 'code', '')}"


def incomplete(detail: str) -> Transient:
    """
    The error of a listing that may not be answered in part.
    """
    return Unknown(f"{detail}: a page is missing [{CANARY_HOST} {CANARY_ADDRESS}]", retry_in_s=1.0)
