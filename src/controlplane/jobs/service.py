"""
What can be done with jobs; the only writer of their rows.
"""

import codecs
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import RowMapping
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.clusters import service as clusters
from controlplane.clusters.states import HOME_LOST, HOME_READY, Home
from controlplane.identity import service as identity
from controlplane.jobs import arrays, repository, slicing
from controlplane.jobs.errors import JobEnded
from controlplane.jobs.hopeless import hopeless_of
from controlplane.jobs.models import JobRow
from controlplane.jobs.ordering import JobOrder, Places, check_home, check_secrets, given, held_by, refusal
from controlplane.jobs.slicing import refusal as refused_slices
from controlplane.jobs.slicing import settled as settled_slices
from controlplane.jobs.states import (
    ENDS,
    HELD,
    IDLED,
    JOB_STATES,
    REMOVED,
    GivenSecret,
    JobFacts,
    JobFilter,
    JobSnapshot,
    Parent,
    array_env,
    resume_env,
)
from controlplane.kit.access import Principal
from controlplane.kit.clock import CpClock, rfc3339
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import Claim, Result, wake
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.kit.paging import Page, PageAsk
from controlplane.metering import service as metering

__all__ = ["refused_slices", "settled_slices"]


def create_job(session: Session, principal: Principal, project_id: str, order: JobOrder) -> JobRow:
    """
    The job is queued. Raises NotFound for a cluster of another project, ClusterRunsNoJobs, ClusterNotUsable, GangTooLarge, FeatureMissing.
    """
    home, order = check_order(session, principal, project_id, order)
    row = new_row(home, order)
    repository.add(session, row)
    repository.add_dependencies(session, row, conditions(order))
    record(session, [_event(row, "queued", {"state": row.state})], [Move("job", row.id, "", row.state, row.reason, row.tenant_id)])
    return row


def check_order(session: Session, principal: Principal, project_id: str, order: JobOrder) -> tuple[Home, JobOrder]:
    """
    The cluster that the order's job can be queued for, and the order with what the catalog says of it. Raises what `create_job` raises.
    """
    principal.check_project(project_id)
    home = clusters.homes(session, [order.cluster_id]).get(order.cluster_id)
    if home is None or home.project_id != project_id or home.tenant_id != principal.tenant_id:
        raise NotFound
    check_home(home, order)
    parents = conditions(order)
    if parents and repository.known_of(session, home.tenant_id, project_id, list(parents)) != set(parents):
        raise NotFound
    check_named(session, project_id, order.spec.get("secrets") or ())
    mig = order.spec.get("mig")
    if not mig:
        return home, order
    known = settled_slices(home, mig, catalog.mig_profiles(session, home.gpu_model))
    return home, replace(order, spec={**order.spec, "mig": known})


def conditions(order: JobOrder) -> dict[str, str]:
    """
    What the order's job waits for: id to condition.
    """
    return {one["job_id"]: one["condition"] for one in order.spec.get("depends_on") or ()}


def new_row(home: Home, order: JobOrder, *, array_id: str | None = None, array_index: int | None = None) -> JobRow:
    """
    A queued job, not stored yet.
    """
    initial = JOB_STATES.by_name[JOB_STATES.initial]
    return JobRow(
        id=new_id("job"),
        tenant_id=home.tenant_id,
        project_id=home.project_id,
        cluster_id=order.cluster_id,
        name=order.name,
        labels=order.labels,
        spec=order.spec,
        template=None if order.template is None else dict(order.template),
        array_id=array_id,
        array_index=array_index,
        state=initial.name,
        reason=initial.says,
        deadline_at=CpClock() + timedelta(seconds=initial.longest_stay_s or 0),
    )


def get_job(session: Session, principal: Principal, project_id: str, job_id: str) -> JobRow:
    """
    The job. Raises NotFound.
    """
    principal.check_project(project_id)
    row = repository.find(session, principal.tenant_id, project_id, job_id)
    if row is None:
        raise NotFound
    return row


