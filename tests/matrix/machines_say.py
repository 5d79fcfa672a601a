"""
What machines that boot our seeds say of themselves: the truth, or what the case has them say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controlplane.boots import reporting
from controlplane.boots.errors import BootSettled, WrongMachine
from controlplane.boots.states import CLOUD_INIT_STAGES, Outcome, Report
from controlplane.kit.errors import NotFound
from tests.matrix.metal import Machine, Site
from tests.matrix.playing import Director

OPEN = """
    SELECT b.id, b.node_id, b.purpose, b.facts->>'instance_id' AS instance, n.state AS node_state
    FROM boots b JOIN nodes n ON n.id = b.node_id
    WHERE b.state IN ('made', 'fetched', 'reporting') AND b.expires_at > cp_clock() ORDER BY b.id
"""
WIPED = tuple({"name": name, "result": "passed", "detail": ""} for name in ("disk:nvme0n1", "disk:nvme1n1", "disks_counted"))
CHECKED = ({"name": "gpu_count", "result": "passed", "detail": "8"},)
CHECKS: dict[str, tuple[dict[str, str], ...]] = {"wipe": WIPED, "check": CHECKED}


class Voices:
    """
    All machines of a site, as they speak to us.
    """

    def __init__(self, world: Any, site: Site, director: Director) -> None:
        self._world = world
        self._site = site
        self._director = director
        self._late: dict[str, str] = {}
        self.believed: list[str] = []
        """What was taken that had to be refused."""
        self.console = b""
        """What machines write on their consoles before they report."""

    def speak(self) -> int:
        """
        Every machine that runs an open boot of ours goes one step on; how many said something is returned.
        """
        rows = self._world.rows(OPEN)
        self._speak_late({row.id for row in rows})
        spoken = 0
        for row in rows:
            machine = self._site.machines.get(row.node_id)
            if machine is not None and machine.is_on and machine.running == row.id and machine.said < 2:
                spoken += self._step(row, machine, rows)
        return spoken

    def _step(self, row: Any, machine: Machine, rows: list[Any]) -> int:
        mood = self._director.mood(row.node_id, row.node_state)
        if mood == "never_calls":
            return 0
        if mood == "calls_late":
            self._late[row.id] = row.instance
            return 0
        if mood == "calls_as_another" and machine.said == 0:
            self._as_another(row, next((one for one in rows if one.id != row.id), row))
        machine.said += 1
        if machine.said == 1:
            self._phone_home(row, twice=mood == "calls_twice")
            return 1
        if mood == "dies_before_its_report":
            machine.switch(on=False)
            return 1
        self._report(row, machine, mood)
        return 1

    def _phone_home(self, row: Any, *, twice: bool) -> None:
        told = {"instance_id": row.instance}
        self._world.do(lambda s: reporting.phone_home(s, row.id, told))
        if twice:
            again = self._world.do(lambda s: reporting.phone_home(s, row.id, told))
            if again is not None:
                self.believed.append(f"I1 {row.node_id}: a second phone-home was news")

    def _report(self, row: Any, machine: Machine, mood: str) -> None:
        said = _said(row, mood)
        if self.console:
            self._world.do(lambda s: reporting.take_console(s, row.id, self.console, 0))
        self._take(row.id, said)
        if row.purpose == "wipe" and mood not in {"fails_but_calls", "half_of_the_disks", "says_nothing_of_checks"}:
            machine.residue = None
        if mood == "calls_twice":
            self._take(row.id, said)
        if mood == "says_two_things":
            self._refused(lambda s: reporting.take_report(s, row.id, row.id, _said(row, "fails_but_calls")), BootSettled, row)

    def _take(self, boot_id: str, said: Report) -> None:
        self._world.do(lambda s: reporting.take_report(s, boot_id, boot_id, said))

    def _as_another(self, row: Any, other: Any) -> None:
        """
        With its own token the machine names another node's boot, and with another's token its own.
        """
        if other.id == row.id:
            return
        for token, named in ((row, other), (other, row)):
            told = {"instance_id": named.instance}
            self._refused(lambda s, one=token, what=told: reporting.phone_home(s, one.id, what), WrongMachine, row)
            good = _said(named, "")
            work: Callable[[Any], Any] = lambda s, one=token, two=named, what=good: reporting.take_report(s, one.id, two.id, what)  # noqa: E731
            self._refused(work, WrongMachine, row)

    def _speak_late(self, open_ids: set[str]) -> None:
        """
        Those who kept silent until their time was up call now, and nobody listens.
        """
        for boot_id in [one for one in self._late if one not in open_ids]:
            told = {"instance_id": self._late.pop(boot_id)}
            self._refused(lambda s, one=boot_id, what=told: reporting.phone_home(s, one, what), NotFound, boot_id)
            good = Report(final=True, stages=dict.fromkeys(CLOUD_INIT_STAGES, ""), outcomes=(), checks=WIPED)
            self._refused(lambda s, one=boot_id, what=good: reporting.take_report(s, one, one, what), NotFound, boot_id)

    def _refused(self, work: Callable[[Any], Any], error: type[Exception], whose: Any) -> None:
        try:
            self._world.do(work)
        except error:
            return
        self.believed.append(f"I5 {whose}: what had to be refused with {error.__name__} was taken")


def _said(row: Any, mood: str) -> Report:
    """
    The final report of the boot.
    """
    stages = dict.fromkeys(CLOUD_INIT_STAGES, "")
    if mood == "fails_but_calls":
        stages["modules-final"] = "it broke"
    scripts = () if row.purpose == "deploy" else (Outcome(row.purpose, ok=True, exit_code=0, line=None, output=""),)
    checks = CHECKS.get(row.purpose, ())
    if mood == "says_nothing_of_checks":
        checks = ()
    elif mood == "half_of_the_disks":
        checks = checks[:1]
    return Report(final=True, stages=stages, outcomes=scripts, checks=checks)
