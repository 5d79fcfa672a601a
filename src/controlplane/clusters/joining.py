"""
A Kubernetes that stood before it was ours: what its new workers boot with, whether there can be any, and what is never done to it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.clusters import repository
from controlplane.clusters.dedicating import SCRIPT_TIMEOUT_S
from controlplane.clusters.dedicating_kubernetes import SOMEWHERE, node_file
from controlplane.clusters.errors import ControlPlanesStay, NoWorkersJoin
from controlplane.kit.errors import Unavailable
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.rendering.kubernetes import offer as offers
from controlplane.rendering.kubernetes.checking import BadPlan, check_plan
from controlplane.rendering.kubernetes.joining import Entry, entry_files, joining_files
from controlplane.rendering.kubernetes.laws import same
from controlplane.rendering.kubernetes.plan import KubernetesPlan
from controlplane.rendering.kubernetes.scripts import worker_script

NEEDED = ("id", "site", "provider_id", "kubernetes")
"""Columns of a cluster on which its workers' files depend."""
STAY_HINT = (
    "Do it from outside, as they were set up; through us add workers and remove old ones, or order a cluster and move there."
)


def facts_of(distribution: str, version: str) -> dict[str, Any]:
    """
    What is kept with the cluster of its Kubernetes.
    """
    return {"distribution": distribution, "version": version, repository.CAME: True}


def make_blueprints(
    session: Session, sealer: Sealer | None, names: Iterable[str], *, tenant_id: str, cluster_id: str
) -> dict[str, str]:
    """
    By node set name: what its new machines will boot with, still empty. Raises Unavailable where there is nothing to seal it with.
    """
    if sealer is None:
        raise Unavailable("This installation has no master key, so it takes no secrets.", code="no_master_key")
    new = boots.NewBlueprint(tenant_id=tenant_id, cluster_id=cluster_id)
    return {name: boots.make_blueprint(session, sealer, new) for name in names}


def check_growth(session: Session, row: Any) -> None:
    """
    Returns where new machines can become workers of the cluster; always for one that we have set up. Raises NoWorkersJoin.
    """
    if not repository.came(row):
        return
    try:
        _plan(session, row)
    except BadPlan as error:
        words = f"A new worker needs what the provider of its machines does not offer: {error.detail}"
        hint = "Offer it in the provider's setting `kubernetes`: the distribution, the version or a way to it, and the shapes."
        raise NoWorkersJoin(words, hint=hint) from None


def refuse_control_planes(what: str) -> NoReturn:
    """
    Raises ControlPlanesStay.
    """
    words = f"This cluster stood before it was ours: {what}, for that needs its authority's key and a program of ours on its hosts."
    raise ControlPlanesStay(words, hint=STAY_HINT)


def renew(session: Session, row: Any) -> None:
    """
    Plain files of new workers are those of the version that the cluster has. Raises BadPlan.
    """
    plan = _plan(session, row)
    files = tuple(node_file(one) for one in joining_files(plan))
    for one in _workers(session, row):
        if one.blueprint_id is not None:
            boots.rewrite_files(session, one.blueprint_id, files)


def let_in(session: Session, sealer: Sealer, row: Any, entry: Entry) -> None:
    """
    New workers join by this from now on. Where they cannot, nothing changes: it is refused when their machines are chosen.
    """
    try:
        plan = _plan(session, row, entry.server)
    except BadPlan:
        return
    script = worker_script(plan)
    for one in _workers(session, row):
        if one.blueprint_id is not None:
            secret = tuple(node_file(each) for each in entry_files(plan, entry, one.instance_type))
            told = boots.Script(script.name, script.content, SCRIPT_TIMEOUT_S)
            boots.reseal(session, sealer, one.blueprint_id, secret, (told,))
    renew(session, row)


def _workers(session: Session, row: Any) -> list[Any]:
    return [one for one in repository.sets_of(session, [row["id"]])[row["id"]] if one.role == "worker"]


def _plan(session: Session, row: Any, endpoint: str = "") -> KubernetesPlan:
    """
    The cluster as far as its workers' files depend on it. Raises BadPlan where its provider offers no such workers.
    """
    columns: Mapping[str, Any] = row if isinstance(row, Mapping) else {name: getattr(row, name) for name in NEEDED}
    facts = columns["kubernetes"]
    distribution, version = facts["distribution"], repository.kubernetes_version(facts)
    pool = next((one for one in nodes.read_pools(session, [columns["site"]]) if one.id == columns["provider_id"]), None)
    offer = None if pool is None else offers.read_offer(pool.config)
    if offer is None or distribution not in offer.versions:
        raise BadPlan(f"versions: nothing is offered for {distribution}", code="growth_not_offered")
    if not same(version, offer.versions[distribution]) and version not in offers.offered_versions(offer, distribution):
        raise BadPlan(f"versions: {version} is not offered for {distribution}", code="growth_not_offered")
    types = {one.instance_type for one in _workers(session, columns)}
    if not types <= set(offer.shapes):
        lacking = ", ".join(sorted(types - set(offer.shapes)))
        raise BadPlan(f"shapes: {lacking} is not offered", code="growth_not_offered")
    plan = offers.plan_of(offer, distribution, columns["id"], types, (SOMEWHERE,), (), version=version, endpoint=endpoint)
    check_plan(plan)
    return plan
