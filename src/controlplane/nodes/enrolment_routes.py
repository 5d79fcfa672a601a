"""
Enrolment from files and from discovery over HTTP.
"""

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.kit.errors import FieldError, Invalid
from controlplane.kit.paging import PageAsk
from controlplane.nodes import discovering, enlisting
from controlplane.nodes.enrolment_schemas import (
    Adopt,
    Adopted,
    CoverageOut,
    DiscoveredOut,
    EnrolmentOut,
    FindingCode,
    MismatchOut,
    TargetOut,
    TargetsPut,
)
from controlplane.nodes.files import Form
from controlplane.nodes.schemas import PageLimit, PageToken
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.files import SentFile
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["nodes"])
FILES = "/v1/admin/enrolments"
FINDINGS = "/v1/admin/enrolment-findings"
MACHINES = "/v1/admin/discovered-machines"
COVERAGE = "/v1/admin/providers/{provider_id}/discovery"
TARGETS = COVERAGE + "/targets"
DISCOVER = "/v1/admin/providers/{provider_id}/actions/discover"
ProviderFilter = Annotated[
    str | None,
    Query(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9_.-]+$", description="Only of this provider.", examples=["prv_01k5x7"]),
]
LARGEST_FILE_BYTES = 8 * 1024 * 1024
MEDIA_TYPES: Mapping[str, Form] = {"text/csv": "csv", "application/yaml": "yaml"}
EXAMPLES = {
    "text/csv": "name,provider,site,block,leaf,rack,instance_type\ngpu-0041,rack7-bmc,osl1,b1,b1-l2,b1-r07,hgx-h100-8\n",
    "application/yaml": (
        "defaults: {provider: rack7-bmc, site: osl1, block: b1, leaf: b1-l2, rack: b1-r07, instance_type: hgx-h100-8}\n"
        "machines:\n- {name: gpu-0041, serial: 0047A, controller_url: 'https://10.0.7.41'}\n"
    ),
}


@endpoint(
    router,
    "POST",
    FILES,
    permission="nodes:write",
    audience="operator",
    status=202,
    answer=EnrolmentOut,
    summary="Enroll the machines of a file",
    dry_run=True,
    takes=EXAMPLES,
)
def enroll_file(call: Call, file: SentFile) -> EnrolmentOut:
    """
    Every machine of the file is known as the file says: new ones are enrolled, known ones changed where they may be. All of it or nothing:
    every line that cannot be used is named at once, and the same file again changes nothing. Up to 8 MiB and 20,000 machines.
    """
    form = MEDIA_TYPES.get(file.media_type)
    if form is None:
        words = f"Send Content-Type: {' or '.join(MEDIA_TYPES)}."
        raise Invalid(words, errors=[FieldError("header.Content-Type", "unsupported_media_type", words)])
    done = enlisting.enroll_file(call.session, file.data, form, call.sealer)
    call.audit_target = FILES
    call.audit_detail = {"created": len(done.created), "changed": len(done.changed), "unchanged": done.unchanged}
    for one in done.created[:1]:  # one call is enough: workers look for all that is due
        call.nudge("node", one.node_id)
    return EnrolmentOut.of(done)


@endpoint(
    router,
    "PUT",
    TARGETS,
    permission="nodes:write",
    audience="operator",
    answer=CoverageOut,
    summary="Name the controllers to look at",
)
def put_discovery_targets(call: Call, provider_id: str, body: TargetsPut) -> CoverageOut:
    """
    These controllers are looked at within seconds and every 10 minutes from then on, with the provider's account, or the node's where the
    machine is enrolled. Those named before and not now are forgotten. Nothing on them is changed.
    """
    ranges = [(ip_network(one.network), one.port) for one in body.ranges]
    found = discovering.put_targets(call.session, provider_id, body.controllers, ranges)
    call.audit_target, call.audit_detail = provider_id, {"targets": found.targets}
    call.nudge("provider", provider_id)
    return CoverageOut.model_validate(found)


