"""
`nvidia-smi -q` as text: sections by indentation, one per GPU.

Source: `man nvidia-smi`, GPU ATTRIBUTES.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.measurements.reading import UnreadableOutput, short, whole, whole_lines
from controlplane.measurements.smi import TOOL, Path, Places, SmiResult, facts, said

TITLE: Final = "NVSMI LOG"
SECTION = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*")
ENTRY = re.compile(r"( *)(\S.*)")
BROKEN = re.compile(r"Unable to determine|NVIDIA-SMI has failed|No devices were found|Failed to initialize NVML|.*GPU is lost")
BUS: Final = "bus id of the section"
LAST: Final = "Processes"
POWER: Final = "GPU Power Readings"
REMAPPED: Final = "Remapped Rows"
RETIRED: Final = "Retired Pages"
PLACES: Final = Places(
    product=(("Product Name",),),
    serial=(("Serial Number",),),
    uuid=(("GPU UUID",),),
    bus_id=(("PCI", "Bus Id"), (BUS,)),
    persistence=(("Persistence Mode",),),
    memory=(("FB Memory Usage", "Total"),),
    ecc_mode=(("ECC Mode", "Current"), ("Ecc Mode", "Current")),
    volatile=("ECC Errors", "Volatile"),
    aggregate=("ECC Errors", "Aggregate"),
    uncorrected="Uncorrectable",
    double_bit=("Double Bit", "Total"),
    remapped_corrected=((REMAPPED, "Correctable Error"),),
    remapped_uncorrected=((REMAPPED, "Uncorrectable Error"),),
    remap_pending=((REMAPPED, "Pending"),),
    remap_failed=((REMAPPED, "Remapping Failure Occurred"),),
    retired_single=((RETIRED, "Single Bit ECC"),),
    retired_double=((RETIRED, "Double Bit ECC"),),
    retired_pending=((RETIRED, "Pending Page Blacklist"), (RETIRED, "Pending")),
    temperature=(("Temperature", "GPU Current Temp"),),
    power_limit=((POWER, "Current Power Limit"), ("Power Readings", "Enforced Power Limit"), ("Power Readings", "Power Limit")),
    reasons=(("Clocks Event Reasons",), ("Clocks Throttle Reasons",)),
    reason_prefixes=(),
    fabric=(("Fabric", "State"),),
)


def parse_smi_text(text: str) -> SmiResult:
    """
    The GPUs of the node that the text is the whole `nvidia-smi -q` of.

    Raises: UnreadableOutput when it is cut off, lacks a GPU, or when the tool could not reach the driver or a GPU.
    """
    head: dict[Path, str] = {}
    sections: list[dict[Path, str]] = []
    path: list[tuple[int, str]] = []
    lines = whole_lines(TOOL, text)
    for index, line in enumerate(lines):
        if BROKEN.match(line.strip()):
            raise UnreadableOutput(TOOL, short(line), index + 1)
        section, entry = SECTION.fullmatch(line), ENTRY.fullmatch(line)
        if section:
            sections.append({(BUS,): section[1]})
            path = []
        elif entry:
            depth, (name, _, value) = len(entry[1]), entry[2].partition(" : ")
            path = [*(one for one in path if one[0] < depth), (depth, name.strip())]
            place = tuple(one for _, one in path)
            (sections[-1] if sections else head).setdefault(place, value.strip())
    if not any(TITLE in line for line in lines):
        raise UnreadableOutput(TOOL, "it is no full query")
    _refuse_partial(head, sections)
    return SmiResult(
        driver_version=said(head, (("Driver Version",),)),
        cuda_version=said(head, (("CUDA Version",),)),
        gpus=tuple(facts(index, values, PLACES) for index, values in enumerate(sections)),
    )


def _refuse_partial(head: dict[Path, str], sections: list[dict[Path, str]]) -> None:
    attached = whole(head.get(("Attached GPUs",), ""))
    if attached is None or attached != len(sections) or not sections:
        raise UnreadableOutput(TOOL, "it does not show every attached GPU")
    # the processes come after everything that is read here
    if any((LAST,) not in values for values in sections):
        raise UnreadableOutput(TOOL, "it is cut off inside a GPU")
