"""
Jobs over HTTP.
"""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.jobs import service
from controlplane.jobs.array_routes import router as arrays
from controlplane.jobs.checkpoint_routes import router as checkpoints
from controlplane.jobs.schemas import Action, Actions, JobCreate, JobOut, LogPage
from controlplane.jobs.secret_routes import router as secrets
from controlplane.jobs.states import JobFilter
from controlplane.jobs.template_routes import router as templates
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.filters import label_filter
from controlplane.web.schemas import GivenMoment, ListOf
from controlplane.web.streams import Stream, stream_endpoint

router = APIRouter(tags=["jobs"])
router.include_router(checkpoints)
router.include_router(secrets)
router.include_router(templates)
router.include_router(arrays)
JOBS = "/v1/projects/{project_id}/jobs"
JOB = JOBS + "/{job_id}"
LAST_OFFSET = 10**14


@endpoint(
    router,
    "POST",
    JOBS,
    permission="jobs:create",
    status=202,
    answer=JobOut,
    summary="Submit a job",
    problems=(404,),
    dry_run=True,
)
def create_job(call: Call, project_id: str, body: JobCreate) -> Reply:
    """
    The job is queued and starts as one gang when its cluster runs and has room. It may be submitted before the cluster runs.
    The job itself is what to watch: GET it, follow its logs, or listen to `job.*` events.
    """
    row = service.create_job(call.session, call.principal, project_id, body.order())
    call.audit_target = row.id
    call.nudge("job", row.id)
    return Reply(JobOut.of(row), headers={"Location": f"/v1/projects/{project_id}/jobs/{row.id}"}, etag=row.version)


@endpoint(router, "GET", JOBS, permission="jobs:read", answer=ListOf[JobOut], summary="List jobs", works_suspended=True)
def list_jobs(
    call: Call,
    project_id: str,
    limit: Annotated[int, Query(ge=1, le=200, description="Items on a page.")] = 50,
    page_token: Annotated[str | None, Query(max_length=200, description="`next_page_token` of the page before.")] = None,
    state: Annotated[str | None, Query(max_length=20, description="Only jobs in this state.", examples=["running"])] = None,
    cluster_id: Annotated[str | None, Query(max_length=64, description="Only jobs on this cluster.")] = None,
    label: Annotated[
        list[str] | None, Query(max_length=8, description="Only jobs with this label, as `key:value`.", examples=[["team:vision"]])
    ] = None,
    created_after: Annotated[GivenMoment | None, Query(description="Only jobs created later.")] = None,
    array_id: Annotated[str | None, Query(max_length=64, description="Only tasks of this array, in its order.")] = None,
) -> ListOf[JobOut]:
    """
    The project's jobs, oldest first; new ones only ever appear at the end.
    """
    wanted = JobFilter(state, cluster_id, label_filter(label), created_after, array_id)
    page = service.list_jobs(call.session, call.principal, project_id, wanted, PageAsk(limit, page_token)).map(JobOut.of)
    return ListOf[JobOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(router, "GET", JOB, permission="jobs:read", answer=JobOut, summary="Read a job", works_suspended=True)
def get_job(call: Call, project_id: str, job_id: str) -> Reply:
    """
    The job as it stands: its state and why, its attempt, where it runs and how it ended.
    """
    row = service.get_job(call.session, call.principal, project_id, job_id)
    return Reply(JobOut.of(row), etag=row.version)


@endpoint(router, "DELETE", JOB, permission="jobs:delete", status=202, answer=JobOut, summary="Cancel a job", problems=(412,))
def delete_job(call: Call, project_id: str, job_id: str) -> Reply:
    """
    The job is asked to stop and will end as cancelled unless it ends otherwise first. Works in every state; a job that has ended
    stays as it is, and its record and output are kept.
    """
    row = service.get_job(call.session, call.principal, project_id, job_id)
    if call.if_match is not None:
        call.check_version(row.version)
    return _stopped(call, service.cancel_job(call.session, call.principal, project_id, job_id).id, project_id)


@endpoint(
    router,
    "POST",
    JOB + "/actions/cancel",
    permission="jobs:delete",
    status=202,
    answer=JobOut,
    summary="Cancel a job",
    works_suspended=True,
)
def cancel_job(call: Call, project_id: str, job_id: str) -> Reply:
    """
    The job is asked to stop; 409 when it has ended already.
    """
    return _stopped(call, service.stop_job(call.session, call.principal, project_id, job_id).id, project_id)


def _stopped(call: Call, job_id: str, project_id: str) -> Reply:
    row = service.get_job(call.session, call.principal, project_id, job_id)
    call.audit_target = row.id
    call.nudge("job", row.id)
    return Reply(JobOut.of(row), headers={"Location": f"/v1/projects/{project_id}/jobs/{row.id}"}, etag=row.version)


@endpoint(
    router,
    "GET",
    JOB + "/actions",
    permission="jobs:read",
    answer=Actions,
    summary="What can be done with a job",
    works_suspended=True,
)
def list_job_actions(call: Call, project_id: str, job_id: str) -> Actions:
    """
    Every verb of the job, and why it is not allowed now when it is not.
    """
    refusal = service.cancel_refusal(service.get_job(call.session, call.principal, project_id, job_id))
    return Actions(items=[Action(name="cancel", allowed=not refusal, reason=refusal)])


@endpoint(router, "GET", JOB + "/logs", permission="jobs:logs", answer=LogPage, summary="Read a job's output")
def read_job_logs(
    call: Call,
    project_id: str,
    job_id: str,
    attempt: Annotated[int | None, Query(ge=1, le=10**6, description="Which try; the present one when left out.")] = None,
    after: Annotated[int, Query(ge=0, le=LAST_OFFSET, description="Byte offset to read from.")] = 0,
    limit_bytes: Annotated[int, Query(ge=1024, le=1024 * 1024, description="At most so many bytes.")] = 256 * 1024,
) -> LogPage:
    """
    Standard output and error of the script and its tasks, from a byte offset on. Output appears while the job runs; the first
    16 MiB of each attempt are kept.
    """
    job = service.get_job(call.session, call.principal, project_id, job_id)
    return LogPage.of(service.read_logs(call.session, job, attempt=attempt, after=after, limit_bytes=limit_bytes))


@stream_endpoint(
    router,
    JOB + "/logs/stream",
    permission="jobs:logs",
    summary="Follow a job's output",
    events={
        "output": "More output: {attempt, offset, text}.",
        "attempt": "The next attempt: {attempt}.",
        "end": "The job has ended.",
    },
)
def stream_job_logs(
    project_id: str,
    job_id: str,
    attempt: Annotated[int | None, Query(ge=1, le=10**6, description="Start at this try; the present one when left out.")] = None,
    after: Annotated[int, Query(ge=0, le=LAST_OFFSET, description="Byte offset of that try to start from.")] = 0,
) -> Stream:
    """
    The output as server-sent events until the job has ended. The id of each event is `<attempt>:<offset>`: send it back as
    `Last-Event-ID` to go on where a connection broke. A connection is closed after 15 minutes at the latest; go on in the same way.
    """
    return Stream(partial(service.follow_logs, project_id=project_id, job_id=job_id), f"{attempt or ''}:{after}")
