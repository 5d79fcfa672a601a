"""
The steps of jobs as pure functions: advance, wait and fail of each state, against a scheduler that says what the test tells it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.jobs.schemas import JobCreate
from controlplane.jobs.states import (
    ABSENCE_GAP_S,
    FAILURE_WORDS,
    JOB_STATES,
    OUTPUT_CAP_BYTES,
    PIECE_BYTES,
    RESTARTS_BY_ITSELF,
    TRUNCATED,
    JobFacts,
    poll_in_s,
    restart_in_s,
)
from controlplane.jobs.steps import STEPS
from controlplane.kit.outcome import Advance, Fail, Wait
from controlplane.providers.errors import (
    AuthFailed,
    Busy,
    NoCapacity,
    NotFound,
    NotSent,
    Permanent,
    ProviderError,
    Refused,
    Unknown,
    Unsupported,
)
from tests.conftest import ROOT
from tests.factories.job_steps import AT, VIEW, Peer, facts, run


def test_every_moving_state_has_a_step_or_is_decided() -> None:
    """No state can strand a job."""
    assert set(JOB_STATES.names("moving")) == set(STEPS) | {"queued"}


def test_admitted_hands_the_whole_job_over_under_its_token() -> None:
    """What was asked for reaches the scheduler, once, and its id is kept."""
    peer = Peer()
    outcome = run(peer, "admitted")
    assert isinstance(outcome, Advance)
    assert outcome.to == "starting"
    assert facts(outcome).external_id == "77"
    (spec,) = peer.calls
    assert (spec.token, spec.nodes, spec.gpus_per_node, spec.env, spec.user, spec.gpu_model) == (
        "job_1-2", 2, 8, {"A": "b"}, "u1", "H100",
    )  # fmt: skip


@pytest.mark.parametrize(("restarts", "again"), [(0, False), (3, True)])
def test_admitted_lets_the_scheduler_restart_only_what_may_restart(restarts: int, *, again: bool) -> None:
    """A job without restarts runs once, whoever would start it again."""
    peer = Peer()
    run(peer, "admitted", max_restarts=restarts)
    assert peer.calls[0].requeue is again


@pytest.mark.parametrize(
    ("error", "unsure"),
    [
        (NoCapacity("x"), False),
        (NotFound("x"), False),
        (Busy("x", retry_in_s=7.0), False),
        (NotSent("x"), False),
        (AuthFailed("x"), False),
        (Permanent("x", code="adapter_config"), False),
        (Unknown("x"), True),
    ],
)
def test_admitted_waits_for_what_may_pass(error: ProviderError, *, unsure: bool) -> None:
    """No error but a refusal ends the job; only an unknown outcome is remembered."""
    outcome = run(Peer(submitted=error), "admitted")
    assert isinstance(outcome, Wait)
    assert outcome.step == ("unsure" if unsure else None)
    again = run(Peer(submitted=error), "admitted", step="unsure", unsure=True)
    assert isinstance(again, Wait)
    assert again.step == "unsure"


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [(Refused("x", code="job_invalid"), "user_error"), (Refused("x"), "provider_fault"), (Unsupported("x"), "provider_fault")],
)
def test_admitted_fails_when_refused(error: ProviderError, failure_class: str) -> None:
    """A refusal is final, with its stable code; the scheduler's words stay with operators."""
    outcome = run(Peer(submitted=error), "admitted")
    assert isinstance(outcome, Fail)
    assert (outcome.code, facts(outcome).failure_class, outcome.detail) == (error.code, failure_class, "x")
    assert "x" not in outcome.message.split()


def test_admitted_does_not_fail_while_an_earlier_submit_may_have_worked() -> None:
    """A refusal after an unknown outcome is looked into first: the first try may run."""
    outcome = run(Peer(submitted=Refused("x")), "admitted", unsure=True)
    assert isinstance(outcome, Advance)
    assert outcome.to == "unknown"


