"""
What a content is by its own first bytes, so that a declaration is not taken on trust: a QEMU disk that is written to a disk as it is
starts no machine, and one that names other files makes whoever converts it read them.

Source: QEMU, "Qcow2 image format" (header, incompatible features); VMware, "Virtual Disk Format 5.0"; Microsoft, "[MS-VHDX]" and "Virtual
Hard Disk Image Format Specification"; ECMA-119, 8.4; POSIX.1, "ustar Interchange Format"; RFC 1952; RFC 8878.
"""

import struct
from typing import NamedTuple

HEAD_BYTES = 64 * 1024
"""As much of the beginning as is looked at."""
QCOW = b"QFI\xfb"
KNOWN = (
    ("a QEMU disk (qcow2)", 0, QCOW),
    ("a QEMU disk (qed)", 0, b"QED\0"),
    ("a VMware disk", 0, b"KDMV"),
    ("a VMware disk", 0, b"COWD"),
    ("a VMware disk", 0, b"# Disk DescriptorFile"),
    ("a Hyper-V disk (vhdx)", 0, b"vhdxfile"),
    ("a Hyper-V disk (vhd)", 0, b"conectix"),
    ("a VirtualBox disk", 64, b"\x7f\x10\xda\xbe"),
    ("compressed with gzip", 0, b"\x1f\x8b\x08"),
    ("compressed with xz", 0, b"\xfd7zXZ\0"),
    ("compressed with zstd", 0, b"\x28\xb5\x2f\xfd"),
    ("compressed with bzip2", 0, b"BZh"),
    ("a zip archive", 0, b"PK\x03\x04"),
    ("a tar archive", 257, b"ustar"),
)
"""Forms that no disk begins with: words, place, mark."""
MARKS = {"iso": (32769, b"CD001"), "kernel-bundle": (257, b"ustar")}
DIRTY, COMPRESSION, EXTENDED = 1 << 0, 1 << 3, 1 << 4
BEARABLE = DIRTY | COMPRESSION | EXTENDED
"""Incompatible features of a qcow2 that need nothing besides the file."""
HEADER = struct.Struct(">4sIQIIQI")
WITHOUT_FEATURES, WITH_FEATURES = 2, 3
FEATURES, FEATURES_AT = struct.Struct(">Q"), 72


class _Qcow(NamedTuple):
    magic: bytes
    version: int
    backing_offset: int
    backing_bytes: int
    cluster_bits: int
    size_bytes: int
    cipher: int


def objection(declared: str, head: bytes) -> str:
    """
    Why the content that begins so is not of the declared format, in words; empty where nothing speaks against it.
    """
    if declared == "qcow2":
        return _qcow2(head)
    if declared in MARKS:
        at, mark = MARKS[declared]
        return "" if _stands(head, at, mark) else f"The content is no {declared}."
    found = next((words for words, at, mark in KNOWN if _stands(head, at, mark)), "")
    return f"The content is {found}, not a disk as it is." if found else ""


def _qcow2(head: bytes) -> str:
    if not head.startswith(QCOW) or len(head) < HEADER.size:
        return "The content is no qcow2."
    seen = _Qcow(*HEADER.unpack_from(head))
    if seen.version not in {WITHOUT_FEATURES, WITH_FEATURES}:
        return f"The content is a qcow2 of version {seen.version}; 2 and 3 are taken."
    if seen.backing_offset:
        return "The qcow2 lies on another file, which is not here; convert it to one that stands alone."
    if seen.cipher:
        return "The qcow2 is encrypted; nobody here could open it."
    told = head[FEATURES_AT : FEATURES_AT + FEATURES.size].ljust(FEATURES.size, b"\0")
    (features,) = FEATURES.unpack(told) if seen.version == WITH_FEATURES else (0,)
    return (
        "The qcow2 keeps data in another file, is marked corrupt, or needs what is not known here." if features & ~BEARABLE else ""
    )


def _stands(head: bytes, at: int, mark: bytes) -> bool:
    return head[at : at + len(mark)] == mark
