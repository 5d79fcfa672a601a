"""
What a content is by its first bytes.
"""

from __future__ import annotations

import struct

import pytest

from controlplane.images.forms import HEAD_BYTES, objection

SECTOR = b"\xfa\x33\xc0".ljust(510, b"\0") + b"\x55\xaa"


def qcow(version: int = 3, *, backing: int = 0, cipher: int = 0, features: int = 0) -> bytes:
    """The head of a QEMU disk."""
    start = struct.pack(">4sIQIIQI", b"QFI\xfb", version, backing, 0, 16, 2**30, cipher)
    return start.ljust(72, b"\0") + (struct.pack(">Q", features) if version > 2 else b"")


def at(place: int, mark: bytes) -> bytes:
    """A mark behind so many other bytes."""
    return bytes(place) + mark


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (qcow(), "a QEMU disk (qcow2)"),
        (qcow(2), "a QEMU disk (qcow2)"),
        (b"QED\0", "a QEMU disk (qed)"),
        (b"KDMV\1\0\0\0", "a VMware disk"),
        (b"# Disk DescriptorFile\nversion=1", "a VMware disk"),
        (b"vhdxfile", "a Hyper-V disk (vhdx)"),
        (b"conectix", "a Hyper-V disk (vhd)"),
        (at(64, b"\x7f\x10\xda\xbe"), "a VirtualBox disk"),
        (b"\x1f\x8b\x08\0", "compressed with gzip"),
        (b"\xfd7zXZ\0", "compressed with xz"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        (b"BZh9", "compressed with bzip2"),
        (b"PK\x03\x04", "a zip archive"),
        (at(257, b"ustar\0"), "a tar archive"),
    ],
)
def test_what_no_disk_begins_with_is_not_raw(head: bytes, words: str) -> None:
    """It is named, so that its owner knows what to convert."""
    assert objection("raw", head) == f"The content is {words}, not a disk as it is."


@pytest.mark.parametrize(
    ("declared", "head"),
    [
        ("raw", SECTOR),
        ("raw", b""),
        ("raw", at(32769, b"CD001")),
        ("qcow2", qcow()),
        ("qcow2", qcow(2)),
        ("qcow2", qcow(features=0b11001)),
        ("iso", at(32769, b"CD001")),
        ("kernel-bundle", at(257, b"ustar  \0")),
    ],
)
def test_what_was_declared_is_taken(declared: str, head: bytes) -> None:
    """Also a disc that starts from a disk, too."""
    assert objection(declared, head[:HEAD_BYTES]) == ""


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (SECTOR, "is no qcow2"),
        (qcow()[:20], "is no qcow2"),
        (qcow(1), "version 1"),
        (qcow(4), "version 4"),
        (qcow(backing=512), "lies on another file"),
        (qcow(2, backing=512), "lies on another file"),
        (qcow(cipher=2), "is encrypted"),
        (qcow(features=1 << 1), "marked corrupt"),
        (qcow(features=1 << 2), "data in another file"),
        (qcow(features=1 << 63), "not known here"),
    ],
)
def test_a_qcow2_that_needs_more_than_itself_is_refused(head: bytes, word: str) -> None:
    """Whoever converts it would read other files, or could not read it."""
    assert word in objection("qcow2", head)


@pytest.mark.parametrize("declared", ["iso", "kernel-bundle"])
def test_a_medium_without_its_mark_is_refused(declared: str) -> None:
    """A disk, or nothing much, is no medium and no archive."""
    assert objection(declared, SECTOR) == objection(declared, b"") == f"The content is no {declared}."
