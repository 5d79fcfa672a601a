"""
Services over HTTP.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from controlplane.kit.paging import PageAsk
from controlplane.services import planning, service
from controlplane.services.schemas import RollbackPost, ScalePost, ServiceCreate, ServicePatch, Template
from controlplane.services.states import ServiceFilter
from controlplane.services.wire import ServiceAction, ServiceActions, ServiceOut, TailOut, VersionOut
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.filters import label_filter
from controlplane.web.schemas import GivenMoment, ListOf

router = APIRouter(tags=["services"])
SERVICES = "/v1/projects/{project_id}/services"
SERVICE = SERVICES + "/{service_id}"
READ, CREATE, UPDATE, DELETE, LOGS = (f"services:{verb}" for verb in ("read", "create", "update", "delete", "logs"))
Limit = Annotated[int, Query(ge=1, le=200, description="Items on a page.")]
Token = Annotated[str | None, Query(max_length=200, description="`next_page_token` of the page before.")]


@endpoint(
    router,
    "POST",
    SERVICES,
    permission=CREATE,
    status=202,
    answer=ServiceOut,
    summary="Start a service",
    problems=(404,),
    dry_run=True,
)
def create_service(call: Call, project_id: str, body: ServiceCreate) -> Reply:
    """
    Replicas are brought up on the cluster, as soon as it runs, and kept up. With an `engine`, command, GPUs and parallelism are found
    from the model and the cluster's nodes; `dry_run=true` answers them with the arithmetic and starts nothing.
    """
    spec = body.spec
    template, proposal = _template(call, project_id, spec.cluster_id, spec.template)
    order = service.ServiceOrder(
        name=body.name,
        labels=body.labels,
        cluster_id=spec.cluster_id,
        replicas=spec.replicas,
        scaling=None if spec.autoscaling is None else spec.autoscaling.model_dump(),
        rollout=spec.rollout.settled(template),
        template=template,
        proposal=proposal,
    )
    return _accepted(call, service.create_service(call.session, call.principal, project_id, order))


def _template(call: Call, project_id: str, cluster_id: str, given: Template) -> tuple[dict[str, Any], dict[str, Any] | None]:
    document, wish = given.document(), given.wish()
    if wish is None:
        return document, None
    home = service.home_of(call.session, call.principal, project_id, cluster_id)
    return planning.engine_template(call.session, home, document, wish)


@endpoint(router, "GET", SERVICES, permission=READ, answer=ListOf[ServiceOut], summary="List services", works_suspended=True)
def list_services(
    call: Call,
    project_id: str,
    limit: Limit = 50,
    page_token: Token = None,
    state: Annotated[str | None, Query(max_length=20, description="Only services in this state.", examples=["running"])] = None,
    cluster_id: Annotated[str | None, Query(max_length=64, description="Only services on this cluster.")] = None,
    label: Annotated[
        list[str] | None,
        Query(max_length=8, description="Only services with this label, as `key:value`.", examples=[["team:vision"]]),
    ] = None,
    created_after: Annotated[GivenMoment | None, Query(description="Only services created later.")] = None,
) -> ListOf[ServiceOut]:
    """
    The project's services, oldest first. Deleted ones are shown only with `state=deleted`.
    """
    wanted = ServiceFilter(state, cluster_id, label_filter(label), created_after)
    page = service.list_services(call.session, call.principal, project_id, wanted, PageAsk(limit, page_token)).map(ServiceOut.of)
    return ListOf[ServiceOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(router, "GET", SERVICE, permission=READ, answer=ServiceOut, summary="Read a service", works_suspended=True)
def get_service(call: Call, project_id: str, service_id: str) -> Reply:
    """
    The service as it stands: its replicas, what keeps those that are not ready, and its version.
    """
    view = service.get_service(call.session, call.principal, project_id, service_id)
    return Reply(ServiceOut.of(view), etag=view.row.version)


@endpoint(
    router,
    "PATCH",
    SERVICE,
    permission=UPDATE,
    status=202,
    answer=ServiceOut,
    summary="Change a service",
    problems=(409, 412, 428),
)
def update_service(call: Call, project_id: str, service_id: str, body: ServicePatch) -> Reply:
    """
    A changed template is rolled out as a new version; replicas, autoscaling and rollout change without one. Needs If-Match.
    """
    spec = body.spec
    if spec is None or not spec.model_fields_set:
        change = service.Change(labels=body.labels)
        return _accepted(
            call, service.change_service(call.session, call.principal, project_id, service_id, call.check_version, change)
        )
    view = service.get_service(call.session, call.principal, project_id, service_id)
    made = None if spec.template is None else _template(call, project_id, view.row.cluster_id, spec.template)
    template, proposal = made or (None, None)
    change = service.Change(
        labels=body.labels,
        template=template,
        proposal=proposal,
        replicas=spec.replicas,
        scaling=None if spec.autoscaling is None else spec.autoscaling.model_dump(),
        fixed="autoscaling" in spec.model_fields_set and spec.autoscaling is None,
        rollout=None if spec.rollout is None else spec.rollout.settled(template or view.version.template),
    )
    return _accepted(call, service.change_service(call.session, call.principal, project_id, service_id, call.check_version, change))


@endpoint(
    router,
    "DELETE",
    SERVICE,
    permission=DELETE,
    status=202,
    answer=ServiceOut,
    summary="Delete a service",
    problems=(409, 412, 428),
)
def delete_service(call: Call, project_id: str, service_id: str) -> Reply:
    """
    Works in every state. The service is deleted once its cluster was seen without anything of it. Needs If-Match.
    """
    return _accepted(call, service.delete_service(call.session, call.principal, project_id, service_id, call.check_version))


@endpoint(
    router,
    "GET",
    SERVICE + "/actions",
    permission=READ,
    answer=ServiceActions,
    summary="What can be done with a service",
    works_suspended=True,
)
def list_service_actions(call: Call, project_id: str, service_id: str) -> ServiceActions:
    """
    Every verb of the service, and why it is not allowed now when it is not.
    """
    view = service.get_service(call.session, call.principal, project_id, service_id)
    told = service.refusals(view)
    return ServiceActions(items=[ServiceAction(name=verb, allowed=not told[verb], reason=told[verb]) for verb in service.VERBS])


@endpoint(
    router,
    "POST",
    SERVICE + "/actions/rollback",
    permission=UPDATE,
    status=202,
    answer=ServiceOut,
    summary="Go back to an earlier version",
)
def roll_back_service(call: Call, project_id: str, service_id: str, body: RollbackPost) -> Reply:
    """
    A new version that repeats an earlier one is rolled out. A rollout that is under way is given up for it.
    """
    call.audit_detail = {"action": "rollback", "version": body.version}
    return _accepted(call, service.roll_back(call.session, call.principal, project_id, service_id, body.version))


@endpoint(
    router,
    "POST",
    SERVICE + "/actions/scale",
    permission=UPDATE,
    status=202,
    answer=ServiceOut,
    summary="Change the number of replicas",
)
def scale_service(call: Call, project_id: str, service_id: str, body: ScalePost) -> Reply:
    """
    So many replicas are wanted from now on; 409 where a metric decides.
    """
    call.audit_detail = {"action": "scale", "replicas": body.replicas}
    return _accepted(call, service.scale_service(call.session, call.principal, project_id, service_id, body.replicas))


@endpoint(
    router,
    "POST",
    SERVICE + "/actions/suspend",
    permission=UPDATE,
    status=202,
    answer=ServiceOut,
    summary="Give up a service's replicas",
    works_suspended=True,
)
def suspend_service(call: Call, project_id: str, service_id: str) -> Reply:
    """
    All replicas end and their GPUs are free; everything else is kept until the service is resumed.
    """
    call.audit_detail = {"action": "suspend"}
    return _accepted(call, service.suspend_service(call.session, call.principal, project_id, service_id, resume=False))


@endpoint(
    router, "POST", SERVICE + "/actions/resume", permission=UPDATE, status=202, answer=ServiceOut, summary="Take up a service again"
)
def resume_service(call: Call, project_id: str, service_id: str) -> Reply:
    """
    A suspended service gets its replicas again.
    """
    call.audit_detail = {"action": "resume"}
    return _accepted(call, service.suspend_service(call.session, call.principal, project_id, service_id, resume=True))


@endpoint(
    router,
    "GET",
    SERVICE + "/versions",
    permission=READ,
    answer=ListOf[VersionOut],
    summary="List a service's versions",
    works_suspended=True,
)
def list_service_versions(
    call: Call, project_id: str, service_id: str, limit: Limit = 50, page_token: Token = None
) -> ListOf[VersionOut]:
    """
    All versions there were, oldest first, with what came of each.
    """
    view = service.get_service(call.session, call.principal, project_id, service_id)
    page = service.list_versions(call.session, view.row, PageAsk(limit, page_token)).map(VersionOut.of)
    return ListOf[VersionOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(router, "GET", SERVICE + "/logs", permission=LOGS, answer=ListOf[TailOut], summary="Read what replicas printed last")
def read_service_logs(
    call: Call,
    project_id: str,
    service_id: str,
    replica: Annotated[str | None, Query(min_length=1, max_length=253, description="Only this replica.")] = None,
) -> ListOf[TailOut]:
    """
    The last 64 KiB of each replica, as of the last look at it; of one that crashes, what it printed before. Replicas that are gone are
    kept for a day.
    """
    view = service.get_service(call.session, call.principal, project_id, service_id)
    tails = service.read_tails(call.session, view.row, replica)
    return ListOf[TailOut](items=[TailOut.of(one) for one in tails], next_page_token=None)


def _accepted(call: Call, view: service.ServiceView) -> Reply:
    row = view.row
    call.audit_target = row.id
    call.nudge("service", row.id)
    where = f"/v1/projects/{row.project_id}/services/{row.id}"
    return Reply(ServiceOut.of(view), headers={"Location": where}, etag=row.version)