def list_jobs(session: Session, principal: Principal, project_id: str, wanted: JobFilter, ask: PageAsk) -> Page[JobRow]:
    """
    A page of the project's jobs. Raises NotFound for an unknown project, Invalid for a state that does not exist.
    """
    identity.get_project(session, principal, project_id)
    if wanted.state is not None and wanted.state not in JOB_STATES.by_name:
        known = ", ".join(JOB_STATES.by_name)
        raise Invalid("There is no such state.", errors=[FieldError("query.state", "unknown_state", f"One of {known}.")])
    return repository.page(session, principal.tenant_id, project_id, wanted, ask)


def cancel_job(session: Session, principal: Principal, project_id: str, job_id: str) -> JobRow:
    """
    The wish to stop the job is on record and honoured at its next step; one that has ended stays as it is.
    """
    row = get_job(session, principal, project_id, job_id)
    if row.state in ENDS:
        return row
    if repository.mark_cancelled(session, job_id):
        record(session, [_event(row, "cancel_requested", {"state": row.state})])
    wake(session, "jobs", [job_id])
    return get_job(session, principal, project_id, job_id)


def tell_changed(session: Session, tokens: Collection[str]) -> int:
    """
    Jobs whose present attempt is among the tokens and that are with their scheduler are looked at now; their number is returned.
    """
    ids = repository.followed(session, tokens)
    wake(session, "jobs", ids)
    return len(ids)


def stop_job(session: Session, principal: Principal, project_id: str, job_id: str) -> JobRow:
    """
    As `cancel_job`, for a job that has not ended. Raises JobEnded.
    """
    row = get_job(session, principal, project_id, job_id)
    reason = cancel_refusal(row)
    if reason:
        raise JobEnded(reason, state=row.state)
    return cancel_job(session, principal, project_id, job_id)


def cancel_refusal(row: JobRow) -> str:
    """
    Why the job cannot be cancelled now; empty when it can.
    """
    return f"The job has ended: it {row.state if row.state != 'cancelled' else 'was cancelled'}." if row.state in ENDS else ""


@dataclass(frozen=True, slots=True)
class Slice:
    """
    A part of what an attempt printed.
    """

    attempt: int
    """Which try."""
    offset: int
    """Where it starts, in bytes."""
    text: str
    """The bytes as text; what is not UTF-8 is replaced, and no character is cut in two."""
    next_offset: int
    """Where the next part starts."""
    complete: bool
    """Whether nothing will follow in this attempt."""


def read_logs(session: Session, job: JobRow, *, attempt: int | None, after: int, limit_bytes: int) -> Slice:
    """
    Output of an attempt, the present one by default, from a byte offset on. Raises NotFound for an attempt that never was.
    """
    number = job.attempt if attempt is None else attempt
    if not 1 <= number <= job.attempt:
        raise NotFound("The job has had no such attempt.")
    data = repository.read_output(session, job, number, after=after, limit=limit_bytes)
    closed = number < job.attempt or job.state in ENDS
    last = closed and after + len(data) >= repository.output_bytes(session, job, number)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=last)
    held_back = 0 if last else len(decoder.getstate()[0])
    return Slice(number, after, text, after + len(data) - held_back, last)


FOLLOWED_BYTES = 64 * 1024
POSITION = re.compile(r"^([1-9][0-9]{0,8}|):(0|[1-9][0-9]{0,14})$")
News = tuple[str, str, dict[str, Any]]


