"""
Several API processes, one budget: once a second each tells the store what it used and hears what the others did.

No request ever waits for the store. When it is down every process goes on with its own buckets: limited, and nobody is refused for
the store's sake. A caller who spreads over n processes may spend its burst n times at first; after that the sum is limited.
"""

import logging
import time
from collections.abc import Callable
from threading import Event, Thread

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.web.limits import Buckets, Limiter

log = logging.getLogger(__name__)
INTERVAL_S = 1.0
TIMEOUT_S = 0.5
KEPT_S = 120
PER_ROUND = 5000


def store_client(url: str) -> "redis.Redis":
    """
    A client that answers or fails within half a second and does not try again by itself.
    """
    return redis.Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0), decode_responses=True
    )


class Exchange:
    """
    Keeps one process's buckets in step with the others'.
    """

    def __init__(
        self, limiter: Limiter, client: "redis.Redis", *, prefix: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limiter = limiter
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._stop = Event()
        self._thread: Thread | None = None
        self._was_up = True

    def start(self) -> None:
        """
        The exchange runs in a thread of its own until stop.
        """
        self._thread = Thread(target=self._run, name="limits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """
        The thread has ended and the connections are closed.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=TIMEOUT_S * 4)
        self._client.close()

    def exchange(self) -> bool:
        """
        What was used here has been told, and what others used is charged here. False when the store did not answer: then what was
        used stays untold, for telling it late would charge it twice.
        """
        told = [
            (kind, buckets, name, amount)
            for kind, buckets in self._limiter.kinds.items()
            for name, amount in buckets.drain_used().items()
        ][:PER_ROUND]
        if not told:
            return True
        try:
            totals = self._tell([(f"{self._prefix}:limit:{kind}:{name}", amount) for kind, _, name, amount in told])
        except (redis.RedisError, OSError) as error:
            self._seen.clear()
            if self._was_up:
                log.warning("limit store down; each process limits alone", extra={"kind": type(error).__name__})
            self._was_up = False
            return False
        self._was_up = True
        for (kind, buckets, name, amount), total in zip(told, totals, strict=True):
            self._hear(f"{kind}:{name}", buckets, name, amount, total)
        self._forget()
        return True

    def _tell(self, amounts: list[tuple[str, int]]) -> list[int]:
        pipe = self._client.pipeline(transaction=False)
        for key, amount in amounts:
            pipe.incrby(key, amount)
            pipe.expire(key, KEPT_S)
        return [int(total) for total in pipe.execute()[::2]]

    def _hear(self, place: str, buckets: Buckets, name: str, amount: int, total: int) -> None:
        now = self._clock()
        before = self._seen.get(place)
        self._seen[place] = (total, now)
        # What others used before the bucket could refill is past; a counter that went back has expired and begun anew.
        if before is None or now - before[1] > buckets.burst / buckets.rate_per_s + INTERVAL_S:
            return
        others = total - before[0] - amount
        if others > 0:
            buckets.charge(name, others, told=False)

    def _forget(self) -> None:
        now = self._clock()
        if len(self._seen) > PER_ROUND:
            self._seen = {place: known for place, known in self._seen.items() if now - known[1] < KEPT_S}

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                self.exchange()
            except Exception:
                log.exception("limits could not be shared")
