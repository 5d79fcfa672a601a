"""
What the owner of a bare-metal cluster does with single nodes of it, and what they wrote while they booted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.boots.service import BootView, Console
from controlplane.clusters import repository
from controlplane.clusters.checking import check_format
from controlplane.clusters.errors import NotChangeable
from controlplane.clusters.models import ClusterRow
from controlplane.clusters.service import CHANGEABLE
from controlplane.clusters.states import BARE, COORDINATORS
from controlplane.images import service as images
from controlplane.kit.access import Principal
from controlplane.kit.errors import NotFound
from controlplane.kit.operations import active_on
from controlplane.kit.paging import PageAsk
from controlplane.nodes import service as nodes
from controlplane.nodes.errors import NotOffered

ACTIONS = tuple(nodes.ACTS)
IN_USE = (*CHANGEABLE, "updating")
REINSTALL = "reinstall"
INSTALLS = ("reinstall", "rescue", "unrescue")
JOINED_ONCE = "It was installed by others, or let into its cluster once: replace the instance instead."
KEEPS_JOBS = "What the cluster knows is on the disk of this host; it is restarted instead."
NOT_BARE = "The nodes of a {} cluster are not single machines to their owner."
MOST_BOOTS = 200


@dataclass(frozen=True, slots=True)
class InstanceView:
    """
    One node of a cluster with what stands beside it.
    """

    row: Any
    """Of (AllocationRow, ref, node_state, provider_id, node_health, address)."""
    operation_id: str | None
    """Its active operation, if any."""


@dataclass(frozen=True, slots=True)
class Begun:
    """
    An action that is under way.
    """

    instance: InstanceView
    """On which node."""
    operation_id: str
    """The operation that tells of it."""
    node_id: str
    """For workers."""
    version: int
    """The cluster's."""


@dataclass(frozen=True, slots=True)
class ConsoleView:
    """
    What a node wrote during one boot, and the boots there were.
    """

    boots: tuple[BootView, ...]
    """Of this node for this owner, oldest first; the first ones where there were very many."""
    boot_id: str
    """The boot that is shown."""
    console: Console
    """What it wrote."""


def list_instances(session: Session, principal: Principal, project_id: str, cluster_id: str) -> list[InstanceView]:
    """
    The cluster's nodes with their operations, oldest first. Raises NotFound.
    """
    principal.check_project(project_id)
    repository.get_cluster(session, project_id, cluster_id)
    rows = repository.members_of(session, [cluster_id])[cluster_id]
    active = active_on(session, [row[0].instance_id for row in rows])
    return [InstanceView(row, active.get(row[0].instance_id)) for row in rows]


def act(
    session: Session,
    principal: Principal,
    project_id: str,
    cluster_id: str,
    instance_id: str,
    verb: str,
    version: Callable[[int], None],
    image_id: str | None = None,
) -> Begun:
    """
    The verb is under way, with an image where it installs another. Raises NotFound, NotChangeable where the cluster is not in use,
    OperationActive, NotOffered, WrongState, Invalid or NotReady for an image that cannot be used, and what `version` raises of the
    cluster's version.
    """
    principal.check_project(project_id)
    cluster = repository.get_cluster(session, project_id, cluster_id, lock=True)
    version(cluster.version)
    member = _member(session, cluster, instance_id)
    refusal = _refusal(cluster)
    if refusal:
        error = NotChangeable(refusal, state=cluster.state) if _opens_nodes(cluster) else NotOffered(refusal, allowed=[])
        raise error
    if verb in INSTALLS and repository.came(cluster):
        raise NotOffered(JOINED_ONCE, allowed=[one for one in ACTIONS if one not in INSTALLS])
    if verb == REINSTALL and _is_head(session, cluster, member):
        raise NotOffered(KEEPS_JOBS, allowed=[one for one in ACTIONS if one != REINSTALL])
    if image_id is not None:
        check_format(session, cluster, images.use_disk_image(session, principal, image_id, "query.image"), "query.image")
    begun = nodes.act_on_instance(session, member[0].id, verb, by=principal.id, image_id=image_id)
    if begun is None:
        raise NotFound
    operation_id, node_id = begun
    session.expire_all()
    return Begun(InstanceView(_member(session, cluster, instance_id), operation_id), operation_id, node_id, cluster.version)


def allowed_actions(
    session: Session, principal: Principal, project_id: str, cluster_id: str, instance_id: str
) -> Mapping[str, str]:
    """
    Every verb with the reason why it is not allowed now; an empty reason where it is. Raises NotFound.
    """
    principal.check_project(project_id)
    cluster = repository.get_cluster(session, project_id, cluster_id)
    member = _member(session, cluster, instance_id)
    refusal = _refusal(cluster)
    found = None if refusal else nodes.instance_state(session, member[0].id)
    if found is None:
        return dict.fromkeys(ACTIONS, refusal or nodes.NOT_OURS)
    if repository.came(cluster):
        return {**found.refusals, **dict.fromkeys(INSTALLS, JOINED_ONCE)}
    return {**found.refusals, REINSTALL: KEEPS_JOBS} if _is_head(session, cluster, member) else found.refusals


def read_console(
    session: Session, principal: Principal, project_id: str, cluster_id: str, instance_id: str, boot_id: str | None, after: int
) -> ConsoleView:
    """
    What the node wrote during the boot, or the last one, from the offset on, and the boots that it went through for its present owner.
    Raises NotFound, also for boots that were another owner's or our own.
    """
    principal.check_project(project_id)
    member = _member(session, repository.get_cluster(session, project_id, cluster_id), instance_id)
    shown, console = boots.console_of_allocation(session, member[0].id, boot_id, after)
    return ConsoleView(boots.boots_of_allocation(session, member[0].id, PageAsk(MOST_BOOTS, None)).items, shown, console)


def _member(session: Session, cluster: ClusterRow, instance_id: str) -> Any:
    rows = repository.members_of(session, [cluster.id])[cluster.id]
    found = next((row for row in rows if row[0].instance_id == instance_id), None)
    if found is None:
        raise NotFound
    return found


def _opens_nodes(cluster: ClusterRow) -> bool:
    return cluster.kind == BARE or cluster.peer_id is not None


def _is_head(session: Session, cluster: ClusterRow, member: Any) -> bool:
    heads = {one.id for one in repository.sets_of(session, [cluster.id])[cluster.id] if one.role in COORDINATORS}
    return member[0].node_set_id in heads


def _refusal(cluster: ClusterRow) -> str:
    if not _opens_nodes(cluster):
        return NOT_BARE.format(cluster.kind)
    return "" if cluster.state in IN_USE else f"A cluster in state {cluster.state} is not in use."
