"""
Clusters over HTTP.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.clusters import issuing, planning, scaling, service, upgrading
from controlplane.clusters.adoption_routes import router as adoption
from controlplane.clusters.instance_routes import router as instances
from controlplane.clusters.schemas import (
    ActionsOut,
    ClusterCreate,
    ClusterOut,
    ClusterPatch,
    ClusterPlan,
    KubeconfigCreate,
    KubeconfigOut,
    cluster_out,
)
from controlplane.clusters.states import CLUSTER_STATES, KubernetesOptions, Options
from controlplane.clusters.upgrade_schemas import UpgradeIn, UpgradePlan, upgrade_plan
from controlplane.kit.errors import FieldError, Invalid, Unavailable
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import GivenMoment, ListOf, Money

router = APIRouter(tags=["Clusters"])
router.include_router(instances)
router.include_router(adoption)
BASE = "/v1/projects/{project_id}/clusters"
ONE = BASE + "/{cluster_id}"


def _order(body: ClusterCreate) -> service.Order:
    sets = tuple(
        service.SetOrder(one.name, one.instance_type, one.count, one.role, one.image or body.spec.image)
        for one in body.spec.node_sets
    )
    wanted = body.spec.login
    login = None
    if wanted is not None:
        user_data = wanted.user_data.get_secret_value() if wanted.user_data is not None else ""
        login = service.Login(tuple(wanted.ssh_keys), user_data)
    own = body.spec.slurm
    slurm = None if own is None else Options(accounting=own.accounting, containers=own.containers)
    mine = body.spec.kubernetes
    kubernetes = None if mine is None else KubernetesOptions(mine.distribution, mine.version or "")
    return service.Order(body.name, body.spec.kind, body.spec.site, sets, body.spec.wait, body.labels, login, slurm, kubernetes)


def _accepted(call: Call, view: service.ClusterView, operation_id: str | None) -> Reply:
    call.audit_target = view.row.id
    call.nudge("cluster", view.row.id)
    status = 202 if operation_id else 200
    headers = {"Location": f"/v1/operations/{operation_id}"} if operation_id else {}
    return Reply(cluster_out(view), status, headers, etag=view.row.version)


@endpoint(
    router,
    "POST",
    BASE,
    permission="clusters:create",
    status=202,
    answer=ClusterOut,
    also={200: (ClusterPlan, "With dry_run: what the order would get.")},
    summary="Order a cluster",
    dry_run=True,
)
def create_cluster(call: Call, project_id: str, body: ClusterCreate) -> Reply:
    """
    The order is accepted with its quota taken, and an operation follows it until the cluster runs. Nodes are placed all or nothing in the
    smallest fabric domain that fits. With `spec.wait` the order waits for capacity; without, it is refused with what is missing and what
    would fit. With `dry_run=true` the answer says what the order would get and what an hour would cost, and nothing changes.
    """
    if call.dry_run:
        return Reply(_plan(planning.plan(call.session, call.principal, project_id, _order(body))))
    view, operation_id = service.order_cluster(call.session, call.principal, project_id, _order(body), call.sealer)
    return _accepted(call, view, operation_id)


def _plan(plan: planning.Plan) -> ClusterPlan:
    return ClusterPlan(
        placed=plan.placed,
        domain_kind=plan.domain_kind,
        explanation=plan.explanation,
        missing_nodes=plan.missing_nodes,
        alternative=plan.alternative,
        price_per_hour=Money.of(*plan.per_hour) if plan.per_hour else None,
    )


@endpoint(router, "GET", BASE, permission="clusters:read", answer=ListOf[ClusterOut], summary="List clusters", works_suspended=True)
def list_clusters(
    call: Call,
    project_id: str,
    state: Annotated[str | None, Query(description="Only clusters in this state.", max_length=40)] = None,
    label: Annotated[str | None, Query(description="Only clusters with this label, as key:value.", max_length=400)] = None,
    created_after: Annotated[GivenMoment | None, Query(description="Only clusters ordered after this moment.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most items of a page.")] = 50,
    page_token: Annotated[str | None, Query(description="`next_page_token` of the page before.", max_length=300)] = None,
) -> ListOf[ClusterOut]:
    """
    A page of the project's clusters, oldest first. Deleted clusters are shown only with `state=deleted`.
    """
    which = service.ClusterFilter(_known_state(state), _label(label), created_after)
    page = service.list_clusters(call.session, call.principal, project_id, which, PageAsk(limit, page_token))
    return ListOf[ClusterOut](items=[cluster_out(one) for one in page.items], next_page_token=page.next_page_token)


def _known_state(state: str | None) -> str | None:
    if state is not None and state not in CLUSTER_STATES.by_name:
        known = ", ".join(CLUSTER_STATES.by_name)
        raise Invalid(f"Unknown state; known: {known}.", errors=[FieldError("query.state", "unknown_state", f"One of {known}.")])
    return state


def _label(label: str | None) -> tuple[str, str] | None:
    if label is None:
        return None
    key, colon, value = label.partition(":")
    if not colon or not key:
        raise Invalid("A label is asked for as key:value.", errors=[FieldError("query.label", "invalid_label", "Use key:value.")])
    return key, value


@endpoint(router, "GET", ONE, permission="clusters:read", answer=ClusterOut, summary="Get a cluster", works_suspended=True)
def get_cluster(call: Call, project_id: str, cluster_id: str) -> Reply:
    """
    The cluster as it is now, with its version as ETag.
    """
    view = service.get_cluster(call.session, call.principal, project_id, cluster_id)
    return Reply(cluster_out(view), etag=view.row.version)


@endpoint(
    router,
    "PATCH",
    ONE,
    permission="clusters:update",
    status=202,
    answer=ClusterOut,
    also={200: (ClusterOut, "Nothing but labels changed.")},
    summary="Change a cluster",
    problems=(409, 412, 428),
)
def update_cluster(call: Call, project_id: str, cluster_id: str, body: ClusterPatch) -> Reply:
    """
    Labels are replaced at once. Node sets grow and shrink in an operation: new nodes come near the present ones, all or none; nodes that
    leave are drained first, and jobs on them end by themselves. Needs If-Match.
    """
    counts = {one.name: one.count for one in body.node_sets}
    view, operation_id = scaling.change_cluster(
        call.session,
        call.principal,
        project_id,
        cluster_id,
        call.check_version,
        labels=body.labels,
        counts=counts,
        leaving=body.leaving,
    )
    return _accepted(call, view, operation_id)


@endpoint(
    router,
    "POST",
    ONE + "/actions/upgrade",
    permission="clusters:update",
    status=202,
    answer=ClusterOut,
    also={200: (UpgradePlan, "With dry_run: what the upgrade would do.")},
    summary="Upgrade a cluster",
    dry_run=True,
    problems=(409, 412, 428),
)
def upgrade_cluster(call: Call, project_id: str, cluster_id: str, body: UpgradeIn) -> Reply:
    """
    For a Slurm of one's own: its workers are installed anew a few at a time, each drained first, and the next follow when they are in use
    again. With a release, the head is brought to it first, in place, while jobs run on without it for a while; logins come last.

    For a Kubernetes of one's own: all hosts are brought to the version in place, API servers one after another, then kubelets beside
    them, then workers, each emptied first as far as disruption budgets allow. What Kubernetes itself refuses is refused: a minor release
    that is skipped, an older version.

    What fails stops it until an operator lets it go on; cancelling the operation stops it between hosts. With `dry_run=true` the answer
    says what would be done, and nothing changes. Needs If-Match.
    """
    wish = upgrading.Wish(
        body.image, tuple(body.node_sets), body.max_unavailable, float(body.drain_timeout_s), body.release, body.version
    )
    view, operation_id = upgrading.upgrade_workers(call.session, call.principal, project_id, cluster_id, call.check_version, wish)
    if call.dry_run:
        return Reply(upgrade_plan(view))
    return _accepted(call, view, operation_id)


@endpoint(
    router,
    "DELETE",
    ONE,
    permission="clusters:delete",
    status=202,
    answer=ClusterOut,
    summary="Delete a cluster",
    problems=(409, 412, 428),
)
def delete_cluster(call: Call, project_id: str, cluster_id: str) -> Reply:
    """
    Deletion is accepted in every state and billing ends with this answer. Jobs are cancelled, nodes are taken back, wiped and verified
    before anybody else gets them. An order under way is cancelled. Needs If-Match.
    """
    view, operation_id = service.delete_cluster(call.session, call.principal, project_id, cluster_id, call.check_version)
    return _accepted(call, view, operation_id)


@endpoint(
    router,
    "GET",
    ONE + "/actions",
    permission="clusters:read",
    answer=ActionsOut,
    summary="What may be done with a cluster",
    works_suspended=True,
)
def get_cluster_actions(call: Call, project_id: str, cluster_id: str) -> ActionsOut:
    """
    Every verb, with the reason why it is not allowed now where it is not.
    """
    view = service.get_cluster(call.session, call.principal, project_id, cluster_id)
    return ActionsOut(actions=service.allowed_actions(view))


@endpoint(
    router,
    "POST",
    ONE + "/kubeconfigs",
    permission="clusters:credentials",
    answer=KubeconfigOut,
    summary="Get a kubeconfig for a cluster",
)
def create_kubeconfig(call: Call, project_id: str, cluster_id: str, body: KubeconfigCreate) -> Reply:
    """
    A kubeconfig for a cluster of the kind kubernetes, with a token that its API server made for this answer: it opens the cluster's own
    namespace with the rights of its role `tenant`, and ends by itself. For a Kubernetes of one's own it holds a certificate with all
    rights in it, which ends by itself too. It is kept nowhere: a repeat with the same Idempotency-Key is
    answered without it. Earlier ones go on until they end, or until the cluster is deleted.
    """
    ask = issuing.allow_kubeconfig(call.session, call.principal, project_id, cluster_id, body.lifetime_s)
    if call.credentials is None:
        raise Unavailable("This installation asks no providers.", code="no_providers")
    call.audit_target, call.audit_detail = cluster_id, {"credential": "kubeconfig", "lifetime_s": body.lifetime_s}

    def finish() -> KubeconfigOut:
        made = call.credentials(ask)
        return KubeconfigOut(cluster_id=cluster_id, kubeconfig=made.text, expires_at=made.expires_at)

    call.finish = finish
    return Reply(KubeconfigOut(cluster_id=cluster_id, kubeconfig=None, expires_at=None))
