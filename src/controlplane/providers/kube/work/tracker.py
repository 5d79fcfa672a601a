"""
Two watches for all jobs of ours at one Kubernetes: one over Jobs, one over pods, however many there are, and a third over MPIJobs while
there are any. They make frequent looks cheap.

A watch may break, go silent, lag, or be told that its version is too old. None of that decides anything: while a watch is not known to be
in order nothing is recalled, and the server is asked; now and then it begins anew with a list. Cost does not grow with finished jobs: the
lists that begin a watch leave them out, but for the few MPIJobs: of their kind no server selects by how they stand.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from controlplane.providers.errors import ProviderError, Unknown
from controlplane.providers.kube.client import Expired, Kube
from controlplane.providers.kube.feed import Feed
from controlplane.providers.kube.work import mpi
from controlplane.providers.kube.work.memory import Kind, Memory
from controlplane.providers.kube.work.names import TOKEN, Names

log = logging.getLogger(__name__)
Json = dict[str, Any]
IDLE_S = 120.0
"""How long watches are kept open though nobody recalls anything."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0
JOIN_S = 5.0
WHERE: dict[Kind, tuple[str, str]] = {
    "jobs": ("/apis/batch/v1/jobs", "status.successful=0"),
    "pods": ("/api/v1/pods", "status.phase!=Succeeded,status.phase!=Failed"),
    "mpijobs": (f"/apis/{mpi.API}/{mpi.PLURAL}", ""),
}
"""The list that a watch begins with: its path, and what keeps finished ones out of it. The watch itself leaves nothing out."""


@dataclass(slots=True)
class Line:
    """
    The watch of one kind.
    """

    kind: Kind
    """Which."""
    version: str = ""
    """From where it goes on; empty: it begins with a list."""
    believed_until: float = 0.0
    """Monotonic time; after it the server should have ended the watch, so it has gone silent."""
    feed: Feed | None = None
    """The open one."""
    listed_at: float = 0.0
    """Monotonic time of that list."""
    failures: int = 0
    """Since it last told something."""


Group = Literal["jobs", "launched"]
GROUPS: dict[Group, tuple[Kind, ...]] = {"jobs": ("jobs", "pods"), "launched": ("mpijobs",)}
"""What is opened together. Most servers have no MPIJob at all, and many not the kind, so its watch opens with the first that is seen."""


@dataclass(slots=True)
class Opened:
    """
    The watches that were opened together.
    """

    asked_at: float = 0.0
    """Monotonic time of the last call that needed them."""
    lines: list[Line] = field(default_factory=list)
    """Of each kind."""
    threads: list[threading.Thread] = field(default_factory=list)
    """That read them."""
    running: int = 0
    """Of those, the ones that have not come to their end."""


