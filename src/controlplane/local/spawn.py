"""
Starts child processes that never outlive this one, and ends them within a bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
POLL_S = 0.02

# Looked up now: a child between fork and exec must not load anything. Absent outside Linux.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


@dataclass(frozen=True, slots=True)
class Account:
    """
    A user that a child runs as; only root can start children as somebody else.
    """

    user: str
    """Name in the password file."""
    uid: int
    """Its user id."""
    gid: int
    """Its group id."""


def spawn(
    command: Sequence[str],
    *,
    log_path: Path,
    environment: Mapping[str, str],
    directory: Path,
    account: Account | None = None,
    orphan_signal: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """
    A child runs in a session of its own, writing to its log; when this thread ends, the kernel sends it `orphan_signal`.

    The signal is bound to the calling *thread*: call this from one that lives as long as the child shall.
    """
    parent_pid = os.getpid()

    def follow_parent() -> None:
        if _prctl is not None:
            _prctl(PR_SET_PDEATHSIG, int(orphan_signal), 0, 0, 0)
            if os.getppid() != parent_pid:  # it died between fork and here
                os._exit(0)

    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 -- commands are our own, never a caller's text
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            umask=0o077,
            preexec_fn=follow_parent,  # noqa: PLW1509 -- one system call through a library that is already loaded
        )


def end(child: subprocess.Popen[bytes], *, stop_signal: signal.Signals, grace_s: float) -> None:
    """
    The child and its process group are gone; it was asked first and killed when the grace ran out.
    """
    ask_to_stop(child, stop_signal)
    reap(child, grace_s=grace_s)


def ask_to_stop(child: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    """
    The child has been sent the signal, if it still runs.
    """
    if not has_ended(child):
        os.kill(child.pid, stop_signal)


def has_ended(child: subprocess.Popen[bytes]) -> bool:
    """
    Tells whether the child has ended, without reaping it: until then its number, and its group's, belong to nobody else.
    """
    if child.returncode is not None:
        return True
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(child: subprocess.Popen[bytes], *, grace_s: float) -> int:
    """
    Answers the exit code of a child of whose process group nothing is left; killed when the grace ran out.
    """
    until = time.monotonic() + grace_s
    while not has_ended(child) and time.monotonic() < until:
        time.sleep(POLL_S)
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def wait_for_exit(pid: int, *, deadline_s: float) -> bool:
    """
    Tells whether a process that is no child of ours was gone within the deadline.
    """
    until = time.monotonic() + deadline_s
    while is_alive(pid):
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def is_alive(pid: int) -> bool:
    """
    Tells whether a process exists, zombies left aside.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in {"Z", "X"}


def last_line(log_path: Path, *, within_bytes: int = 4096) -> str:
    """
    Answers the last line of a log that says something; empty when there is none.
    """
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - within_bytes))
            lines = log.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
