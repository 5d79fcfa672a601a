"""
The life of an image, and the words of the room.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from controlplane.kit.states import State, StateTable

Arch = Literal["x86_64", "aarch64"]
Format = Literal["raw", "qcow2", "iso", "kernel-bundle"]
Visibility = Literal["tenant", "public"]
LONGEST_CHECK_S = 4 * 3600.0
"""A terabyte at 75 MB/s."""
IMAGE_STATES = StateTable(
    "image",
    (
        State("uploading", "settled", frozenset({"verifying", "deleted"}), says="Waits for the rest of its content."),
        State(
            "verifying",
            "moving",
            frozenset({"ready", "failed", "deleted"}),
            longest_stay_s=LONGEST_CHECK_S,
            says="All of the content is here; its digest is being computed and its format looked at.",
        ),
        State("ready", "settled", frozenset({"deleted"}), says="The content is what was declared."),
        State("failed", "settled", frozenset({"deleted"}), says="The content is not what was declared."),
        State("deleted", "final", says="It is gone; its content goes when nothing reads it any more."),
    ),
)


@dataclass(frozen=True, slots=True)
class NewImage:
    """
    An image as its owner declares it.
    """

    name: str
    """Unique among the owner's images."""
    os_family: str
    """For example `ubuntu`."""
    os_version: str
    """For example `24.04`."""
    arch: Arch
    """Which machines can run it."""
    format: Format
    """What the content is."""
    size_bytes: int
    """Size of the content."""
    sha256: str
    """Digest of the content, 64 lower-case hexadecimal digits."""
    visibility: Visibility = "tenant"
    """Who may use it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free key-value pairs."""


@dataclass(frozen=True, slots=True)
class Changes:
    """
    What is to change; None: stays as it is.
    """

    name: str | None = None
    """The new name."""
    labels: Mapping[str, str] | None = None
    """The new labels, all of them."""
    visibility: Visibility | None = None
    """Who may use it from now on; for operators."""


@dataclass(frozen=True, slots=True)
class ImageFilter:
    """
    Which images a list shows; None: all.
    """

    state: str | None = None
    """Only in this state."""
    visibility: Visibility | None = None
    """Only what these may use."""
    os_family: str | None = None
    """Only of this operating system."""
    arch: Arch | None = None
    """Only for these machines."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Only with all of these."""
    created_after: datetime | None = None
    """Only those made later."""
    tenant_id: str | None = None
    """Only of this tenant; for operators."""
