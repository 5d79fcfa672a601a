"""
Templates of jobs over HTTP.
"""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query

from controlplane.jobs import arraying, service, templating
from controlplane.jobs.array_schemas import ArrayOut
from controlplane.jobs.schemas import JobOut
from controlplane.jobs.template_schemas import TemplateArray, TemplateJob, TemplateOut, TemplatePut
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["job templates"])
TEMPLATES = "/v1/projects/{project_id}/job-templates"
TEMPLATE = TEMPLATES + "/{name}"
Name = Annotated[
    str,
    Path(
        min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", description="Lower-case letters, digits, dashes."
    ),
]


@endpoint(router, "GET", TEMPLATES, permission="jobs:read", answer=ListOf[TemplateOut], summary="List job templates")
def list_job_templates(
    call: Call,
    project_id: str,
    limit: Annotated[int, Query(ge=1, le=200, description="Items on a page.")] = 50,
    page_token: Annotated[str | None, Query(max_length=200, description="`next_page_token` of the page before.")] = None,
) -> ListOf[TemplateOut]:
    """
    The project's templates in their newest versions, in the order they were first written.
    """
    page = templating.list_templates(call.session, call.principal, project_id, PageAsk(limit, page_token)).map(TemplateOut.of)
    return ListOf[TemplateOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(router, "GET", TEMPLATE, permission="jobs:read", answer=TemplateOut, summary="Read a job template")
def get_job_template(
    call: Call,
    project_id: str,
    name: Name,
    version: Annotated[int | None, Query(ge=1, le=10**9, description="Which version; the newest when left out.")] = None,
) -> Reply:
    """
    One version of the template; versions never change.
    """
    found = templating.get_template(call.session, call.principal, project_id, name, version)
    return Reply(TemplateOut.of(found), etag=found.version)


@endpoint(router, "PUT", TEMPLATE, permission="jobs:create", answer=TemplateOut, summary="Write a job template", dry_run=True)
def put_job_template(call: Call, project_id: str, name: Name, body: TemplatePut) -> Reply:
    """
    This is the template's newest version from now on; the earlier ones stay as they are. It is refused when no job could be made from
    it. Writing the same again makes no new version.
    """
    found = templating.put_template(call.session, call.principal, project_id, name, body.document())
    return Reply(TemplateOut.of(found), etag=found.version)


@endpoint(router, "DELETE", TEMPLATE, permission="jobs:delete", status=204, summary="Remove a job template")
def delete_job_template(call: Call, project_id: str, name: Name) -> None:
    """
    It is gone in all its versions. Jobs that came from it keep what they were made of.
    """
    templating.drop_template(call.session, call.principal, project_id, name)


@endpoint(
    router,
    "POST",
    TEMPLATE + "/jobs",
    permission="jobs:create",
    status=202,
    answer=JobOut,
    summary="Submit a job from a template",
    problems=(404,),
    dry_run=True,
)
def create_job_from_template(call: Call, project_id: str, name: Name, body: TemplateJob) -> Reply:
    """
    The template is filled in, checked and queued as any other job is. The job keeps its filled-in `spec`, and in `template` the version
    and the values it came from. A template with an `array` makes none.
    """
    found = templating.get_template(call.session, call.principal, project_id, name, body.version)
    filled = templating.filled(found, body.parameters, body.overrides)
    order = replace(body.job(found, filled).order(), template=filled.origin)
    row = service.create_job(call.session, call.principal, project_id, order)
    call.audit_target = row.id
    call.nudge("job", row.id)
    return Reply(JobOut.of(row), headers={"Location": f"/v1/projects/{project_id}/jobs/{row.id}"}, etag=row.version)


@endpoint(
    router,
    "POST",
    TEMPLATE + "/job-arrays",
    permission="jobs:create",
    status=202,
    answer=ArrayOut,
    summary="Submit an array of jobs from a template",
    problems=(404,),
    dry_run=True,
)
def create_job_array_from_template(call: Call, project_id: str, name: Name, body: TemplateArray) -> Reply:
    """
    The template is filled in, checked, and queued as any other array is: its own range, or the one that is sent. The array and its tasks
    keep in `template` the version and the values they came from.
    """
    found = templating.get_template(call.session, call.principal, project_id, name, body.version)
    filled = templating.filled(found, body.parameters, body.overrides)
    wanted = body.tasks(found, filled)
    order = replace(wanted.order(), template=filled.origin)
    one = arraying.create_array(call.session, call.principal, project_id, order, wanted.array.wanted())
    call.audit_target = one.row.id
    return Reply(ArrayOut.of(one), headers={"Location": f"/v1/projects/{project_id}/job-arrays/{one.row.id}"})