@endpoint(
    router,
    "GET",
    TARGETS,
    permission="nodes:read",
    audience="operator",
    answer=ListOf[TargetOut],
    summary="List the controllers that are looked at",
)
def list_discovery_targets(call: Call, provider_id: str, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[TargetOut]:
    """
    Each with when it last answered, and why it did not.
    """
    page = discovering.list_targets(call.session, provider_id, PageAsk(limit, page_token)).map(TargetOut.model_validate)
    return ListOf(items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "POST",
    DISCOVER,
    permission="nodes:write",
    audience="operator",
    status=202,
    answer=CoverageOut,
    summary="Look for a provider's machines now",
)
def discover_machines(call: Call, provider_id: str) -> CoverageOut:
    """
    The provider is asked for its machines within seconds, and so are the controllers that were named for it; ask `GET …/discovery` how far
    it has come.
    """
    call.audit_target = provider_id
    found = discovering.ask_again(call.session, provider_id)
    call.nudge("provider", provider_id)
    return CoverageOut.model_validate(found)


@endpoint(
    router,
    "GET",
    COVERAGE,
    permission="nodes:read",
    audience="operator",
    answer=CoverageOut,
    summary="Show how far discovery has come",
)
def get_discovery_coverage(call: Call, provider_id: str) -> CoverageOut:
    """
    When the provider last told its machines, and how many of its controllers answer.
    """
    return CoverageOut.model_validate(discovering.coverage(call.session, provider_id))


@endpoint(
    router,
    "GET",
    MACHINES,
    permission="nodes:read",
    audience="operator",
    answer=ListOf[DiscoveredOut],
    summary="List the machines that were found",
)
def list_discovered_machines(
    call: Call, provider_id: ProviderFilter = None, limit: PageLimit = 50, page_token: PageToken = None
) -> ListOf[DiscoveredOut]:
    """
    Every machine that a provider or a controller has told of, enrolled or not, those that are gone too.
    """
    page = discovering.list_discovered(call.session, provider_id, PageAsk(limit, page_token)).map(DiscoveredOut.model_validate)
    return ListOf(items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    MACHINES + "/{machine_id}",
    permission="nodes:read",
    audience="operator",
    answer=DiscoveredOut,
    summary="Show a machine that was found",
)
def get_discovered_machine(call: Call, machine_id: str) -> DiscoveredOut:
    """
    What was told of it, and when it was seen.
    """
    return DiscoveredOut.model_validate(discovering.get_discovered(call.session, machine_id))


@endpoint(
    router,
    "POST",
    MACHINES + "/{machine_id}/actions/adopt",
    permission="nodes:write",
    audience="operator",
    status=202,
    answer=Adopted,
    summary="Enroll a machine that was found",
)
def adopt_machine(call: Call, machine_id: str, body: Adopt) -> Reply:
    """
    The machine is a node with the serial number that was seen, and is inspected, checked and wiped before it is available: what is on its
    disks is lost. With `in_use` it is put in maintenance instead, and nothing is done to it.
    """
    node_id = discovering.adopt(call.session, machine_id, body.plain(), call.sealer)
    call.audit_target, call.audit_detail = node_id, {"discovered_id": machine_id}
    call.nudge("node", node_id)
    return Reply(Adopted(node_id=node_id), headers={"Location": f"/v1/admin/nodes/{node_id}"})


@endpoint(
    router,
    "GET",
    FINDINGS,
    permission="nodes:read",
    audience="operator",
    answer=ListOf[MismatchOut],
    summary="List what differs between enrolled and found machines",
)
def list_enrolment_findings(
    call: Call,
    provider_id: ProviderFilter = None,
    code: Annotated[FindingCode | None, Query(description="Only of this code.", examples=["other_serial"])] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[MismatchOut]:
    """
    Computed now from what is enrolled and what was found, by provider and name. What nobody has looked for is `not_looked_for`: it is
    neither there nor missing.
    """
    page = discovering.list_findings(call.session, provider_id, code, PageAsk(limit, page_token)).map(MismatchOut.model_validate)
    return ListOf(items=list(page.items), next_page_token=page.next_page_token)
