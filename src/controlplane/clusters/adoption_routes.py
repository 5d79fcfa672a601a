"""
Clusters that exist at providers over HTTP: seen, and taken over.
"""

from fastapi import APIRouter

from controlplane.clusters import adopting, finding
from controlplane.clusters.adoption_schemas import (
    AdoptCluster,
    AdoptedCluster,
    AdoptionPreview,
    FoundClusterOut,
    PageLimit,
    PageToken,
)
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["Clusters"])
FOUND = "/v1/admin/providers/{provider_id}/discovered-clusters"
ONE = FOUND + "/{found_id}"


@endpoint(
    router,
    "GET",
    FOUND,
    permission="clusters:read",
    audience="operator",
    answer=ListOf[FoundClusterOut],
    summary="List the clusters that exist at a provider and are not ours",
    problems=(409,),
)
def list_discovered_clusters(
    call: Call, provider_id: str, limit: PageLimit = 50, page_token: PageToken = None
) -> ListOf[FoundClusterOut]:
    """
    Each with its machines beside our inventory, and with everything that stands in the way of taking it over. Providers are looked at every
    10 minutes; `actions/discover` has it done within seconds.
    """
    page = finding.list_found(call.session, provider_id, PageAsk(limit, page_token)).map(FoundClusterOut.of)
    return ListOf(items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    ONE,
    permission="clusters:read",
    audience="operator",
    answer=FoundClusterOut,
    summary="Show a cluster that exists at a provider",
)
def get_discovered_cluster(call: Call, provider_id: str, found_id: str) -> FoundClusterOut:
    """
    What was seen of it, also when it is gone or ours by now.
    """
    return FoundClusterOut.of(finding.get_found(call.session, provider_id, found_id))


@endpoint(
    router,
    "POST",
    ONE + "/actions/adopt",
    permission="clusters:create",
    audience="operator",
    status=202,
    answer=AdoptedCluster,
    also={200: (AdoptionPreview, "With dry_run: what stands in the way, and what its tenant would hold and pay.")},
    summary="Take over a cluster that exists at a provider",
    dry_run=True,
    problems=(409,),
)
def adopt_cluster(call: Call, provider_id: str, found_id: str, body: AdoptCluster) -> Reply:
    """
    The cluster is the tenant's with the nodes that it runs on: held, charged to quota, and billed from when it has been handed over, never
    for the time before. What runs on it goes on, and no machine is installed anew. From then on it is a cluster like any other, and
    deleting it takes it down. If its provider turns it down, it is left as it was; the operation and `refusal` say why. Until it has been
    handed over, deleting or cancelling lets it go. With `dry_run=true` nothing changes.
    """
    wish = adopting.Wish(body.tenant_id, body.project_id, body.name, body.labels)
    if call.dry_run:
        return Reply(AdoptionPreview.of(adopting.preview(call.session, call.principal, provider_id, found_id, wish, call.sealer)))
    cluster_id, operation_id = adopting.adopt(call.session, call.principal, provider_id, found_id, wish, call.sealer)
    call.audit_target, call.audit_detail = cluster_id, {"found_id": found_id, "tenant_id": body.tenant_id}
    call.nudge("cluster", cluster_id)
    made = AdoptedCluster(cluster_id=cluster_id, operation_id=operation_id)
    return Reply(made, headers={"Location": f"/v1/operations/{operation_id}"})


@endpoint(
    router,
    "POST",
    "/v1/admin/clusters/{cluster_id}/actions/let-go",
    permission="clusters:delete",
    audience="operator",
    status=202,
    answer=AdoptedCluster,
    summary="Give back a cluster that was taken over",
    problems=(409, 412, 428),
)
def let_go_cluster(call: Call, cluster_id: str) -> Reply:
    """
    A cluster that was taken over, and not changed through us since, goes back to whoever had it, as it is: for one that became the wrong
    tenant's, for example. Billing ends with this answer; our marks are removed, what runs on it goes on, and its nodes are in maintenance
    again. Needs If-Match.
    """
    operation_id = adopting.let_go(call.session, call.principal, cluster_id, call.check_version)
    call.audit_target = cluster_id
    call.nudge("cluster", cluster_id)
    made = AdoptedCluster(cluster_id=cluster_id, operation_id=operation_id)
    return Reply(made, headers={"Location": f"/v1/operations/{operation_id}"})
