"""
Checkpoints: what jobs have saved of their work, which one a restart goes on from, and how long each is kept.

The data lies with the tenant, we never touch it: the registry says where it is and what the project's policy wants done with it; whoever
moves or removes the data says so here. Whoever changes a checkpoint holds the job's row, so that the job always names its last good one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from controlplane.identity import service as identity
from controlplane.jobs import checkpoints, service
from controlplane.jobs.checkpoints import DEFAULT, LIVE, Kept
from controlplane.jobs.errors import CheckpointExists, CheckpointSettled
from controlplane.jobs.models import CheckpointPolicyRow, CheckpointRow
from controlplane.jobs.states import CHECKPOINT_STATES, CheckpointFilter, NewCheckpoint, Retention, Tier
from controlplane.kit.access import Principal
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk

__all__ = [
    "Kept",
    "complete",
    "forget",
    "get_checkpoint",
    "get_policy",
    "list_checkpoints",
    "register",
    "reject",
    "relocate",
    "set_policy",
]
Path = tuple[str, str, str]
"""Project, job and checkpoint."""


def register(session: Session, principal: Principal, project_id: str, job_id: str, new: NewCheckpoint) -> Kept:
    """
    The checkpoint is on record: good when its size is told, otherwise being written. Raises NotFound, CheckpointExists, Invalid for an
    attempt that never was.
    """
    job = service.get_job(session, principal, project_id, job_id)
    checkpoints.hold_job(session, job_id)
    attempt = job.attempt if new.attempt is None else new.attempt
    if attempt > job.attempt:
        words = f"The job has had {job.attempt} attempts."
        raise Invalid(words, errors=[FieldError("body.attempt", "no_such_attempt", words)])
    state = "writing" if new.size_bytes is None else "good"
    row = CheckpointRow(
        id=new_id("ckp"),
        tenant_id=job.tenant_id,
        project_id=project_id,
        job_id=job_id,
        attempt=attempt,
        step=new.step,
        kind=new.kind,
        location=new.location,
        size_bytes=new.size_bytes,
        tier=new.tier,
        state=state,
        reason=CHECKPOINT_STATES.by_name[state].says,
    )
    if new.taken_at is not None:
        row.taken_at = new.taken_at
    taken = checkpoints.find_at(session, job_id, new)
    if taken is not None:
        words = f"{taken} is of the same step, kind and location. Call it bad or delete it first, or write to another place."
        raise CheckpointExists(words, checkpoint_id=taken)
    checkpoints.add(session, row)
    _told(session, row, "")
    return _kept(session, (project_id, job_id, row.id))


def get_checkpoint(session: Session, principal: Principal, project_id: str, job_id: str, checkpoint_id: str) -> Kept:
    """
    The checkpoint, with what the policy wants of it. Raises NotFound.
    """
    service.get_job(session, principal, project_id, job_id)
    return _kept(session, (project_id, job_id, checkpoint_id))


def _kept(session: Session, path: Path) -> Kept:
    kept = checkpoints.find_kept(session, *path)
    if kept is None:
        raise NotFound
    return kept


def list_checkpoints(session: Session, principal: Principal, project_id: str, wanted: CheckpointFilter, ask: PageAsk) -> Page[Kept]:
    """
    A page of the project's checkpoints, or of one job's, in the order they were registered. Raises NotFound for an unknown project or
    job, Invalid for a state that does not exist.
    """
    if wanted.job_id is None:
        identity.get_project(session, principal, project_id)
    else:
        service.get_job(session, principal, project_id, wanted.job_id)
    if wanted.state is not None and wanted.state not in CHECKPOINT_STATES.by_name:
        known = ", ".join(CHECKPOINT_STATES.by_name)
        raise Invalid("There is no such state.", errors=[FieldError("query.state", "unknown_state", f"One of {known}.")])
    return checkpoints.page(session, project_id, wanted, ask)


def complete(session: Session, principal: Principal, project_id: str, job_id: str, checkpoint_id: str, size_bytes: int) -> Kept:
    """
    The checkpoint is written: a restart can go on from it. Raises NotFound, CheckpointSettled when it was not being written.
    """
    return _moved(session, principal, (project_id, job_id, checkpoint_id), ("writing",), "good", {"size_bytes": size_bytes})


def reject(session: Session, principal: Principal, project_id: str, job_id: str, checkpoint_id: str, reason: str) -> Kept:
    """
    The checkpoint cannot be used; the one before it is the last good one. Raises NotFound, CheckpointSettled.
    """
    return _moved(session, principal, (project_id, job_id, checkpoint_id), LIVE, "bad", {"reason": reason})


def forget(session: Session, principal: Principal, project_id: str, job_id: str, checkpoint_id: str) -> Kept:
    """
    The checkpoint's data is gone, says its owner; its record stays. One that was deleted stays as it is. Raises NotFound.
    """
    kept = get_checkpoint(session, principal, project_id, job_id, checkpoint_id)
    if kept.row.state == "deleted":
        return kept
    return _moved(session, principal, (project_id, job_id, checkpoint_id), (*LIVE, "bad"), "deleted", {})


def relocate(
    session: Session, principal: Principal, project_id: str, job_id: str, checkpoint_id: str, tier: Tier, location: str | None
) -> Kept:
    """
    The checkpoint lies in this tier, at this place if one is told. Raises NotFound, CheckpointSettled, CheckpointExists.
    """
    row = _held(session, principal, (project_id, job_id, checkpoint_id), LIVE, "moved")
    place = row.location if location is None else location
    new = NewCheckpoint(row.step, row.kind, place, row.size_bytes)  # type: ignore[arg-type]
    taken = checkpoints.find_at(session, job_id, new)
    if taken not in {None, checkpoint_id}:
        raise CheckpointExists(f"{taken} is of the same step, kind and location.", checkpoint_id=taken)
    checkpoints.change(session, checkpoint_id, {"tier": tier, "location": place})
    checkpoints.renew_last(session, job_id)
    record(session, [_event(row, "moved", {"tier": tier, "location": place, "before": row.tier})])
    return _kept(session, (project_id, job_id, checkpoint_id))


def _held(session: Session, principal: Principal, path: Path, states: Sequence[str], verb: str) -> CheckpointRow:
    """
    The checkpoint as it is, its job held by this transaction.
    """
    get_checkpoint(session, principal, *path)
    checkpoints.hold_job(session, path[1])
    row = _kept(session, path).row
    if row.state not in states:
        raise CheckpointSettled(f"The checkpoint is {row.state}; it cannot be {verb}.", state=row.state)
    return row


def _moved(
    session: Session, principal: Principal, path: Path, before: Sequence[str], after: str, changes: Mapping[str, Any]
) -> Kept:
    was = _held(session, principal, path, before, "made " + after).state
    CHECKPOINT_STATES.check_move(was, after)
    checkpoints.move(session, path[2], after, {"reason": CHECKPOINT_STATES.by_name[after].says} | dict(changes))
    kept = _kept(session, path)
    _told(session, kept.row, was)
    return kept


def _told(session: Session, row: CheckpointRow, before: str) -> None:
    """
    The move is on record, and the job names its last good checkpoint.
    """
    checkpoints.renew_last(session, row.job_id)
    data = {"state": row.state, "before": before, "step": row.step, "job_id": row.job_id, "reason": row.reason}
    record(session, [_event(row, row.state, data)], [Move("checkpoint", row.id, before, row.state, row.reason, row.tenant_id)])


def _event(row: CheckpointRow, verb: str, data: dict[str, Any]) -> Event:
    return Event(f"checkpoint.{verb}", "checkpoint", row.id, row.tenant_id, row.project_id, data)


def get_policy(session: Session, principal: Principal, project_id: str) -> tuple[Retention, int]:
    """
    The project's policy and its version: 0 for the one that stands where none was set, which keeps everything. Raises NotFound.
    """
    identity.get_project(session, principal, project_id)
    row = checkpoints.find_policy(session, project_id)
    return (DEFAULT, 0) if row is None else (_retention(row), row.version)


def set_policy(session: Session, principal: Principal, project_id: str, wanted: Retention) -> tuple[Retention, int]:
    """
    The project's checkpoints are judged by this policy from now on; nothing is removed by it alone. Raises NotFound.
    """
    project = identity.hold_project(session, principal, project_id)
    row = checkpoints.put_policy(session, project.tenant_id, project_id, wanted)
    return _retention(row), row.version


def _retention(row: CheckpointPolicyRow) -> Retention:
    return Retention(row.hot_last, row.warm_last, row.cold_every_steps, row.cold_days)