def follow_logs(session: Session, principal: Principal, position: str, *, project_id: str, job_id: str) -> tuple[list[News], bool]:
    """
    What was printed since the position `<attempt>:<offset>` (no attempt: the present one), as events with the position behind
    each, and whether the job has ended and nothing follows. Raises NotFound, Invalid for a wrong position.
    """
    job = get_job(session, principal, project_id, job_id)
    found = POSITION.match(position)
    if found is None:
        raise Invalid(
            "The position is not one of ours.",
            errors=[FieldError("header.Last-Event-ID", "invalid_position", "Send the id of an event of this stream.")],
        )
    part = read_logs(session, job, attempt=int(found[1] or job.attempt), after=int(found[2]), limit_bytes=FOLLOWED_BYTES)
    here = f"{part.attempt}:{part.next_offset}"
    news: list[News] = []
    if part.text:
        news.append((here, "output", {"attempt": part.attempt, "offset": part.offset, "text": part.text}))
    if part.complete and part.attempt < job.attempt:
        news.append((f"{part.attempt + 1}:0", "attempt", {"attempt": part.attempt + 1}))
    over = part.complete and part.attempt == job.attempt
    if over:
        end = {"state": job.state, "exit_code": job.exit_code, "failure_class": job.failure_class}
        news.append((here, "end", end))
    return news, over


def admit(session: Session, claims: Sequence[Claim]) -> Mapping[str, Sequence[Outcome]]:
    """
    What becomes of queued jobs, all at once.
    """
    homes = clusters.homes(session, sorted({claim.row["cluster_id"] for claim in claims}))
    parents = repository.parents_of(session, [claim.id for claim in claims])
    places = Places(arrays.free_places(session, sorted({one for claim in claims if (one := claim.row["array_id"])})))
    in_order = sorted(claims, key=lambda claim: claim.row["array_index"] or 0)
    return {
        claim.id: [_admission(claim, homes.get(claim.row["cluster_id"]), parents.get(claim.id, []), places)] for claim in in_order
    }


def _admission(claim: Claim, home: Home | None, parents: Sequence[Parent], places: Places) -> Outcome:
    if claim.row["cancel_requested_at"] is not None:
        return Advance("cancelled", "Cancelled before it was handed to the scheduler.")
    theirs = JobFacts(failure_class="user_error")
    if home is None or home.state in HOME_LOST:
        state = "deleted" if home is None else home.state
        return Fail("cluster_gone", f"Its cluster is {state}.", facts=theirs)
    held = held_by(parents)
    if isinstance(held, Advance):
        return held
    if claim.overdue:
        return Fail("queued_too_long", "Its cluster, or a job that it waits for, was not ready in time.", facts=theirs)
    outcome = held or _at_home(home, claim.row["spec"])
    return (isinstance(outcome, Advance) and places.take(claim.row["array_id"])) or outcome


def _at_home(home: Home, spec: Mapping[str, Any]) -> Outcome:
    """
    Whether the cluster takes the job now.
    """
    if home.state not in HOME_READY:
        return Wait(f"Waits for its cluster, which is {home.state}.", 5.0)
    wrong = refusal(home, spec)
    if wrong is not None:
        return Fail(wrong.code, wrong.detail, facts=JobFacts(failure_class="user_error"))
    return Advance("admitted")


def snapshots(session: Session, claims: Sequence[Claim]) -> Mapping[str, JobSnapshot]:
    """
    What the steps of the claimed jobs may know; two queries and what homes take, for any number.
    """
    homes = clusters.homes(session, sorted({claim.row["cluster_id"] for claim in claims}))
    now = repository.clock(session)
    made = {
        claim.id: _snapshot(claim, homes.get(claim.row["cluster_id"]), (now - claim.row["state_since"]).total_seconds())
        for claim in claims
    }
    # only who is about to be handed over needs values
    told = give_secrets(
        session,
        {
            claim.id: (claim.row["project_id"], claim.row["spec"].get("secrets") or ())
            for claim in claims
            if claim.state == "admitted"
        },
    )
    return {key: replace(one, secrets=told.get(key, ())) for key, one in made.items()}


def check_named(session: Session, project_id: str, uses: Sequence[Mapping[str, Any]]) -> None:
    """
    The project has all secrets that are named there. Raises SecretUnknown.
    """
    if uses:
        check_secrets([one["name"] for one in uses], repository.secrets_of(session, [project_id]).get(project_id, {}))


