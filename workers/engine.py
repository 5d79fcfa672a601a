"""
All loops of one worker process: one pump per kind, and the check of providers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from sqlalchemy import Engine as Database

from controlplane import bootstrap
from controlplane.providers.toolbox import Toolbox
from controlplane.settings import Settings
from workers.pump import Pump
from workers.sweeps import (
    Suspects,
    check_providers,
    check_repaired,
    discover,
    expire_records,
    hear,
    look_at_targets,
    mend,
    reap,
    reap_services,
    rotate_controllers,
    tell_repairs,
    watch_ports,
)
from workers.watch import Watch
from workers.webhooks import RepairHook

log = logging.getLogger(__name__)
CHECK_EVERY_S = 5.0
REAP_EVERY_S = 60.0
STOP_GRACE_S = 30.0
LOOK_S = 0.5
HEAR_S = 0.05
"""Between two looks at what providers told; they cost nothing while nothing was told."""
ROTATIONS = 16
SWITCHES = 8
TARGETS = 16
Round = Callable[[Database, Toolbox, Executor, threading.Event], int]


class Engine:
    """
    What a worker process runs besides Celery; works with the broker present, purged or absent.
    """

    def __init__(self, settings: Settings, tools: Toolbox | None = None) -> None:
        self.settings = settings
        self._runtime = bootstrap.build(settings, application="controlplane-worker")
        self._tools = tools or bootstrap.toolbox(settings, self._runtime.sealer)
        self._pool = ThreadPoolExecutor(settings.step_threads, thread_name_prefix="step")
        found = bootstrap.drivers(self._runtime.engine, settings)
        self.pumps: dict[str, Pump] = {}
        for name, driver in found.items():
            self.pumps[name] = Pump(driver, self._tools, settings, self._pool, tell=partial(self._tell, name))
        self._hook = RepairHook.of(settings)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=pump.run, name=f"pump-{name}", daemon=True) for name, pump in self.pumps.items()]
        self._threads.append(threading.Thread(target=self._sweep, name="sweep", daemon=True))
        self._threads.append(threading.Thread(target=self._look, name="look", daemon=True))
        self._threads.append(threading.Thread(target=self._hear, name="news", daemon=True))
        for rounds, at_once in ((rotate_controllers, ROTATIONS), (watch_ports, SWITCHES), (look_at_targets, TARGETS)):
            turns = threading.Thread(target=self._rounds, args=(rounds, at_once), name=rounds.__name__, daemon=True)
            self._threads.append(turns)

    def start(self) -> None:
        """
        The loops run.
        """
        for thread in self._threads:
            thread.start()

    def wake(self, kind: str) -> None:
        """
        The kind's loop looks at once, and so do the others, whose rows its outcomes may touch.
        """
        del kind
        for pump in self.pumps.values():
            pump.wake()

    def _tell(self, kind: str) -> None:
        for name, pump in self.pumps.items():
            if name != kind:
                pump.wake()

    def stop(self) -> None:
        """
        Steps under way are finished, claims given back, connections closed; bounded.
        """
        self._stopping.set()
        for pump in self.pumps.values():
            pump.stop()
        for thread in self._threads:
            thread.join(STOP_GRACE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._tools.close()
        if self._hook is not None:
            self._hook.close()
        self._runtime.close()

    def _sweep(self) -> None:
        reap_at = time.monotonic() + REAP_EVERY_S
        clusters: Suspects = {}
        machines: Suspects = {}
        services: Suspects = {}
        while not self._stopping.is_set():
            try:
                check_providers(self._runtime.engine, self._tools, machines)
                discover(self._runtime.engine, self._tools)
                if time.monotonic() >= reap_at:
                    reap(self._runtime.engine, self._tools, clusters)
                    reap_services(self._runtime.engine, self._tools, services)
                    reap_at = time.monotonic() + REAP_EVERY_S
                mend(self._runtime.engine)
                check_repaired(self._runtime.engine, wanted=self.settings.fabric_check_after_repair)
                tell_repairs(self._runtime.engine, self._hook)
                expire_records(self._runtime.engine)
            except Exception:
                log.exception("a sweep failed")
            self._stopping.wait(CHECK_EVERY_S)

    def _look(self) -> None:
        """
        Controllers are looked at by threads of their own: those that hang keep neither steps nor other sweeps waiting.
        """
        with Watch(self._runtime.engine, self._tools, self._stopping) as watch:
            while not self._stopping.is_set():
                busy = False
                try:
                    busy = watch.turn(LOOK_S)
                except Exception:
                    log.exception("looking at controllers failed")
                if not busy:
                    self._stopping.wait(CHECK_EVERY_S)

    def _hear(self) -> None:
        """
        Jobs that a provider tells a change of are looked at soon; what is not heard is found when the job is due.
        """
        while not self._stopping.is_set():
            try:
                if hear(self._runtime.engine, self._tools):
                    self.pumps["job"].wake()
            except Exception:
                log.exception("news are not heard")
                self._stopping.wait(CHECK_EVERY_S)
            self._stopping.wait(HEAR_S)

    def _rounds(self, rounds: Round, at_once: int) -> None:
        """
        Switches are looked at, passwords changed, and controllers that operators named are asked for their machines, round by round, by
        threads of their own too.
        """
        with ThreadPoolExecutor(at_once, thread_name_prefix=rounds.__name__) as pool:
            while not self._stopping.is_set():
                asked = 0
                try:
                    asked = rounds(self._runtime.engine, self._tools, pool, self._stopping)
                except Exception:
                    log.exception("a round failed", extra={"round": rounds.__name__})
                if not asked:
                    self._stopping.wait(CHECK_EVERY_S)