def test_admitted_cancelled_before_anything_was_sent() -> None:
    """Nothing is sent for a job that is to stop."""
    peer = Peer()
    outcome = run(peer, "admitted", cancel=True)
    assert outcome == Advance("cancelled", "Cancelled before it was handed to the scheduler.")
    assert peer.calls == []


def test_admitted_cancelled_after_an_unknown_submit_is_followed_there() -> None:
    """It is looked for: found, it goes on to be cancelled there; not found, it is looked for again."""
    found = run(Peer(), "admitted", cancel=True, unsure=True)
    lost = run(Peer(view=NotFound("x")), "admitted", cancel=True, unsure=True)
    assert isinstance(found, Advance)
    assert isinstance(lost, Advance)
    assert (found.to, lost.to) == ("starting", "unknown")


@pytest.mark.parametrize("state", ["failed", "deleting", "deleted"])
def test_admitted_fails_with_its_cluster(state: str) -> None:
    """A cluster that goes takes what was not handed over with it."""
    outcome = run(Peer(), "admitted", cluster_state=state)
    assert isinstance(outcome, Fail)
    assert outcome.code == "cluster_gone"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "Waits for free nodes (Resources)."),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-3]", "Waits for nodes that are out of service (ReqNodeNotAvail)."),
        ("", "Waits in the scheduler."),
        ("node17 is ours", "Waits in the scheduler (node17)."),
        ("ImagePullBackOff", "The image cannot be pulled (ImagePullBackOff)."),
        ("NoSuchNode", "No node of the cluster has such GPUs (NoSuchNode)."),
        ("QOSGrpGRES", "The cluster's quota is used up (QOSGrpGRES)."),
        ("AssocMaxJobsLimit", "The cluster's quota is used up (AssocMaxJobsLimit)."),
        ("QOSMaxGRESPerUser", "The cluster's quota is used up (QOSMaxGRESPerUser)."),
        ("QOSNotAllowed", "Waits in the scheduler (QOSNotAllowed)."),
    ],
)
def test_starting_shows_why_it_waits(reason: str, words: str) -> None:
    """The scheduler's code and estimate are shown, and nothing of the text behind the code."""
    view = replace(VIEW, phase="pending", reason=reason, nodes=(), started_at=None, expected_start_at=AT)
    outcome = run(Peer(view), "starting")
    assert isinstance(outcome, Wait)
    assert outcome.reason == words
    assert facts(outcome).expected_start_at == AT


def test_starting_goes_on_when_it_runs() -> None:
    """Started: the tenant's instances and the time are known."""
    outcome = run(Peer(), "starting")
    assert isinstance(outcome, Advance)
    assert outcome.to == "running"
    assert (facts(outcome).placement, facts(outcome).started_at) == (("ins_1", "ins_2"), AT)


@pytest.mark.parametrize("state", ["starting", "running"])
def test_a_miss_is_no_loss(state: str) -> None:
    """A job the scheduler does not know is looked for again before anything is concluded."""
    outcome = run(Peer(NotFound("x")), state)
    assert isinstance(outcome, Advance)
    assert outcome.to == "unknown"
    assert outcome.facts is None


@pytest.mark.parametrize("state", ["starting", "running", "unknown"])
@pytest.mark.parametrize(
    "error", [Unknown("x"), NotSent("x"), Busy("x"), AuthFailed("x"), Permanent("x"), Refused("x"), NoCapacity("x")]
)
def test_a_submitted_job_waits_out_every_error_of_its_provider(state: str, error: ProviderError) -> None:
    """Whatever a look ends in, a job that may run is neither failed nor sent again."""
    peer = Peer(error)
    assert isinstance(run(peer, state), Wait)
    assert peer.calls == []


@pytest.mark.parametrize("state", ["starting", "running"])
def test_cancel_is_asked_for_and_believed_when_seen(state: str) -> None:
    """The scheduler is asked to stop it; the job ends only once the scheduler says so."""
    peer = Peer()
    assert isinstance(run(peer, state, cancel=True), Wait)
    assert peer.calls == [("cancel", "clu_1", "job_1-2")]
    outcome = run(Peer(replace(VIEW, phase="cancelled", signal=15, ended_at=AT)), state, cancel=True)
    assert isinstance(outcome, Advance)
    assert (outcome.to, facts(outcome).verdict) == ("completing", "cancelled")


