"""
Watches make looks cheap and decide nothing: they break, lag, repeat themselves and go silent, and what is told of a job stays true.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.jobs.steps import STEPS
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.nodes.states import ProviderRef
from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter, build
from controlplane.providers.clusters import ClusterSpec, JobSpec, JobView, Member
from controlplane.providers.errors import AuthFailed
from controlplane.providers.kube.access import Access
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.memory import MOST_KEPT
from controlplane.providers.kube.work.names import TOKEN, Names
from controlplane.providers.kube.work.tracker import Tracker
from controlplane.providers.registry import AdapterInput
from controlplane.providers.toolbox import Toolbox
from tests.factories.job_steps import JOB as KNOWN_JOB
from tests.fault_door import FaultDoor, fault_door
from tests.kubernetes_kit import UNTIDY, KubernetesKit, emulator_module, kubeconfig, kubernetes_kit

pytestmark = UNTIDY
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"), Member("gpu-00001", 8, "alc_2")))
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 2000\n", 2, 8, 1, 600)
SHORT = replace(JOB, token="job_2-1", script="#!/bin/bash\necho out of it\n", nodes=1)
ROOT = "/api/v1/namespaces/contract-clu-1"


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """Two free nodes and a queue."""
    with kubernetes_kit(nodes=2) as made:
        yield made


@pytest.fixture
def adapter(kit: KubernetesKit) -> Iterator[KubernetesAdapter]:
    """With a cluster, and watches that last two seconds."""
    made = kit.adapter(watch_s=2.0)
    made.apply_cluster(SPEC)
    yield made
    made.close()


def until(kit: KubernetesKit, is_so: Callable[[], object]) -> None:
    """Returns when it is so; each try asks the server something, which takes a few milliseconds."""
    ends_at = time.monotonic() + 30  # a number of tries would be over, on a quick machine, before a watch comes back from its pause
    while not is_so():
        assert time.monotonic() < ends_at, "it did not come to be"
        kit.ask("GET", "/version")


def glance(adapter: KubernetesAdapter, token: str = JOB.token) -> str:
    """The phase that is told without asking; empty for none."""
    seen = adapter.glance("clu_1", token)
    return "" if seen is None else seen.phase


def watching(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Both watches are open, and a job that runs is told of."""
    adapter.submit(JOB)
    until(kit, lambda: glance(adapter) == "running")


def asked(kit: KubernetesKit) -> list[str]:
    """Every request of ours so far but the looks at the version, watches as such."""
    return [f"{method} {path}" for method, path in kit.asked() if path != "/version"]


def faults(kit: KubernetesKit, *wanted: dict[str, Any]) -> None:
    """From now on."""
    kit.handle.post("/_emu/faults", list(wanted))


