"""
The catalog over HTTP.
"""

from fastapi import APIRouter

from controlplane.catalog import service
from controlplane.catalog.schemas import (
    AdminSiteOut,
    GpuModelFilter,
    GpuModelOut,
    InstanceTypeOut,
    PageLimit,
    PageToken,
    PartsOut,
    PartsPut,
    SiteCreate,
    SiteOut,
    SiteUpdate,
)
from controlplane.kit.errors import NotFound
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["catalog"])
PARTS = "/v1/admin/instance-types/{name}/parts"


@endpoint(
    router,
    "GET",
    "/v1/instance-types",
    permission="catalog:read",
    audience="any",
    answer=ListOf[InstanceTypeOut],
    summary="List the instance types",
)
def list_instance_types(
    call: Call, gpu_model: GpuModelFilter = None, limit: PageLimit = 50, page_token: PageToken = None
) -> ListOf[InstanceTypeOut]:
    """
    The shapes that can be ordered, by name. What they cost is in `/v1/prices`.
    """
    page = service.list_instance_types(call.session, PageAsk(limit, page_token), gpu_model=gpu_model)
    page_out = page.map(InstanceTypeOut.model_validate)
    return ListOf[InstanceTypeOut](items=list(page_out.items), next_page_token=page_out.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/instance-types/{name}",
    permission="catalog:read",
    audience="any",
    answer=InstanceTypeOut,
    summary="Show an instance type",
)
def get_instance_type(call: Call, name: str) -> InstanceTypeOut:
    """
    One shape that can be ordered.
    """
    return InstanceTypeOut.model_validate(service.get_instance_type(call.session, name))


@endpoint(
    router,
    "GET",
    "/v1/gpu-models",
    permission="catalog:read",
    audience="any",
    answer=ListOf[GpuModelOut],
    summary="List the GPU models",
)
def list_gpu_models(call: Call, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[GpuModelOut]:
    """
    Facts about each GPU model with the document they come from. Peaks are dense.
    """
    page = service.list_gpu_models(call.session, PageAsk(limit, page_token)).map(GpuModelOut.model_validate)
    return ListOf[GpuModelOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/sites",
    permission="catalog:read",
    audience="any",
    answer=ListOf[SiteOut],
    summary="List the sites",
)
def list_sites(call: Call, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[SiteOut]:
    """
    The places where clusters can be ordered, by name.
    """
    page = service.list_sites(call.session, PageAsk(limit, page_token)).map(SiteOut.model_validate)
    return ListOf[SiteOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "POST",
    "/v1/admin/sites",
    permission="catalog:write",
    audience="operator",
    status=201,
    answer=AdminSiteOut,
    summary="Add a site",
)
def create_site(call: Call, body: SiteCreate) -> Reply:
    """
    The site is known; nodes can be enrolled in it.
    """
    call.audit_target = body.name
    site = service.create_site(call.session, body.name, body.region, body.description)
    return Reply(AdminSiteOut.model_validate(site), headers={"Location": f"/v1/admin/sites/{site.name}"})


@endpoint(
    router,
    "GET",
    "/v1/admin/sites/{name}",
    permission="catalog:read",
    audience="operator",
    answer=AdminSiteOut,
    summary="Show a site",
)
def get_site(call: Call, name: str) -> AdminSiteOut:
    """
    One site.
    """
    return AdminSiteOut.model_validate(service.get_site(call.session, name))


@endpoint(
    router,
    "PUT",
    "/v1/admin/sites/{name}",
    permission="catalog:write",
    audience="operator",
    answer=AdminSiteOut,
    summary="Change a site",
)
def update_site(call: Call, name: str, body: SiteUpdate) -> AdminSiteOut:
    """
    The site has this region and description; its name never changes.
    """
    call.audit_target = name
    return AdminSiteOut.model_validate(service.update_site(call.session, name, body.region, body.description))


@endpoint(
    router,
    "GET",
    PARTS,
    permission="catalog:read",
    audience="operator",
    answer=PartsOut,
    summary="Show what machines of an instance type must have",
)
def get_instance_type_parts(call: Call, name: str) -> PartsOut:
    """
    What inspection compares machines of the type with: what operators asked for, and the catalog's figures where nobody did.
    """
    parts = service.expected_parts(call.session).get(name)
    if parts is None:
        raise NotFound
    return PartsOut.of(parts)


@endpoint(
    router,
    "PUT",
    PARTS,
    permission="catalog:write",
    audience="operator",
    answer=PartsOut,
    summary="Say what machines of an instance type must have",
)
def put_instance_type_parts(call: Call, name: str, body: PartsPut) -> PartsOut:
    """
    Machines that are inspected from now on must have these, or are kept out; those in use are not touched. What is left out or null falls
    back to the catalog, whose figures only make warnings.
    """
    parts = service.put_parts(call.session, name, body.plain())
    call.audit_target, call.audit_detail = name, body.model_dump(exclude_none=True)
    return PartsOut.of(parts)
