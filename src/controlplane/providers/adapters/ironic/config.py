"""
What an operator says about one Ironic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from controlplane.providers.machines import OwnImage

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500)]
StepInterface = Literal["power", "management", "deploy", "firmware", "bios", "raid", "vendor"]
WELL_KNOWN = {
    ("deploy", "erase_devices"): "disk_wiped",
    ("deploy", "erase_devices_metadata"): "disk_metadata_erased",
    ("deploy", "erase_devices_express"): "disk_metadata_erased",
    ("bios", "factory_reset"): "bios_reset",
}
"""What a step of Ironic's own drivers proves when the operator says nothing. `erase_devices_express` may fall back to metadata."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class KeystoneConfig(_Strict):
    """
    Where tokens come from: by password, or by application credential, whichever the secrets hold.
    """

    url: Url
    """Of the identity API, version included, for example `https://keystone.example.org:5000/v3`."""
    user_domain: str = "Default"
    """The user's domain, by name."""
    project: str = ""
    """Scope of the token by name; empty with an application credential, which has its own."""
    project_domain: str = "Default"
    """The project's domain, by name."""
    system_scope: bool = False
    """True: the token's scope is the whole system instead of a project."""


class ImageConfig(_Strict):
    """
    One operating-system image as Ironic deploys it; empty for deploy interfaces that write nothing.
    """

    image_source: str = ""
    """URL, or Glance id, of the image."""
    image_checksum: str = ""
    """Its MD5, or another digest in the forms Ironic knows."""
    image_os_hash_algo: str = ""
    """Digest algorithm, for example `sha256`."""
    image_os_hash_value: str = ""
    """The digest."""
    image_disk_format: str = ""
    """`raw` or `qcow2`."""
    kernel: str = ""
    """Of a partition image."""
    ramdisk: str = ""
    """Of a partition image."""
    boot_iso: str = ""
    """For the `ramdisk` deploy interface: the node runs from this ISO."""
    ramdisk_image_download_source: str = ""
    """With `boot_iso`: `http` or `local`."""
    capabilities: dict[str, str] = Field(default_factory=dict)
    """Instance capabilities, for example `{"boot_mode": "uefi"}`."""
    deploy_interface: str = ""
    """Set on the node before it is deployed; empty: left as it is."""

    def instance_info(self) -> dict[str, Any]:
        """
        What is written into the node's `instance_info`.
        """
        said = self.model_dump(exclude={"deploy_interface"})
        return {name: value for name, value in said.items() if value}


class OwnImagesConfig(_Strict):
    """
    How images that tenants choose are deployed.
    """

    deploy_interface: str = "direct"
    """Set on the node before it is deployed; empty: left as it is. It must write whole disks, and a config drive beside them."""
    formats: list[Literal["raw", "qcow2"]] = Field(default=["raw"], min_length=1)
    """What it writes. `qcow2` only where Ironic and its agent look into images themselves (2024.2 and later)."""
    capabilities: dict[str, str] = Field(default_factory=dict)
    """As in `images`."""

    def instance_info(self, image: OwnImage) -> dict[str, Any]:
        """
        What is written into the node's `instance_info`; it holds the image's address.
        """
        said = {
            "image_source": image.url,
            "image_type": "whole-disk",
            "image_disk_format": image.format,
            "image_checksum": image.sha256,
            "image_os_hash_algo": "sha256",
            "image_os_hash_value": image.sha256,
        }
        return {**said, "capabilities": dict(self.capabilities)} if self.capabilities else said


class StepConfig(_Strict):
    """
    One clean step.
    """

    interface: StepInterface
    """The driver interface that runs it."""
    step: str = Field(min_length=1, max_length=200)
    """Its name at Ironic."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments."""
    proves: str = Field(default="", max_length=80)
    """The check that its success stands for, for example `disk_wiped`; empty: what is known of the step, or only the step itself."""

    def asked(self) -> dict[str, Any]:
        """
        As it is sent.
        """
        plain: dict[str, Any] = {"interface": self.interface, "step": self.step}
        return {**plain, "args": self.args} if self.args else plain


class WipeConfig(_Strict):
    """
    How a node is wiped between tenants.
    """

    kind: Literal["manual", "automated", "off"] = "off"
    """manual: exactly `steps`; automated: what Ironic is set up to run; off: the pool must be sold to one tenant only."""
    steps: list[StepConfig] = Field(default_factory=list)
    """For manual: in this order. For automated: only what their success proves."""
    disable_ramdisk: bool = False
    """True: steps run without booting the agent; only for steps of the BMC."""

    @model_validator(mode="after")
    def _has_steps(self) -> WipeConfig:
        if self.kind == "manual" and not self.steps:
            raise ValueError("a manual wipe needs steps")
        return self


