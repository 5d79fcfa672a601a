"""
Every statement on jobs and their output; a tenant's rows are asked for by tenant and project.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Text, cast, delete, select, text, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Session

from controlplane.jobs.models import JobDependencyRow, JobLogRow, JobRow, ProjectSecretRow
from controlplane.jobs.states import PIECE_BYTES, TRUNCATED, JobFilter, Parent
from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page

LONGEST_PIECE_BYTES = PIECE_BYTES + len(TRUNCATED)


def add(session: Session, row: JobRow) -> None:
    """
    The job is stored, and its defaults are known.
    """
    session.add(row)
    session.flush()
    session.refresh(row)


def find(session: Session, tenant_id: str, project_id: str, job_id: str) -> JobRow | None:
    """
    The tenant's job, or None.
    """
    return session.execute(
        select(JobRow)
        .where(JobRow.id == job_id, JobRow.tenant_id == tenant_id, JobRow.project_id == project_id)
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()


def followed(session: Session, tokens: Collection[str]) -> Sequence[str]:
    """
    Ids of the jobs, whoever's, whose present attempt is among the tokens and that are with their scheduler. For our own work alone.
    """
    ids = {token.rpartition("-")[0] for token in tokens}
    token = JobRow.id + "-" + cast(JobRow.attempt, Text)
    wanted = select(JobRow.id).where(JobRow.id.in_(ids), token.in_(tokens), JobRow.state.in_(("starting", "running", "unknown")))
    return session.execute(wanted).scalars().all()


def page(session: Session, tenant_id: str, project_id: str, wanted: JobFilter, ask: PageAsk) -> Page[JobRow]:
    """
    A page of the project's jobs, oldest first.
    """
    query: Select[Any] = select(JobRow).where(JobRow.tenant_id == tenant_id, JobRow.project_id == project_id)
    if wanted.state is not None:
        query = query.where(JobRow.state == wanted.state)
    if wanted.cluster_id is not None:
        query = query.where(JobRow.cluster_id == wanted.cluster_id)
    if wanted.array_id is not None:
        query = query.where(JobRow.array_id == wanted.array_id)
    if wanted.labels:
        query = query.where(JobRow.labels.contains(dict(wanted.labels)))
    if wanted.created_after is not None:
        query = query.where(JobRow.created_at > wanted.created_after)
    return fetch_page(session, query, JobRow.__table__.c.id, ask)


def known_of(session: Session, tenant_id: str, project_id: str, job_ids: Sequence[str]) -> set[str]:
    """
    Which of the ids are jobs of the project.
    """
    query = select(JobRow.id).where(JobRow.id.in_(job_ids), JobRow.tenant_id == tenant_id, JobRow.project_id == project_id)
    return set(session.execute(query).scalars())


def add_dependencies(session: Session, job: JobRow, conditions: Mapping[str, str]) -> None:
    """
    The job waits for these others: id to condition.
    """
    rows = [
        {"job_id": job.id, "parent_id": parent, "tenant_id": job.tenant_id, "condition": condition}
        for parent, condition in conditions.items()
    ]
    if rows:
        session.execute(insert(JobDependencyRow), rows)


def parents_of(session: Session, job_ids: Sequence[str]) -> dict[str, list[Parent]]:
    """
    What each of the jobs waits for, or waited for; one query.
    """
    query = (
        select(JobDependencyRow.job_id, JobRow.id, JobDependencyRow.condition, JobRow.state)
        .join(JobRow, JobRow.id == JobDependencyRow.parent_id)
        .where(JobDependencyRow.job_id.in_(job_ids))
        .order_by(JobRow.id)
    )
    found: dict[str, list[Parent]] = {}
    for job_id, *parent in session.execute(query):
        found.setdefault(job_id, []).append(Parent(*parent))
    return found


def children_of(session: Session, job_ids: Sequence[str]) -> list[str]:
    """
    Jobs that wait for one of these.
    """
    if not job_ids:
        return []
    query = select(JobDependencyRow.job_id).where(JobDependencyRow.parent_id.in_(job_ids))
    return list(session.execute(query).scalars())


def hold_secret(session: Session, new_id: str, tenant_id: str, project_id: str, name: str) -> str:
    """
    The id of the project's secret of this name, which is there and locked; a new one has no value yet.
    """
    row = {"id": new_id, "tenant_id": tenant_id, "project_id": project_id, "name": name, "sealed": b"", "version": 0}
    put = insert(ProjectSecretRow).values(row)
    same = [ProjectSecretRow.tenant_id, ProjectSecretRow.project_id, ProjectSecretRow.name]
    kept = put.on_conflict_do_update(index_elements=same, set_={"name": put.excluded.name}).returning(ProjectSecretRow.id)
    return str(session.execute(kept).scalar_one())


def seal_secret(session: Session, secret_id: str, sealed: bytes) -> ProjectSecretRow:
    """
    The secret has this value. Call `hold_secret` first.
    """
    row = session.get_one(ProjectSecretRow, secret_id, populate_existing=True)
    row.sealed, row.version = sealed, row.version + 1
    session.execute(update(ProjectSecretRow).where(ProjectSecretRow.id == secret_id).values(updated_at=CpClock()))
    session.flush()
    session.refresh(row)
    return row


def page_of_secrets(session: Session, tenant_id: str, project_id: str, ask: PageAsk) -> Page[ProjectSecretRow]:
    """
    A page of the project's secrets, in the order they were first written.
    """
    query = select(ProjectSecretRow).where(ProjectSecretRow.tenant_id == tenant_id, ProjectSecretRow.project_id == project_id)
    return fetch_page(session, query, ProjectSecretRow.__table__.c.id, ask)


def drop_secret(session: Session, tenant_id: str, project_id: str, name: str) -> bool:
    """
    The project has no secret of this name; False when it had none before.
    """
    gone = delete(ProjectSecretRow).where(
        ProjectSecretRow.tenant_id == tenant_id, ProjectSecretRow.project_id == project_id, ProjectSecretRow.name == name
    )
    return session.execute(gone.returning(ProjectSecretRow.id)).scalar_one_or_none() is not None


def secrets_of(session: Session, project_ids: Sequence[str]) -> dict[str, dict[str, tuple[str, bytes]]]:
    """
    Project to name to (id, sealed value); one query for all.
    """
    if not project_ids:
        return {}
    row = ProjectSecretRow
    query = select(row.project_id, row.name, row.id, row.sealed).where(row.project_id.in_(project_ids))
    found: dict[str, dict[str, tuple[str, bytes]]] = {}
    for project_id, name, secret_id, sealed in session.execute(query):
        found.setdefault(project_id, {})[name] = (secret_id, bytes(sealed))
    return found


def mark_cancelled(session: Session, job_id: str) -> bool:
    """
    The wish to stop the job is on record; False when it was before.
    """
    done = session.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.cancel_requested_at.is_(None))
        .values(cancel_requested_at=CpClock(), updated_at=CpClock(), version=JobRow.version + 1)
        .returning(JobRow.id)
        .execution_options(synchronize_session=False)
    )
    return done.scalar_one_or_none() is not None


def clock(session: Session) -> datetime:
    """
    The database's clock.
    """
    return session.execute(select(CpClock())).scalar_one()


STORE = text(
    """
    UPDATE jobs j SET
      external_id = coalesce(f.external_id, j.external_id),
      exit_code = coalesce(f.exit_code, j.exit_code),
      signal = coalesce(f.signal, j.signal),
      failure_class = CASE WHEN f.verdict IS NOT NULL THEN f.failure_class ELSE coalesce(f.failure_class, j.failure_class) END,
      verdict = coalesce(f.verdict, j.verdict),
      placement = coalesce(f.placement, j.placement),
      started_at = coalesce(f.started_at, j.started_at),
      ended_at = coalesce(f.ended_at, j.ended_at, CASE WHEN f.final THEN cp_clock() END),
      expected_start_at = CASE WHEN f.observed THEN f.expected_start_at ELSE j.expected_start_at END,
      requeues = j.requeues + greatest(0, coalesce(f.requeues, j.attempt_requeues) - j.attempt_requeues),
      attempt_requeues = greatest(j.attempt_requeues, coalesce(f.requeues, 0)),
      log_bytes = coalesce(f.log_end, j.log_bytes),
      issues = CASE WHEN f.issue IS NULL OR j.issues @> jsonb_build_array(f.issue) THEN j.issues ELSE j.issues || f.issue END,
      version = j.version + CASE WHEN
          (f.placement IS NOT NULL AND f.placement <> j.placement) OR f.started_at <> j.started_at OR f.issue IS NOT NULL
          OR (f.observed AND f.expected_start_at IS DISTINCT FROM j.expected_start_at) OR f.requeues > j.attempt_requeues
        THEN 1 ELSE 0 END
    FROM jsonb_to_recordset(CAST(:facts AS jsonb)) AS f(
      id text, external_id text, exit_code bigint, signal bigint, failure_class text, verdict text, placement jsonb,
      started_at timestamptz, ended_at timestamptz, expected_start_at timestamptz, observed boolean, requeues bigint,
      log_end bigint, issue jsonb, final boolean)
    WHERE j.id = f.id
    """
)
NEXT_ATTEMPT = text(
    """
    UPDATE jobs j SET
      attempt = j.attempt + 1, requeues = j.requeues + 1, attempt_requeues = 0, external_id = '', exit_code = NULL, signal = NULL,
      failure_class = NULL, verdict = '', placement = '[]'::jsonb, started_at = NULL, ended_at = NULL, expected_start_at = NULL,
      log_bytes = 0, log_source = '', log_base = 0, log_closed = false, issues = '[]'::jsonb,
      due_at = cp_clock() + make_interval(secs => CASE WHEN j.cancel_requested_at IS NULL THEN f.resume_in_s ELSE 0 END)
    FROM jsonb_to_recordset(CAST(:facts AS jsonb)) AS f(id text, resume_in_s double precision)
    WHERE j.id = f.id
    """
)


def store(session: Session, facts: Sequence[Mapping[str, Any]]) -> None:
    """
    What was learnt of the jobs stands in their rows; one statement for all.
    """
    if facts:
        session.execute(STORE, {"facts": json.dumps(list(facts))})


def begin_next_attempt(session: Session, facts: Sequence[Mapping[str, Any]]) -> None:
    """
    The jobs' rows tell of a fresh attempt that may begin in `resume_in_s`, or at once to be cancelled.
    """
    if facts:
        session.execute(NEXT_ATTEMPT, {"facts": json.dumps(list(facts))})


SENT = text(
    """
    SELECT j.id, j.tenant_id, j.attempt, j.state, j.verdict, j.placement, j.log_bytes, j.log_source, j.log_base, j.log_closed,
      a.instance_id
    FROM boots b
    JOIN allocations a ON a.id = b.allocation_id AND a.tenant_id = b.tenant_id AND a.state = 'active'
    JOIN jobs j ON j.cluster_id = a.cluster_id AND j.tenant_id = a.tenant_id
    WHERE b.id = :boot AND b.purpose = 'deploy' AND b.state <> 'ended' AND j.id = :job
    FOR UPDATE OF j
    """
)


def find_sent(session: Session, boot_id: str, job_id: str) -> Any:
    """
    The job as far as its output goes, locked, with the instance that the boot's machine is; None unless the machine is in use in the job's
    own cluster.
    """
    return session.execute(SENT, {"boot": boot_id, "job": job_id}).one_or_none()


def note_sent(session: Session, job_id: str, values: Mapping[str, Any], issue: Mapping[str, str] | None) -> None:
    """
    What is kept of the job's output, and by whom it is sent, stands in its row.
    """
    changes: dict[str, Any] = dict(values)
    if issue is not None:
        changes |= {"issues": JobRow.issues + cast([issue], JSONB), "version": JobRow.version + 1}
    session.execute(update(JobRow).where(JobRow.id == job_id).values(changes).execution_options(synchronize_session=False))


def add_pieces(session: Session, pieces: Sequence[Mapping[str, Any]]) -> None:
    """
    The pieces of output are stored; one that is there already stays as it is.
    """
    if pieces:
        session.execute(insert(JobLogRow).on_conflict_do_nothing(), list(pieces))


def read_output(session: Session, job: JobRow, attempt: int, *, after: int, limit: int) -> bytes:
    """
    Up to `limit` bytes of what the attempt printed, from the offset on.
    """
    rows = session.execute(
        select(JobLogRow.byte_offset, JobLogRow.data)
        .where(
            JobLogRow.job_id == job.id,
            JobLogRow.tenant_id == job.tenant_id,
            JobLogRow.attempt == attempt,
            JobLogRow.byte_offset > after - LONGEST_PIECE_BYTES,
            JobLogRow.byte_offset < after + limit,
        )
        .order_by(JobLogRow.byte_offset)
    ).all()
    return b"".join(bytes(row.data)[max(0, after - row.byte_offset) :] for row in rows)[:limit]


def output_bytes(session: Session, job: JobRow, attempt: int) -> int:
    """
    How much of the attempt's output is stored.
    """
    if attempt == job.attempt:
        return job.log_bytes
    last = session.execute(
        select(JobLogRow.byte_offset, JobLogRow.data)
        .where(JobLogRow.job_id == job.id, JobLogRow.tenant_id == job.tenant_id, JobLogRow.attempt == attempt)
        .order_by(JobLogRow.byte_offset.desc())
        .limit(1)
    ).one_or_none()
    return 0 if last is None else last.byte_offset + len(last.data)
