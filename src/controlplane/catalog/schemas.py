"""
The catalog on the wire.
"""

from decimal import Decimal
from typing import Annotated

from fastapi import Query
from pydantic import Field, PlainSerializer, StringConstraints

from controlplane.web.schemas import Body, Moment, Name, Out

PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["b3NsMQ"])
]
GpuModelFilter = Annotated[
    str | None,
    Query(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$", description="Only of this GPU.", examples=["H100-SXM5-80GB"]),
]
Kilowatts = Annotated[Decimal, PlainSerializer(float, return_type=float, when_used="json")]
Words = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]


class GpuModelOut(Out):
    """
    Facts about a GPU from its maker's documents.
    """

    name: str = Field(description="Its name here.", examples=["H100-SXM5-80GB"])
    vendor: str = Field(description="Who makes it.", examples=["NVIDIA"])
    memory_gib: int = Field(description="Memory per GPU.", examples=[80])
    memory_bandwidth_gb_s: int = Field(description="Memory bandwidth in 10^9 bytes per second.", examples=[3350])
    tflops: dict[str, float] = Field(
        description="Dense peak by precision in 10^12 operations per second; never with sparsity.",
        examples=[{"bf16": 989.0, "fp8": 1979.0}],
    )
    tdp_w: int = Field(description="Thermal design power in watts.", examples=[700])
    nvlink_generation: int | None = Field(description="NVLink generation; null without NVLink.", examples=[4])
    mig_profiles: list[str] = Field(description="MIG profiles, smallest first.", examples=[["1g.10gb", "7g.80gb"]])
    source: str = Field(
        description="The document the figures come from.", examples=["NVIDIA H100 Tensor Core GPU data sheet (SXM)"]
    )


class InstanceTypeOut(Out):
    """
    A sellable shape.
    """

    name: str = Field(description="Its name here.", examples=["hgx-h100-8"])
    gpu_model: str = Field(description="Which GPU.", examples=["H100-SXM5-80GB"])
    gpus: int = Field(description="GPUs per node.", examples=[8])
    cpus: int = Field(description="Logical CPUs per node.", examples=[224])
    memory_gib: int = Field(description="Main memory per node.", examples=[2048])
    nics: int = Field(description="Fabric ports per node.", examples=[8])
    nic_gbit_s: int = Field(description="Rate of each port in 10^9 bits per second.", examples=[400])
    nvme_gib: int = Field(description="Local storage per node.", examples=[28610])
    power_kw: Kilowatts = Field(description="Planned power per node.", examples=[10.2])
    description: str = Field(description="For people.", examples=["8 H100 on one NVSwitch board."])


class SiteOut(Out):
    """
    A place with machines.
    """

    name: str = Field(description="Its name.", examples=["osl1"])
    region: str = Field(description="The region it belongs to.", examples=["eu-north"])
    description: str = Field(description="For people.", examples=["Oslo, first hall"])


class AdminSiteOut(SiteOut):
    """
    A place with machines, as the operator sees it.
    """

    created_at: Moment = Field(description="When it was entered.", examples=["2026-03-01T10:00:00Z"])


class SiteCreate(Body):
    """
    A new site.
    """

    name: Name = Field(description="Its name; never changes.", examples=["osl1"])
    region: Name = Field(description="The region it belongs to.", examples=["eu-north"])
    description: Words = Field(default="", description="For people.", examples=["Oslo, first hall"])


class SiteUpdate(Body):
    """
    What can be changed about a site.
    """

    region: Name = Field(description="The region it belongs to.", examples=["eu-north"])
    description: Words = Field(default="", description="For people.", examples=["Oslo, first hall"])
