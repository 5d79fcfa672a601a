"""
Arrays: the same job for many indexes. Each task is a job of its own, so that it is started, watched, restarted and read like any other;
the array bounds how many are under way at once, and adds up where they stand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from controlplane.identity import service as identity
from controlplane.jobs import arrays, service
from controlplane.jobs.errors import ArrayEnded
from controlplane.jobs.models import JobArrayRow
from controlplane.jobs.ordering import JobOrder
from controlplane.jobs.states import ENDS, folded
from controlplane.kit.access import Principal
from controlplane.kit.errors import NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import wake
from controlplane.kit.paging import Page, PageAsk


@dataclass(frozen=True, slots=True)
class Range:
    """
    Which tasks an array has, and how many may be under way at once.
    """

    first: int
    """The first index."""
    last: int
    """No index is larger."""
    step: int = 1
    """From one index to the next."""
    max_parallel: int | None = None
    """None: all at once."""

    @property
    def indexes(self) -> range:
        """
        Every index, in order.
        """
        return range(self.first, self.last + 1, self.step)


@dataclass(frozen=True, slots=True)
class Array:
    """
    An array and where its tasks stand.
    """

    row: JobArrayRow
    """As it was ordered."""
    tasks: Mapping[str, int] = field(default_factory=dict)
    """State to how many tasks are in it."""

    @property
    def state(self) -> str:
        """
        What the tasks' states come to.
        """
        return folded(self.tasks)


def create_array(session: Session, principal: Principal, project_id: str, order: JobOrder, wanted: Range) -> Array:
    """
    The array's tasks are queued, all of them or none. Raises what `create_job` raises.
    """
    home, order = service.check_order(session, principal, project_id, order)
    row = JobArrayRow(
        id=new_id("jar"),
        tenant_id=home.tenant_id,
        project_id=project_id,
        cluster_id=order.cluster_id,
        name=order.name,
        labels=order.labels,
        spec=order.spec,
        first=wanted.first,
        last=wanted.last,
        step=wanted.step,
        max_parallel=wanted.max_parallel,
        template=None if order.template is None else dict(order.template),
    )
    tasks = [service.new_row(home, order, array_id=row.id, array_index=index) for index in wanted.indexes]
    for task, job_id in zip(tasks, sorted(one.id for one in tasks), strict=True):
        task.id = job_id  # lists go by id, so that they show the tasks in the array's order
    arrays.add(session, row, tasks, service.conditions(order))
    moves = [Move("job", one.id, "", one.state, one.reason, one.tenant_id) for one in tasks]
    events = [Event("job.queued", "job", one.id, one.tenant_id, project_id, {"state": one.state}) for one in tasks]
    record(session, events, moves)
    return Array(row, {tasks[0].state: len(tasks)})


def get_array(session: Session, principal: Principal, project_id: str, array_id: str) -> Array:
    """
    The array and where its tasks stand. Raises NotFound.
    """
    principal.check_project(project_id)
    row = arrays.find(session, principal.tenant_id, project_id, array_id)
    if row is None:
        raise NotFound
    return Array(row, arrays.counts(session, [row.id])[row.id])


def list_arrays(session: Session, principal: Principal, project_id: str, ask: PageAsk) -> Page[Array]:
    """
    A page of the project's arrays. Raises NotFound for an unknown project.
    """
    tenant_id = identity.get_project(session, principal, project_id).tenant_id
    page = arrays.page(session, tenant_id, project_id, ask)
    tasks: Mapping[str, Mapping[str, Any]] = arrays.counts(session, [one.id for one in page.items])
    return page.map(lambda one: Array(one, tasks[one.id]))


def cancel_array(session: Session, principal: Principal, project_id: str, array_id: str) -> Array:
    """
    The wish to stop is on record with every task that has not ended, and honoured at its next step. Raises NotFound, ArrayEnded.
    """
    found = get_array(session, principal, project_id, array_id)
    if found.state in ENDS:
        raise ArrayEnded("All of its tasks have ended.", state=found.state)
    told = arrays.cancel(session, found.row)
    tenant_id = found.row.tenant_id
    record(session, [Event("job.cancel_requested", "job", one, tenant_id, project_id, {"state": state}) for one, state in told])
    wake(session, "jobs", [one for one, _ in told])
    return get_array(session, principal, project_id, array_id)
