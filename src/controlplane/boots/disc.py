"""
The same documents as a small ISO 9660 image labelled `cidata`, for machines whose only way in is virtual media. Pure.

Source: ECMA-119 (8.4.26 and 9.1.5 for the places of dates) with Joliet names; cloud-init, "NoCloud", for label and file names.
"""

import gzip
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from io import BytesIO

from pycdlib.pycdlib import PyCdlib

SECTOR = 2048
LABEL = "CIDATA"
FIRST_DESCRIPTOR = 16
LAST_DESCRIPTOR = 255
VOLUMES = frozenset({1, 2})
DATES = slice(813, 813 + 4 * 17)
"""Four dates of 17 bytes in a volume descriptor."""
NEVER = (b"0" * 16 + b"\0") * 4
ROOT = 156
RECORDED = slice(18, 25)
"""The date in a directory record: years since 1900, month, day, hour, minute, second, offset."""
EPOCH = bytes((126, 1, 1, 0, 0, 0, 0))


def burn(documents: Mapping[str, bytes]) -> bytes:
    """
    The image; the same bytes for the same documents, so that it can be read in ranges from several processes.
    """
    image = PyCdlib()
    image.new(interchange_level=1, vol_ident=LABEL, joliet=3)
    for number, (name, content) in enumerate(documents.items()):
        image.add_fp(BytesIO(content), len(content), f"/FILE{number}.;1", joliet_path=f"/{name}")
    out = BytesIO()
    image.write_fp(out)
    image.close()
    made = bytearray(out.getvalue())
    for descriptor in _descriptors(made):
        made[descriptor + DATES.start : descriptor + DATES.stop] = NEVER
        for record in (descriptor + ROOT, *_records(made, descriptor + ROOT)):
            made[record + RECORDED.start : record + RECORDED.stop] = EPOCH
    return bytes(made)


def packed(image: bytes) -> bytes:
    """
    The image as Ironic takes a config drive: gzip in base64; the same bytes for the same image.

    Source: OpenStack Ironic, "Configuration drives".
    """
    return b64encode(gzip.compress(image, mtime=0))


def _descriptors(image: bytearray) -> Iterator[int]:
    at = FIRST_DESCRIPTOR * SECTOR
    while image[at] != LAST_DESCRIPTOR:
        if image[at] in VOLUMES:
            yield at
        at += SECTOR


def _records(image: bytearray, root: int) -> Iterator[int]:
    (extent,) = struct.unpack_from("<I", image, root + 2)
    (size,) = struct.unpack_from("<I", image, root + 10)
    at, end = extent * SECTOR, extent * SECTOR + size
    while at < end and image[at]:
        yield at
        at += image[at]