def give_secrets(
    session: Session, wanted: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]
) -> dict[str, tuple[GivenSecret, ...]]:
    """
    By key, the secrets of a project that are named there, as they are kept now; one query for all, none where no secret is named.
    """
    named = {key: one for key, one in wanted.items() if one[1]}
    kept = repository.secrets_of(session, sorted({project_id for project_id, _ in named.values()}))
    return {key: given(uses, kept.get(project_id, {})) for key, (project_id, uses) in named.items()}


def _snapshot(claim: Claim, home: Home | None, state_age_s: float) -> JobSnapshot:
    row, spec = claim.row, claim.row["spec"]
    return JobSnapshot(
        id=claim.id,
        state=claim.state,
        step=claim.step,
        attempt=row["attempt"],
        tenant_id=row["tenant_id"],
        cluster_id=row["cluster_id"],
        cluster_state="deleted" if home is None else home.state,
        user="" if home is None else home.user,
        provider=None if home is None else home.provider,
        script=spec["script"] or "",
        nodes=spec["nodes"],
        gpus_per_node=spec["gpus_per_node"],
        tasks_per_node=spec["tasks_per_node"],
        time_limit_s=spec["time_limit_s"],
        env={**resume_env(row["last_checkpoint"]), **array_env(row["array_id"], row["array_index"]), **spec["env"]},
        gpu_model="" if home is None else home.gpu_model,
        max_restarts=spec["restart"]["max_restarts"],
        restarts=row["attempt"] - 1,
        cancel=row["cancel_requested_at"] is not None,
        log_bytes=row["log_bytes"],
        instances={} if home is None else home.instances,
        state_age_s=state_age_s,
        unsure=claim.step == "unsure" or claim.attempts > 1,
        verdict=row["verdict"],
        exit_code=row["exit_code"],
        failure_class=row["failure_class"],
        ran=row["started_at"] is not None,
        placement=tuple(row["placement"]),
        requeues=row["attempt_requeues"],
        image=spec.get("image") or "",
        priority=spec.get("priority", "normal"),
        launch=spec.get("launch"),
        mounts=tuple(spec.get("mounts") or ()),
        gpu=spec.get("gpu"),
        mig=spec.get("mig"),
        idle_stop_s=minutes * 60 if (minutes := spec.get("idle_stop_min")) else None,
        idled=any(one["code"] == IDLED for one in row["issues"]),
        hopeless=hopeless_of(row["issues"]),
        resume_step=(row["last_checkpoint"] or {}).get("step"),
        sent=home is not None and home.sends_output,
        ruled=home is not None and home.ruled,
        removed=any(one["code"] == REMOVED for one in row["issues"]),
        log_closed=row["log_closed"],
        cluster_kind="" if home is None else home.kind,
    )


def apply(session: Session, results: Sequence[Result]) -> None:
    """
    What steps and decisions learnt is stored with the moves they made, in bulk.
    """
    told = [(one, facts) for one in results if (facts := _facts(one.outcome)) is not None]
    repository.store(session, [_columns(one, facts) for one, facts in told])
    _meter(session, told)
    repository.add_pieces(session, [_piece(one, facts) for one, facts in told if facts.log])
    again = [(one, facts) for one, facts in told if facts.next_attempt]
    repository.begin_next_attempt(session, [{"id": one.claim.id, "resume_in_s": facts.resume_in_s} for one, facts in again])
    record(session, [event for one, facts in told for event in _news(one, facts)])
    ended = [one.claim.id for one in results if _ends(one.outcome)]
    left = {one for result in results if _leaves_place(result) and (one := result.claim.row["array_id"])}
    wake(session, "jobs", repository.children_of(session, ended) + arrays.next_tasks(session, sorted(left)))


def _leaves_place(result: Result) -> bool:
    """
    Whether the job has ended, or pauses before a restart, and was under way before.
    """
    facts = result.outcome.facts
    return result.claim.state not in HELD and (_ends(result.outcome) or (isinstance(facts, JobFacts) and facts.next_attempt))


