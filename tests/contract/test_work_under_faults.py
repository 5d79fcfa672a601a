"""
Jobs and services at a peer that misbehaves: every fault, on whichever call the seed chooses. One seed on the simulator by default;
`WORK_FAULTS=20` plays so many on the simulator, on the Kubernetes emulator and in a managed cluster, and prints how many were played.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controlplane.providers.adapters.simulated.faults import PRESETS, SERVICE_OPERATIONS
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import NotFound, ProviderError
from controlplane.providers.services import ServiceSpec, ServiceView
from tests.contract import kubernetes_harness, simulated_harness
from tests.contract.harness import ENDED, Harness
from tests.contract.managed_work import ManagedHarness, managed_harness

pytestmark = list(kubernetes_harness.MARKS)
Seen = TypeVar("Seen")
SEEDS = int(os.environ.get("WORK_FAULTS", "0"))
JOB_OPERATIONS = ("submit", "find_job", "list_jobs", "cancel", "read_output")
OURS = {*JOB_OPERATIONS, *SERVICE_OPERATIONS}
LINE = {name: sorted(OURS & set(preset.anywhere)) for name, preset in PRESETS.items() if preset.on_services}
SERVER: dict[str, dict[str, Any]] = {
    "429_with_retry_after": {"status": 429, "retryAfter": 1},
    "429": {"status": 429},
    **{str(status): {"status": status} for status in (401, 403, 409, 410, 500, 503, 504)},
    "cut": {"cut": True},
    "done_then_cut": {"cutAfter": True},
}
PLACES = (
    *(("POST", "/deployments"), ("PATCH", "/deployments"), ("GET", "/deployments"), ("DELETE", "/deployments")),
    *(("PATCH", "/secrets"), ("GET", "/secrets"), ("PATCH", "/services"), ("DELETE", "/services"), ("GET", "/pods")),
    *(("POST", "/jobs"), ("GET", "/jobs"), ("DELETE", "/jobs")),
)
ABOVE = (("GET", "/clusters/"), ("GET", "/machines"), ("GET", "-kubeconfig"))
"""What of the management cluster work asks."""
TRIES = 60
ENOUGH = 5
"""Seeds of which one plays every fault."""


class Trial:
    """
    One peer, and somebody who asks again whatever it answers, as steps do.
    """

    def __init__(self, peer: Harness, cluster: ClusterSpec) -> None:
        self.peer = peer
        self.cluster = cluster
        self.met = 0
        """Errors that were met."""

    def insist(self, act: Callable[[], Seen], good: Callable[[Seen], object] = lambda _: True) -> Seen:
        """
        What the peer answered when it was good.
        """
        last: object = None
        until_s = self.peer.now_s() + self.peer.patience_s
        while self.peer.now_s() < until_s:
            try:
                last = act()
            except ProviderError as error:
                self.met += 1
                last = error
            else:
                if good(last):
                    return last
            self.peer.pass_time()
        raise AssertionError(f"it never came to that: {last!r}")

    def gone(self, look: Callable[[], object]) -> None:
        """
        It was seen to be absent twice, with time between.
        """
        absent = 0
        for _ in range(TRIES * 20):
            try:
                look()
            except NotFound:
                absent += 1
                if absent > 1:
                    return
            except ProviderError:
                self.met += 1
            else:
                absent = 0
            for _ in range(3):
                self.peer.pass_time()
        raise AssertionError("it does not go")

    def serve(self) -> None:
        """
        A service comes up, is told anew, and goes; a late repeat of its first turn changes nothing.
        """
        peer, adapter = self.peer, self.peer.adapter
        one = ServiceSpec(peer.new_id("svc"), self.cluster.cluster_id, self.cluster.tenant_id, 1, 1, "example.org/echo:1", 8000, 2)
        two = ServiceSpec(one.service_id, one.cluster_id, one.tenant_id, 2, 2, "example.org/echo:2", 8000, 1)
        for spec in (one, two):
            self.insist(lambda s=spec: adapter.apply_service(s))  # type: ignore[misc]
            self.insist(lambda: adapter.observe_service(one.cluster_id, one.service_id), lambda view, s=spec: _is(view, s))  # type: ignore[misc]
        self.insist(lambda: adapter.apply_service(one))
        assert _is(self.insist(lambda: adapter.observe_service(one.cluster_id, one.service_id)), two)
        self.insist(lambda: adapter.delete_service(one.cluster_id, one.service_id))
        self.gone(lambda: adapter.observe_service(one.cluster_id, one.service_id))

    def run(self) -> None:
        """
        A job is there once, however often it was sent, and ends with its output whole.
        """
        adapter, job = self.peer.adapter, self.peer.job(self.cluster, "echo begun; sleep 2; echo done", nodes=1, gpus_per_node=1)
        self.insist(lambda: adapter.submit(job))
        self.insist(lambda: adapter.submit(job))
        view = self.insist(lambda: adapter.find_job(job.cluster_id, job.token), lambda seen: seen.phase in ENDED)
        assert (view.phase, view.exit_code) == ("succeeded", 0)
        chunk = self.insist(
            lambda: adapter.read_output(job.cluster_id, job.token, offset=0, limit=1000), lambda seen: b"done" in seen.data
        )
        assert chunk.data.count(b"begun") == 1
        self.insist(lambda: adapter.cancel(job.cluster_id, job.token))

    def nothing_is_left(self, jobs: int) -> None:
        """
        The peer lists each job once and no service.
        """
        adapter, cluster_id = self.peer.adapter, self.cluster.cluster_id
        found = self.insist(lambda: adapter.list_jobs(cluster_id), lambda seen: len(seen) == jobs)
        assert len({one.token for one in found}) == jobs
        assert self.insist(lambda: adapter.list_services(cluster_id), lambda seen: not seen) == ()


def _is(view: ServiceView, spec: ServiceSpec) -> bool:
    ready = [one for one in view.replicas if one.phase == "ready" and one.version == spec.version]
    return (view.version, view.turn, len(ready)) == (spec.version, spec.turn, spec.replicas) and len(view.replicas) == spec.replicas


@contextmanager
def trial(harness: Callable[[Path], Any], folder: Path) -> Iterator[Trial]:
    """
    A cluster of two nodes at a peer of its own.
    """
    with harness(folder) as peer:
        yield Trial(peer, peer.cluster(2))


@pytest.mark.parametrize("fault", LINE)
def test_the_simulators_faults_leave_one_of_each_and_then_none(fault: str, tmp_path: Path) -> None:
    """Whatever the line does to calls, a job runs once and a service is as told last; nothing is left of a service that was deleted."""
    with trial(simulated_harness.harnesses()["simulated-fast"], tmp_path) as made:
        control: Any = made.peer.control  # type: ignore[attr-defined]
        played = 0
        for seed in range(1, max(1, SEEDS) + 1):
            chance = random.Random(seed)
            rules = [
                control.play(fault, chance.choice(LINE[fault]), count=chance.randint(1, 3), after=chance.choice((0, 0, 1, 2)))
                for _ in range(3)
            ]
            made.serve()
            made.run()
            made.nothing_is_left(seed)
            played += sum(control.played(rule) for rule in rules)
            control.heal()
        print(f"simulated {fault}: {played} played, {made.met} errors met")
        assert played or SEEDS < ENOUGH


@pytest.mark.skipif(not SEEDS, reason="minutes: WORK_FAULTS=20 plays it")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("peer", ["kubernetes", "managed"])
@pytest.mark.parametrize("fault", SERVER)
def test_the_servers_faults_leave_one_of_each_and_then_none(fault: str, peer: str, tmp_path: Path) -> None:
    """The same on the API server's own ways to fail; of a cluster that its provider keeps, on the management cluster's as well."""
    harness = {"kubernetes": kubernetes_harness.harnesses()["kubernetes"], "managed": lambda _: managed_harness(hosts=2)}[peer]
    with trial(harness, tmp_path) as made:
        kit: Any = made.peer.theirs(made.cluster) if isinstance(made.peer, ManagedHarness) else made.peer.kit  # type: ignore[attr-defined]
        above: Any = made.peer.kit.kit if isinstance(made.peer, ManagedHarness) else None
        for seed in range(1, SEEDS + 1):
            chance = random.Random(seed)
            play(kit, fault, [(chance.choice(PLACES), chance.randint(1, 3)) for _ in range(3)])
            if above is not None:
                play(above, fault, [(chance.choice(ABOVE), chance.randint(1, 2))])
            made.serve()
            made.run()
            made.nothing_is_left(seed)
            for one in filter(None, (kit, above)):
                play(one, fault, [])
        print(f"{peer} {fault}: {SEEDS} seeds, {made.met} errors met")
        assert made.met


def play(kit: Any, fault: str, rules: list[tuple[tuple[str, str], int]]) -> None:
    """The server fails so at these places, so often, and nowhere else."""
    told = [{"method": method, "path": path, "times": times, **SERVER[fault]} for (method, path), times in rules]
    kit.handle.post("/_emu/faults", told)