@pytest.mark.parametrize("state", ["starting", "running", "unknown"])
@pytest.mark.parametrize("failure", [*FAILURE_WORDS, None])
def test_an_end_is_seen_with_its_class(state: str, failure: Any) -> None:
    """How it ended is kept, whatever state sees it."""
    outcome = run(Peer(replace(VIEW, phase="failed", failure=failure, exit_code=3, ended_at=AT)), state)
    assert isinstance(outcome, Advance)
    assert outcome.to == "completing"
    assert (facts(outcome).verdict, facts(outcome).failure_class, facts(outcome).exit_code) == ("failed", failure or "unknown", 3)


def test_running_reads_what_is_new() -> None:
    """New output comes with the look, at most one piece; more is read at once when a piece was full."""
    outcome = run(Peer(printed=b"x" * (PIECE_BYTES + 5)), "running")
    assert isinstance(outcome, Wait)
    assert (len(facts(outcome).log), facts(outcome).log_offset, outcome.retry_in_s) == (PIECE_BYTES, 0, 0.0)
    rest = run(Peer(printed=b"x" * (PIECE_BYTES + 5)), "running", log_bytes=PIECE_BYTES)
    assert (len(facts(rest).log), facts(rest).log_offset) == (5, PIECE_BYTES)


@pytest.mark.parametrize("error", [NotFound("x"), Unknown("x"), Refused("x"), Unsupported("x")])
def test_running_is_not_disturbed_by_its_output(error: ProviderError) -> None:
    """Output that cannot be read now keeps no job from running."""
    outcome = run(Peer(printed=error), "running")
    assert isinstance(outcome, Wait)
    assert (outcome.reason, facts(outcome).log) == ("Runs.", b"")


def test_running_goes_back_when_the_scheduler_queues_it_again() -> None:
    """A restart by the scheduler is seen and counted."""
    outcome = run(Peer(replace(VIEW, phase="pending", reason="BeginTime", requeues=1, nodes=())), "running")
    assert isinstance(outcome, Advance)
    assert (outcome.to, facts(outcome).requeues) == ("starting", 1)


def test_a_node_that_left_does_not_shorten_what_is_known() -> None:
    """Instances seen before stay when a member has gone since; a first partial sight is better than none."""
    partial = run(Peer(), "running", instances={"n1": "ins_1"}, placement=("ins_1", "ins_2"))
    first = run(Peer(), "running", instances={"n1": "ins_1"})
    assert (facts(partial).placement, facts(first).placement) == (None, ("ins_1",))


@pytest.mark.parametrize("verdict", ["succeeded", "cancelled"])
def test_completing_collects_and_ends(verdict: str) -> None:
    """The last output comes with the end."""
    more = run(Peer(printed=b"bye\n"), "completing", verdict=verdict)
    assert isinstance(more, Wait)
    assert facts(more).log == b"bye\n"
    done = run(Peer(printed=b"bye\n", done=True), "completing", verdict=verdict)
    assert isinstance(done, Advance)
    assert (done.to, facts(done).log) == (verdict, b"bye\n")


@pytest.mark.parametrize("failure_class", FAILURE_WORDS)
@pytest.mark.parametrize("restarts", [0, 2, 3])
@pytest.mark.parametrize("cancel", [False, True])
def test_only_faults_that_are_not_its_own_start_it_again(failure_class: str, restarts: int, *, cancel: bool) -> None:
    """Node, fabric and provider faults and preemption restart it while restarts are left; nothing else ever does."""
    outcome = run(Peer(done=True), "completing", verdict="failed", failure_class=failure_class, restarts=restarts, cancel=cancel)
    assert isinstance(outcome, Advance)
    by_itself = failure_class in RESTARTS_BY_ITSELF
    expected = "failed" if not by_itself else "cancelled" if cancel else "queued" if restarts < 3 else "failed"
    assert outcome.to == expected
    assert facts(outcome).next_attempt == (expected == "queued")


