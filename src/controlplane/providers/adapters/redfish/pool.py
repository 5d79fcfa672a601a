"""
The clients: one a controller, lent to one call at a time; a controller that hangs keeps only its own calls waiting.

Three walls keep the silent ones from the others: a call waits for its own controller without holding a place; a controller that did
not answer the last time is left alone for a while, without asking; and when it is asked again, it is in a lane of its own.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.config import RedfishConfig
from controlplane.providers.adapters.redfish.wire import trust
from controlplane.providers.errors import Busy, NotSent, Permanent
from controlplane.providers.hardware import Controller

DOUBLINGS = 3


@dataclass
class _Place:
    """
    What is kept of one controller.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    bmc: Bmc | None = None
    silences: int = 0
    alone_until: float = 0.0
    used_at: float = 0.0
    gone: bool = False

    def note(self, *, silent: bool, silence_s: float) -> None:
        """
        How its last call went.
        """
        self.used_at = time.monotonic()
        self.silences = self.silences + 1 if silent else 0
        self.alone_until = self.used_at + silence_s * 2 ** min(self.silences - 1, DOUBLINGS) if silent else 0.0


class Pool:
    """
    All clients of one provider. Safe to share between threads.
    """

    def __init__(self, config: RedfishConfig, *, username: str, password: str) -> None:
        self._config = config
        self._tls = trust(config)
        self._username = username
        self._password = password
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._lock = threading.Lock()
        self._lane = threading.BoundedSemaphore(config.calls)
        self._silent_lane = threading.BoundedSemaphore(config.silent_calls)
        self._farewells = ThreadPoolExecutor(max_workers=2, thread_name_prefix="redfish-farewell")
        self._closed = False

    @contextmanager
    def lend(self, controller: Controller, limit_s: float) -> Iterator[Bmc]:
        """
        The controller's client, for one call of at most so long.

        Raises Busy when it, or every place, is taken; NotSent while it is left alone.
        """
        place = self._take(controller.ref)
        try:
            left_s = place.alone_until - time.monotonic()
            if left_s > 0:
                raise NotSent("the controller did not answer and is left alone for a while", retry_in_s=left_s)
            lane = self._silent_lane if place.silences else self._lane
            if not lane.acquire(timeout=self._config.wait_s):
                raise Busy("too many controllers are being asked", retry_in_s=self._config.wait_s)
            try:
                bmc = self._client(place, controller)
                bmc.silent = False
                bmc.begin(limit_s)
                # A socket's timeout counts from byte to byte: who sends one now and then would keep us for ever.
                end = threading.Timer(limit_s, bmc.cut)
                end.daemon = True
                end.start()
                try:
                    yield bmc
                finally:
                    end.cancel()
                    bmc.rest()
                    place.note(silent=bmc.silent, silence_s=self._config.silence_s)
            finally:
                lane.release()
        finally:
            place.lock.release()

    def close(self) -> None:
        """
        No session and no connection is left; calls that are under way end by their own time.
        """
        with self._lock:
            self._closed = True
            places = list(self._places.values())
            self._places.clear()
        for place in places:
            if place.lock.acquire(blocking=False):
                self._retire(place)
        self._farewells.shutdown(wait=True)

    def _take(self, ref: str) -> _Place:
        """
        The controller's place, locked.
        """
        ends_at = time.monotonic() + self._config.wait_s
        while True:
            with self._lock:
                if self._closed:
                    raise Permanent("the adapter is closed", code="provider_closed")
                place = self._places.setdefault(ref, _Place(used_at=time.monotonic()))
                self._places.move_to_end(ref)
                self._make_room()
            if not place.lock.acquire(timeout=max(ends_at - time.monotonic(), 0.0)):
                raise Busy("the controller is answering another call", retry_in_s=self._config.wait_s)
            if not place.gone:
                return place
            place.lock.release()

    def _make_room(self) -> None:
        """
        Places that are too many, or have not been used for long, are given up; those in use stay.
        """
        idle_since = time.monotonic() - self._config.idle_s
        surplus = len(self._places) - self._config.clients
        for ref, place in list(self._places.items())[:-1]:
            if surplus <= 0 and place.used_at > idle_since:
                break
            if place.lock.acquire(blocking=False):
                del self._places[ref]
                surplus -= 1
                self._retire(place)

    def _retire(self, place: _Place) -> None:
        """
        The place, which is locked, is never lent again; its session is given back by another thread, so that nobody waits for it.
        """
        place.gone = True
        if place.bmc is not None:
            self._farewells.submit(place.bmc.close, politely=not place.silences)
            place.bmc = None
        place.lock.release()

    def _client(self, place: _Place, controller: Controller) -> Bmc:
        username = controller.username or self._username
        password = controller.password or self._password
        if place.bmc is not None and not place.bmc.serves(controller.url, username, password):
            self._farewells.submit(place.bmc.close, politely=not place.silences)
            place.bmc = None
        if place.bmc is None:
            place.bmc = Bmc(controller.url, username, password, self._config, self._tls)
        return place.bmc
