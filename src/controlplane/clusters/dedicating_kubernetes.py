"""
A tenant's own Kubernetes: what is fixed when it is ordered, and the files of its hosts, which follow from who is a member.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.clusters import repository
from controlplane.clusters.dedicating import SCRIPT_TIMEOUT_S, Founding, Stage, bare_pools
from controlplane.clusters.states import MANAGED, KubernetesOptions, Order, SetOrder
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import NoCapacity
from controlplane.kit.ids import new_id
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.states import host_name
from controlplane.rendering.kubernetes import offer as offers
from controlplane.rendering.kubernetes.checking import LABEL_VALUE, BadPlan
from controlplane.rendering.kubernetes.files import RenderedFile
from controlplane.rendering.kubernetes.keys import ClusterKeys, new_keys
from controlplane.rendering.kubernetes.plan import Ahead, Host, KubernetesPlan, Position, Programs, Standing, Worker
from controlplane.rendering.kubernetes.roles import control_plane_files, control_plane_secrets, worker_files, worker_secrets
from controlplane.rendering.kubernetes.scripts import control_plane_script, worker_script
from controlplane.rendering.kubernetes.settings import adapter_config

ADAPTER = "kubernetes"
CONTROL_PLANE = "control_plane"
SOMEWHERE = Host("somewhere", "192.0.2.1")
"""Stands for the control planes in keys and scripts, which do not depend on who they are."""
STANDING: Mapping[Stage, Standing] = {"members": "stays", "drain": "leaves", "final": "gone"}
"""What becomes of workers that leave."""
MOST_DEPARTED = 8
"""Hosts that were lost while they joined, and are cleared away behind: what came before the latest of them was cleared away long ago."""
PARTING: Mapping[Stage, Standing] = {"members": "gone", "drain": "leaves", "final": "gone"}
"""What becomes of control planes that leave: they are gone before the one in their place is chosen."""


def find_pool(pools: Sequence[Any], tenant_id: str, site: str, worker_types: Collection[str], wanted: KubernetesOptions) -> Any:
    """
    The first provider in the site that makes such clusters of these workers: by itself, or of bare machines; None where none does.
    """
    able = (one for one in pools if one.site == site and not set(one.tenants) - {tenant_id})
    made = next((one for one in able if _makes(one, wanted)), None)
    return made or _bare_pool(pools, tenant_id, site, worker_types, wanted)


def _made_by(pool: Any) -> Mapping[str, str]:
    """
    The Kubernetes clusters that the provider makes by itself, hosts and all: distribution to version.
    """
    found: Mapping[str, str] = pool.capabilities.get("own_kubernetes") or {}
    return found


def _makes(pool: Any, wanted: KubernetesOptions) -> bool:
    version = _made_by(pool).get(wanted.distribution)
    return version is not None and wanted.version in {"", version}


def _bare_pool(pools: Sequence[Any], tenant_id: str, site: str, worker_types: Collection[str], wanted: KubernetesOptions) -> Any:
    assert wanted.distribution != MANAGED
    for pool in bare_pools(pools, tenant_id, site):
        try:
            offer = offers.read_offer(pool.config)
        except BadPlan:
            continue
        version = None if offer is None else offer.versions.get(wanted.distribution)
        if offer is None or version is None or wanted.version not in {"", version}:
            continue
        if set(worker_types) <= set(offer.shapes):
            return pool
    return None


def establish(
    session: Session,
    sealer: Sealer,
    order: Order,
    image_formats: Collection[str],
    *,
    login: tuple[Sequence[str], str],
    tenant_id: str,
    cluster_id: str,
) -> Founding:
    """
    The cluster has authorities and keys of its own, sealed, an API that only it uses, and for each node set what its machines boot with.
    A provider that makes such clusters by itself is left all of that. Raises NoCapacity where nobody offers it.
    """
    wanted = order.kubernetes
    assert wanted is not None
    types = {one.instance_type for one in order.sets if one.role == "worker"}
    pools = [one for one in nodes.read_pools(session, [order.site]) if nodes.installs_images(one, image_formats)]
    pool = find_pool(pools, tenant_id, order.site, types, wanted)
    if pool is None:
        what = f"{wanted.distribution} {wanted.version}".strip()
        words = f"No provider in {order.site} makes Kubernetes clusters of their own by {what} of {' and '.join(sorted(types))}."
        raise NoCapacity(words, code="product_not_available")
    if _makes(pool, wanted):
        return Founding(pool.id, None, {"offer": {"versions": dict(_made_by(pool))}, "distribution": wanted.distribution}, {})
    facts = {"offer": pool.config[offers.SETTING], "distribution": wanted.distribution}
    plan = _plan(facts, cluster_id, types, (SOMEWHERE,), ())
    keys = new_keys(session.execute(select(CpClock())).scalar_one())
    peer_id = new_id("prv")
    nodes.appoint(session, sealer, peer_id, cluster_id=cluster_id, adapter=ADAPTER, site=order.site, secrets=keys.secrets())
    made = {}
    for one in order.sets:
        blueprint = _blueprint(plan, keys, one, login, tenant_id=tenant_id, cluster_id=cluster_id)
        made[one.name] = boots.make_blueprint(session, sealer, blueprint)
    return Founding(pool.id, peer_id, facts, made)


def _blueprint(
    plan: KubernetesPlan, keys: ClusterKeys, one: SetOrder, login: tuple[Sequence[str], str], *, tenant_id: str, cluster_id: str
) -> boots.NewBlueprint:
    leads = one.role == CONTROL_PLANE
    script = control_plane_script(plan) if leads else worker_script(plan)
    secret_files = control_plane_secrets(plan, keys) if leads else worker_secrets(plan, keys, one.instance_type)
    return boots.NewBlueprint(
        tenant_id=tenant_id,
        cluster_id=cluster_id,
        ssh_keys=tuple(login[0]),
        user_data=login[1],
        secret_files=tuple(node_file(file) for file in secret_files),
        scripts=(boots.Script(script.name, script.content, SCRIPT_TIMEOUT_S),),
    )


def _plan(
    facts: Mapping[str, Any],
    cluster_id: str,
    types: Iterable[str],
    leads: tuple[Host, ...],
    workers: tuple[Worker, ...],
    ahead: tuple[Ahead, ...] = (),
) -> KubernetesPlan:
    offer = offers.read_offer({offers.SETTING: facts["offer"]})
    assert offer is not None
    return offers.plan_of(
        offer,
        facts["distribution"],
        cluster_id,
        types,
        leads,
        workers,
        version=repository.kubernetes_version(facts),
        programs=Programs(facts["install"]["fetch"], facts["install"]["install"]) if facts.get("install") else None,
        ahead=ahead,
    )


def renew(session: Session, row: Any, stage: Stage, drain: Sequence[str] = ()) -> None:
    """
    The files of all hosts are those of the present members, running hosts will fetch what changed, and the API is reached where the first
    control plane that stays is. `drain` are allocations that stay and are emptied. The same members again change nothing. Raises BadPlan.
    """
    facts = row["kubernetes"]
    sets = repository.sets_of(session, [row["id"]])[row["id"]]
    roles = {one.id: one.role for one in sets}
    seats = nodes.read_seats(session, row["id"])
    leads = [one for one in seats if roles[one.node_set_id] == CONTROL_PLANE]
    if not leads:
        raise BadPlan("control_planes: a cluster needs one")
    ahead = facts.get("ahead", {})
    plan = _plan(
        facts,
        row["id"],
        {one.instance_type for one in sets if one.role == "worker"},
        tuple(Host(host_name(one.instance_id), one.address or "", _standing(one, PARTING[stage], drain)) for one in leads),
        tuple(_worker(one, _standing(one, STANDING[stage], drain)) for one in seats if roles[one.node_set_id] == "worker"),
        tuple(Ahead(host_name(one.instance_id), facts["install"]["version"], ahead[one.id]) for one in seats if one.id in ahead),
    )
    plan = replace(plan, founded=row["running_at"] is not None, departed=_departed(session, row["id"], roles))
    for one in sets:
        files = control_plane_files(plan) if one.role == CONTROL_PLANE else worker_files(plan, one.instance_type)
        if one.blueprint_id is not None:
            boots.rewrite_files(session, one.blueprint_id, tuple(node_file(file) for file in files))
    nodes.direct(session, row["peer_id"], adapter_config(plan, row["id"], row["tenant_id"]))


def _departed(session: Session, cluster_id: str, roles: Mapping[str, str]) -> tuple[Host, ...]:
    lost = nodes.read_lost(session, cluster_id, MOST_DEPARTED)
    return tuple(
        Host(host_name(one.instance_id), (one.address or "") if roles[one.node_set_id] == CONTROL_PLANE else "", "gone")
        for one in reversed(lost)
    )


def _standing(seat: Any, parting: Standing, drain: Sequence[str]) -> Standing:
    return parting if seat.leaving else "leaves" if seat.id in drain else "stays"


def _worker(seat: Any, standing: Standing) -> Worker:
    position = Position(*(_label(getattr(seat, part)) for part in ("block", "leaf", "rack", "nvlink_domain")))
    return Worker(host_name(seat.instance_id), seat.address or "", seat.instance_type, position, standing)


def _label(text: str) -> str:
    """
    The operator's name of a place as a label can hold it: itself where it can be, else a word that is the same for the same name.
    """
    return text if not text or LABEL_VALUE.fullmatch(text) else f"x{sha256(text.encode()).hexdigest()[:12]}"


def node_file(file: RenderedFile) -> boots.NodeFile:
    """
    The file as hosts fetch it.
    """
    return boots.NodeFile(file.path, file.content, f"{file.mode:04o}", file.owner, file.on_change)
