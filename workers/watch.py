"""
Looking at machines through their controllers: always as many at once as there is room for, never waiting for those that do not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Self

from sqlalchemy import Engine

from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.nodes import watching
from controlplane.nodes.states import Look, Watched
from controlplane.nodes.steps.metal.health import look
from controlplane.providers.toolbox import Toolbox

log = logging.getLogger(__name__)
WATCHERS = 32
"""Controllers asked at one time, of those that answer: they take a fraction of a second, most of it theirs."""
LATE_S = 3.0
"""A look that takes longer gives its place to the next one: most controllers that are asked for so long do not answer at all."""
QUIET = 32
"""Controllers asked at one time, of those that did not answer the last time."""
MOST = 256
"""Looks under way at one time, late and quiet ones among them: threads of this process, and nearly all of them asleep."""
CLAIM = 200
AGAIN_S = 1.0
"""Until the next claim when the last one took all that was due."""
STORE = 100
"""Looks that are stored in one transaction."""
STORE_S = 0.5
"""Longest that a look waits for others to be stored with it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """
    A look that is under way.
    """

    since: float
    """Monotonic seconds."""
    quiet: bool
    """Whether the controller did not answer the last time."""


class Watch:
    """
    The looks of one process. What it holds is lost without harm: a machine whose look is lost is due again a minute later.
    """

    def __init__(self, engine: Engine, tools: Toolbox, stopping: threading.Event | None = None) -> None:
        self._engine = engine
        self._tools = tools
        self._stopping = stopping or threading.Event()
        self._pool = ThreadPoolExecutor(MOST, thread_name_prefix="look")
        self._waiting: deque[Watched] = deque()
        self._quiet: deque[Watched] = deque()
        self.silent: set[str] = set()
        """Machines whose controllers did not answer the last time."""
        self._asked: dict[str, Asked] = {}
        self._done: SimpleQueue[tuple[str, Look | None]] = SimpleQueue()
        self._looks: list[Look] = []
        self._stored_at = time.monotonic()
        self._claim_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def turn(self, patience_s: float) -> bool:
        """
        Whether there was anything to do: machines that are due are asked as far as there is room, and what was said by now is stored.
        Returns when a look has ended, and after `patience_s` at the latest.
        """
        self._claim()
        self._begin()
        ended = self._collect(patience_s) if self._asked else 0
        if self._looks and (len(self._looks) >= STORE or not self._asked or time.monotonic() - self._stored_at > STORE_S):
            self._store()
        return bool(ended or self._asked or self._waiting or self._quiet)

    def whole_round(self) -> None:
        """
        Everything that was due has been asked, silent controllers among it, and all that was said is stored.
        """
        while self.turn(LATE_S):
            pass

    def close(self) -> None:
        """
        No further controller is asked. Returns when those that are being asked have ended, by their own time; what they say is not kept.
        """
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _claim(self) -> None:
        if len(self._waiting) >= WATCHERS or self._stopping.is_set() or (self._asked and time.monotonic() < self._claim_at):
            return
        due = in_transaction(self._engine, EVERYTHING, lambda session: watching.due_machines(session, CLAIM))
        self._claim_at = time.monotonic() + (AGAIN_S if len(due) < CLAIM else 0.0)
        held = {*self._asked, *(one.id for one in self._quiet)}
        for node in due:
            if node.id not in held:
                (self._quiet if node.id in self.silent else self._waiting).append(node)

    def _begin(self) -> None:
        late = time.monotonic() - LATE_S
        quiet = sum(one.quiet for one in self._asked.values())
        prompt = sum(not one.quiet and one.since > late for one in self._asked.values())
        room = MOST - len(self._asked)
        for queue, free, is_quiet in ((self._quiet, QUIET - quiet, True), (self._waiting, WATCHERS - prompt, False)):
            begun = min(free, room, len(queue))
            for _ in range(begun):
                node = queue.popleft()
                self._asked[node.id] = Asked(time.monotonic(), is_quiet)
                self._pool.submit(self._ask, node)
            room -= max(begun, 0)

    def _ask(self, node: Watched) -> None:
        found = None
        try:
            found = None if self._stopping.is_set() else look(node, self._tools)
        finally:
            self._done.put((node.id, found))

    def _collect(self, patience_s: float) -> int:
        done: list[tuple[str, Look | None]] = []
        with suppress(Empty):
            done.append(self._done.get(timeout=patience_s))
            while True:
                done.append(self._done.get_nowait())
        for node_id, found in done:
            del self._asked[node_id]
            if found is None:
                self.silent.add(node_id)
            else:
                self.silent.discard(node_id)
                self._looks.append(found)
        return len(done)

    def _store(self) -> None:
        looks, self._looks = self._looks, []
        self._stored_at = time.monotonic()
        for some in (looks[place : place + STORE] for place in range(0, len(looks), STORE)):
            in_transaction(self._engine, EVERYTHING, lambda session, batch=some: watching.store(session, batch))  # type: ignore[misc]