class QualifyConfig(_Strict):
    """
    Acceptance checks by clean steps; without steps only what Ironic knows is checked.
    """

    steps: list[StepConfig] = Field(default_factory=list)
    """For example burn-in steps of a hardware manager."""
    disable_ramdisk: bool = False
    """As in `wipe`."""


class PositionConfig(_Strict):
    """
    Where each node's place is written: a JSON pointer into the node (`/extra/rack`, `/resource_class`), or a text that holds for all.
    """

    region: str
    """Region of the site."""
    block: str
    """Spine group."""
    leaf: str
    """Where its rails meet."""
    rack: str
    """Which rack."""
    instance_type: str = "/resource_class"
    """As in the catalog."""
    gpus: str = "/properties/gpus"
    """GPUs it should have."""
    nvlink_domain: str = ""
    """The rack-wide NVLink domain; empty, or nothing there: the node is its own."""


class InventoryConfig(_Strict):
    """
    Where facts are read that Ironic's inspection does not name: JSON pointers into the node, as inspection rules write them.
    """

    gpus: str = "/properties/gpus"
    """Number of GPUs."""
    gpu_model: str = "/properties/gpu_model"
    """As in the catalog."""
    serial: str = "/properties/serial"
    """Serial number."""
    uuid: str = "/properties/system_uuid"
    """What the machine's firmware calls it, its SMBIOS system UUID."""
    gpu_devices: dict[str, str] = Field(default_factory=dict)
    """PCI `vendor:product` to catalog model, for example `{"10de:2330": "H100-SXM5-80GB"}`: counted where PCI devices are listed."""


class IronicConfig(_Strict):
    """
    One registered Ironic.
    """

    url: Url
    """Of the API without `/v1`, for example `https://ironic.example.org:6385`."""
    site: str = Field(min_length=1, max_length=80)
    """The site its machines stand in."""
    auth: Literal["none", "http_basic", "keystone"] = "none"
    """How we say who we are."""
    keystone: KeystoneConfig | None = None
    """Needed with `auth: keystone`."""
    ca_file: str | None = None
    """Certificates that sign Ironic's and Keystone's; None: the system's."""
    timeout_s: float = Field(default=15.0, gt=0, le=20)
    """Longest one request may take."""
    max_body_mib: int = Field(default=64, ge=1, le=1024)
    """Larger answers are not read to their end."""
    page_size: int = Field(default=500, ge=1, le=1000)
    """Nodes asked for at a time; Ironic's own `max_limit` may make it less."""
    conductor_group: str | None = None
    """Only nodes of this conductor group are listed; None: of all."""
    owner: str | None = None
    """Only nodes of this owner are listed; None: of all."""
    images: dict[str, ImageConfig] = Field(default_factory=dict)
    """Image name to what Ironic deploys; `default` is what a cluster gets that names none."""
    own_images: OwnImagesConfig | None = None
    """How tenants' images are deployed; None: they are not."""
    wipe: WipeConfig = Field(default_factory=WipeConfig)
    """How nodes are wiped."""
    qualify: QualifyConfig = Field(default_factory=QualifyConfig)
    """How nodes are qualified."""
    inventory: InventoryConfig = Field(default_factory=InventoryConfig)
    """Where GPUs are found."""
    positions: PositionConfig | None = None
    """None: Ironic does not know where its nodes stand."""

    @model_validator(mode="after")
    def _keystone_is_told(self) -> IronicConfig:
        if (self.auth == "keystone") != (self.keystone is not None):
            raise ValueError("keystone must be given with auth: keystone, and only then")
        return self


def proves(steps: list[StepConfig], interface: str, step: str) -> str:
    """
    The check that the step's success stands for; `step:INTERFACE.STEP` for a step that proves nothing but itself.
    """
    for one in steps:
        if (one.interface, one.step) == (interface, step) and one.proves:
            return one.proves
    return WELL_KNOWN.get((interface, step), f"step:{interface}.{step}")


def pointed(document: Mapping[str, Any], where: str) -> Any:
    """
    What stands at the JSON pointer, None for nothing; a text that is no pointer stands for itself. Source: RFC 6901.
    """
    if not where.startswith("/"):
        return where or None
    found: Any = document
    for part in where[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
