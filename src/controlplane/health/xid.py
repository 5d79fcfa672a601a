"""
Xid errors: what the NVIDIA driver writes into the kernel's log about a GPU, and what we make of each.

Source: NVIDIA, "Xid Errors", chapter "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), for meanings and
immediate actions; NVIDIA, "GPU Memory Error Management", for row remapping and containment. The class is our judgement: what an
application causes by itself is info; what a GPU reset cures keeps new orders away or drains; what needs hands quarantines. An unknown
number blocks new orders until a person looks.
"""

import re
from dataclasses import dataclass

from controlplane.health.classes import HealthClass

LINE = re.compile(r"NVRM: Xid \((?P<device>[^)]{1,60})\): (?P<code>\d{1,5})\b")
UNKNOWN: HealthClass = "block_allocation"


@dataclass(frozen=True, slots=True)
class Xid:
    """
    One kind of error.
    """

    code: int
    """The number in the log."""
    name: str
    """In a few words."""
    health: HealthClass
    """What follows."""
    action: str
    """What a person does."""


_RESTART, _RESET, _COLD, _REPAIR = (
    "Nothing to be done to the machine; the application is started again.",
    "The GPU is reset once work has left it; if it comes back, the board is exchanged.",
    "The machine is powered off and on; if it comes back, the board is exchanged.",
    "The board is exchanged.",
)
TABLE: tuple[Xid, ...] = (
    Xid(8, "GPU stopped processing", "info", _RESTART),
    Xid(11, "invalid push buffer", "info", _RESTART),
    Xid(13, "graphics engine exception", "info", _RESTART),
    Xid(31, "memory page fault", "info", _RESTART),
    Xid(32, "invalid push buffer", "info", _RESTART),
    Xid(38, "driver firmware error", "block_allocation", _RESET),
    Xid(43, "GPU stopped processing", "info", _RESTART),
    Xid(45, "channels removed after an earlier error", "info", _RESTART),
    Xid(46, "GPU stopped processing", "drain", _RESET),
    Xid(48, "double-bit memory error", "drain", _RESET),
    Xid(61, "internal microcontroller warning", "block_allocation", _RESET),
    Xid(62, "internal microcontroller halted", "drain", _RESET),
    Xid(63, "memory row remapped, reset pending", "block_allocation", _RESET),
    Xid(64, "memory row could not be remapped", "quarantine", _REPAIR),
    Xid(66, "illegal access by the driver", "info", _RESTART),
    Xid(68, "video engine exception", "info", _RESTART),
    Xid(69, "graphics engine class error", "info", _RESTART),
    Xid(74, "NVLink error", "drain", _RESET),
    Xid(79, "GPU has fallen off the bus", "quarantine", _COLD),
    Xid(92, "many single-bit memory errors", "info", "Watched; the count is in the GPU's own figures."),
    Xid(94, "contained memory error", "block_allocation", _RESET),
    Xid(95, "uncontained memory error", "drain", _RESET),
    Xid(109, "context switch timed out", "drain", _RESET),
    Xid(110, "security fault", "drain", _RESET),
    Xid(119, "GSP does not answer", "drain", _RESET),
    Xid(120, "GSP failed", "drain", _RESET),
    Xid(121, "chip-to-chip link error", "drain", _RESET),
    Xid(140, "memory error not recovered", "drain", _RESET),
    Xid(143, "GPU could not be initialised", "quarantine", _COLD),
)
BY_CODE = {one.code: one for one in TABLE}


def find_xid(code: int) -> Xid:
    """
    What is known of the number; an unknown one keeps new orders away until a person looks.
    """
    return BY_CODE.get(code) or Xid(code, "unknown Xid", UNKNOWN, "Look the number up in NVIDIA's catalog and decide.")


def read_log(text: str) -> tuple[tuple[str, Xid], ...]:
    """
    Every (device, error) that the kernel's log names, in order, each pair once; lines that are none are passed over.
    """
    found = [(match["device"], find_xid(int(match["code"]))) for match in LINE.finditer(text)]
    return tuple(dict.fromkeys(found))
