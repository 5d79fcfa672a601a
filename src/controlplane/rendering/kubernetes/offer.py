"""
What an operator says about dedicated Kubernetes clusters on its bare machines: what the images have, and what is sold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controlplane.kit.errors import FieldError
from controlplane.rendering.kubernetes.checking import BadPlan, check_plan, check_version, cluster_name
from controlplane.rendering.kubernetes.laws import parts_of
from controlplane.rendering.kubernetes.plan import (
    Addons,
    Ahead,
    Chart,
    Distribution,
    Host,
    KubernetesPlan,
    Networks,
    Programs,
    Shape,
    Worker,
)
from controlplane.rendering.slurm.words import Findings

SETTING = "kubernetes"
"""The key among a provider's settings."""
MOST_ERRORS = 20


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ShapeOffer(_Strict):
    """
    What nodes of one instance type have.
    """

    gpus: int = 0
    """GPUs of one node."""
    gpu_model: str = ""
    """The catalog's word."""
    rdma_interfaces: tuple[str, ...] = ()
    """Network interfaces of the compute fabric."""


class NetworksOffer(_Strict):
    """
    Addresses inside clusters: the same in all of them, none in use between the machines.
    """

    pods: str = Networks().pods
    """Each node takes a /24 of it."""
    services: str = Networks().services
    """Of Services."""
    domain: str = Networks().domain
    """Below which Services have names."""


class ChartOffer(_Strict):
    """
    A Helm chart and where the hosts find it.
    """

    source: str
    """An archive in the image, or an `oci://` address."""
    version: str
    """Exactly this one."""


class UpgradeOffer(_Strict):
    """
    Which versions hosts can be brought to, and how.
    """

    versions: tuple[str, ...] = Field(min_length=1)
    """Of Kubernetes; the one that the image has is among them by itself."""
    fetch: str = ""
    """Commands that bring VERSION while all runs; may be empty."""
    install: str
    """Commands that put the programs named in PROGRAMS in place, and restart nothing."""


class Offer(_Strict):
    """
    Dedicated Kubernetes on the machines of one provider.
    """

    versions: dict[Distribution, str] = Field(min_length=1)
    """By distribution: the Kubernetes that the image has installed for it."""
    shapes: dict[str, ShapeOffer] = Field(min_length=1)
    """By instance type: what workers may be."""
    networks: NetworksOffer = NetworksOffer()
    """Addresses inside."""
    charts: dict[str, ChartOffer] = Field(default_factory=dict)
    """By name: what is installed beside our own add-ons or instead of them."""
    registry: str = ""
    """Mirror that all container images come from; empty: from their origin."""
    has_images: bool = False
    """Whether the hosts' image holds all container images."""
    upgrades: dict[Distribution, UpgradeOffer] = Field(default_factory=dict)
    """By distribution: how a host gets another version than its image has."""


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
    found = Findings(BadPlan)
    for one in offer.upgrades.values():
        for version in one.versions:
            check_version(found, version, "upgrades.versions")
    found.settle()
    for distribution in offer.versions:
        check_plan(plan_of(offer, distribution, "clu_offer", offer.shapes, (Host("head", "192.0.2.1"),), ()))
    return offer


def offered_versions(offer: Offer, distribution: Distribution) -> tuple[str, ...]:
    """
    What clusters of this distribution can be upgraded to, oldest first; none where hosts get no programs.
    """
    how = offer.upgrades.get(distribution)
    if how is None:
        return ()
    return tuple(sorted({*how.versions, *filter(None, [offer.versions.get(distribution)])}, key=parts_of))


def plan_of(
    offer: Offer,
    distribution: Distribution,
    cluster_id: str,
    instance_types: Iterable[str],
    control_planes: tuple[Host, ...],
    workers: tuple[Worker, ...],
    *,
    version: str = "",
    programs: Programs | None = None,
    ahead: tuple[Ahead, ...] = (),
    endpoint: str = "",
) -> KubernetesPlan:
    """
    The cluster of these hosts by the offer, of its version where no other is given. Raises KeyError for a distribution or an instance type
    that is not offered.
    """
    how = offer.upgrades.get(distribution)
    if programs is None and how is not None:
        programs = Programs(how.fetch, how.install)
    shapes = tuple(Shape(name, **offer.shapes[name].model_dump()) for name in sorted(set(instance_types)))
    return KubernetesPlan(
        cluster=cluster_name(cluster_id),
        distribution=distribution,
        version=version or offer.versions[distribution],
        control_planes=control_planes,
        workers=workers,
        shapes=shapes,
        networks=Networks(**offer.networks.model_dump()),
        addons=Addons(charts={name: Chart(one.source, one.version) for name, one in sorted(offer.charts.items())}),
        registry=offer.registry,
        has_images=offer.has_images,
        programs=programs,
        ahead=ahead,
        endpoint=endpoint,
    )
