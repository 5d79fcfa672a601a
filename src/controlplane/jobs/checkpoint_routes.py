"""
Checkpoints over HTTP.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.jobs import checkpointing
from controlplane.jobs.checkpoint_schemas import (
    CheckpointComplete,
    CheckpointCreate,
    CheckpointOut,
    CheckpointPolicy,
    CheckpointPolicyOut,
    CheckpointReject,
    CheckpointRelocate,
)
from controlplane.jobs.checkpointing import Kept
from controlplane.jobs.states import CheckpointFilter
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["checkpoints"])
PROJECT = "/v1/projects/{project_id}"
CHECKPOINTS = PROJECT + "/jobs/{job_id}/checkpoints"
CHECKPOINT = CHECKPOINTS + "/{checkpoint_id}"
POLICY = PROJECT + "/checkpoint-policy"
Limit = Annotated[int, Query(ge=1, le=200, description="Items on a page.")]
Token = Annotated[str | None, Query(max_length=200, description="`next_page_token` of the page before.")]
StateFilter = Annotated[
    str | None, Query(max_length=20, description="Only those in this state; deleted ones only when asked for.", examples=["good"])
]
Due = Annotated[
    bool | None, Query(description="true: only those that lie elsewhere than the policy wants; false: only the others.")
]


@endpoint(
    router,
    "POST",
    CHECKPOINTS,
    permission="jobs:create",
    status=201,
    answer=CheckpointOut,
    summary="Register a checkpoint",
)
def create_checkpoint(call: Call, project_id: str, job_id: str, body: CheckpointCreate) -> Reply:
    """
    The checkpoint is on record. With its size it is good at once; without, it is being written until `actions/complete`. A restart of
    the job is told of the last good one in RESUME_CHECKPOINT, RESUME_STEP and RESUME_LOCATION.
    """
    kept = checkpointing.register(call.session, call.principal, project_id, job_id, body.plain())
    call.audit_target = kept.row.id
    place = f"{PROJECT.format(project_id=project_id)}/jobs/{job_id}/checkpoints/{kept.row.id}"
    return Reply(CheckpointOut.of(kept), headers={"Location": place}, etag=kept.row.version)


@endpoint(
    router,
    "GET",
    CHECKPOINTS,
    permission="jobs:read",
    answer=ListOf[CheckpointOut],
    summary="List a job's checkpoints",
    works_suspended=True,
)
def list_job_checkpoints(
    call: Call,
    project_id: str,
    job_id: str,
    limit: Limit = 50,
    page_token: Token = None,
    state: StateFilter = None,
    due: Due = None,
) -> ListOf[CheckpointOut]:
    """
    The job's checkpoints in the order they were registered.
    """
    return _listed(call, project_id, CheckpointFilter(job_id, state, due), PageAsk(limit, page_token))


@endpoint(
    router,
    "GET",
    PROJECT + "/checkpoints",
    permission="jobs:read",
    answer=ListOf[CheckpointOut],
    summary="List checkpoints",
    works_suspended=True,
)
def list_checkpoints(
    call: Call, project_id: str, limit: Limit = 50, page_token: Token = None, state: StateFilter = None, due: Due = None
) -> ListOf[CheckpointOut]:
    """
    The project's checkpoints in the order they were registered. With `due=true` this is the work list of whoever moves and removes
    their data: `status.wanted` says where each should lie, or that it can go.
    """
    return _listed(call, project_id, CheckpointFilter(None, state, due), PageAsk(limit, page_token))


def _listed(call: Call, project_id: str, wanted: CheckpointFilter, ask: PageAsk) -> ListOf[CheckpointOut]:
    page = checkpointing.list_checkpoints(call.session, call.principal, project_id, wanted, ask).map(CheckpointOut.of)
    return ListOf[CheckpointOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router, "GET", CHECKPOINT, permission="jobs:read", answer=CheckpointOut, summary="Read a checkpoint", works_suspended=True
)
def get_checkpoint(call: Call, project_id: str, job_id: str, checkpoint_id: str) -> Reply:
    """
    The checkpoint: where it lies, whether it is good, and what the project's policy wants of it.
    """
    return _shown(checkpointing.get_checkpoint(call.session, call.principal, project_id, job_id, checkpoint_id))


@endpoint(router, "DELETE", CHECKPOINT, permission="jobs:delete", answer=CheckpointOut, summary="Delete a checkpoint")
def delete_checkpoint(call: Call, project_id: str, job_id: str, checkpoint_id: str) -> Reply:
    """
    The checkpoint's data is gone, and no restart goes on from it. Remove the data yourself, then say so here; the record stays.
    """
    return _shown(checkpointing.forget(call.session, call.principal, project_id, job_id, checkpoint_id))


@endpoint(
    router,
    "POST",
    CHECKPOINT + "/actions/complete",
    permission="jobs:create",
    answer=CheckpointOut,
    summary="Say that a checkpoint is written",
)
def complete_checkpoint(call: Call, project_id: str, job_id: str, checkpoint_id: str, body: CheckpointComplete) -> Reply:
    """
    The checkpoint is good: a restart can go on from it.
    """
    return _shown(checkpointing.complete(call.session, call.principal, project_id, job_id, checkpoint_id, body.size_bytes))


@endpoint(
    router,
    "POST",
    CHECKPOINT + "/actions/reject",
    permission="jobs:create",
    answer=CheckpointOut,
    summary="Say that a checkpoint is bad",
)
def reject_checkpoint(call: Call, project_id: str, job_id: str, checkpoint_id: str, body: CheckpointReject) -> Reply:
    """
    The checkpoint is never used; the one before it is the last good one. It does not become good again: register what you repaired.
    """
    return _shown(checkpointing.reject(call.session, call.principal, project_id, job_id, checkpoint_id, body.reason))


@endpoint(
    router,
    "POST",
    CHECKPOINT + "/actions/relocate",
    permission="jobs:create",
    answer=CheckpointOut,
    summary="Say where a checkpoint lies",
)
def relocate_checkpoint(call: Call, project_id: str, job_id: str, checkpoint_id: str, body: CheckpointRelocate) -> Reply:
    """
    The checkpoint lies in this tier, and at this place if one is named.
    """
    kept = checkpointing.relocate(
        call.session, call.principal, project_id, job_id, checkpoint_id, tier=body.tier, location=body.location
    )
    return _shown(kept)


def _shown(kept: Kept) -> Reply:
    return Reply(CheckpointOut.of(kept), etag=kept.row.version)


@endpoint(
    router,
    "GET",
    POLICY,
    permission="jobs:read",
    answer=CheckpointPolicyOut,
    summary="Read how checkpoints are kept",
    works_suspended=True,
)
def get_checkpoint_policy(call: Call, project_id: str) -> CheckpointPolicyOut:
    """
    The project's policy; where none was set, three are hot, five warm, and all others cold for ever.
    """
    return CheckpointPolicyOut.of(checkpointing.get_policy(call.session, call.principal, project_id))


@endpoint(router, "PUT", POLICY, permission="jobs:create", answer=CheckpointPolicyOut, summary="Set how checkpoints are kept")
def set_checkpoint_policy(call: Call, project_id: str, body: CheckpointPolicy) -> CheckpointPolicyOut:
    """
    The project's checkpoints are judged by this policy from now on.
    """
    call.audit_target = project_id
    return CheckpointPolicyOut.of(checkpointing.set_policy(call.session, call.principal, project_id, body.plain()))