def test_looks_at_jobs_cost_nothing_while_watches_are_in_order(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Whatever is told is what asking tells, the end included, and the news name each job that changed."""
    watching(kit, adapter)
    assert adapter.glance("clu_1", JOB.token) == adapter.find_job("clu_1", JOB.token)
    adapter.take_news()
    before = asked(kit)
    for _ in range(50):
        assert glance(adapter) == "running"
    assert [one for one in asked(kit)[len(before) :] if not one.startswith("WATCH")] == []
    adapter.cancel("clu_1", JOB.token)
    until(kit, lambda: adapter.find_job("clu_1", JOB.token).phase == "cancelled")
    until(kit, lambda: glance(adapter) == "")  # that nothing runs any more is never believed
    adapter.submit(SHORT)
    until(kit, lambda: glance(adapter, SHORT.token) == "succeeded")
    assert adapter.glance("clu_1", SHORT.token) == adapter.find_job("clu_1", SHORT.token)
    assert {JOB.token, SHORT.token} <= adapter.take_news()
    assert adapter.take_news() == frozenset()


def test_the_first_submission_opens_the_watches(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Nobody has to look first: a look that finds none open asks for its job, with a list of pods."""
    adapter.submit(JOB)
    until(kit, lambda: any(one.startswith("WATCH") and "/pods" in one for one in asked(kit)))
    until(kit, lambda: any(one.startswith("WATCH") and "/jobs" in one for one in asked(kit)))
    assert sum(one.startswith("WATCH") for one in asked(kit)) == 2


def test_a_short_job_costs_five_calls(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Four to submit, none to look, one for all of its output: no list, however it is followed."""
    watching(
        kit, adapter
    )  # what is cancelled before the queue has seen it may be admitted after, and is cancelled again by whoever looks
    adapter.cancel("clu_1", JOB.token)
    until(kit, lambda: adapter.find_job("clu_1", JOB.token).phase == "cancelled")
    before = len(asked(kit))
    adapter.submit(SHORT)
    until(kit, lambda: glance(adapter, SHORT.token) == "succeeded")
    chunk = adapter.read_output("clu_1", SHORT.token, offset=0, limit=1000)
    assert (chunk.data, chunk.end) == (b"out of it\n", True)
    cost = [one for one in asked(kit)[before:] if "watch=true" not in one]
    assert len(cost) == 5, cost
    assert [one for one in cost if "labelSelector" in one] == []


def test_a_failure_is_told_with_its_class_or_not_at_all(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Whenever the watches tell an end, it is the end with the exit code that asking tells."""
    watching(kit, adapter)
    adapter.cancel("clu_1", JOB.token)
    until(kit, lambda: adapter.find_job("clu_1", JOB.token).phase == "cancelled")
    for number in range(5):
        spec = replace(SHORT, token=f"job_f{number}-1", script=f"#!/bin/bash\nexit {number + 3}\n")
        adapter.submit(spec)
        told: list[JobView] = []

        def is_over(spec: JobSpec = spec, told: list[JobView] = told) -> bool:
            seen = adapter.glance("clu_1", spec.token)
            told[:] = [seen] if seen is not None and seen.phase == "failed" else []
            return bool(told)

        until(kit, is_over)
        assert (told[0].failure, told[0].exit_code) == ("user_error", number + 3)


def test_versions_that_are_too_old_cost_a_list_and_lose_nothing(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """After the history is gone, and in a storm of 410, an end that came meanwhile is told."""
    watching(kit, adapter)
    adapter.submit(replace(SHORT, token="job_3-1", nodes=2))
    kit.handle.post("/_emu/pause", {"kubelet": True})
    kit.handle.post("/_emu/drop-watches")
    kit.handle.post("/_emu/compact")
    faults(kit, {"path": "watch=true", "status": 410, "times": 6})
    until(kit, lambda: glance(adapter) == "")
    assert adapter.find_job("clu_1", JOB.token).phase == "running"
    lists = len([one for one in asked(kit) if "status.successful" in one])
    until(kit, lambda: glance(adapter) == "running")
    assert len([one for one in asked(kit) if "status.successful" in one]) - lists < 6
    kit.handle.post("/_emu/pause", {"kubelet": False})
    adapter.cancel("clu_1", JOB.token)
    until(kit, lambda: glance(adapter, "job_3-1") == "succeeded")


def test_a_job_removed_while_nothing_was_watched_is_not_recalled(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """A list that a watch begins with takes back what it does not show."""
    watching(kit, adapter)
    faults(kit, {"path": "watch=true", "status": 500, "times": 3})
    kit.handle.post("/_emu/drop-watches")
    until(kit, lambda: glance(adapter) == "")
    kit.ask("DELETE", "/apis/batch/v1/namespaces/contract-clu-1/jobs/job-1-1?propagationPolicy=Background", {})
    kit.handle.post("/_emu/compact")
    other = replace(JOB, token="job_4-1", nodes=1)
    adapter.submit(other)
    until(kit, lambda: glance(adapter, other.token) == "running")
    assert glance(adapter) == ""


def test_what_a_server_failed_to_tell_is_found_out_by_the_next_list(kit: KubernetesKit) -> None:
    """A job that ended without an event is not believed to run for ever."""
    adapter = kit.adapter(watch_s=1.0, relist_s=2.0)
    adapter.apply_cluster(SPEC)
    watching(kit, adapter)
    kept = kit.emulator.data[("batch", "jobs")]
    (where,) = kept
    at = "2026-11-29T10:00:00Z"
    ends = [{"type": "Complete", "status": "True", "lastTransitionTime": at}]
    kept[where] = {**kept[where], "status": {"succeeded": 2, "completionTime": at, "conditions": ends}}
    until(kit, lambda: glance(adapter) != "running")
    assert adapter.find_job("clu_1", JOB.token).phase == "succeeded"
    adapter.close()


def test_a_silent_watch_is_left_and_opened_again(kit: KubernetesKit) -> None:
    """Nothing comes any more on connections that look well; soon after the watch should have ended a new one tells all."""
    with fault_door(kit.handle.port) as door:
        adapter = behind(door, watch_s=1.0)
        adapter.apply_cluster(SPEC)
        watching(kit, adapter)
        door.mute()
        kit.ask("PATCH", "/apis/batch/v1/namespaces/contract-clu-1/jobs/job-1-1", {"metadata": {"labels": {"seen": "late"}}})
        adapter.submit(replace(SHORT, token="job_5-1", nodes=2))
        until(kit, lambda: glance(adapter) == "")  # believed until the end of the watch is overdue, and no longer
        until(kit, lambda: glance(adapter) == "running")
        adapter.cancel("clu_1", JOB.token)
        until(kit, lambda: glance(adapter, "job_5-1") == "succeeded")
        assert adapter.find_job("clu_1", "job_5-1").phase == "succeeded"
        adapter.close()


@pytest.mark.parametrize("seed", range(2))
def test_events_that_come_twice_and_in_any_order_change_nothing(seed: int) -> None:
    """Every job ends as it did, told by watches that repeat and shuffle what they say."""
    with kubernetes_kit(nodes=2) as kit:
        kit.emulator.watchers = Disorderly(random.Random(seed))
        adapter = kit.adapter()
        adapter.apply_cluster(SPEC)
        jobs = [replace(SHORT, token=f"job_{n}-1", script=f"#!/bin/bash\nexit {n % 2}\n") for n in range(6)]
        for one in jobs:
            adapter.submit(one)
            adapter.glance("clu_1", one.token)
        ends = {"succeeded", "failed"}
        until(kit, lambda: all(glance(adapter, one.token) in ends or look(adapter, one.token) in ends for one in jobs))
        for number, one in enumerate(jobs):
            expected = ("failed", "user_error", 1) if number % 2 else ("succeeded", None, 0)
            for _ in range(20):
                seen = adapter.glance("clu_1", one.token) or adapter.find_job("clu_1", one.token)
                assert (seen.phase, seen.failure, seen.exit_code) == expected
        adapter.close()


def look(adapter: KubernetesAdapter, token: str) -> str:
    """The phase by asking."""
    return adapter.find_job("clu_1", token).phase


def test_an_expired_token_is_told_and_a_new_one_goes_on(kit: KubernetesKit) -> None:
    """A watch that outlives its token is not believed for longer than it lasts; the next adapter follows the same job."""
    adapter = kit.adapter()
    adapter.apply_cluster(SPEC)
    tokens = [minted(kit, name) for name in ("first", "second")]
    old, new = (behind_url(kit.handle.url, token, watch_s=1.0) for token in tokens)
    watching(kit, old)
    kit.handle.post("/_emu/expire-tokens", {"user": "serviceaccount:default:first"})
    until(kit, lambda: glance(old) == "")
    with pytest.raises(AuthFailed):
        old.find_job("clu_1", JOB.token)
    until(kit, lambda: glance(new) == "running")
    assert glance(old) == ""
    for one in (adapter, old, new):
        one.close()


@pytest.mark.parametrize("status", [429, 500])
def test_a_job_that_was_made_though_its_answer_was_an_error_is_followed(
    kit: KubernetesKit, adapter: KubernetesAdapter, status: int
) -> None:
    """The server makes it, answers 429 or 500 and then nothing to looks; one job runs, found by its name and told by the watches."""
    tools = Tools(adapter)
    made = kit.emulator.create
    first = [status]

    def make_and_fail(res: Any, ns: Any, body: Any, manager: Any, *rest: Any, **more: Any) -> Any:
        done = made(res, ns, body, manager, *rest, **more)
        if res.plural == "jobs" and first:
            raise emulator_module().Fail(first.pop(), "TooManyRequests", "made, but not said")
        return done

    kit.emulator.create = make_and_fail
    outcome = tools.step("admitted")
    assert isinstance(outcome, Wait)
    faults(kit, {"method": "GET", "path": "/jobs/", "status": status, "times": 1})
    assert isinstance(tools.step("admitted", unsure=True), Wait)
    assert tools.step("admitted", unsure=True).to == "starting"  # type: ignore[union-attr]
    until(kit, lambda: glance(adapter) == "running")
    assert len(adapter.list_jobs("clu_1")) == 1


def test_an_api_server_that_is_away_for_ten_minutes_loses_no_job(kit: KubernetesKit) -> None:
    """Every look in that time waits; the job runs on, and ends as it would have."""
    with fault_door(kit.handle.port) as door:
        adapter = behind(door)
        adapter.apply_cluster(SPEC)
        watching(kit, adapter)
        tools = Tools(adapter)
        door.leave()
        until(kit, lambda: glance(adapter) == "")
        for second in range(0, 601, 15):
            for state in ("starting", "running", "completing", "unknown"):
                outcome = tools.step(state, age_s=float(second), verdict="succeeded" if state == "completing" else "")
                assert isinstance(outcome, Wait), (state, second, outcome)
        assert [one["status"]["phase"] for one in kit.ask("GET", f"{ROOT}/pods")["items"]] == ["Running", "Running"]
        door.come_back()
        until(kit, lambda: glance(adapter) == "running")
        outcome = tools.step("running", age_s=600.0)
        assert isinstance(outcome, Wait)
        assert outcome.reason == "Runs."
        adapter.close()


def test_clocks_that_differ_make_no_difference(kit: KubernetesKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server lives in another hour, and jumps back in the middle; jobs are told as they are, in its time."""
    module = emulator_module()
    true_now, skew = module.now, [7200.0]
    monkeypatch.setattr(module, "now", lambda offset=0.0: true_now(offset + skew[0]))
    adapter = kit.adapter(watch_s=2.0)
    adapter.apply_cluster(SPEC)
    watching(kit, adapter)
    started = adapter.find_job("clu_1", JOB.token).started_at
    assert started is not None
    assert (started - datetime.now(UTC)).total_seconds() > 3600
    skew[0] = -7200.0
    other = replace(SHORT, token="job_9-1")
    adapter.cancel("clu_1", JOB.token)
    adapter.submit(other)
    until(kit, lambda: glance(adapter, other.token) == "succeeded")
    adapter.close()


class Disorderly(set[Any]):
    """Watches that hear most events twice, and some only after the next."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw
        self._late: dict[int, list[Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        """What the emulator tells events to."""
        return iter([_Ear(self._draw, queue, self._late.setdefault(id(queue), [])) for queue in set.copy(self)])

    def copy(self) -> Any:
        """As a set."""
        return set(super().copy())


class _Ear:
    def __init__(self, draw: random.Random, queue: Any, late: list[Any]) -> None:
        self._draw, self._queue, self._late = draw, queue, late

    def put_nowait(self, event: Any) -> None:
        """One event, or the end of the watch."""
        told = [event]
        if event is not None:
            if self._draw.random() < 0.3:
                self._late.append(event)
                told = []
            else:
                told += self._late
                self._late.clear()
            told += [one for one in told if self._draw.random() < 0.5]
        for one in told:
            self._queue.put_nowait(one)


class Tools(Toolbox):
    """A toolbox whose every provider is the adapter, and the steps of one job."""

    def __init__(self, adapter: object) -> None:
        super().__init__(deployment="contract", now=lambda: datetime.now(UTC), open_secrets=lambda _id, _sealed: {})
        self._one = adapter

    def adapter(self, provider: Any) -> Any:
        """The adapter."""
        del provider
        return self._one

    def step(self, state: str, *, age_s: float = 0.0, unsure: bool = False, verdict: str = "") -> Outcome:
        """What the state's step says of the job."""
        job = replace(SNAPSHOT, state=state, state_age_s=age_s, unsure=unsure, verdict=verdict, ran=True)
        outcome, broken = self.run(STEPS[state], job, attempt=1)
        assert not broken
        assert not isinstance(outcome, Advance) or outcome.to not in {"failed", "unknown"}
        return outcome


SNAPSHOT = replace(
    KNOWN_JOB,
    id="job_1",
    state="running",
    attempt=1,
    tenant_id="ten_one",
    user="",
    provider=ProviderRef("prv_1", "kubernetes", {}, None, 1),
    script=JOB.script,
    nodes=2,
    tasks_per_node=1,
    time_limit_s=600,
    env={},
    gpu_model="",
    max_restarts=0,
    restarts=0,
    instances={},
)


def behind(door: FaultDoor, **config: Any) -> KubernetesAdapter:
    """An adapter that goes through the door."""
    return behind_url(door.url, "", **config)


def behind_url(url: str, token: str, **config: Any) -> KubernetesAdapter:
    """An adapter of its own with the token."""
    secrets = {"kubeconfig": kubeconfig(url, {"token": token} if token else {})}
    return build(AdapterInput("prv_contract", {"settle_s": 0, **config}, secrets, "contract", lambda: datetime.now(UTC)))


def minted(kit: KubernetesKit, name: str) -> str:
    """A token of an account that may do everything."""
    kit.ask("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}}, "application/json")
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    kit.ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding, "application/json")
    path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
    asked_for = {"spec": {"expirationSeconds": 3600}}
    answer = kit.ask("POST", path, asked_for, "application/json")
    return str(answer["status"]["token"])


def test_only_so_many_follow_at_a_time(kit: KubernetesKit) -> None:
    """Where places are counted, one who finds none asks, and follows once another has stopped."""
    kube = Kube(Access(kit.handle.url), timeout_s=5.0, max_body_bytes=1024 * 1024, page_size=100)
    places = threading.BoundedSemaphore(1)
    first, second = (Tracker(kube, Names("contract"), lasts_s=1.0, relist_s=60.0, places=places) for _ in range(2))
    first.open()
    until(kit, lambda: first.live)
    second.open()
    first.open()
    assert not second.live
    first.close()

    def follows() -> bool:
        second.open()
        return second.live

    until(kit, follows)
    second.close()
    kube.close()


def test_more_than_can_be_remembered_is_asked_for(kit: KubernetesKit) -> None:
    """Whoever fills a cluster with objects that bear our labels makes looks dearer, and our memory no larger."""
    kube = Kube(Access(kit.handle.url), timeout_s=5.0, max_body_bytes=1024 * 1024, page_size=100)
    tracker = Tracker(kube, Names("contract"), lasts_s=30.0, relist_s=60.0)
    tracker.open()
    until(kit, lambda: tracker.live)
    for number in range(MOST_KEPT + 1):
        meta = {
            "name": f"j{number}",
            "namespace": "ns",
            "uid": f"u{number}",
            "resourceVersion": "1",
            "labels": {TOKEN: f"j{number}"},
        }
        tracker.memory.see("jobs", {"metadata": meta, "spec": {"completions": 1}})
    known = len(tracker.memory)
    labels = {**Names("contract").labels("clu_1"), TOKEN: "late"}
    pod = {"metadata": {"name": "late", "labels": labels}, "spec": {"containers": [{"name": "one", "image": "example.org/one:1"}]}}
    kit.ask("POST", "/api/v1/namespaces/default/pods", pod, "application/json")
    until(kit, lambda: not tracker.live)
    assert len(tracker.memory) == known
    tracker.close()
    kube.close()
