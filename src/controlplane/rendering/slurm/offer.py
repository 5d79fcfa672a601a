"""
What an operator says about dedicated Slurm clusters on its bare machines: the release in the image, and the sizes of what is sold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controlplane.kit.errors import FieldError
from controlplane.rendering.slurm.checking import check_plan
from controlplane.rendering.slurm.plan import (
    Accounting,
    Confinement,
    Containers,
    GpuGroup,
    Gpus,
    HealthCheck,
    Host,
    Install,
    Rdma,
    Shape,
    SlurmPlan,
    User,
    Worker,
)
from controlplane.rendering.slurm.releases import ReleaseName
from controlplane.rendering.slurm.words import BadPlan

SETTING = "slurm"
"""The key among a provider's settings."""
TENANT = User("tenant", 20_001)
"""Whom jobs of the cluster's owner run as, the same number on every host."""
MOST_ERRORS = 20
MOST_SCRIPT = 8000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GroupOffer(_Strict):
    """
    GPUs of one node that share a socket.
    """

    first: int
    """Minor number of the first device file."""
    count: int
    """GPUs with consecutive numbers."""
    cores: str = ""
    """Cores next to them; empty: not known."""


class GpusOffer(_Strict):
    """
    A node's GPUs.
    """

    model: str
    """The catalog's word."""
    gres_type: str
    """Slurm's type."""
    groups: tuple[GroupOffer, ...] = Field(min_length=1)
    """All GPUs of the node, by socket."""
    device_prefix: str = "/dev/nvidia"
    """Path of a device file up to its number."""


class RdmaOffer(_Strict):
    """
    The network between GPUs.
    """

    kind: Literal["infiniband", "roce"]
    """What the adapters speak."""
    devices: tuple[str, ...] = Field(min_length=1)
    """RDMA devices in rail order."""
    interface: str
    """Network interface for connection set-up."""
    gid_index: int | None = None
    """Of RoCE v2 addresses."""
    traffic_class: int | None = None
    """For lossless RoCE."""
    service_level: int | None = None
    """InfiniBand's."""
    rail_optimised: bool = True
    """Whether each rail has switches of its own."""


class ShapeOffer(_Strict):
    """
    What nodes of one instance type have.
    """

    sockets: int
    """CPU sockets."""
    cores_per_socket: int
    """Cores of one socket."""
    threads_per_core: int
    """Hardware threads of one core."""
    memory_mib: int
    """What the operating system reports as usable."""
    system_memory_mib: int = 0
    """Kept from jobs."""
    gpus: GpusOffer | None = None
    """None for nodes without."""
    rdma: RdmaOffer | None = None
    """None where there is none."""


class ContainersOffer(_Strict):
    """
    Enroot and Pyxis in the image.
    """

    plugin: str = Containers().plugin
    """Where Pyxis is."""
    scratch_dir: str = Containers().scratch_dir
    """Where images are unpacked, on a worker's local disk."""


class UpgradeOffer(_Strict):
    """
    How hosts that keep their disks get a later release: heads and logins. Tenants can read it there, so nothing of it is secret.
    """

    fetch: str = Field(default="", max_length=MOST_SCRIPT)
    """Shell commands that bring what is needed onto the host and change nothing that runs."""
    install: str = Field(min_length=1, max_length=MOST_SCRIPT)
    """Shell commands that put the release's programs in place: as root, with the host's daemons stopped; they may be run again."""


class Offer(_Strict):
    """
    Dedicated Slurm on the machines of one provider.
    """

    release: ReleaseName
    """What the image has installed."""
    shapes: dict[str, ShapeOffer] = Field(min_length=1)
    """By instance type: what workers may be."""
    confinement: Confinement = "cgroup/v2"
    """By which jobs are held to what they asked for."""
    accounting: bool = False
    """Whether the image has slurmdbd and MariaDB."""
    containers: ContainersOffer | None = None
    """Where the image has Enroot and Pyxis."""
    made_up_sizes: bool = False
    """Whether sizes win over what slurmd finds, as on test hosts."""
    scheduler: tuple[str, ...] = SlurmPlan.scheduler
    """SchedulerParameters."""
    upgrades: dict[ReleaseName, UpgradeOffer] = Field(default_factory=dict)
    """By release: how running clusters get it."""

    def shape(self, instance_type: str) -> Shape:
        """
        The shape of this instance type. Raises KeyError where it is not offered.
        """
        told = self.shapes[instance_type].model_dump()
        gpus, rdma = told.pop("gpus"), told.pop("rdma")
        if gpus is not None:
            gpus = Gpus(**{**gpus, "groups": tuple(GpuGroup(**group) for group in gpus["groups"])})
        return Shape(name=instance_type, gpus=gpus, rdma=None if rdma is None else Rdma(**rdma), **told)


def read_offer(settings: Mapping[str, Any]) -> Offer | None:
    """
    The offer among a provider's settings; None where there is none. Raises BadPlan naming every part that is wrong.
    """
    told = settings.get(SETTING)
    if told is None:
        return None
    try:
        offer = Offer.model_validate(told)
    except ValidationError as error:
        wrong = [
            FieldError(".".join((SETTING, *(str(part) for part in one["loc"]))), "invalid_value", one["msg"])
            for one in error.errors(include_url=False, include_input=False, include_context=False)[:MOST_ERRORS]
        ]
        raise BadPlan(f"{wrong[0].field}: {wrong[0].message}", errors=wrong) from None
    name = next(iter(offer.shapes))
    check_plan(
        plan_of(
            offer, "clu_offer", offer.shapes, (Host("head", "192.0.2.1"),), (Worker("worker", "192.0.2.2", name),), containers=True
        )
    )
    return offer


def plan_of(
    offer: Offer,
    cluster: str,
    instance_types: Iterable[str],
    heads: tuple[Host, ...],
    workers: tuple[Worker, ...],
    logins: tuple[Host, ...] = (),
    *,
    accounting: bool = False,
    containers: bool = False,
    install: Install | None = None,
) -> SlurmPlan:
    """
    The cluster of these hosts by the offer; parts that it does not have are left out. Raises KeyError for a type that is not offered.
    """
    kit = offer.containers if containers else None
    return SlurmPlan(
        cluster=cluster,
        release=offer.release,
        heads=heads,
        workers=workers,
        logins=logins,
        shapes=tuple(offer.shape(one) for one in sorted(set(instance_types))),
        users=(TENANT,),
        confinement=offer.confinement,
        accounting=Accounting(account="tenant") if accounting and offer.accounting else None,
        containers=None if kit is None else Containers(kit.plugin, kit.scratch_dir),
        health=HealthCheck(),
        made_up_sizes=offer.made_up_sizes,
        scheduler=offer.scheduler,
        sends_output=True,
        install=install,
    )
