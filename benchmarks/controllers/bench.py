"""
What looking at 10,000 machines' controllers costs, and what those that hang cost the others.

Run from the repository root: `python benchmarks/controllers/bench.py`. Prints one JSON line per question; exit code 1 where a goal is
missed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import Engine

from benchmarks.stage import MASTER_KEY, Stage, circumstances, cpu_s, postgres_cpu_s, report, staged, started
from controlplane import bootstrap
from controlplane.kit.clock import utc_now
from controlplane.kit.db import EVERYTHING, in_transaction, make_engine
from controlplane.kit.secrets import Sealer
from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.nodes import watching
from controlplane.nodes.states import Look, Watched
from controlplane.nodes.steps.metal.health import look
from controlplane.providers.errors import Unknown
from controlplane.providers.hardware import Checkup, Controller, Fact
from controlplane.providers.toolbox import Circuit, Guarded, Reachable, Toolbox
from controlplane.settings import Settings
from workers.watch import MOST, Watch

NODES = 10_000
SEED = 20260131
ANSWER_S = 0.02
HANG_S = 15.0
HUNG_SHARE = 0.05
NEWS_SHARE = 0.01
BATCHES = 1000
REAL = 500
GOAL_S = 30.0
PARTS = tuple(f"{part}:{number}" for part in ("gpu_health", "nvlink", "memory", "drive", "fan") for number in range(8))


class Controllers:
    """
    Controllers in this process: each takes the same time to answer, some hang until the call's deadline, some have news, some are off.
    """

    def __init__(self) -> None:
        self.hung: set[str] = set()
        self.sick: set[str] = set()
        self.dark: set[str] = set()
        self.begun_at = 0.0
        self.well_s = 0.0
        """From the beginning of the pass to the last answer."""
        self._told: set[str] = set()
        self.at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()

    @property
    def answers(self) -> int:
        """
        Machines whose controllers have answered in this pass.
        """
        return len(self._told)

    def begin(self) -> None:
        """
        A pass begins.
        """
        self.begun_at = time.perf_counter()
        self._told.clear()
        self.at_once = 0

    def boot_from(self) -> None:
        """
        What marks an adapter as one of controllers.
        """

    def check_up(self, controller: Controller) -> Checkup:
        """
        See `SupportsCheckups.check_up`.
        """
        return Checkup("off" if controller.ref in self.dark else "on", self.read_health(controller))

    def read_health(self, controller: Controller) -> tuple[Fact, ...]:
        """
        See `Hardware.read_health`.
        """
        with self._lock:
            self._under_way += 1
            self.at_once = max(self.at_once, self._under_way)
        hangs = controller.ref in self.hung
        time.sleep(HANG_S if hangs else ANSWER_S)
        with self._lock:
            self._under_way -= 1
            if hangs:
                raise Unknown("no answer")
            if controller.ref not in self._told:  # on a busy machine the first are due again before the last have answered
                self._told.add(controller.ref)
                self.well_s = time.perf_counter() - self.begun_at
        sick = controller.ref in self.sick
        return tuple(Fact(part, "warning" if sick and part == "fan:0" else "ok", "slow" if sick else "") for part in PARTS)


class ControllerTools(Toolbox):
    """
    A toolbox whose one adapter is these controllers; the guards are the real ones.
    """

    controllers: Controllers

    def adapter(self, provider: Reachable) -> Any:
        """
        See `Toolbox.adapter`.
        """
        del provider
        return Guarded(self.controllers, Circuit())


def make_bare(stage: Stage, url: str) -> list[str]:
    """
    Every node of the fleet is a bare machine behind a controller; their ids.
    """
    stage.run("UPDATE providers SET adapter = 'redfish', config = CAST(:config AS jsonb)", config='{"auth": "basic"}')
    stage.run("UPDATE nodes SET access = jsonb_build_object('url', CAST(:url AS text)), due_at = NULL", url=url)
    stage.run("ANALYZE nodes")
    return [row[0] for row in stage.rows("SELECT id FROM nodes ORDER BY id")]


def by_batches(engine: Engine, tools: Toolbox, count: int) -> None:
    """
    The baseline: a batch is claimed, all of it is asked, and only when the last has answered the next one is claimed.
    """
    with ThreadPoolExecutor(16) as pool:
        asked = 0
        while asked < count:
            due = in_transaction(engine, EVERYTHING, lambda session: watching.due_machines(session, 200))
            if not due:
                return
            asked += len(due)

            def ask(node: Watched) -> Look | None:
                return look(node, tools)

            looks = [one for one in pool.map(ask, due) if one is not None]
            for some in (looks[place : place + 20] for place in range(0, len(looks), 20)):
                in_transaction(engine, EVERYTHING, lambda session, batch=some: watching.store(session, batch))  # type: ignore[misc]


def measured(stage: Stage, controllers: Controllers, work: Callable[[], object]) -> dict[str, float]:
    """
    Seconds of one pass over what is due: until the last answer, until all is stored, and of the processor.
    """
    stage.run("UPDATE nodes SET looked_at = NULL")
    controllers.begin()
    database_s, own_s = postgres_cpu_s(stage.postmaster), time.process_time()
    work()
    return {
        "answers": controllers.answers,
        "last_answer_s": round(controllers.well_s, 2),
        "stored_s": round(time.perf_counter() - controllers.begun_at, 2),
        "at_once": controllers.at_once,
        "cpu_s": round(time.process_time() - own_s, 2),
        "postgres_cpu_s": round(postgres_cpu_s(stage.postmaster) - database_s, 2),
    }


def until(watch: Watch, controllers: Controllers, answers: int) -> None:
    """
    So many controllers have answered, and what they said is stored.
    """
    while controllers.answers < answers:
        watch.turn(0.5)
    ends_at = time.monotonic() + 2.0
    while time.monotonic() < ends_at:
        watch.turn(0.1)


def passes(stage: Stage, engine: Engine, ids: list[str]) -> bool:
    """
    Passes over all machines: nothing new, news of one in a hundred, and one in twenty that hangs, before and after that is known.
    """
    tools = ControllerTools(deployment="cp", now=utc_now, open_secrets=lambda _provider, _sealed: {})
    tools.controllers = controllers = Controllers()
    draw = random.Random(SEED)
    with Watch(engine, tools) as watch:
        first = measured(stage, controllers, watch.whole_round)
        plain = measured(stage, controllers, watch.whole_round)
        controllers.dark = set(draw.sample(ids, int(NODES * NEWS_SHARE)))
        controllers.sick = set(draw.sample(ids, int(NODES * NEWS_SHARE)))
        news = measured(stage, controllers, watch.whole_round)
        told = stage.rows("SELECT count(*) FROM health_reports WHERE class = 'info'")[0][0]
        assert told == len(controllers.sick), told
        off = stage.rows("SELECT count(*) FROM nodes WHERE power = 'off'")[0][0]
        assert off == len(controllers.dark), off
        controllers.hung = set(draw.sample(ids, int(NODES * HUNG_SHARE)))
        well = NODES - len(controllers.hung)
        new = measured(stage, controllers, lambda: until(watch, controllers, well))
        again = measured(stage, controllers, lambda: until(watch, controllers, well))
        baseline = measured(stage, controllers, lambda: by_batches(engine, tools, BATCHES))
    controllers.hung = set()
    plain_baseline = measured(stage, controllers, lambda: by_batches(engine, tools, BATCHES))
    good = first["stored_s"] < GOAL_S and plain["stored_s"] < GOAL_S and news["stored_s"] < GOAL_S
    result: dict[str, object] = {
        "question": "a pass over every machine's controller, health and power",
        "nodes": NODES,
        "controllers": f"in this process; {ANSWER_S * 1000:g} ms and {len(PARTS)} facts each",
        "power_of_all_is_new": first,
        "nothing_new": plain,
        "news_of_one_in_100": news,
        "by_batches_s": round(plain_baseline["stored_s"] * NODES / BATCHES, 1),
        "ratio_to_batches": round(plain_baseline["stored_s"] * NODES / BATCHES / plain["stored_s"], 1),
        "goal_s": GOAL_S,
        "within_goal": good,
    }
    report(result | circumstances(SEED))
    hanging = hung_told(news, new, again, baseline)
    report(hanging | circumstances(SEED))
    return good and bool(hanging["within_goal"])


def hung_told(
    news: dict[str, float], new: dict[str, float], again: dict[str, float], baseline: dict[str, float]
) -> dict[str, object]:
    """
    What controllers that hang cost the others, next to the same pass without them.
    """
    slower = again["last_answer_s"] / news["last_answer_s"]
    return {
        "question": "what controllers that hang cost the others",
        "hung": int(NODES * HUNG_SHARE),
        "hang_s": HANG_S,
        "at_once_at_most": MOST,
        "without": news["last_answer_s"],
        "when_new": new,
        "when_known": again,
        "by_batches_s": round(baseline["stored_s"] * NODES / BATCHES, 1),
        "ratio_when_known": round(slower, 2),
        "ratio_when_new": round(new["last_answer_s"] / news["last_answer_s"], 2),
        "goal_ratio": 1.1,
        "within_goal": slower < 1.1,
    }


def redfish(stage: Stage, engine: Engine, port: int, server: int, *, keeps: bool) -> bool:
    """
    The real adapter against controllers that answer over HTTP at once: processor seconds of our side, for as many as are asked.
    """
    settings = Settings(database_url=stage.app_url, master_key=MASTER_KEY, data_dir=stage.folder)  # type: ignore[arg-type]
    tools = bootstrap.toolbox(settings, Sealer.from_base64(MASTER_KEY))
    stage.run("UPDATE nodes SET access = '{}' WHERE id NOT IN (SELECT id FROM nodes ORDER BY id LIMIT :n)", n=REAL)
    stage.run(
        "UPDATE nodes SET access = jsonb_build_object('url', CAST(:url AS text)) WHERE access <> '{}'",
        url=f"http://{LOOPBACK}:{port}",
    )
    controllers = Controllers()
    with Watch(engine, tools) as watch:
        measured(stage, controllers, watch.whole_round)
        theirs = cpu_s(server)
        figures = measured(stage, controllers, watch.whole_round)
        theirs = cpu_s(server) - theirs
        assert not watch.silent, f"{len(watch.silent)} did not answer"
    tools.close()
    spent = (figures["cpu_s"] + figures["postgres_cpu_s"]) * NODES / REAL
    result = {
        "question": f"the same through the Redfish adapter, {'one connection a look' if keeps else 'controllers end it with each answer'}",
        "nodes": REAL,
        "wall_s": figures["stored_s"],
        "ms_a_look": round(figures["cpu_s"] * 1000 / REAL, 1),
        "cpu_s_for_all": round(spent, 1),
        "server_cpu_s_for_all": round(theirs * NODES / REAL, 1),
        "goal_cpu_s": GOAL_S * 2,
        "within_goal": spent < GOAL_S * 2,
    }
    report(result | circumstances(SEED))
    return bool(result["within_goal"])


def main() -> int:
    """
    All questions answered; 1 where a goal is missed.
    """
    port = free_port()
    with staged() as stage:
        command = [sys.executable, "benchmarks/controllers/server.py", str(port)]
        engine = make_engine(stage.app_url, pool_size=2)
        good = [passes(stage, engine, make_bare(stage, f"http://{LOOPBACK}:{port}"))]
        with started("controllers", command, stage.environment(), stage.folder) as server:
            good.append(redfish(stage, engine, port, server.pid, keeps=True))
        with started("closing-controllers", [*command, "--closes"], stage.environment(), stage.folder) as server:
            redfish(stage, engine, port, server.pid, keeps=False)  # a figure without a goal: what those cost
        engine.dispose()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