def _meter(session: Session, told: Sequence[tuple[Result, JobFacts]]) -> None:
    """
    The GPU time of runs is kept as the scheduler tells it; what is over by our own reckoning has ended now.
    """
    runs, over = [], []
    for one, facts in told:
        row = one.claim.row
        ends = _ends(one.outcome) or facts.next_attempt or (facts.requeues or 0) > row["attempt_requeues"]
        if facts.started_at is not None:
            where = (row["tenant_id"], row["project_id"], row["cluster_id"])
            held, share = slicing.held_by(row["spec"]), slicing.share_of(row["spec"])
            runs.append(metering.Work("job", one.claim.id, *where, held, facts.started_at, facts.ended_at, *share))
        if ends and (facts.started_at is None or facts.ended_at is None):
            over.append(one.claim.id)
    metering.note_runs(session, runs)
    metering.end_runs(session, over)


def _ends(outcome: Outcome) -> bool:
    """
    Whether the job comes to one of its ends by it.
    """
    return isinstance(outcome, Fail) or (isinstance(outcome, Advance) and outcome.to in ENDS)


def _facts(outcome: Outcome) -> JobFacts | None:
    """
    The outcome's facts; a failure or an end that brings none has some of its own.
    """
    facts = outcome.facts
    if isinstance(outcome, Fail):
        facts = facts if facts is not None else JobFacts(failure_class="provider_fault")
    elif isinstance(outcome, Advance) and outcome.to in ENDS and facts is None:
        facts = JobFacts()
    return facts if isinstance(facts, JobFacts) else None


def _columns(result: Result, facts: JobFacts) -> dict[str, Any]:
    outcome = result.outcome
    failed = isinstance(outcome, Fail)
    code, message = (outcome.code, outcome.message) if isinstance(outcome, Fail) else facts.issue or ("", "")
    return {
        "id": result.claim.id,
        "external_id": facts.external_id,
        "exit_code": facts.exit_code,
        "signal": facts.signal,
        "failure_class": facts.failure_class,
        "verdict": "failed" if failed else facts.verdict,
        "placement": None if facts.placement is None else list(facts.placement),
        "started_at": facts.started_at and rfc3339(facts.started_at),
        "ended_at": facts.ended_at and rfc3339(facts.ended_at),
        "expected_start_at": facts.expected_start_at and rfc3339(facts.expected_start_at),
        "observed": facts.observed,
        "requeues": facts.requeues,
        "log_end": facts.log_offset + len(facts.log) if facts.log and facts.log_offset is not None else None,
        "issue": {"code": code, "message": message} if code else None,
        "final": _ends(outcome),
    }


def _piece(result: Result, facts: JobFacts) -> dict[str, Any]:
    return {
        "job_id": result.claim.id,
        "attempt": result.claim.row["attempt"],
        "byte_offset": facts.log_offset or 0,
        "tenant_id": result.claim.row["tenant_id"],
        "data": facts.log,
    }


def _news(result: Result, facts: JobFacts) -> list[Event]:
    """
    Restarts, which no state shows for long: by the scheduler and by us.
    """
    row = result.claim.row
    news = []
    if facts.requeues is not None and facts.requeues > row["attempt_requeues"]:
        news.append(_event(row, "requeued", {"attempt": row["attempt"], "requeues": facts.requeues}))
    if facts.next_attempt:
        told = {"attempt": row["attempt"] + 1, "failure_class": row["failure_class"], "checkpoint": row["last_checkpoint"]}
        news.append(_event(row, "restarted", told))
    return news


def _event(row: JobRow | RowMapping, verb: str, data: dict[str, Any]) -> Event:
    """
    An event of a job, from its row or from what was read of it.
    """
    job_id, tenant_id, project_id = (
        (row.id, row.tenant_id, row.project_id) if isinstance(row, JobRow) else (row["id"], row["tenant_id"], row["project_id"])
    )
    return Event(f"job.{verb}", "job", job_id, tenant_id, project_id, data)
