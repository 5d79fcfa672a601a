"""
The catalog on the wire.
"""

from decimal import Decimal
from typing import Annotated, Self

from fastapi import Query
from pydantic import Field, PlainSerializer, StringConstraints, model_validator

from controlplane.catalog.states import FirmwareImage, Parts
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


Component = Annotated[str, StringConstraints(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+$")]


ImageUrl = Annotated[
    str,
    StringConstraints(min_length=8, max_length=500, pattern=r"^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?$"),
]
"""No account, query or fragment: the address is shown to operators and told to controllers, and must hold no secret."""
Resource = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^/redfish/v1/[A-Za-z0-9._~/-]+$")]


class FirmwareImagePut(Body):
    """
    Where a wanted version of one component's firmware comes from.
    """

    version: Component = Field(description="As the machine's inventory shows it once it is installed.", examples=["1.13.2"])
    url: ImageUrl = Field(
        description="Where the machine's controller fetches the image; without an account or a query.",
        examples=["https://images.example/bmc-1.13.2.bin"],
    )
    targets: list[Resource] = Field(
        default=[],
        max_length=20,
        description="Resources of the controller that it is for; empty: the controller knows by the image.",
        examples=[["/redfish/v1/UpdateService/FirmwareInventory/BMC"]],
    )


class FirmwareImageOut(Out):
    """
    Where a wanted version of one component's firmware comes from.
    """

    version: str = Field(description="As the machine's inventory shows it once it is installed.", examples=["1.13.2"])
    url: str = Field(description="Where controllers fetch the image.", examples=["https://images.example/bmc-1.13.2.bin"])
    targets: list[str] = Field(description="Resources of the controller that it is for.", examples=[[]])


class PartsPut(Body):
    """
    What every machine of an instance type must have; null: only what follows from the catalog.
    """

    gpu_memory_gib: int | None = Field(default=None, ge=1, le=100_000, description="Memory of each GPU.", examples=[80])
    nics: int | None = Field(default=None, ge=0, le=1024, description="Network ports of at least the rate.", examples=[8])
    nic_gbit_s: int | None = Field(
        default=None, ge=1, le=100_000, description="Rate of each in 10^9 bits per second.", examples=[400]
    )
    drives: int | None = Field(default=None, ge=0, le=1024, description="Drives of at least the size.", examples=[8])
    drive_gib: int | None = Field(default=None, ge=1, le=10**9, description="Size of each in 2^30 bytes.", examples=[3570])
    firmware: dict[Component, Annotated[list[Component], Field(min_length=1, max_length=20)]] = Field(
        default={},
        max_length=100,
        description="Versions that are wanted, by component as the machine's inventory names it.",
        examples=[{"BMC": ["1.13.2"], "BIOS": ["2.1.0", "2.1.1"]}],
        json_schema_extra={"additionalProperties": False},  # names of another form are refused, not passed over
    )
    firmware_images: dict[Component, FirmwareImagePut] = Field(
        default={},
        max_length=100,
        description="Images that `update-firmware` installs, by component; the version must be one of those wanted.",
        examples=[{}],
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="after")
    def _images_are_wanted(self) -> Self:
        for component, image in self.firmware_images.items():
            if image.version not in self.firmware.get(component, ()):
                raise ValueError(f"the image of {component} has a version that is not among those wanted")
        return self

    def plain(self) -> Parts:
        """
        As the service takes it.
        """
        fields = self.model_dump(exclude={"firmware", "firmware_images"})
        images = {name: FirmwareImage(one.version, one.url, tuple(one.targets)) for name, one in self.firmware_images.items()}
        return Parts(**fields, firmware={name: tuple(versions) for name, versions in self.firmware.items()}, images=images)


class PartsOut(Out):
    """
    What inspection compares machines of an instance type with; null: nobody said.
    """

    gpu_memory_gib: int | None = Field(description="Memory of each GPU.", examples=[80])
    nics: int | None = Field(description="Network ports of at least the rate.", examples=[8])
    nic_gbit_s: int | None = Field(description="Rate of each in 10^9 bits per second.", examples=[400])
    drives: int | None = Field(description="Drives of at least the size.", examples=[8])
    drive_gib: int | None = Field(description="Size of each in 2^30 bytes.", examples=[3570])
    firmware: dict[str, list[str]] = Field(description="Wanted versions by component.", examples=[{"BMC": ["1.13.2"]}])
    firmware_images: dict[str, FirmwareImageOut] = Field(description="Images to install, by component.", examples=[{}])
    asked: list[str] = Field(
        description="Which of these an operator asked for: a machine without them is kept out. The others only make warnings.",
        examples=[["drives"]],
    )

    @classmethod
    def of(cls, parts: Parts) -> "PartsOut":
        """
        As shown.
        """
        fields = {name: getattr(parts, name) for name in cls.model_fields if name not in {"firmware", "firmware_images", "asked"}}
        return cls(
            **fields,
            firmware={name: list(one) for name, one in parts.firmware.items()},
            firmware_images={name: FirmwareImageOut.model_validate(one) for name, one in parts.images.items()},
            asked=sorted(parts.asked),
        )
