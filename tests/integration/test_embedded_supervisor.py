"""
The supervisor with real child processes: started, crashed, orphaned, stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.local import spawn
from controlplane.local.errors import DataDirectoryHeld, StartFailed
from controlplane.local.hold import held
from controlplane.local.supervisor import ChildSpec, Supervisor

PATIENCE_S = 20.0


class SteppedClock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def lines() -> list[str]:
    """What the supervisor told people."""
    return []


@pytest.fixture
def clock() -> SteppedClock:
    """The supervisor's time."""
    return SteppedClock()


@pytest.fixture
def supervisor(lines: list[str], clock: SteppedClock) -> Iterator[Supervisor]:
    """A supervisor whose children are gone after the test, whatever happened in it."""
    made = Supervisor(report=lines.append, clock=clock)
    yield made
    made.stop()


def child(tmp_path: Path, script: str, *, name: str = "child") -> ChildSpec:
    """A child that runs a shell script."""
    return ChildSpec(
        name=name,
        command=["/bin/sh", "-c", script],
        environment={"PATH": os.environ["PATH"]},
        directory=tmp_path,
        log_path=tmp_path / f"{name}.log",
    )


def until(happened: Callable[[], bool], *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Return when it happened; fail when it takes too long."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not happened():
        meanwhile()
        assert time.monotonic() < deadline_s, "it never happened"


def test_start_returns_when_the_child_is_ready(supervisor: Supervisor, tmp_path: Path) -> None:
    """A child counts as started only when it says so itself."""
    sign = tmp_path / "ready"
    supervisor.start(replace(child(tmp_path, "touch ready; exec sleep 60"), is_ready=sign.exists))
    assert sign.exists()


def test_child_that_ends_at_its_start_is_an_error_with_its_last_words(supervisor: Supervisor, tmp_path: Path) -> None:
    """Whoever reads the message knows what the child said and where the rest is."""
    with pytest.raises(StartFailed) as caught:
        supervisor.start(replace(child(tmp_path, "echo no room on the disk; exit 3"), is_ready=lambda: False))
    assert "ended with code 3" in caught.value.problem
    assert "no room on the disk" in caught.value.problem
    assert str(tmp_path / "child.log") in caught.value.remedy


def test_child_that_is_never_ready_is_an_error(supervisor: Supervisor, tmp_path: Path) -> None:
    """Waiting for a child has an end."""
    with pytest.raises(StartFailed, match="not ready"):
        supervisor.start(replace(child(tmp_path, "exec sleep 60"), is_ready=lambda: False, ready_deadline_s=0.1))


def test_crashed_child_is_started_again_after_its_delay(
    supervisor: Supervisor, lines: list[str], clock: SteppedClock, tmp_path: Path
) -> None:
    """A kill is told in one line, and the child comes back when its time has come and not before."""
    supervisor.start(child(tmp_path, "echo at work; exec sleep 60"))
    before = supervisor.pid("child")
    assert before is not None
    until(lambda: (tmp_path / "child.log").read_text() != "")
    os.kill(before, signal.SIGKILL)
    until(lambda: bool(lines), meanwhile=supervisor.tend)
    assert len(lines) == 1
    assert lines[0].startswith("child was killed by SIGKILL; starting it again in 0.5 s. child.log ends with: at work")
    supervisor.tend()
    assert supervisor.pid("child") is None
    clock.now_s += 0.5
    supervisor.tend()
    assert supervisor.pid("child") not in {None, before}


def test_delays_grow_until_the_child_has_run_for_a_while(
    supervisor: Supervisor, lines: list[str], clock: SteppedClock, tmp_path: Path
) -> None:
    """Crashes in a row are answered ever more slowly; one after half a minute of work starts the count anew."""
    supervisor.start(child(tmp_path, "exit 1"))

    def after_crash(number: int) -> str:
        until(lambda: len(lines) == number, meanwhile=supervisor.tend)
        return lines[-1].partition("again in ")[2].split(" s.")[0]

    delays = []
    for number in (1, 2, 3):
        delays.append(after_crash(number))
        clock.now_s += 8
        supervisor.tend()
    assert delays == ["0.5", "1", "2"]
    clock.now_s += 31
    assert after_crash(4) == "0.5"


def test_a_crash_takes_the_whole_process_group(supervisor: Supervisor, lines: list[str], tmp_path: Path) -> None:
    """What a child had started does not live on beside its successor."""
    supervisor.start(child(tmp_path, "sleep 60 & echo $! > grandchild; exec sleep 60"))
    number = tmp_path / "grandchild"
    until(lambda: number.exists() and number.read_text().endswith("\n"))
    leader = supervisor.pid("child")
    assert leader is not None
    os.kill(leader, signal.SIGKILL)
    until(lambda: bool(lines), meanwhile=supervisor.tend)
    assert spawn.wait_for_exit(int(number.read_text()), deadline_s=PATIENCE_S)


def test_stop_ends_the_last_started_first(supervisor: Supervisor, tmp_path: Path) -> None:
    """What others stand on goes last."""
    script = 'trap "echo {0} >> order; exit 0" TERM; touch {0}-ready; while :; do sleep 0.01; done'
    for name in ("database", "api"):
        sign = tmp_path / f"{name}-ready"
        supervisor.start(replace(child(tmp_path, script.format(name), name=name), is_ready=sign.exists))
    supervisor.stop()
    assert (tmp_path / "order").read_text().split() == ["api", "database"]


def test_stop_kills_what_does_not_listen(supervisor: Supervisor, tmp_path: Path) -> None:
    """Stopping is bounded, also for a child that ignores the signal and has children of its own."""
    script = 'trap "" TERM; sleep 60 & echo $! > grandchild; touch ready; while :; do sleep 0.01; done'
    sign = tmp_path / "ready"
    supervisor.start(replace(child(tmp_path, script), is_ready=sign.exists, stop_grace_s=0.2))
    number = supervisor.pid("child")
    assert number is not None
    supervisor.stop()
    assert not spawn.is_alive(number)
    assert spawn.wait_for_exit(int((tmp_path / "grandchild").read_text()), deadline_s=PATIENCE_S)


def test_no_child_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    """After kill -9 of the supervisor the kernel ends its children."""
    program = f"""
from pathlib import Path
from controlplane.local.supervisor import ChildSpec, Supervisor
here = Path({str(tmp_path)!r})
made = Supervisor(report=print)
made.start(ChildSpec("child", ["/bin/sleep", "60"], {{}}, here, here / "log"))
print(made.pid("child"), flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        assert spawn.is_alive(orphan)
        parent.kill()
    assert spawn.wait_for_exit(orphan, deadline_s=PATIENCE_S)


def test_data_directory_is_held_by_one(tmp_path: Path) -> None:
    """The second one learns who the first one is; afterwards the directory is free again."""
    with (
        held(tmp_path, what="the first"),
        pytest.raises(DataDirectoryHeld, match=f"process {os.getpid()} .the first"),
        held(tmp_path, what="the second"),
    ):
        pytest.fail("both hold it")
    with held(tmp_path, what="the third"):
        pass
