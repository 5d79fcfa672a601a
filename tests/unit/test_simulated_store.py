"""
One file, many hands: threads, processes, forks and sudden death.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from controlplane.providers.adapters.simulated.adapter import SimulatedProvider, build
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.store import Store
from controlplane.providers.errors import Refused
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
RACE = """
import sys
from datetime import UTC, datetime
from controlplane.providers.adapters.simulated.adapter import build
from controlplane.providers.errors import Refused
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput

path, me, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
sim = build(AdapterInput("prv_1", {"path": path}, {}, "test", lambda: datetime(2026, 1, 31, 12, tzinfo=UTC)))
refs = [one.ref for one in sim.list_machines().machines]
print("ready", flush=True)
for number in range(rounds):
    ref = refs[number % len(refs)]
    try:
        sim.deploy(Deployment(ref, f"{me}_{number}", me, f"clu_{me}", "net"))
        sim.release(ref, f"{me}_{number}", accepted_at=datetime(2026, 1, 31, 12, tzinfo=UTC))
        sim.wipe(ref, f"w_{me}_{number}")
    except Refused:
        pass
print("done", flush=True)
"""


def _adapter(path: Path, **config: object) -> SimulatedProvider:
    return build(AdapterInput("prv_1", {"path": str(path), **config}, {}, "test", lambda: START))


def _racer(path: Path, me: str, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", RACE, str(path), me, str(rounds)], stdout=subprocess.PIPE, text=True)


def test_processes_that_begin_together_make_one_world(tmp_path: Path) -> None:
    """Three processes build over a file that is not there: one fills it, all use it, nothing is lost."""
    path = tmp_path / "w.sqlite"
    racers = [_racer(path, f"ten_{number}", 50) for number in range(3)]
    for one in racers:
        said, _ = one.communicate(timeout=60)
        assert said.split() == ["ready", "done"]
        assert one.returncode == 0
    control = SimControl(path, now=lambda: START)
    assert len(_adapter(path).list_machines().machines) == 82
    assert len(control.calls(operation="deploy")) == 150
    assert all(one.reachable_from is None or one.detached_at is not None for one in control.ledger().tenancies)


def test_a_process_killed_in_mid_call_leaves_a_usable_file(tmp_path: Path) -> None:
    """Kill -9 at five moments of a busy loop: the file is whole, every call is there or not, and the next process works on."""
    path = tmp_path / "w.sqlite"
    sim = _adapter(path)
    control = SimControl(path, now=lambda: START)
    for number in range(5):
        racer = _racer(path, f"ten_{number}", 10**9)
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 30
        while not control.calls(operation="wipe", after=control.calls()[-1].seq) and time.monotonic() < deadline:
            sim.observe("ams1-b1-l1-r1-n01")
        os.kill(racer.pid, signal.SIGKILL)
        racer.wait(timeout=30)
        racer.stdout.close()
        calls = control.calls()
        assert [one for one in calls if not one.answer] == []
        made = {(one.target, one.token) for one in calls if one.operation == "deploy" and one.effect}
        assert {(one.ref, one.token) for one in control.ledger().tenancies} == made
    with Store(path).snapshot() as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_threads_share_one_adapter_and_one_machine_has_one_winner(tmp_path: Path) -> None:
    """Eight threads, two hundred tokens, one machine: exactly one deployment."""
    sim = _adapter(tmp_path / "w.sqlite")
    ref = sim.list_machines().machines[0].ref

    def try_it(number: int) -> bool:
        try:
            sim.deploy(Deployment(ref, f"alc_{number}", f"ten_{number}", "clu", "net"))
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_it, range(200))) == 1


def test_a_forked_child_works_on_connections_of_its_own(tmp_path: Path) -> None:
    """Built before the fork, as in a prefork worker: child and parent both go on."""
    path = tmp_path / "w.sqlite"
    sim = _adapter(path)
    first, second = (one.ref for one in sim.list_machines().machines[:2])
    child = os.fork()
    if child == 0:
        try:
            sim.deploy(Deployment(first, "alc_child", "ten_1", "clu", "net"))
        finally:
            os._exit(0)
    sim.deploy(Deployment(second, "alc_parent", "ten_1", "clu", "net"))
    assert os.waitpid(child, 0)[1] == 0
    assert [sim.observe(ref).token for ref in (first, second)] == ["alc_child", "alc_parent"]


def test_the_ledger_keeps_changes_for_ever_and_reads_up_to_its_limit(tmp_path: Path) -> None:
    """A control plane that looks all day does not fill the disk; what changed stays."""
    path = tmp_path / "w.sqlite"
    sim = _adapter(path, keep_read_calls=10)
    ref = sim.list_machines().machines[0].ref
    sim.deploy(Deployment(ref, "alc_1", "ten_1", "clu", "net"))
    for _ in range(4200):
        sim.observe(ref)
    calls = SimControl(path, now=lambda: START).calls()
    assert len(calls) < 200
    assert [one.operation for one in calls if not one.reads] == ["deploy"]


def test_ten_thousand_machines_are_listed_in_time(tmp_path: Path) -> None:
    """The best of three listings of the large cloud, a third of it held and wiped, takes less than 300 ms."""
    sim = _adapter(tmp_path / "w.sqlite", fleet="cloud-10k")
    refs = [one.ref for one in sim.list_machines().machines]
    assert len(refs) == 10_000
    for ref in refs[:3000]:
        sim.inspect(ref, "i")
        sim.deploy(Deployment(ref, f"alc_{ref}", "ten_1", "clu", "net"))
    for ref in refs[:1500]:
        sim.release(ref, f"alc_{ref}", accepted_at=START)
        sim.wipe(ref, f"w_{ref}")
    took = []
    for _ in range(3):
        began = time.process_time()
        assert len(sim.list_machines().machines) == 10_000
        took.append(time.process_time() - began)
    assert min(took) < 0.3
