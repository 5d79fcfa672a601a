"""
Arrays of jobs over HTTP. Their tasks are jobs: read them, their output and their ends there.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.jobs import arraying
from controlplane.jobs.array_schemas import ArrayCreate, ArrayOut
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["job arrays"])
ARRAYS = "/v1/projects/{project_id}/job-arrays"
ARRAY = ARRAYS + "/{array_id}"


@endpoint(
    router,
    "POST",
    ARRAYS,
    permission="jobs:create",
    status=202,
    answer=ArrayOut,
    summary="Submit an array of jobs",
    problems=(404,),
    dry_run=True,
)
def create_job_array(call: Call, project_id: str, body: ArrayCreate) -> Reply:
    """
    One job for each index is queued, all of them or none. A task finds its index in ARRAY_INDEX. `GET …/jobs?array_id=…` lists the tasks.
    """
    one = arraying.create_array(call.session, call.principal, project_id, body.order(), body.array.wanted())
    call.audit_target = one.row.id
    return Reply(ArrayOut.of(one), headers={"Location": f"/v1/projects/{project_id}/job-arrays/{one.row.id}"})


@endpoint(
    router, "GET", ARRAYS, permission="jobs:read", answer=ListOf[ArrayOut], summary="List arrays of jobs", works_suspended=True
)
def list_job_arrays(
    call: Call,
    project_id: str,
    limit: Annotated[int, Query(ge=1, le=200, description="Items on a page.")] = 50,
    page_token: Annotated[str | None, Query(max_length=200, description="`next_page_token` of the page before.")] = None,
) -> ListOf[ArrayOut]:
    """
    The project's arrays with where their tasks stand, oldest first.
    """
    page = arraying.list_arrays(call.session, call.principal, project_id, PageAsk(limit, page_token)).map(ArrayOut.of)
    return ListOf[ArrayOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(router, "GET", ARRAY, permission="jobs:read", answer=ArrayOut, summary="Read an array of jobs", works_suspended=True)
def get_job_array(call: Call, project_id: str, array_id: str) -> ArrayOut:
    """
    The array, and how many of its tasks are in each state.
    """
    return ArrayOut.of(arraying.get_array(call.session, call.principal, project_id, array_id))


@endpoint(
    router,
    "POST",
    ARRAY + "/actions/cancel",
    permission="jobs:delete",
    status=202,
    answer=ArrayOut,
    summary="Cancel an array of jobs",
    works_suspended=True,
)
def cancel_job_array(call: Call, project_id: str, array_id: str) -> ArrayOut:
    """
    Every task that has not ended is asked to stop; 409 when all have ended.
    """
    return ArrayOut.of(arraying.cancel_array(call.session, call.principal, project_id, array_id))
