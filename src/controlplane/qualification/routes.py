"""
Qualification over HTTP, for operators.
"""

from dataclasses import replace
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query

from controlplane.kit.paging import Page, PageAsk
from controlplane.qualification import service
from controlplane.qualification.rule_schemas import (
    BaselineCreate,
    BaselineOut,
    BaselineSet,
    Limits,
    ModelFilter,
    PolicyOut,
    PolicyPut,
    PolicySet,
    TypeFilter,
)
from controlplane.qualification.schemas import (
    KindFilter,
    LeafFilter,
    MeasurementOut,
    MeasurementPost,
    MetricFilter,
    NodeFilter,
    NodeQualificationOut,
    PageLimit,
    PageToken,
    Recording,
    RunFilter,
    SiteFilter,
    StandingOut,
    ToolFilter,
    TrendReport,
    VerdictFilter,
)
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf, Out

T = TypeVar("T", bound=Out)
router = APIRouter(tags=["qualification"])
MEASUREMENTS = "/v1/admin/measurements"
STANDINGS = "/v1/admin/standings"
STANDING = STANDINGS + "/{standing_id}"
BASELINES = "/v1/admin/baselines"
BASELINE = BASELINES + "/{baseline_id}"
POLICIES = "/v1/admin/qualification-policies"
POLICY = POLICIES + "/{instance_type}"
NODES = "/v1/admin/node-qualifications"
READ, WRITE = "qualification:read", "qualification:write"


@endpoint(
    router,
    "POST",
    MEASUREMENTS,
    permission=WRITE,
    audience="operator",
    status=201,
    answer=Recording,
    summary="Record what a tool measured",
)
def record_measurement(call: Call, body: MeasurementPost) -> Recording:
    """
    The output is read, each figure is judged by the baseline in force, and placement follows at once. An output that is cut off, of a
    failed run or of another tool is refused with the line that shows it.
    """
    done = service.record_output(call.session, body.content())
    call.audit_target = done.run_id
    call.audit_detail = {"tool": body.tool, "recorded": done.new, "subject": body.subject.subject().key}
    return Recording.of(done)


