"""
Wipes and qualifications: clean steps that Ironic runs, and what may be believed of them afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controlplane.providers.adapters.ironic.config import StepConfig
from controlplane.providers.adapters.ironic.evidence import (
    Outcome,
    checks_of,
    newest_entry,
    outcome_of,
    read_history,
    things_not_measured,
)
from controlplane.providers.adapters.ironic.life import is_held, refuse_foreign
from controlplane.providers.adapters.ironic.marks import Task
from controlplane.providers.adapters.ironic.nodes import Node, Nodes
from controlplane.providers.adapters.ironic.states import CLEANING, power_of
from controlplane.providers.errors import Busy, Refused, Unsupported
from controlplane.providers.machines import Check, WipeReport

OVER = frozenset({"manageable", "available", "clean failed"})
"""Where a cleaning leaves a node."""
UNLOCKED = frozenset({"clean wait", "clean hold"})
"""While the agent works, Ironic lets others write; otherwise a write would wait for its lock."""


class Cleaning:
    """
    Cleanings of the nodes of one Ironic.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def wipe(self, ref: str, token: str) -> None:
        """
        Ironic has begun to clean, or has done so under this token before. Refused while a tenancy stands.
        """
        wanted = self._nodes.config.wipe
        if wanted.kind == "off":
            raise Unsupported("wipe is off in this provider's config: its pool may be sold to one tenant only", code="wipe_off")
        node = self._free(ref, "wiped")
        if node.marks.wipe is not None and node.marks.wipe.token == token:
            return
        flow = f"{wanted.kind}_cleaning"
        asked = wanted.steps if wanted.kind == "manual" else []
        task = Task("wipe", token, flow, tuple(f"{one.interface}.{one.step}" for one in asked))
        self._run(node, task, asked, disable_ramdisk=wanted.disable_ramdisk)

    def qualify(self, ref: str, token: str) -> None:
        """
        The checks have begun; without steps they are done at once, from what Ironic knows.
        """
        wanted = self._nodes.config.qualify
        node = self._free(ref, "tested")
        if node.marks.qualified_token == token:
            return
        if not wanted.steps:
            known = replace(node.marks, qualified_token=token, checks=self._facts(node))
            self._nodes.remember(node, known)
            return
        task = Task("qualify", token, "manual_cleaning", tuple(f"{one.interface}.{one.step}" for one in wanted.steps))
        self._run(node, task, wanted.steps, disable_ramdisk=wanted.disable_ramdisk)

    def settle(self, node: Node) -> Node:
        """
        The node after its cleaning, if that has ended, with what may be believed of it written down.
        """
        task = node.marks.task
        if task is None or task.kind == "inspect":
            return node
        if node.state in UNLOCKED and not task.seen:
            return self._nodes.remember(node, replace(node.marks, task=replace(task, seen=True)))
        if node.state not in OVER:
            return node
        history = read_history(self._nodes.rest, node.uuid, after=task.after)
        outcome = outcome_of(task, node, history)
        if not outcome.begun:
            return node
        if node.state == "available" and not outcome.failed:
            self._nodes.provision(node, "manage")
            node = self._nodes.get(node.ref)
        return self._close(node, task, outcome)

    def _run(self, node: Node, task: Task, steps: list[StepConfig], *, disable_ramdisk: bool) -> None:
        """
        Written down first, then begun: a repeat after a crash between the two begins it.
        """
        running = node.marks.task
        if running is not None and (running.kind, running.token) == (task.kind, task.token):
            if node.state in CLEANING:
                return
            node = self.settle(node)
            if node.marks.task is None:
                return
        if node.state in CLEANING:
            raise Busy(f"{node.ref} is {node.state!r} at Ironic under another task", retry_in_s=5.0)
        node = self._nodes.to_manageable(node)
        known = replace(task, since=node.changed, after=newest_entry(self._nodes.rest, node.uuid))
        automated = task.flow == "automated_cleaning"
        wanted: dict[str, Any] = {"op": "add", "path": "/automated_clean", "value": automated}
        node = self._nodes.remember(node, replace(node.marks, task=known), wanted)
        if automated:
            self._nodes.provision(node, "provide")
            return
        more = {"disable_ramdisk": True} if disable_ramdisk else {}
        self._nodes.provision(node, "clean", clean_steps=[one.asked() for one in steps], **more)

    def _close(self, node: Node, task: Task, outcome: Outcome) -> Node:
        marks = replace(node.marks, task=None)
        if task.kind == "qualify":
            ran = checks_of(outcome, node, self._nodes.config.qualify.steps)
            known = replace(marks, qualified_token=task.token, checks=(*self._facts(node), *ran))
            return self._nodes.remember(node, known)
        finished_at = outcome.finished_at
        if finished_at is None:
            return node
        ran = checks_of(outcome, node, self._nodes.config.wipe.steps)
        report = WipeReport(task.token, finished_at, (*ran, *things_not_measured(ran)))
        return self._nodes.remember(node, replace(marks, wipe=report, wiped_since=not outcome.failed))

    def _free(self, ref: str, what: str) -> Node:
        node = self._nodes.get(ref)
        refuse_foreign(node)
        tenancy = node.marks.tenancy
        if tenancy is not None and tenancy.stage == "held":
            raise Refused(f"{node.ref} is held by {tenancy.token}: not {what}", code="machine_held")
        if is_held(node.marks):
            raise Busy(f"{node.ref} is still being released", retry_in_s=2.0)
        return node

    def _facts(self, node: Node) -> tuple[Check, ...]:
        """
        What Ironic knows of the machine without testing it.
        """
        power = power_of(node)
        troubled = node.maintenance and node.fault != ""
        seen = node.marks.inventory
        return (
            Check(
                "controller_answers",
                "failed" if troubled else "not_measured" if power == "unknown" else "passed",
                node.fault or node.maintenance_reason if troubled else f"power reads {power}",
            ),
            Check(
                "gpu_count",
                "not_measured",
                f"{seen.gpus} by the last inspection; not counted again" if seen else "never inspected",
            ),
            Check("gpu_burn_in", "not_measured", "only what a step in `qualify.steps` tests is known"),
            Check("fabric", "not_measured", "Ironic has no figure of it"),
        )