@pytest.mark.parametrize(
    ("known", "to", "issue"),
    [
        ({"log_closed": True}, "succeeded", None),
        ({"ran": False}, "succeeded", None),
        ({"cluster_state": "deleting"}, "succeeded", None),
        ({}, None, None),
        ({"state_age_s": 91.0, "log_bytes": 5}, "succeeded", "output_incomplete"),
        ({"state_age_s": 91.0}, "succeeded", "output_unavailable"),
    ],
)
def test_output_that_nodes_send_is_waited_for_a_while(known: dict[str, Any], to: str | None, issue: str | None) -> None:
    """Nobody reads it at the scheduler; a node that is dead says nothing, and the job ends without it."""
    unread = Peer(printed=Unsupported("no output_dir"))
    outcome = run(unread, "completing", **{"verdict": "succeeded", "sent": True, "ran": True, "log_bytes": 0, **known})
    assert (outcome.to if isinstance(outcome, Advance) else None) == to
    assert ((isinstance(outcome.facts, JobFacts) and outcome.facts.issue) or ("",))[0] == (issue or "")
    assert run(unread, "running", sent=True).facts is not None


def test_a_job_whose_cluster_goes_is_not_started_again() -> None:
    """There is nowhere to start it."""
    outcome = run(Peer(done=True), "completing", verdict="failed", failure_class="node_fault", cluster_state="deleting")
    assert isinstance(outcome, Advance)
    assert outcome.to == "failed"


@pytest.mark.parametrize(
    ("error", "age_s", "ran", "ends", "issue"),
    [
        (NotFound("x"), 0.0, False, True, None),
        (NotFound("x"), 0.0, True, False, None),
        (NotFound("x"), 31.0, True, True, None),
        (Refused("x"), 0.0, True, True, "output_unavailable"),
        (Unknown("x"), 0.0, True, False, None),
        (Unknown("x"), 3001.0, True, True, "output_incomplete"),
        (AuthFailed("x"), 0.0, True, False, None),
    ],
)
def test_completing_waits_for_output_and_not_for_ever(
    error: ProviderError, age_s: float, issue: str | None, *, ran: bool, ends: bool
) -> None:
    """Output that may still come is waited for; a job ends without what cannot come, and says so."""
    outcome = run(Peer(printed=error), "completing", verdict="succeeded", state_age_s=age_s, ran=ran)
    assert isinstance(outcome, Advance if ends else Wait)
    if issue:
        assert facts(outcome).issue is not None
        assert cast("tuple[str, str]", facts(outcome).issue)[0] == issue


def test_output_is_cut_at_the_cap_with_a_notice() -> None:
    """Exactly the cap is kept whole; one byte more is cut and said so, once."""
    full = bytes(OUTPUT_CAP_BYTES)
    whole = run(Peer(printed=full, done=True), "completing", verdict="succeeded", log_bytes=OUTPUT_CAP_BYTES)
    assert (facts(whole).log, facts(whole).issue) == (b"", None)
    cut = run(Peer(printed=full + b"x", done=True), "completing", verdict="succeeded", log_bytes=OUTPUT_CAP_BYTES)
    assert isinstance(cut, Advance)
    assert (cut.to, facts(cut).log, facts(cut).log_offset) == ("succeeded", TRUNCATED, OUTPUT_CAP_BYTES)
    closed = run(Peer(printed=full + b"xy"), "running", log_bytes=OUTPUT_CAP_BYTES + len(TRUNCATED))
    assert facts(closed).log == b""


def test_no_output_port_no_waiting() -> None:
    """A provider that shows no output does not keep its jobs from ending."""

    class Mute:
        """A runner of jobs without output."""

        def submit(self) -> None:
            """The port's."""

    outcome = run(Mute(), "completing", verdict="succeeded", ran=True)
    assert isinstance(outcome, Advance)
    assert outcome.to == "succeeded"


