"""
Every statement on checkpoints; a tenant's rows are asked for by project and job, which were looked up for the tenant before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, Select, case, cast, false, func, literal, null, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from controlplane.jobs.models import CheckpointPolicyRow, CheckpointRow, JobRow
from controlplane.jobs.states import CheckpointFilter, NewCheckpoint, Retention
from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page

DEFAULT = Retention()
LIVE = ("writing", "good")
"""States in which nobody else may register the same."""


@dataclass(frozen=True, slots=True)
class Kept:
    """
    A checkpoint and what the project's policy wants of it.
    """

    row: CheckpointRow
    """As it is."""
    wanted: str | None
    """hot, warm or cold: where it should lie; drop: it can go; None where the policy says nothing, as of one being written."""


def hold_job(session: Session, job_id: str) -> None:
    """
    This transaction alone may change the job's checkpoints.
    """
    session.execute(select(JobRow.id).where(JobRow.id == job_id).with_for_update(key_share=True))


def add(session: Session, row: CheckpointRow) -> None:
    """
    The checkpoint is stored, and its defaults are known.
    """
    session.add(row)
    session.flush()
    session.refresh(row)


def find_at(session: Session, job_id: str, new: NewCheckpoint) -> str | None:
    """
    The id of the job's checkpoint of this step, kind and location that is good or being written, or None.
    """
    query = select(CheckpointRow.id).where(
        CheckpointRow.job_id == job_id,
        CheckpointRow.step == new.step,
        CheckpointRow.kind == new.kind,
        CheckpointRow.location == new.location,
        CheckpointRow.state.in_(LIVE),
    )
    return session.execute(query).scalar_one_or_none()


def move(session: Session, checkpoint_id: str, after: str, changes: Mapping[str, Any]) -> None:
    """
    The checkpoint is in this state, changed so. Call `hold_job` first.
    """
    change(session, checkpoint_id, {"state": after, "state_since": CpClock(), **changes})


def change(session: Session, checkpoint_id: str, changes: Mapping[str, Any]) -> None:
    """
    The checkpoint is changed so, under its next version. Call `hold_job` first.
    """
    session.execute(
        update(CheckpointRow)
        .where(CheckpointRow.id == checkpoint_id)
        .values({**changes, "updated_at": CpClock(), "version": CheckpointRow.version + 1})
        .execution_options(synchronize_session=False)
    )


RENEW_LAST = text(
    """
    UPDATE jobs j SET last_checkpoint = l.last, version = j.version + 1, updated_at = cp_clock()
    FROM (SELECT (
      SELECT jsonb_build_object('id', c.id, 'step', c.step, 'location', c.location) FROM checkpoints c
      WHERE c.job_id = :job AND c.state = 'good' AND c.kind <> 'weights' ORDER BY c.step DESC, c.id DESC LIMIT 1) AS last) l
    WHERE j.id = :job AND j.last_checkpoint IS DISTINCT FROM l.last
    """
)


def renew_last(session: Session, job_id: str) -> None:
    """
    The job names its last good checkpoint: the highest step, of several the youngest. Weights alone are none to go on from.
    """
    session.execute(RENEW_LAST, {"job": job_id})


def _kept(project_id: str, job_id: str | None) -> Select[Any]:
    """
    Checkpoints of the project, or of one job, with what the policy wants of each: by its place among the good ones of its job and kind,
    the last step first, by its step and by its age.
    """
    checkpoint, policy = CheckpointRow, CheckpointPolicyRow
    here = [checkpoint.project_id == project_id, *([] if job_id is None else [checkpoint.job_id == job_id])]
    place = func.row_number().over(
        partition_by=(checkpoint.job_id, checkpoint.kind), order_by=(checkpoint.step.desc(), checkpoint.id.desc())
    )
    ranked = select(checkpoint.id, place.label("place")).where(*here, checkpoint.state == "good").subquery()
    hot = func.coalesce(policy.hot_last, DEFAULT.hot_last)
    warm = hot + func.coalesce(policy.warm_last, DEFAULT.warm_last)
    spare = policy.cold_every_steps.is_not(None) & (checkpoint.step % policy.cold_every_steps != 0)
    age = func.make_interval(0, 0, 0, cast(policy.cold_days, Integer))
    old = policy.cold_days.is_not(None) & (checkpoint.taken_at < CpClock() - age)
    wanted = case(
        (checkpoint.state == "bad", literal("drop")),
        (checkpoint.state != "good", null()),
        (ranked.c.place <= hot, literal("hot")),
        (ranked.c.place <= warm, literal("warm")),
        (spare | old, literal("drop")),
        else_=literal("cold"),
    )
    return (
        select(checkpoint, wanted.label("wanted"), checkpoint.id.label("id"))
        .outerjoin(ranked, ranked.c.id == checkpoint.id)
        .outerjoin(policy, policy.project_id == checkpoint.project_id)
        .where(*here)
        .execution_options(populate_existing=True)
    )


def find_kept(session: Session, project_id: str, job_id: str, checkpoint_id: str) -> Kept | None:
    """
    The checkpoint of this job of this project, or None.
    """
    found = session.execute(_kept(project_id, job_id).where(CheckpointRow.id == checkpoint_id)).one_or_none()
    return None if found is None else Kept(found[0], found[1])


def page(session: Session, project_id: str, wanted: CheckpointFilter, ask: PageAsk) -> Page[Kept]:
    """
    A page of the project's checkpoints, in the order they were registered.
    """
    query = _kept(project_id, wanted.job_id)
    query = query.where(CheckpointRow.state != "deleted" if wanted.state is None else CheckpointRow.state == wanted.state)
    if wanted.due is not None:
        elsewhere = func.coalesce(query.selected_columns.wanted != CheckpointRow.tier, false())
        query = query.where(elsewhere if wanted.due else ~elsewhere)
    rows = fetch_page(session, query, CheckpointRow.__table__.c.id, ask)
    return rows.map(lambda one: Kept(one[0], one[1]))


def find_policy(session: Session, project_id: str) -> CheckpointPolicyRow | None:
    """
    The project's policy, or None.
    """
    query = select(CheckpointPolicyRow).where(CheckpointPolicyRow.project_id == project_id)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def put_policy(session: Session, tenant_id: str, project_id: str, wanted: Retention) -> CheckpointPolicyRow:
    """
    The project has this policy.
    """
    values = {
        "hot_last": wanted.hot_last,
        "warm_last": wanted.warm_last,
        "cold_every_steps": wanted.cold_every_steps,
        "cold_days": wanted.cold_days,
    }
    put = insert(CheckpointPolicyRow).values(project_id=project_id, tenant_id=tenant_id, **values)
    session.execute(
        put.on_conflict_do_update(
            index_elements=[CheckpointPolicyRow.project_id],
            set_={**values, "version": CheckpointPolicyRow.version + 1, "updated_at": CpClock()},
        )
    )
    row = find_policy(session, project_id)
    assert row is not None, "it was just put"
    return row
