"""
Clusters that exist at providers on the wire. All of it is for operators.
"""

from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from controlplane.clusters.adopting import Preview
from controlplane.clusters.finding import FoundCluster, FoundHost
from controlplane.web.schemas import Body, Labels, Moment, Money, Name, Out

PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[str | None, Query(max_length=300, description="`next_page_token` of the page before.", examples=[None])]


class AdoptionRemark(Out):
    """
    Something to know before a cluster is taken over.
    """

    code: str = Field(description="Stable.", examples=["host_not_enrolled"])
    message: str = Field(
        description="In words.", examples=["metal-03 is not enrolled: enroll it first, and put it in maintenance."]
    )


class AdoptionRefusal(AdoptionRemark):
    """
    Why the provider turned the last try down.
    """

    at: Moment = Field(description="When.", examples=["2026-03-01T10:00:00Z"])


class FoundHostOut(Out):
    """
    A worker of a cluster that was found, beside our inventory.
    """

    ref: str = Field(description="Its name at the provider.", examples=["metal-03"])
    node_set: str = Field(description="The set of alike workers that it is of.", examples=["workers"])
    role: Literal["worker", "control_plane"] = Field(
        default="worker", description="What it does there; `control_plane` where it comes with the cluster.", examples=["worker"]
    )
    ready: bool = Field(description="Whether it is in use there.", examples=[True])
    node_id: str | None = Field(
        description="Our node of that name; null where none is enrolled.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    node_state: str | None = Field(description="Where that node stands; null without one.", examples=["maintenance"])
    instance_type: str | None = Field(description="What that node is sold as; null without one.", examples=["hgx-h100-8"])
    held_by: str | None = Field(description="The cluster of ours that holds that node; null for none.", examples=[None])

    @classmethod
    def of(cls, one: FoundHost) -> "FoundHostOut":
        """
        As shown.
        """
        node = one.node
        return cls(
            ref=one.ref,
            node_set=one.node_set,
            role="control_plane" if one.leads else "worker",
            ready=one.ready,
            node_id=None if node is None else node.id,
            node_state=None if node is None else node.state,
            instance_type=None if node is None else node.instance_type,
            held_by=None if node is None else node.held_by or None,
        )


class FoundClusterOut(Out):
    """
    A cluster that exists at a provider and is not ours.
    """

    id: str = Field(description="Our id of what was found.", examples=["fcl_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    provider_id: str = Field(description="Where it is.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    ref: str = Field(description="Its name there, which it keeps.", examples=["research-2025"])
    product: str = Field(description="What it would be with us.", examples=["managed_kubernetes"])
    version: str = Field(description="Of Kubernetes; empty: not told.", examples=["1.34.2"])
    hosts: list[FoundHostOut] = Field(description="Its machines, which would be its nodes.")
    adoptable: bool = Field(description="Whether nothing is known that stands in the way.", examples=[True])
    obstacles: list[AdoptionRemark] = Field(description="Everything that stands in the way.")
    notices: list[AdoptionRemark] = Field(description="What changes, or does not, when it is taken over.")
    cluster_id: str | None = Field(description="As what of ours it is being taken over; null for nothing.", examples=[None])
    refusal: AdoptionRefusal | None = Field(description="Why the provider turned the last try down; null for none.")
    first_seen_at: Moment = Field(description="When it was first seen.", examples=["2026-03-01T10:00:00Z"])
    seen_at: Moment = Field(description="When it was last seen.", examples=["2026-03-01T10:10:00Z"])
    gone_at: Moment | None = Field(
        description="Since when it is not there, or not somebody else's, any more; null while it is.", examples=[None]
    )

    @classmethod
    def of(cls, one: FoundCluster) -> "FoundClusterOut":
        """
        As shown.
        """
        row = one.row
        return cls(
            id=row.id,
            provider_id=row.provider_id,
            ref=row.ref,
            product=row.facts["product"],
            version=row.facts["version"],
            hosts=[FoundHostOut.of(each) for each in one.hosts],
            adoptable=not one.obstacles,
            obstacles=[AdoptionRemark(code=each.code, message=each.message) for each in one.obstacles],
            notices=[AdoptionRemark(**each) for each in row.facts["notices"]],
            cluster_id=one.cluster_id or None,
            refusal=None if row.refusal is None else AdoptionRefusal.model_validate(row.refusal),
            first_seen_at=row.first_seen_at,
            seen_at=row.seen_at,
            gone_at=row.gone_at,
        )


class AdoptCluster(Body):
    """
    Whose a cluster becomes.
    """

    tenant_id: str = Field(min_length=1, max_length=63, description="The tenant.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    project_id: str = Field(
        min_length=1, max_length=63, description="One of its projects.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    name: Name = Field(description="What it is called with us.", examples=["research"])
    labels: Labels = Field(default={}, description="Free key-value pairs.", examples=[{"team": "vision"}])


class AdoptedCluster(Out):
    """
    A cluster that is being taken over, or given back.
    """

    cluster_id: str = Field(description="The cluster.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    operation_id: str = Field(description="The operation that follows it to the end.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"])


class AdoptionPreview(Out):
    """
    What taking over would do; nothing was changed.
    """

    adoptable: bool = Field(description="Whether nothing is known that stands in the way.", examples=[True])
    obstacles: list[AdoptionRemark] = Field(description="Everything that stands in the way.")
    notices: list[AdoptionRemark] = Field(description="What changes, or does not.")
    nodes: int = Field(description="Nodes that its tenant would hold.", examples=[4])
    gpus: dict[str, int] = Field(
        description="GPUs by model that its tenant's quota would be charged.", examples=[{"H100-SXM5-80GB": 32}]
    )
    price_per_hour: Money | None = Field(description="What an hour would cost from then on; null where there is no price.")

    @classmethod
    def of(cls, seen: Preview) -> "AdoptionPreview":
        """
        As shown.
        """
        shown = FoundClusterOut.of(seen.found)
        return cls(
            adoptable=shown.adoptable,
            obstacles=shown.obstacles,
            notices=shown.notices,
            nodes=len(shown.hosts),
            gpus=dict(seen.gpus),
            price_per_hour=_money(seen.per_hour),
        )


def _money(price: tuple[Decimal, str] | None) -> Any:
    return None if price is None else Money.of(*price)
