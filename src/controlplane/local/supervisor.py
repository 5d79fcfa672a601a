"""
Starts child processes in order, starts again those that crash, and ends them all in reverse order within a bound.

Everything here runs in one thread, the main one: the kernel ties a child's end to the thread that started it.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.local import spawn
from controlplane.local.errors import StartFailed
from controlplane.local.interrupts import Interrupts

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 15.0
STEADY_AFTER_S = 30.0
READY_POLL_S = 0.05
READY_DEADLINE_S = 60.0
LONGEST_QUOTE = 160


def restart_delay_s(crashes: int) -> float:
    """
    Answers how long to wait before the next start after so many crashes in a row: doubling, up to a limit.
    """
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(crashes - 1, 16)))


def _at_once() -> bool:
    return True


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """
    What to run and how to treat it.
    """

    name: str
    """What people call it."""
    command: Sequence[str]
    """Program and arguments."""
    environment: Mapping[str, str]
    """All of its environment."""
    directory: Path
    """Where it starts."""
    log_path: Path
    """Where its output goes."""
    account: spawn.Account | None = None
    """Whom it runs as; nobody else when None."""
    is_ready: Callable[[], bool] = _at_once
    """Whether it does its work yet."""
    before_restart: Callable[[], object] = _nothing
    """What to do between a crash and the next start."""
    stop_signal: signal.Signals = signal.SIGTERM
    """How it is asked to end."""
    orphan_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends it when the supervisor dies."""
    stop_grace_s: float = 10.0
    """How long it may take to end."""
    ready_deadline_s: float = READY_DEADLINE_S
    """How long it may take to be ready."""


@dataclass(slots=True)
class _Child:
    """
    One supervised child: its process, or the time of its next start.
    """

    spec: ChildSpec
    """What it is."""
    process: subprocess.Popen[bytes] | None = None
    """The running process; None between a crash and the next start."""
    started_at_s: float = 0.0
    """Monotonic time of the latest start."""
    restart_at_s: float = 0.0
    """Monotonic time of the next start, when there is no process."""
    crashes: int = 0
    """Crashes in a row."""


@dataclass(slots=True)
class Supervisor:
    """
    The children of this process, in the order of their start.
    """

    report: Callable[[str], None]
    """Takes one line for people whenever a child crashes or is back."""
    interrupts: Interrupts = field(default_factory=Interrupts)
    """What may break in while a child is being started."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that only go up."""
    _groups: list[list[_Child]] = field(default_factory=list)
    """Children that were started together, and end together."""

    def start(self, *specs: ChildSpec) -> None:
        """
        These children run and are ready; if one fails, StartFailed says why and what its log said last.
        """
        self.launch(*specs)
        self.wait_until_ready()

    def launch(self, *specs: ChildSpec) -> None:
        """
        These children have been started, and are getting ready while the caller does something else.
        """
        group: list[_Child] = []
        self._groups.append(group)
        for spec in specs:
            child = _Child(spec)
            with self.interrupts.held():
                self._launch(child)
                group.append(child)

    def wait_until_ready(self) -> None:
        """
        The children that were started last are ready; if one is not, StartFailed says why.
        """
        for child in self._groups[-1]:
            self._wait_until_ready(child)

    def tend(self) -> None:
        """
        Crashed children have been reported and, when their time has come, started again. Never blocks.
        """
        for group in self._groups:
            for child in group:
                if child.process is None:
                    if self.clock() >= child.restart_at_s:
                        self._restart(child)
                elif spawn.has_ended(child.process):
                    self._note_crash(child, child.process)

    def stop(self) -> None:
        """
        No child is left; the last started ended first, and what did not end in its grace was killed.
        """
        with self.interrupts.held():
            impatient_from = self.interrupts.count + 1 if self.interrupts.count else 2
            while self._groups:
                running = [child for child in self._groups[-1] if child.process is not None]
                for child in running:
                    assert child.process is not None
                    spawn.ask_to_stop(child.process, child.spec.stop_signal)
                asked_at_s = time.monotonic()
                for child in running:
                    assert child.process is not None
                    until_s = asked_at_s + child.spec.stop_grace_s
                    while not spawn.has_ended(child.process) and time.monotonic() < until_s:
                        if self.interrupts.count >= impatient_from:
                            break
                        time.sleep(spawn.POLL_S)
                    spawn.reap(child.process, grace_s=0)
                self._groups.pop()

    def pid(self, name: str) -> int | None:
        """
        Answers the process number of a child; None while it waits for its next start.
        """
        for group in self._groups:
            for child in group:
                if child.spec.name == name:
                    return child.process.pid if child.process else None
        raise KeyError(name)

    def _launch(self, child: _Child) -> None:
        spec = child.spec
        child.process = spawn.spawn(
            spec.command,
            log_path=spec.log_path,
            environment=spec.environment,
            directory=spec.directory,
            account=spec.account,
            orphan_signal=spec.orphan_signal,
        )
        child.started_at_s = self.clock()

    def _wait_until_ready(self, child: _Child) -> None:
        spec = child.spec
        until_s = time.monotonic() + spec.ready_deadline_s
        while not spec.is_ready():
            assert child.process is not None
            if spawn.has_ended(child.process):
                code = spawn.reap(child.process, grace_s=0)
                raise StartFailed(f"{spec.name} {ending(code)} at its start.{said(spec.log_path)}", log_hint(spec.log_path))
            if time.monotonic() > until_s:
                raise StartFailed(
                    f"{spec.name} was not ready after {spec.ready_deadline_s:.0f} s.{said(spec.log_path)}",
                    log_hint(spec.log_path),
                )
            time.sleep(READY_POLL_S)

    def _note_crash(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        code = spawn.reap(process, grace_s=0)
        child.process = None
        if self.clock() - child.started_at_s >= STEADY_AFTER_S:
            child.crashes = 0
        child.crashes += 1
        delay_s = restart_delay_s(child.crashes)
        child.restart_at_s = self.clock() + delay_s
        self.report(f"{child.spec.name} {ending(code)}; starting it again in {delay_s:g} s.{said(child.spec.log_path)}")

    def _restart(self, child: _Child) -> None:
        child.spec.before_restart()
        with self.interrupts.held():
            self._launch(child)


def ending(code: int) -> str:
    """
    Answers in words how a process ended.
    """
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with code {code}"


def said(log_path: Path) -> str:
    """
    Answers a sentence with the last line of a log; empty when the log is.
    """
    line = spawn.last_line(log_path)
    return f" {log_path.name} ends with: {line[:LONGEST_QUOTE]}" if line else ""


def log_hint(log_path: Path) -> str:
    """
    Answers where to read more.
    """
    return f"All that it said is in {log_path}."
