"""
The loop of one kind: claims are stepped in a bounded pool and applied as they finish, so that a slow provider holds up nobody else.

A look that may find nothing costs one round trip: rows are only claimed when the database says that some are due. While steps are under
way the loop sleeps until one has ended, somebody calls, or a row comes due by itself.
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
    Drives one kind until it is stopped, and tells the others when it has done something that their rows may be due by. Holds nothing
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
        self._called = threading.Event()
        """Somebody wants a look."""
        self._stirred = threading.Event()
        """Somebody wants a look, or a step has ended."""
        self._stopping = threading.Event()
        self._pending: dict[Future[Result], Claim] = {}
        self._look_at = 0.0
        """Monotonic time of the next look if nobody calls before."""

    def wake(self) -> None:
        """
        The next look comes at once.
        """
        self._called.set()
        self._stirred.set()

    def stop(self) -> None:
        """
        No new claim is made; steps under way are finished and applied.
        """
        self._stopping.set()
        self._stirred.set()

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
            if not busy:
                self._pause()

    def turn(self) -> int:
        """
        What has ended is applied, and when a look is due, there are decisions and new claims; how much was done is returned.
        """
        done = self._collect()
        if self._stopping.is_set():
            return done
        if done or self._called.is_set() or time.monotonic() >= self._look_at:
            self._called.clear()  # before the look: a call that comes while it is under way is followed by another one
            done += self._look()
        return done

    def _look(self) -> int:
        self._look_at = 0.0  # stays if this fails: then it is tried again
        due = self.driver.next_due_in_s()
        if due is None or due > 0:
            longest = self._settings.sweep_interval_s * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret
            self._look_at = time.monotonic() + (longest if due is None else min(longest, due))
            return 0
        decided = self.driver.decide(self._settings.claim_batch)
        if decided:
            self._tell()
        claimed = self._claim()
        self._look_at = time.monotonic() + (0.0 if decided or claimed else TAKEN_PAUSE_S)
        return decided + claimed

    def _claim(self) -> int:
        suspect = any(claim.attempts > SUSPECT for claim in self._pending.values())
        room = 0 if suspect else self._settings.claim_batch - len(self._pending)
        claims = self.driver.claim(room) if room > 0 else []
        claimed_at = time.monotonic()
        for claim in claims:
            future = self._pool.submit(self._step, claim, claimed_at)
            self._pending[future] = claim
            future.add_done_callback(lambda _: self._stirred.set())
        return len(claims)

    def _step(self, claim: Claim, claimed_at: float) -> Result:
        left = self._settings.lease_s - (time.monotonic() - claimed_at)
        if left < self._settings.step_timeout_s:
            return replace(Result(claim, Wait("Waits for a free place.", 0.0)), started=False)
        return self.driver.step(claim, self._tools)

    def _collect(self) -> int:
        if not any(future.done() for future in self._pending):
            return 0
        ended, _ = wait(self._pending, timeout=COLLECT_S)
        results = []
        for future in ended:
            self._pending.pop(future)
            results.append(future.result())
        self.driver.apply(results)
        self.finished += len(results)
        if any(_is_news(one) for one in results):
            self._tell()
        return len(results)

    def _pause(self) -> None:
        """
        Returns when it is time for a look, and at once when somebody calls or a step ends.
        """
        if self._stopping.is_set():
            self._stirred.wait(TROUBLE_PAUSE_S)
        else:
            self._stirred.wait(max(0.0, self._look_at - time.monotonic()))
        self._stirred.clear()


def _is_news(result: Result) -> bool:
    """
    Whether rows of other kinds may be due by it: a wait that brings no facts changes nothing but its own row.
    """
    return not isinstance(result.outcome, Wait) or result.outcome.facts is not None