class Tracker:
    """
    The watches of one credential at one API server; they are open while something is recalled.
    """

    def __init__(
        self, kube: Kube, names: Names, *, lasts_s: float, relist_s: float, places: threading.Semaphore | None = None
    ) -> None:
        self.memory = Memory()
        self._places = places
        """Of all who may have watches open at a time; none: as many as like."""
        self._kube = kube
        self._labels = f"{names.selector()},{TOKEN}"
        self._lasts_s = lasts_s
        self._late_s = lasts_s / 5
        self._relist_s = relist_s
        self._lock = threading.Lock()
        self._opened: dict[Group, Opened] = {group: Opened() for group in GROUPS}
        self._stopping = threading.Event()

    def recall(self, namespace: str, token: str) -> tuple[Json, tuple[Json, ...], bool] | None:
        """
        See `Memory.recall`; None also while a watch is not known to be in order. The watches are open from the first call on.
        """
        self.open()
        kept = self.memory.recall(namespace, token)
        if kept is None:
            return None
        if mpi.is_one(kept[0]):
            self.open("launched")
        return kept if self.follows(kept[0]) else None

    @property
    def live(self) -> bool:
        """
        Whether the watches of Jobs and pods are in order.
        """
        return self._live("jobs", "pods")

    def follows(self, job: Json) -> bool:
        """
        Whether the watches that tell of such a job are in order: an MPIJob is told by its own, and its pods by that of pods.
        """
        return self._live("mpijobs", "pods") if mpi.is_one(job) else self.live

    def learn(self, job: Json, pods: Sequence[Json]) -> None:
        """
        The job and all of its pods are as the server answered just now; remembered where watches will tell what becomes of them.
        """
        if mpi.is_one(job) and self.live:
            self.open("launched")
        if self.follows(job):
            self.memory.learn(job, pods)

    def open(self, group: Group = "jobs") -> None:
        """
        The watches are open soon, unless they are already; nothing is waited for.
        """
        with self._lock:
            opened = self._opened[group]
            opened.asked_at = time.monotonic()
            if self._stopping.is_set() or any(one.is_alive() for one in opened.threads):
                return
            if self._places is not None and not self._places.acquire(blocking=False):
                return  # whoever recalls asks, until another has closed its watches
            opened.lines = [Line(kind) for kind in GROUPS[group]]
            opened.running = len(opened.lines)
            opened.threads = [
                threading.Thread(target=self._run, args=(line, opened), name=f"watch-{line.kind}", daemon=True)
                for line in opened.lines
            ]
            for thread in opened.threads:
                thread.start()

    def close(self) -> None:
        """
        No watch is open, and none is opened again.
        """
        self._stopping.set()
        with self._lock:
            feeds = [line.feed for one in self._opened.values() for line in one.lines if line.feed is not None]
            threads = [thread for one in self._opened.values() for thread in one.threads]
        for feed in feeds:
            feed.stop()
        for thread in threads:
            thread.join(JOIN_S)

    def _live(self, *kinds: Kind) -> bool:
        now = time.monotonic()
        with self._lock:
            there = {line.kind: line.believed_until for one in self._opened.values() for line in one.lines}
        return all(now < there.get(kind, 0.0) for kind in kinds)

    def _run(self, line: Line, opened: Opened) -> None:
        while not self._done(opened):
            try:
                # servers have lost events, and what was not told would never be missed
                if not line.version or time.monotonic() - line.listed_at > self._relist_s:
                    self._begin(line)
                self._follow(line)
            except Expired:
                self._doubt(line)
                line.version = ""
            except ProviderError as error:
                self._doubt(line)
                log.info("a watch is interrupted", extra={"kind": line.kind, "code": error.code, "failures": line.failures})
            except Exception:
                self._doubt(line)
                line.version = ""
                log.exception("a watch failed", extra={"kind": line.kind})
            if line.failures:
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(line.failures, 10))
                self._stopping.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
        self._doubt(line)
        with self._lock:
            opened.running -= 1
            if opened.running == 0 and self._places is not None:
                self._places.release()

    def _done(self, opened: Opened) -> bool:
        return self._stopping.is_set() or time.monotonic() - opened.asked_at > IDLE_S

    def _begin(self, line: Line) -> None:
        path, fields = WHERE[line.kind]
        line.listed_at = time.monotonic()
        found, line.version = self._kube.list_at(path, labels=self._labels, fields=fields)
        self.memory.begin(line.kind, found)

    def _follow(self, line: Line) -> None:
        path, _ = WHERE[line.kind]
        opened_at = time.monotonic()
        feed = self._kube.follow(path, labels=self._labels, version=line.version, lasts_s=self._lasts_s, late_s=self._late_s)
        with self._lock:
            line.feed = feed
            line.believed_until = opened_at + self._lasts_s + self._late_s
        if self._stopping.is_set():
            feed.stop()
        for event in feed:
            self._take(line, event)
        line.failures = 0

    def _take(self, line: Line, event: Json) -> None:
        kind, thing = event.get("type"), event["object"]
        if kind == "ERROR":
            raise self._kube.told(f"watch {line.kind}", thing)
        if self.memory.crowded:
            raise Unknown(f"watch {line.kind}: too much is told")  # what is known stays, and is asked for
        if kind in {"ADDED", "MODIFIED"}:
            self.memory.see(line.kind, thing)
        elif kind == "DELETED":
            self.memory.lose(line.kind, thing)
        line.version = str(thing["metadata"]["resourceVersion"])
        line.failures = 0

    def _doubt(self, line: Line) -> None:
        with self._lock:
            line.believed_until = 0.0
            line.feed = None
        line.failures += 1
