"""
Playing faults on the calls of one node: who is told what, when, and what happens instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from controlplane.providers.adapters.simulated.faults import PRESETS, Played
from controlplane.providers.errors import NotSent, ProviderError
from controlplane.providers.fabrics import NetworkSpec, PortRef, PortView
from controlplane.providers.hardware import Controller, HardwareInventory
from tests.matrix.cases import REPORTS, Case, Plan, plan
from tests.matrix.flashing import ENDS
from tests.matrix.metal import Machine, Site, Switch

STALE_S = 60.0
LATE_S = 60.0
SLOW_S = 60.0
GONE_AT_LEAST = 6
HALF = "half of it is made"
NOTHING = frozenset({"power_lies", "media_lies", "boot_order_pending", "attach_lies", "detach_lies"})
"""The call succeeds and does nothing."""


@dataclass
class Part:
    """
    A case and how often it was played.
    """

    case: Case
    """Which."""
    plan: Plan
    """Its numbers."""
    armed: bool = True
    """Whether it may be played yet."""
    met: int = 0
    """Calls that fitted."""
    played: int = 0
    """Times it was played."""


@dataclass
class Director:
    """
    Says which fault is played on a call.
    """

    clock: Any
    """The one clock."""
    state: str = ""
    """The state of the node whose step runs."""
    parts: dict[str, Part] = field(default_factory=dict)
    """By node or cluster id."""
    cluster_id: str = ""
    """The cluster of the node whose step runs."""
    tenanted: set[str] = field(default_factory=set)
    """Nodes that somebody has had."""
    late: list[tuple[datetime, Callable[[], object]]] = field(default_factory=list)
    """Effects that are still to come."""

    def cast(self, node_id: str, case: Case, *, armed: bool = True) -> None:
        """
        The case is played on the node, or cluster, of this id.
        """
        self.parts[node_id] = Part(case, plan(case), armed)

    def part(self, node_id: str) -> Part | None:
        """
        What is played on the node now.
        """
        found = self.parts.get(node_id) or self.parts.get(self.cluster_id)
        return found if found is not None and found.armed else None

    def draw(self, node_id: str, call: str) -> str:
        """
        The fault to be played on this call; empty for none.
        """
        part = self.part(node_id)
        if part is None or part.case.fault in REPORTS or not self._fits(part, node_id) or call not in part.plan.calls:
            return ""
        part.met += 1
        most = part.plan.count
        if part.case.fault == "controller_gone" and most is not None:
            most = max(most, GONE_AT_LEAST)
        if part.met <= part.plan.skip or (most is not None and part.played >= most):
            return ""
        part.played += 1
        return part.case.fault

    def mood(self, node_id: str, state: str) -> str:
        """
        What is wrong with what the machine reports in this state; empty for nothing.
        """
        part = self.parts.get(node_id)
        if part is None or not part.armed or part.case.fault not in REPORTS or part.plan.state != state:
            return ""
        if part.plan.after_tenancy and node_id not in self.tenanted:
            return ""
        part.played += 1
        return part.case.fault

    def _fits(self, part: Part, node_id: str) -> bool:
        return part.plan.state == self.state and (not part.plan.after_tenancy or node_id in self.tenanted)

    def heal(self) -> None:
        """
        Nothing is played any more; what was still to come has come.
        """
        self.parts.clear()
        _happen(self.late)
        self.late.clear()

    def pass_time(self) -> None:
        """
        Effects whose time has come have happened.
        """
        now = self.clock()
        due = [one for one in self.late if one[0] <= now]
        self.late = [one for one in self.late if one[0] > now]
        _happen(due)

    def on_the_line(self, fault: str, call: str, target: str, do: Callable[[], Any]) -> Any:
        """
        What the call comes to when the line, or whoever is asked, is at fault; raises as the port prescribes.
        """
        preset = PRESETS[fault]
        if fault == "delay":
            self.clock.advance(SLOW_S)
            return do()
        if preset.when == "twice":
            do()
            return do()
        if preset.when == "after":
            do()
        elif preset.when == "late":
            self.late.append((self.clock() + timedelta(seconds=LATE_S), do))
        raise Played(fault, preset, preset.params).error(call, target)


def _happen(late: list[tuple[datetime, Callable[[], object]]]) -> None:
    for _, effect in late:
        with suppress(ProviderError):  # a switch turns away what comes after a later turn
            effect()


class FaultyController:
    """
    The controller of one machine, and what goes wrong with it.
    """

    def __init__(self, machine: Machine, director: Director) -> None:
        self._machine = machine
        self._director = director

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._machine, name)

        def call(controller: Controller, *args: Any, **kwargs: Any) -> Any:
            fault = self._director.draw(self._machine.node_id, name)
            return self._play(fault, name, lambda: real(controller, *args, **kwargs))

        return call

    def _play(self, fault: str, name: str, do: Callable[[], Any]) -> Any:
        machine = self._machine
        if machine.flash.silent:
            machine.flash.silent -= 1
            raise NotSent("connection refused")
        if fault in ENDS:
            machine.flash.befall(fault)
        if not fault or fault in {"says_nothing", *ENDS}:
            return do()
        if fault == "controller_gone":
            raise NotSent("connection refused")
        if fault in NOTHING:
            return None
        if fault == "stale_read":
            return machine.observe_past(STALE_S)
        if fault in {"power_lost", "power_reset"}:
            answer = do()
            if fault == "power_lost":
                machine.switch(on=False)
            else:
                machine.restart()
            return answer
        if fault in {"parts_unread", "parts_changed"}:
            return _another(do(), fault, self._director.state)
        return self._director.on_the_line(fault, name, machine.node_id, do)


def _another(seen: HardwareInventory, fault: str, state: str) -> HardwareInventory:
    """
    The inventory with a part that does not answer, or another than it was.
    """
    if fault == "parts_unread":
        return replace(seen, drives=(), complete=False, unread=("drives: no answer in time",))
    if state == "inspecting":
        return replace(seen, gpus=seen.gpus[:-1])
    return replace(seen, firmware={"BMC": "6.66"})


class FaultySwitch:
    """
    The fabric, and what goes wrong with the ports of each node.
    """

    def __init__(self, switch: Switch, site: Site, director: Director, reach: Any = None) -> None:
        self._switch = switch
        self._site = site
        self._director = director
        self._reach = switch if reach is None else reach

    def attach(self, ref: PortRef, network: NetworkSpec, *, turn: int = 0) -> None:
        """See `Fabrics.attach`."""
        self._play("attach", ref, lambda: self._reach.attach(ref, network, turn=turn))

    def detach(self, ref: PortRef, *, only: int | None = None, turn: int = 0) -> None:
        """See `Fabrics.detach`."""
        self._play("detach", ref, lambda: self._reach.detach(ref, only=only, turn=turn))

    def observe_port(self, ref: PortRef) -> PortView:
        """See `Fabrics.observe_port`."""
        seen: PortView = self._play("observe_port", ref, lambda: self._reach.observe_port(ref))
        return seen

    def _play(self, name: str, ref: PortRef, do: Callable[[], Any]) -> Any:
        node_id = self._switch.machine_at(ref)
        fault, machine = self._director.draw(node_id, name), self._site.machines[node_id]
        if not fault:
            return do()
        if fault == "controller_gone":
            raise NotSent("connection refused")
        if fault in NOTHING:
            return None
        if fault == "stale_read":
            return self._switch.observe_past(ref, STALE_S)
        if fault in {"attach_half_made", "port_meddled_with"}:
            answer = do()
            self._switch.strange[ref] = HALF
            return answer if name != "observe_port" else replace(answer, strange=HALF)
        if fault in {"power_lost", "power_reset"}:
            machine.switch(on=False) if fault == "power_lost" else machine.restart()
            return do()
        return self._director.on_the_line(fault, name, node_id, do)
