"""
The loop of one kind: claims are stepped in a bounded pool and applied as they finish, so that a slow provider holds up nobody else.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from controlplane.kit.lifecycle import SUSPECT, Claim, Driver, Result
from controlplane.kit.outcome import Wait
from controlplane.providers.toolbox import Toolbox
from controlplane.settings import Settings

log = logging.getLogger(__name__)
COLLECT_S = 0.02
"""How long finished steps wait for others, so that they are applied together."""
TAKEN_PAUSE_S = 0.05
"""Until the next look while every due row is in somebody else's hands."""
TROUBLE_PAUSE_S = 1.0


class Pump:
    """
    Drives one kind until it is stopped, and tells the others when it has done something, for their rows may be due by it. Holds nothing
    that the database does not hold.
    """

    def __init__(
        self,
        driver: Driver,
        tools: Toolbox,
        settings: Settings,
        pool: ThreadPoolExecutor,
        *,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self.driver = driver
        self.finished = 0
        """Claims finished since the start: the sign of life."""
        self._tools = tools
        self._settings = settings
        self._pool = pool
        self._tell = tell
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._pending: dict[Future[Result], Claim] = {}

    def wake(self) -> None:
        """
        The next look comes at once.
        """
        self._woken.set()

    def stop(self) -> None:
        """
        No new claim is made; steps under way are finished and applied.
        """
        self._stopping.set()
        self._woken.set()

    def run(self) -> None:
        """
        Returns after `stop`, when nothing is under way any more.
        """
        while not self._stopping.is_set() or self._pending:
            try:
                busy = self.turn()
            except Exception:
                log.exception("a turn failed", extra={"kind": self.driver.kind.name})
                self._stopping.wait(TROUBLE_PAUSE_S)
                continue
            if busy:
                self._tell()
            elif not self._stopping.is_set():
                self._pause()

    def turn(self) -> int:
        """
        One look: decisions, new claims, finished steps; how much was done is returned.
        """
        done = self._collect()
        if self._stopping.is_set():
            return done
        done += self.driver.decide(self._settings.claim_batch)
        suspect = any(claim.attempts > SUSPECT for claim in self._pending.values())
        room = 0 if suspect else self._settings.claim_batch - len(self._pending)
        claims = self.driver.claim(room) if room > 0 else []
        claimed_at = time.monotonic()
        for claim in claims:
            self._pending[self._pool.submit(self._step, claim, claimed_at)] = claim
        return done + len(claims) + self._collect()

    def _step(self, claim: Claim, claimed_at: float) -> Result:
        left = self._settings.lease_s - (time.monotonic() - claimed_at)
        if left < self._settings.step_timeout_s:
            return replace(Result(claim, Wait("Waits for a free place.", 0.0)), started=False)
        return self.driver.step(claim, self._tools)

    def _collect(self) -> int:
        if not self._pending:
            return 0
        ended, _ = wait(self._pending, timeout=COLLECT_S)
        results = []
        for future in ended:
            self._pending.pop(future)
            results.append(future.result())
        self.driver.apply(results)
        self.finished += len(results)
        return len(results)

    def _pause(self) -> None:
        if self._pending:
            return
        longest = self._settings.sweep_interval_s * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret
        due = self.driver.next_due_in_s()
        if due is not None:
            longest = min(longest, due if due > 0 else TAKEN_PAUSE_S)
        self._woken.wait(longest)
        self._woken.clear()
