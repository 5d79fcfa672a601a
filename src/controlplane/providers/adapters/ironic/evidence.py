"""
What Ironic tells of a cleaning that has ended: from the node's history where it keeps one of step flows, else from the node's state.

Ironic forgets `driver_internal_info.clean_steps` when a cleaning ends. Since 2025 its history has an entry at the start, with the steps,
and one at the end of every flow; before, it has only errors. In both, manual cleaning comes back to `manageable` by itself only when
every step has succeeded: a person can bring a failed one there too, but that leaves an error in the history and in `last_error`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.ironic.client import IronicRest, node_path
from controlplane.providers.adapters.ironic.config import StepConfig, proves
from controlplane.providers.adapters.ironic.marks import Task, instant
from controlplane.providers.adapters.ironic.nodes import Node
from controlplane.providers.errors import NotFound
from controlplane.providers.machines import Check

PAGE = "200"
LONGEST_DETAIL = 300
WIPED_THINGS = ("disk_wiped", "memory_cleared", "gpu_memory_scrubbed", "firmware_baseline", "bmc_baseline")
"""What a complete wipe would prove: named `not_measured` where no step did."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """
    One entry of a node's history.
    """

    id: str
    """Ironic's id."""
    at: datetime | None
    """UTC, Ironic's clock."""
    severity: str
    """`ERROR`, `INFO`, or whatever Ironic says."""
    kind: str
    """Ironic's event type, for example `manual_cleaning_end`."""
    words: str
    """What happened: operators only."""
    user: str = ""
    """Who asked for it, where Ironic knows."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    How a cleaning ended.
    """

    begun: bool
    """Whether Ironic began it at all."""
    failed: str
    """Why it failed; empty when it did not."""
    recorded: bool
    """Whether Ironic's history says that it completed."""
    seen: bool
    """Where it does not: whether we saw Ironic clean, and its history, which is whole, names no error."""
    steps: tuple[str, ...]
    """`interface.step` of what ran, in order."""
    finished_at: datetime | None
    """By Ironic's clock."""


def read_history(rest: IronicRest, ref: str, *, after: str = "") -> tuple[HistoryEntry, ...] | None:
    """
    The node's entries after the one named, oldest first; None when that one is gone and nothing can be said about what followed it.
    """
    wanted = {"detail": "true", "limit": PAGE, "sort_key": "created_at", "sort_dir": "asc"}
    try:
        return tuple(_entry(one) for one in rest.pages(node_path(ref, "history"), "history", wanted, marker=after))
    except NotFound:
        if not after:
            raise
        return None


def newest_entry(rest: IronicRest, ref: str) -> str:
    """
    The id of the node's newest entry; empty when there is none.
    """
    wanted = {"limit": "1", "sort_key": "created_at", "sort_dir": "desc"}
    newest = rest.get(node_path(ref, "history"), wanted).get("history")
    return _entry(newest[0]).id if isinstance(newest, list) and newest else ""


def outcome_of(task: Task, node: Node, history: Sequence[HistoryEntry] | None) -> Outcome:
    """
    How the task's cleaning ended, of a node that is not cleaning any more.
    """
    entries = history or ()
    mine = [one for one in entries if one.kind.startswith(task.flow)]
    done = next((one for one in mine if one.kind == f"{task.flow}_end" and one.severity != "ERROR"), None)
    errors = [one.words for one in entries if one.severity == "ERROR" and (one.kind == "cleaning" or one in mine)]
    failed = node.words if node.state == "clean failed" else next(iter(errors), "")
    if not failed and done is None:
        failed = node.last_error
    started = next((one for one in mine if one.kind == f"{task.flow}_start"), None)
    steps = (_steps(started.words) if started else ()) or task.steps
    ended = done.at if done else None
    begun = bool(mine) or bool(errors) or node.changed != task.since
    seen = task.seen and history is not None
    return Outcome(begun, failed, done is not None and not failed, seen, steps, ended or node.changed_at)


def checks_of(outcome: Outcome, node: Node, configured: list[StepConfig]) -> tuple[Check, ...]:
    """
    One check for each step; `not_measured` for what Ironic does not tell.
    """
    if not outcome.steps:
        why = outcome.failed or "Ironic does not name the steps it ran"
        return (Check("cleaning", "failed" if outcome.failed else "not_measured", why[:LONGEST_DETAIL]),)
    checks = [_check(step, outcome, node, configured) for step in outcome.steps]
    if outcome.failed and not any(one.result == "failed" for one in checks):
        checks.append(Check("cleaning", "failed", outcome.failed[:LONGEST_DETAIL]))
    return tuple(checks)


def things_not_measured(checks: Sequence[Check]) -> tuple[Check, ...]:
    """
    Of what a wipe should prove, what none of the checks is about.
    """
    named = {one.name for one in checks}
    return tuple(
        Check(name, "not_measured", "no clean step that ran is known to prove it") for name in WIPED_THINGS if name not in named
    )


def _check(step: str, outcome: Outcome, node: Node, configured: list[StepConfig]) -> Check:
    interface, _, name = step.partition(".")
    faked = node.interfaces.get(interface) == "fake"
    proven = f"fake_step:{step}" if faked else proves(configured, interface, name)
    if outcome.failed:
        quoted = (f"'step': '{name}'", f"step {name}", f"step '{name}'")
        blamed = any(words in outcome.failed for words in quoted)
        return Check(proven, "failed" if blamed else "not_measured", outcome.failed[:LONGEST_DETAIL])
    if not outcome.recorded and not outcome.seen:
        return Check(proven, "not_measured", f"Ironic keeps no record of {step}, and we did not see it clean")
    seen = "its history says so" if outcome.recorded else "we saw it clean, it came back by itself, and its history names no error"
    ran = f"Ironic ran {step}: {seen}"
    return Check(proven, "passed", f"{ran}; the interface is a fake: nothing was touched" if faked else ran)


def _entry(said: Mapping[str, Any]) -> HistoryEntry:
    return HistoryEntry(
        id=str(said.get("uuid", "")),
        at=instant(said.get("created_at")),
        severity=str(said.get("severity") or ""),
        kind=str(said.get("event_type") or ""),
        words=str(said.get("event") or ""),
        user=str(said.get("user") or ""),
    )


def _steps(words: str) -> tuple[str, ...]:
    """
    The steps that a `_start` entry names: Ironic writes them as a Python list.
    """
    _, _, listed = words.partition("with steps=")
    try:
        steps = ast.literal_eval(listed.strip())
        return tuple(f"{one['interface']}.{one['step']}" for one in steps)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        return ()
