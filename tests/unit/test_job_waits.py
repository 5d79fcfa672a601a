"""
What a job waits for in vain, a log that does not grow, and GPUs that do nothing: when each ends, or costs, how much.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.jobs.hopeless import HOPELESS
from controlplane.jobs.states import (
    ABSENCE_GAP_S,
    RESTARTS_BY_ITSELF,
)
from controlplane.kit.outcome import Advance, Wait
from controlplane.providers.clusters import JobView, OutputChunk
from controlplane.providers.errors import (
    NotFound,
    ProviderError,
    Unknown,
    Unsupported,
)
from controlplane.providers.tracking import GpuUse
from tests.factories.job_steps import AT, VIEW, Peer, facts, run


def waiting(reason: str) -> JobView:
    """
    A view of a job that has not started, for this reason.
    """
    return replace(VIEW, phase="pending", reason=reason, nodes=(), started_at=None)


@pytest.mark.parametrize(("code", "reason"), [(code, min(one.reasons)) for code, one in HOPELESS.items()])
def test_what_is_waited_for_in_vain_ends_the_job_after_a_bounded_time(code: str, reason: str) -> None:
    """Since when is kept in the step; the reason is on record before the scheduler is told; its end is a failure then, not a cancel."""
    known, peer = HOPELESS[code], Peer(waiting(reason))
    first = run(peer, "starting", state_age_s=1000.4)
    assert isinstance(first, Wait)
    assert first.step == f"{code}@1000"
    early = run(peer, "starting", step=first.step, state_age_s=999 + known.patience_s)
    assert isinstance(early, Wait)
    assert (early.step, facts(early).issue) == (first.step, None)
    late = run(peer, "starting", step=first.step, state_age_s=1000 + known.patience_s)
    assert isinstance(late, Wait)
    assert (facts(late).issue, late.retry_in_s, peer.calls) == ((code, known.words), 0.0, [])
    assert isinstance(run(peer, "starting", step=first.step, hopeless=code), Wait)
    assert peer.calls == [("cancel", "clu_1", "job_1-2")]
    for state in ("starting", "running", "unknown"):
        ended = run(Peer(replace(VIEW, phase="cancelled", signal=15, ended_at=AT)), state, hopeless=code)
        assert (facts(ended).verdict, facts(ended).failure_class) == ("failed", known.failure_class)
    again = known.failure_class in RESTARTS_BY_ITSELF
    done = run(Peer(done=True), "completing", verdict="failed", failure_class=known.failure_class, hopeless=code)
    assert isinstance(done, Advance)
    assert (done.to, done.reason[: len(known.words)]) == ("queued" if again else "failed", known.words)


def test_a_wait_that_is_not_in_vain_any_more_is_forgotten() -> None:
    """Another reason ends it, one that says nothing does not; another kind of vain wait begins anew."""
    told = {
        "Resources": "",
        "PodsStarting": "image_not_pulled@5",
        "ErrImagePull": "image_not_pulled@5",
        "NoSuchNode": "no_such_node@9000",
    }
    for reason, step in told.items():
        outcome = run(Peer(waiting(reason)), "starting", step="image_not_pulled@5", state_age_s=9000)
        given_up = reason == "ErrImagePull"
        assert isinstance(outcome, Wait)
        assert (outcome.step or "image_not_pulled@5", facts(outcome).issue is not None) == (step or "image_not_pulled@5", given_up)
        assert (outcome.step == "") is (reason == "Resources")


def test_whoever_cancels_is_told_of_a_cancel_and_who_ran_out_of_time_of_the_cause() -> None:
    """A wish comes before what is waited for; a time limit that passed in a vain wait is not why the job failed; an own end stands."""
    gone = replace(VIEW, phase="cancelled", ended_at=AT)
    assert facts(run(Peer(gone), "starting", cancel=True, hopeless="no_such_node")).verdict == "cancelled"
    late = run(Peer(replace(VIEW, phase="failed", failure="time_limit", ended_at=AT)), "starting", step="image_not_pulled@2")
    assert (facts(late).failure_class, facts(late).issue) == ("user_error", ("image_not_pulled", "The image cannot be pulled."))
    ran = run(Peer(replace(VIEW, phase="failed", failure="time_limit", ended_at=AT)), "running")
    assert (facts(ran).failure_class, facts(ran).issue) == ("time_limit", None)
    own = run(Peer(replace(VIEW, phase="failed", failure="out_of_memory", exit_code=137)), "running", hopeless="image_not_pulled")
    assert facts(own).failure_class == "out_of_memory"
    lost = run(Peer(NotFound("x")), "unknown", hopeless="registry_unavailable", state_age_s=ABSENCE_GAP_S)
    assert facts(lost).failure_class == "provider_fault"


class Telling(Peer):
    """
    One that tells of its jobs by itself.
    """

    reads = 0

    def glance(self, cluster_id: str, token: str) -> JobView | None:
        """The port's."""
        return self.find_job(cluster_id, token)

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """The port's."""
        self.reads += 1
        return super().read_output(cluster_id, token, offset=offset, limit=limit)


