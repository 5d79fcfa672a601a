"""
Firmware as it physically is: an image is written for a while, whatever the controller says of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controlplane.catalog.service import Parts
from controlplane.catalog.states import FirmwareImage
from controlplane.providers.hardware import UpdateView

COMPONENT, NEW = "BMC", "2.0"
IMAGE = FirmwareImage(NEW, f"http://images.example/{COMPONENT}-{NEW}")
WANTED = Parts(firmware={COMPONENT: (NEW,)}, images={COMPONENT: IMAGE})
WRITES_S = 120.0
RESET_LOOKS = 4
ENDS = ("task_fails", "task_vanishes", "resets_in_mid_update", "update_lost", "update_lies", "installs_at_start")
"""What can become of an update although the call that began it succeeded; `update_lost` is a reset that ends the writing too."""


@dataclass
class Flash:
    """
    The firmware of one machine.
    """

    now: Callable[[], datetime]
    """The one clock."""
    version: str = "1.0"
    """What runs."""
    staged: str = ""
    """What the next start installs."""
    writing: str = ""
    """What is being written; empty: nothing."""
    done_at: datetime | None = None
    """When it is written."""
    task: int = 0
    """The last task's number."""
    forgotten: bool = False
    """Whether the controller knows it no more."""
    silent: int = 0
    """Looks that get no answer."""
    way: str = ""
    """One of ENDS for the update under way; empty: it goes well."""
    begun: int = 0
    """How often an image was sent that did not run already."""
    findings: list[str] = field(default_factory=list)
    """Broken promises, in words."""

    def begin(self, url: str) -> UpdateView:
        """
        The image is being written; one that is being written already is not begun anew.
        """
        self.look()
        if not self.writing:
            self.writing, self.done_at = url.rpartition("-")[2], self.now() + timedelta(seconds=WRITES_S)
            self.task, self.forgotten, self.begun = self.task + 1, False, self.begun + 1
        return UpdateView(str(self.task), "running", percent=0)

    def look(self) -> str:
        """
        The version, after what has been written by now is installed.
        """
        if self.writing and self.done_at is not None and self.now() >= self.done_at:
            if self.way == "installs_at_start":
                self.staged = self.writing
            elif self.way != "update_lies":
                self.version = self.writing
            self.writing, self.way = "", ""
        return self.version

    def follow(self, task: str) -> UpdateView:
        """
        What the controller says of the task.
        """
        self.look()
        if self.forgotten or task != str(self.task):
            return UpdateView(task, "unknown", message="no such task")
        if self.way == "task_fails":
            self.writing = self.way = ""
            return UpdateView(task, "failed", message="a wrong signature")
        return UpdateView(task, "running" if self.writing else "succeeded")

    def befall(self, way: str) -> None:
        """
        The update that is under way comes to such an end.
        """
        self.way = way
        self.forgotten = way in {"task_vanishes", "resets_in_mid_update", "update_lost"}
        if way in {"resets_in_mid_update", "update_lost"}:
            self.silent = RESET_LOOKS
        if way == "update_lost":
            self.writing = self.way = ""

    def start(self) -> None:
        """
        The machine starts: what was left for that is installed.
        """
        self.version, self.staged = self.staged or self.version, ""

    def cut(self) -> None:
        """
        Somebody cuts the machine's power on purpose.
        """
        self.look()
        if self.writing:
            self.findings.append("its power was cut while its firmware was written")
