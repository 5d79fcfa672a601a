"""
Upgrading a Slurm or a Kubernetes of one's own: which workers, to what, how carefully, and whether the release changes on all hosts.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

from sqlalchemy import update
from sqlalchemy.orm import Session

from controlplane.clusters import joining, managing, repository, upgrading_kubernetes
from controlplane.clusters.checking import check_format
from controlplane.clusters.errors import NotChangeable
from controlplane.clusters.models import ClusterRow, NodeSetRow
from controlplane.clusters.service import CHANGEABLE, ClusterView, announce, enter, view_of
from controlplane.clusters.states import Roll
from controlplane.images import service as images
from controlplane.kit.access import Principal
from controlplane.kit.errors import FieldError, Invalid
from controlplane.kit.operations import NewOperation, start_operation
from controlplane.nodes import service as nodes
from controlplane.rendering.slurm import offer as offers
from controlplane.rendering.slurm.releases import RELEASES, ReleaseName
from controlplane.rendering.slurm.upgrades import upgrade_path
from controlplane.rendering.slurm.words import BadPlan

WORDS = "Workers are installed anew, a few at a time."
VERSION_WORDS = "Control planes are upgraded one after another, then workers a few at a time."
RETURN_LIMIT_S = 1800.0
"""How long a worker that reported itself installed may take to be in use again before a person is asked."""


@dataclass(frozen=True, slots=True)
class Wish:
    """
    An upgrade that is asked for.
    """

    image: str | None = None
    """What is written to their disks; none: the image that the node set has."""
    node_sets: Sequence[str] = ()
    """Names of sets of workers; empty: all."""
    at_once: int = 1
    """Most workers that may be out of use for it."""
    drain_limit_s: float = 14_400.0
    """How long running jobs are waited for."""
    release: ReleaseName | None = None
    """Slurm's release that all hosts have in the end; none: the one they have."""
    version: str | None = None
    """Kubernetes' version that all hosts have in the end; needed there, and nowhere else taken."""


def upgrade_workers(
    session: Session,
    principal: Principal,
    project_id: str,
    cluster_id: str,
    version: Callable[[int], None],
    wish: Wish,
) -> tuple[ClusterView, str]:
    """
    The upgrade is under way; the cluster and its operation's id are returned. Workers that join from now on have the new image.

    With a release the head has it first, then the workers, then the logins; with a version the control planes, then the workers.

    Raises NotFound, NotChangeable where the cluster is none of one's own or not in use, OperationActive, Invalid or NotReady for what
    cannot be used, Invalid for a release or version that is not offered or that cannot follow on the present one.
    """
    principal.check_project(project_id)
    row = repository.get_cluster(session, project_id, cluster_id, lock=True)
    version(row.version)
    if row.peer_id is None and not managing.is_managed(row.kubernetes):  # others have no hosts that follow files
        raise NotChangeable("Only a Slurm or a Kubernetes of one's own is upgraded.", state=row.state)
    if repository.came(row):
        joining.refuse_control_planes("it is not upgraded")
    _check_words(row, wish)
    new = NewOperation("cluster.upgrade", "cluster", row.id, principal.id, row.tenant_id, row.project_id)
    operation_id = start_operation(session, new)
    if row.state not in CHANGEABLE:
        raise NotChangeable(f"A cluster in state {row.state} cannot be upgraded.", state=row.state)
    chosen = _sets(session, row.id, wish.node_sets)
    if wish.image is not None:
        _take_image(session, principal, row, wish.image, chosen)
    if row.kubernetes is not None:
        way = managing if managing.is_managed(row.kubernetes) else upgrading_kubernetes
        install: dict[str, str] | None = way.way_to(session, row, wish.version)
    else:
        install = None if wish.release is None else _install(session, row, wish.release)
    plan = Roll(tuple(one.id for one in chosen), wish.at_once, wish.drain_limit_s, RETURN_LIMIT_S, install=install)
    session.execute(update(ClusterRow).where(ClusterRow.id == row.id).values(upgrade=asdict(plan)))
    before = row.state
    words = WORDS if row.kubernetes is None else VERSION_WORDS
    enter(session, row, "upgrading", words)
    announce(session, row, before, "upgrading", words)
    session.refresh(row)
    return view_of(session, row), operation_id


def _check_words(row: ClusterRow, wish: Wish) -> None:
    """
    Raises Invalid for a wish that is another product's.
    """
    other = {"version": wish.version} if row.kubernetes is None else {"release": wish.release, "image": wish.image}
    product = "Slurm" if row.kubernetes is None else "Kubernetes"
    wrong = [
        FieldError(f"body.{name}", "not_taken", f"A {product} is not upgraded by {name}.")
        for name, value in other.items()
        if value is not None
    ]
    if managing.is_managed(row.kubernetes) and wish.node_sets:
        wrong.append(FieldError("body.node_sets", "not_taken", "A managed Kubernetes is upgraded as a whole."))
    if wrong:
        raise Invalid(wrong[0].message, errors=wrong)


def _install(session: Session, row: ClusterRow, release: ReleaseName) -> dict[str, str] | None:
    """
    How hosts get the release; None where all have it.
    """
    assert row.slurm is not None
    head, oldest = repository.head_release(row.slurm), row.slurm["offer"]["release"]
    if release == head == oldest:
        return None
    if head not in {oldest, release}:
        _refuse("slurm_upgrade_unfinished", f"The head has {head} and others have {oldest}: the upgrade to {head} comes first.")
    if oldest not in RELEASES[release].upgrades_from:
        try:
            way = " and then to ".join(upgrade_path(oldest, release))
        except BadPlan:
            _refuse("slurm_upgrade_impossible", f"No way leads from {oldest} to {release}.")
        _refuse("slurm_upgrade_impossible", f"Slurm {release} does not understand {oldest}: upgrade to {way}.")
    pool = next((one for one in nodes.read_pools(session, [row.site]) if one.id == row.provider_id), None)
    offer = None if pool is None else offers.read_offer(pool.config)
    how = None if offer is None else offer.upgrades.get(release)
    if how is None:
        _refuse("release_not_offered", f"The cluster's provider does not offer the way to Slurm {release}.")
    return {"release": release, "fetch": how.fetch, "install": how.install}


def _refuse(code: str, words: str) -> NoReturn:
    raise Invalid(words, errors=[FieldError("body.release", code, words)])


def _sets(session: Session, cluster_id: str, names: Sequence[str]) -> list[NodeSetRow]:
    workers = {one.name: one for one in repository.sets_of(session, [cluster_id])[cluster_id] if one.role == "worker"}
    wrong = [
        FieldError("body.node_sets", "unknown_node_set", f"The cluster has no workers named {name[:60]}.")
        for name in names
        if name not in workers
    ]
    if wrong:
        raise Invalid(wrong[0].message, errors=wrong)
    return [one for one in workers.values() if not names or one.name in names]


def _take_image(session: Session, principal: Principal, row: ClusterRow, image: str, chosen: Sequence[NodeSetRow]) -> None:
    image_format = images.use_disk_image(session, principal, image, "body.image")
    check_format(session, row, image_format, "body.image")
    pools = nodes.read_pools(session, [row.site])
    if not any(pool.id == row.provider_id and nodes.installs_images(pool, [image_format]) for pool in pools):
        words = "The cluster's provider installs no images."
        raise Invalid(words, errors=[FieldError("body.image", "image_not_taken", words)])
    session.execute(update(NodeSetRow).where(NodeSetRow.id.in_([one.id for one in chosen])).values(image_id=image))