@endpoint(
    router,
    "GET",
    MEASUREMENTS,
    permission=READ,
    audience="operator",
    answer=ListOf[MeasurementOut],
    summary="List measurements",
)
def list_measurements(
    call: Call,
    node_id: NodeFilter = None,
    site: SiteFilter = None,
    leaf: LeafFilter = None,
    subject_kind: KindFilter = None,
    metric: MetricFilter = None,
    tool: ToolFilter = None,
    verdict: VerdictFilter = None,
    run_id: RunFilter = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[MeasurementOut]:
    """
    Everything that was ever measured, oldest first, with the verdict of then.
    """
    which = service.MeasurementFilter(node_id, site, leaf, subject_kind, metric, tool, verdict, run_id)
    return _listed(service.list_measurements(call.session, which, PageAsk(limit, page_token)).map(MeasurementOut.of))


@endpoint(
    router,
    "GET",
    MEASUREMENTS + "/{measurement_id}",
    permission=READ,
    audience="operator",
    answer=MeasurementOut,
    summary="Show a measurement",
)
def get_measurement(call: Call, measurement_id: str) -> MeasurementOut:
    """
    One figure as it was measured, and the verdict on it then.
    """
    return MeasurementOut.of(service.get_measurement(call.session, measurement_id))


@endpoint(
    router, "GET", STANDINGS, permission=READ, audience="operator", answer=ListOf[StandingOut], summary="List how figures stand"
)
def list_standings(
    call: Call,
    node_id: NodeFilter = None,
    site: SiteFilter = None,
    leaf: LeafFilter = None,
    subject_kind: KindFilter = None,
    metric: MetricFilter = None,
    tool: ToolFilter = None,
    verdict: VerdictFilter = None,
    drifting: Annotated[bool | None, Query(description="Only those on their way to failing, or only the others.")] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[StandingOut]:
    """
    The latest verdict on every figure of every subject under the baselines in force, and where it is going.
    """
    which = service.MeasurementFilter(node_id, site, leaf, subject_kind, metric, tool, verdict, drifting=drifting)
    return _listed(service.list_standings(call.session, which, PageAsk(limit, page_token)).map(StandingOut.of))


@endpoint(router, "GET", STANDING, permission=READ, audience="operator", answer=StandingOut, summary="Show how a figure stands")
def get_standing(call: Call, standing_id: str) -> StandingOut:
    """
    The latest verdict on one figure of one subject.
    """
    return StandingOut.of(service.get_standing(call.session, standing_id))


@endpoint(
    router, "GET", STANDING + "/trend", permission=READ, audience="operator", answer=TrendReport, summary="Show a figure's trend"
)
def get_standing_trend(call: Call, standing_id: str) -> TrendReport:
    """
    The last values of one figure of one subject, the line through them, and when it crosses the baseline.
    """
    return TrendReport.of(service.get_standing(call.session, standing_id))


@endpoint(
    router,
    "GET",
    STANDING + "/measurements",
    permission=READ,
    audience="operator",
    answer=ListOf[MeasurementOut],
    summary="List the measurements behind a standing",
)
def list_standing_measurements(
    call: Call, standing_id: str, limit: PageLimit = 50, page_token: PageToken = None
) -> ListOf[MeasurementOut]:
    """
    Every measurement of this figure of this subject, in the order in which they were recorded.
    """
    page = service.measurements_of(call.session, standing_id, PageAsk(limit, page_token))
    return _listed(page.map(MeasurementOut.of))


@endpoint(
    router,
    "GET",
    NODES,
    permission=READ,
    audience="operator",
    answer=ListOf[NodeQualificationOut],
    summary="List which nodes may be sold",
)
def list_node_qualifications(
    call: Call,
    below: Annotated[bool | None, Query(description="Only nodes under a baseline, or only the others.")] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[NodeQualificationOut]:
    """
    Nodes as placement sees them as far as measurements go, with the reasons. Nodes of which nothing was recorded are not listed.
    """
    page = service.list_node_qualifications(call.session, PageAsk(limit, page_token), below=below)
    refusals = service.refusals(call.session, [row.node_id for row in page.items])
    return _listed(page.map(lambda row: NodeQualificationOut.of(row, refusals.get(row.node_id))))


@endpoint(
    router,
    "GET",
    NODES + "/{node_id}",
    permission=READ,
    audience="operator",
    answer=NodeQualificationOut,
    summary="Show whether a node may be sold",
)
def get_node_qualification(call: Call, node_id: str) -> NodeQualificationOut:
    """
    The node as placement sees it as far as measurements go, with the reasons.
    """
    row = service.get_node_qualification(call.session, node_id)
    return NodeQualificationOut.of(row, service.refusals(call.session, [node_id]).get(node_id))


@endpoint(
    router,
    "POST",
    BASELINES,
    permission=WRITE,
    audience="operator",
    status=201,
    answer=BaselineSet,
    summary="Set a baseline",
    dry_run=True,
)
def create_baseline(call: Call, body: BaselineCreate) -> Reply:
    """
    The baseline is in force: the latest figures are judged by it, and nodes under it are not placed any more. With `dry_run=true` the
    answer says which nodes would fall out, and nothing changes. A withdrawn baseline goes on under its id.
    """
    done, impact = service.set_baseline(call.session, body.new(call.principal.id))
    call.audit_target = done.id
    return Reply(BaselineSet.done(done, impact), headers={"Location": f"{BASELINES}/{done.id}"}, etag=done.version)


@endpoint(router, "GET", BASELINES, permission=READ, audience="operator", answer=ListOf[BaselineOut], summary="List the baselines")
def list_baselines(
    call: Call,
    gpu_model: ModelFilter = None,
    instance_type: TypeFilter = None,
    subject_kind: KindFilter = None,
    metric: MetricFilter = None,
    withdrawn: Annotated[bool, Query(description="The withdrawn ones instead of those in force.")] = False,  # noqa: FBT002 - a filter
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[BaselineOut]:
    """
    What is good enough now: every baseline in its newest version, oldest first.
    """
    which = service.BaselineFilter(gpu_model, instance_type, subject_kind, metric, withdrawn)
    return _listed(service.list_baselines(call.session, which, PageAsk(limit, page_token)).map(BaselineOut.of))


@endpoint(router, "GET", BASELINE, permission=READ, audience="operator", answer=BaselineOut, summary="Show a baseline")
def get_baseline(call: Call, baseline_id: str) -> Reply:
    """
    The baseline in its newest version.
    """
    one = service.get_baseline(call.session, baseline_id)
    return Reply(BaselineOut.of(one), etag=one.version)


@endpoint(
    router,
    "GET",
    BASELINE + "/versions",
    permission=READ,
    audience="operator",
    answer=ListOf[BaselineOut],
    summary="List a baseline's versions",
)
def list_baseline_versions(
    call: Call, baseline_id: str, limit: PageLimit = 50, page_token: PageToken = None
) -> ListOf[BaselineOut]:
    """
    Every version there ever was, oldest first.
    """
    return _listed(service.list_versions(call.session, baseline_id, PageAsk(limit, page_token)).map(BaselineOut.of))


@endpoint(
    router,
    "PUT",
    BASELINE,
    permission=WRITE,
    audience="operator",
    answer=BaselineSet,
    summary="Change a baseline",
    problems=(409, 412, 428),
    dry_run=True,
)
def update_baseline(call: Call, baseline_id: str, body: Limits) -> Reply:
    """
    A new version is in force for the same figure; older ones stay readable. With `dry_run=true` the answer says which nodes would fall
    out or come back, and nothing changes.
    """
    call.audit_target = baseline_id
    limits = body.model_dump() | {"created_by": call.principal.id}
    done, impact = service.change_baseline(
        call.session, baseline_id, lambda present: replace(present, **limits), call.check_version
    )
    return Reply(BaselineSet.done(done, impact), etag=done.version)


@endpoint(
    router,
    "DELETE",
    BASELINE,
    permission=WRITE,
    audience="operator",
    answer=BaselineSet,
    summary="Withdraw a baseline",
    problems=(409, 412, 428),
    dry_run=True,
)
def delete_baseline(call: Call, baseline_id: str) -> Reply:
    """
    The baseline judges nothing any more; its versions and the verdicts by them stay. With `dry_run=true` nothing changes.
    """
    call.audit_target = baseline_id
    done, impact = service.withdraw_baseline(call.session, baseline_id, call.principal.id, call.check_version)
    return Reply(BaselineSet.done(done, impact), etag=done.version)


@endpoint(router, "GET", POLICIES, permission=READ, audience="operator", answer=ListOf[PolicyOut], summary="List the policies")
def list_qualification_policies(call: Call, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[PolicyOut]:
    """
    The policies that somebody set, by instance type; nodes of other types may be sold although nothing is measured.
    """
    return _listed(service.list_policies(call.session, PageAsk(limit, page_token)).map(PolicyOut.of))


@endpoint(router, "GET", POLICY, permission=READ, audience="operator", answer=PolicyOut, summary="Show a policy")
def get_qualification_policy(call: Call, instance_type: str) -> Reply:
    """
    What must be known of nodes of the type before they may be sold; version 0 where nobody has set anything.
    """
    one = service.get_policy(call.session, instance_type)
    return Reply(PolicyOut.of(one), etag=one.version)


@endpoint(
    router,
    "PUT",
    POLICY,
    permission=WRITE,
    audience="operator",
    answer=PolicySet,
    summary="Set a policy",
    problems=(412, 428),
    dry_run=True,
)
def put_qualification_policy(call: Call, instance_type: str, body: PolicyPut) -> Reply:
    """
    The policy is in force for all nodes of the type. With `dry_run=true` the answer says which nodes would fall out or come back, and
    nothing changes. `If-Match: "0"` sets the first one.
    """
    call.audit_target = instance_type
    new = service.Policy(
        instance_type,
        tuple(body.required),
        body.sell_not_measured,
        body.max_age_s,
        updated_by=call.principal.id,
        burn_in=body.tests(),
    )
    done, impact = service.put_policy(call.session, new, call.check_version)
    return Reply(PolicySet.done(done, impact), etag=done.version)


def _listed(page: Page[T]) -> ListOf[T]:
    return ListOf[T](items=list(page.items), next_page_token=page.next_page_token)
