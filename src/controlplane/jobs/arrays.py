"""
Every statement on arrays of jobs; a tenant's rows are asked for by tenant and project.
"""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from controlplane.jobs.models import JobArrayRow, JobRow
from controlplane.jobs.states import ENDS, HELD
from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page

MOST_WOKEN = 32
"""Tasks that are looked at when one of their array has ended; the others come up by themselves."""
NEXT_TASKS = text(
    """
    SELECT j.id FROM job_arrays a CROSS JOIN LATERAL (
      SELECT id FROM jobs
      WHERE array_id = a.id AND state = 'queued' AND attempt = 1 AND due_at IS NOT NULL ORDER BY array_index
      LIMIT least(a.max_parallel, :most)) j
    WHERE a.id = ANY(:ids) AND a.max_parallel IS NOT NULL
    """
)
ADD_PARENTS = text(
    """
    INSERT INTO job_dependencies (job_id, parent_id, tenant_id, condition)
    SELECT job, parent, tenant, condition
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS f(job text, parent text, tenant text, condition text)
    """
)
CANCEL_TASKS = text(
    """
    UPDATE jobs SET cancel_requested_at = cp_clock(), updated_at = cp_clock(), version = version + 1
    WHERE id IN (
      SELECT id FROM jobs
      WHERE array_id = :id AND tenant_id = :tenant AND cancel_requested_at IS NULL AND NOT state = ANY(:ends) ORDER BY id FOR UPDATE)
    RETURNING id, state
    """
)


def add(session: Session, array: JobArrayRow, tasks: Sequence[JobRow], parents: Mapping[str, str]) -> None:
    """
    The array and all its tasks are stored, each task waiting for the same others: id to condition.
    """
    session.add(array)
    session.flush()
    session.refresh(array)
    session.add_all(tasks)
    session.flush()
    if parents:
        rows = [
            {"job": one.id, "tenant": one.tenant_id, "parent": parent, "condition": how}
            for one in tasks
            for parent, how in parents.items()
        ]
        session.execute(ADD_PARENTS, {"rows": json.dumps(rows)})


def find(session: Session, tenant_id: str, project_id: str, array_id: str) -> JobArrayRow | None:
    """
    The tenant's array, or None.
    """
    query = select(JobArrayRow).where(
        JobArrayRow.id == array_id, JobArrayRow.tenant_id == tenant_id, JobArrayRow.project_id == project_id
    )
    return session.execute(query.execution_options(populate_existing=True)).scalar_one_or_none()


def page(session: Session, tenant_id: str, project_id: str, ask: PageAsk) -> Page[JobArrayRow]:
    """
    A page of the project's arrays, oldest first.
    """
    query = select(JobArrayRow).where(JobArrayRow.tenant_id == tenant_id, JobArrayRow.project_id == project_id)
    return fetch_page(session, query, JobArrayRow.__table__.c.id, ask)


def counts(session: Session, array_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """
    Array to state to how many of its tasks are in it; one query.
    """
    query = select(JobRow.array_id, JobRow.state, func.count()).where(JobRow.array_id.in_(array_ids))
    found: dict[str, dict[str, int]] = {one: {} for one in array_ids}
    for array_id, state, number in session.execute(query.group_by(JobRow.array_id, JobRow.state)):
        found[str(array_id)][state] = number
    return found


def free_places(session: Session, array_ids: Sequence[str]) -> dict[str, int]:
    """
    How many more tasks may be under way now, of each of the arrays that bound it. These are locked, so that nobody else gives the same
    places away before this transaction ends.
    """
    if not array_ids:
        return {}
    bounded = select(JobArrayRow.id, JobArrayRow.max_parallel).where(
        JobArrayRow.id.in_(array_ids), JobArrayRow.max_parallel.is_not(None)
    )
    most = session.execute(bounded.order_by(JobArrayRow.id).with_for_update(key_share=True)).all()
    busy = counts(session, [one for one, _ in most]) if most else {}
    under_way = {one: sum(number for state, number in found.items() if state not in HELD | ENDS) for one, found in busy.items()}
    return {one: (limit or 0) - under_way[one] for one, limit in most}


def next_tasks(session: Session, array_ids: Sequence[str]) -> list[str]:
    """
    Tasks that may take the places that others of their arrays have left, in the arrays' order. One that pauses before a restart is none.
    """
    if not array_ids:
        return []
    return list(session.execute(NEXT_TASKS, {"ids": list(array_ids), "most": MOST_WOKEN}).scalars())


def cancel(session: Session, array: JobArrayRow) -> list[tuple[str, str]]:
    """
    The wish to stop the array is on record, and with every task that has not ended; (id, state) of those it is new to.
    """
    asked = update(JobArrayRow).where(JobArrayRow.id == array.id, JobArrayRow.cancel_requested_at.is_(None))
    session.execute(asked.values(cancel_requested_at=CpClock()).execution_options(synchronize_session=False))
    found = session.execute(CANCEL_TASKS, {"id": array.id, "tenant": array.tenant_id, "ends": sorted(ENDS)}).all()
    return [(job_id, state) for job_id, state in found]