def test_a_log_that_does_not_grow_is_read_seldom_where_looks_are_free() -> None:
    """An hour of looks every 2 to 15 s: less than 100 reads, at most a minute apart; a line is followed by the next look."""
    peer, step, age_s, looks = Telling(printed=b"begun\n"), "", 0.0, 0
    while age_s < 3600:
        outcome = run(peer, "running", step=step, state_age_s=age_s, log_bytes=6)
        assert isinstance(outcome, Wait)
        step, age_s, looks = outcome.step or step, age_s + outcome.retry_in_s, looks + 1
    assert looks > 250
    assert 60 <= peer.reads < 100
    peer.printed = b"begun\nmore\n"
    told = run(peer, "running", step="read@3000", state_age_s=3060, log_bytes=6)
    assert isinstance(told, Wait)
    assert (facts(told).log, told.retry_in_s, told.step) == (b"more\n", 2.0, "")
    unread = run(Telling(printed=b"x" * 20), "running", step="read@3000", state_age_s=3059, log_bytes=6)
    assert facts(unread).log == b""


@pytest.mark.parametrize(
    ("use", "age_s", "stops"),
    [
        (GpuUse(16, 0.0), 1800, True),
        (GpuUse(16, 0.0), 1799, False),
        (GpuUse(15, 0.0), 1800, False),
        (GpuUse(0, None), 1800, False),
        (GpuUse(16, 2.0), 1800, False),
        (Unknown("x"), 1800, False),
        (Unsupported("x"), 1800, False),
    ],
)
def test_only_gpus_that_were_seen_idle_stop_a_job(use: GpuUse | ProviderError, age_s: float, *, stops: bool) -> None:
    """All of them, all through the time; what was not measured, or cannot be asked, is not idle."""
    peer = Peer(use=use)
    outcome = run(peer, "running", idle_stop_s=1800, state_age_s=age_s)
    assert isinstance(outcome, Wait)
    assert peer.calls == ([("cancel", "clu_1", "job_1-2")] if stops else [])
    assert (facts(outcome).issue or ("",))[0] == ("idle_stopped" if stops else "")
    assert run(Peer(use=GpuUse(16, 0.0)), "running", state_age_s=age_s).reason == "Runs."


def test_a_job_that_is_stopped_for_idleness_is_not_measured_again() -> None:
    """It is stopped until it has ended, is no failure then, and nothing starts it again."""
    peer = Peer(use=Unknown("x"))
    run(peer, "running", idle_stop_s=1800, idled=True)
    assert peer.calls == [("cancel", "clu_1", "job_1-2")]
    done = run(Peer(done=True), "completing", verdict="cancelled", idle_stop_s=1800, idled=True)
    assert (isinstance(done, Advance), done.reason) == (True, "Stopped: none of its GPUs did anything for 30 minutes.")
    lost = run(Peer(done=True), "completing", verdict="failed", failure_class="node_fault", idle_stop_s=1800, idled=True)
    assert isinstance(lost, Advance)
    assert lost.to == "cancelled"
