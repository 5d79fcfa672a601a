"""
What runs on a worker of a cluster without a shared file system: sends what jobs print, as it is printed, until nothing more is wanted.

This file is sent to machines as it is and is run there by whatever Python 3 came with the image (3.7 or later), with nothing but the
standard library and the boot agent, which knows the way. It keeps nothing: the other side knows what it has.
"""

from __future__ import annotations

import importlib
import os
import pwd
import re
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("BOOT_AGENT_ROOT", "/"))
AGENT = ROOT / "var/lib/boot-agent"
NAME = re.compile(r"[^/]+\.(job_[0-9a-z]{26}-[1-9][0-9]{0,5})\.out", re.ASCII)
PIECE_BYTES = 64 * 1024
LOOK_S = 1.0
SLOWEST_S = 30.0
RUNG_S = 90.0
"""How long after a job's end all is looked at often: the other side learns of the end by itself."""
REFUSED_S = 300.0
UNPLACED_S = 3.0
"""Until the other side has learnt that the job runs here."""


@dataclass
class Seen:
    """
    What is known of the output of one attempt.
    """

    next: int = 0
    """Offset of the byte to send next."""
    over: bool = False
    """Whether the attempt was over before the file was last read."""
    closed: bool = False
    """Whether nothing more is wanted of it."""
    due_at: float = 0.0
    """When it is asked about again although nothing was printed."""
    pause_s: float = LOOK_S
    """How long it is then left alone."""
    not_before: float = 0.0
    """Until when nothing at all is sent of it: it was not wanted now."""


def read_piece(path: Path, uid: int, offset: int) -> tuple[bytes, int]:
    """
    Bytes from the offset on, and how many there are in all. Whoever runs jobs may have put anything in the file's place: only a plain file
    of that user, without another name, is read. Raises OSError.
    """
    handle = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1 or facts.st_uid != uid:
            raise PermissionError(str(path))
        return os.pread(handle, PIECE_BYTES, offset), facts.st_size
    finally:
        os.close(handle)


class Sender:
    """
    All outputs in these homes, each told as `user:folder`.
    """

    def __init__(self, agent: Any, url: str, homes: list[str]) -> None:
        base, _, token = url.rstrip("/").rpartition("/v1/boot/")
        self._agent = agent
        self._line = agent.Line({"url": f"{base}/v1/job-output/{token}/"})
        self._homes = [(user, Path(folder)) for user, _, folder in (one.partition(":") for one in homes)]
        self._seen: dict[str, Seen] = {}

    def look(self, now: float, *, rung: bool) -> None:
        """
        What was printed since is sent; what may have ended is asked about. Raises Unheard when nobody answers.
        """
        there = set()
        for user, folder in self._homes:
            for path, attempt, uid in outputs_of(user, folder):
                there.add(attempt)
                seen = self._seen.setdefault(attempt, Seen())
                if rung:
                    seen.due_at, seen.pause_s = min(seen.due_at, now + 2 * LOOK_S), LOOK_S
                if not seen.closed and now >= seen.not_before:
                    self._follow(path, attempt, uid, seen, now)
        for attempt in set(self._seen) - there:
            del self._seen[attempt]

    def _follow(self, path: Path, attempt: str, uid: int, seen: Seen, now: float) -> None:
        while True:
            try:
                data, size = read_piece(path, uid, seen.next)
            except OSError:
                return
            if not data and now < seen.due_at and size >= seen.next:
                return
            at, was_over = seen.next, seen.over
            try:
                self._send(attempt, seen, data, size)
            except self._agent.Refused:
                seen.not_before = now + REFUSED_S
                return
            if data and seen.next == at and not seen.closed:
                seen.not_before = now + UNPLACED_S
            if seen.closed or (seen.next == at and seen.over == was_over):
                seen.pause_s = min(SLOWEST_S, seen.pause_s * 1.5)
                seen.due_at = now + seen.pause_s
                return
            seen.pause_s = LOOK_S

    def _send(self, attempt: str, seen: Seen, data: bytes, size: int) -> None:
        if size < seen.next:  # begun anew
            asked, data = "offset=0&begin=1", b""
        else:
            whole = seen.over and seen.next + len(data) >= size
            asked = f"offset={seen.next}" + ("&end=1" if whole else "")
        answer, _ = self._line.ask(f"{attempt}?{asked}", data, "application/octet-stream")
        seen.next, seen.over, seen.closed = answer["next"], answer["over"], answer["closed"]


def outputs_of(user: str, folder: Path) -> list[tuple[Path, str, int]]:
    """
    Files in the folder that bear the name of an attempt's output: the path, the attempt, the user's number.
    """
    try:
        uid = pwd.getpwnam(user).pw_uid
        with os.scandir(str(folder)) as listed:
            found = [(one.path, NAME.fullmatch(one.name)) for one in listed]
    except (KeyError, OSError):
        return []
    return [(Path(path), name[1], uid) for path, name in sorted(found, key=lambda one: one[0]) if name]


def last_rung(bell: Path) -> float:
    """
    When a job last ended here, in the file system's time; 0 before the first.
    """
    try:
        return bell.stat().st_mtime
    except OSError:
        return 0.0


def main(bell: str, *homes: str) -> None:
    """
    Never returns.
    """
    sys.path.insert(0, str(AGENT))
    agent: Any = importlib.import_module("agent")
    plan = agent.read_json(AGENT / "plan.json")
    if plan is None:
        raise SystemExit("job-output: nobody has booted this machine")
    sender = Sender(agent, plan["url"], list(homes))
    pause_s = LOOK_S
    while True:
        rung = abs(time.time() - last_rung(Path(bell))) < RUNG_S
        try:
            sender.look(time.monotonic(), rung=rung)
            pause_s = LOOK_S
        except agent.Unheard:
            pause_s = min(2 * SLOWEST_S, pause_s * 2)
        time.sleep(pause_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