@given(age_s=st.floats(0, 10_000), cancel=st.booleans(), cluster=st.sampled_from(["running", "degraded", "deleting", "deleted"]))
def test_a_job_is_lost_only_when_absent_long_enough(age_s: float, cluster: str, *, cancel: bool) -> None:
    """Two misses with a gap of at least a minute, and never a restart on such a guess."""
    assert ABSENCE_GAP_S >= 60
    outcome = run(Peer(NotFound("x")), "unknown", state_age_s=age_s, cancel=cancel, cluster_state=cluster)
    if age_s < ABSENCE_GAP_S:
        assert isinstance(outcome, Wait)
        assert outcome.retry_in_s <= ABSENCE_GAP_S
        return
    assert isinstance(outcome, Advance)
    assert outcome.to == "completing"
    wanted = "cancelled" if cancel or cluster in {"deleting", "deleted"} else "failed"
    assert facts(outcome).verdict == wanted
    assert facts(outcome).failure_class not in RESTARTS_BY_ITSELF


@pytest.mark.parametrize(("phase", "to"), [("pending", "starting"), ("running", "running"), ("completing", "running")])
def test_unknown_goes_back_when_found(phase: Any, to: str) -> None:
    """Found again, it goes on as if nothing had been."""
    outcome = run(Peer(replace(VIEW, phase=phase)), "unknown", state_age_s=1000.0)
    assert isinstance(outcome, Advance)
    assert outcome.to == to


@given(age_s=st.floats(0, 10**7))
def test_polls_grow_from_two_seconds_to_fifteen(age_s: float) -> None:
    """Fresh states are watched closely, old ones calmly, none ever less than every 15 s."""
    assert 2.0 <= poll_in_s(age_s) <= 15.0
    assert poll_in_s(age_s) <= poll_in_s(age_s + 1)


@given(restarts=st.integers(0, 1000))
def test_restarts_back_off(restarts: int) -> None:
    """Each restart waits at least as long as the one before, and at most five minutes."""
    assert 5 <= restart_in_s(restarts) <= restart_in_s(restarts + 1) <= 300


def test_the_guide_shows_what_the_code_does() -> None:
    """Its diagram is the table's, its examples are accepted, and it names every failure class."""
    guide = (ROOT / "docs" / "guides" / "jobs.md").read_text()
    assert f"```mermaid\n{JOB_STATES.mermaid()}\n```" in guide
    examples = re.findall(r"```json\n(.*?)```", guide, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        assert JobCreate.model_validate_json(example).order().spec["tasks_per_node"] >= 1
    for name in FAILURE_WORDS:
        starts = "yes" if name in RESTARTS_BY_ITSELF else "no"
        assert re.search(rf"^\| `{name}` \|.*\| {starts}\b", guide, re.MULTILINE), name
    assert all(f"`{name}`" in guide for name in JOB_STATES.by_name)


def test_what_an_owner_removed_in_its_own_cluster_is_said_to_be_removed() -> None:
    """Where nobody else rules it is looked for again and then lost; a class that was known before stays, and so do the words at the end."""
    lost = run(Peer(NotFound("x")), "unknown", ruled=True, state_age_s=200.0)
    assert isinstance(lost, Advance)
    told = facts(lost)
    assert (told.verdict, told.failure_class, told.issue and told.issue[0]) == ("failed", "unknown", "removed_in_cluster")
    assert facts(run(Peer(NotFound("x")), "unknown", state_age_s=200.0)).issue is None
    known = facts(run(Peer(NotFound("x")), "unknown", ruled=True, state_age_s=200.0, failure_class="node_fault"))
    assert (known.failure_class, known.issue) == ("node_fault", None)
    assert isinstance(run(Peer(NotFound("x")), "unknown", ruled=True, state_age_s=5.0), Wait)
    end = run(
        Peer(NotFound("x"), printed=NotFound("x")),
        "completing",
        verdict="failed",
        failure_class="unknown",
        removed=True,
        state_age_s=60.0,
    )
    assert isinstance(end, Advance)
    assert (end.to, end.reason) == ("failed", told.issue[1] if told.issue else "")
