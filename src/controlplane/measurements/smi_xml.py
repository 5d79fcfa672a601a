"""
`nvidia-smi -q -x` as XML, read without any document type: the one the tool prints is cut out, every other is refused.

Source: `man nvidia-smi`, and the nvsmi_device DTD it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

from controlplane.measurements.reading import UnreadableOutput, refuse_unlikely, whole
from controlplane.measurements.smi import TOOL, Path, Places, SmiResult, facts, said

ROOT: Final = "nvidia_smi_log"
KNOWN_TYPE = re.compile(r'(\s*(?:<\?xml [^<>]{0,100}\?>)?\s*)<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v[0-9]{1,3}\.dtd">')
DECLARATION = re.compile(r"<!(?!--)")
DEEPEST: Final = 20
BUS: Final = "@id"
PLACES: Final = Places(
    product=(("product_name",),),
    serial=(("serial",),),
    uuid=(("uuid",),),
    bus_id=(("pci", "pci_bus_id"), (BUS,)),
    persistence=(("persistence_mode",),),
    memory=(("fb_memory_usage", "total"),),
    ecc_mode=(("ecc_mode", "current_ecc"),),
    volatile=("ecc_errors", "volatile"),
    aggregate=("ecc_errors", "aggregate"),
    uncorrected="uncorrectable",
    double_bit=("double_bit", "total"),
    remapped_corrected=(("remapped_rows", "remapped_row_corr"),),
    remapped_uncorrected=(("remapped_rows", "remapped_row_unc"),),
    remap_pending=(("remapped_rows", "remapped_row_pending"),),
    remap_failed=(("remapped_rows", "remapped_row_failure"),),
    retired_single=(("retired_pages", "multiple_single_bit_retirement", "retired_count"),),
    retired_double=(("retired_pages", "double_bit_retirement", "retired_count"),),
    retired_pending=(("retired_pages", "pending_retirement"), ("retired_pages", "pending_blacklist")),
    temperature=(("temperature", "gpu_temp"),),
    power_limit=(
        ("gpu_power_readings", "current_power_limit"),
        ("power_readings", "enforced_power_limit"),
        ("power_readings", "power_limit"),
    ),
    reasons=(("clocks_event_reasons",), ("clocks_throttle_reasons",)),
    reason_prefixes=("clocks_event_reason_", "clocks_throttle_reason_"),
    fabric=(("fabric", "state"),),
)


def parse_smi_xml(text: str) -> SmiResult:
    """
    The GPUs of the node that the text is the whole `nvidia-smi -q -x` of.

    Raises: UnreadableOutput when it is cut off, lacks a GPU, is of another form, or declares anything.
    """
    refuse_unlikely(TOOL, text)
    plain = KNOWN_TYPE.sub(r"\1", text, count=1) if KNOWN_TYPE.match(text) else text
    if DECLARATION.search(plain):
        raise UnreadableOutput(TOOL, "it declares what the tool never declares")
    try:
        root = ET.fromstring(plain)  # noqa: S314 - without a declaration there are no entities to expand
    except (ET.ParseError, ValueError, LookupError):
        raise UnreadableOutput(TOOL, "it is not one whole XML document") from None
    if root.tag != ROOT:
        raise UnreadableOutput(TOOL, "it is another document")
    head: dict[Path, str] = {(one.tag,): one.text or "" for one in root}
    gpus = [dict(_values(one)) for one in root.findall("gpu")]
    attached = whole(head.get(("attached_gpus",), "").strip())
    if attached is None or attached != len(gpus) or not gpus:
        raise UnreadableOutput(TOOL, "it does not show every attached GPU")
    return SmiResult(
        driver_version=said(head, (("driver_version",),)),
        cuda_version=said(head, (("cuda_version",),)),
        gpus=tuple(facts(index, values, PLACES) for index, values in enumerate(gpus)),
    )


def _values(section: ET.Element) -> Iterator[tuple[Path, str]]:
    """
    Texts of the elements that have no elements, by their place; of repeated ones the first.
    """
    yield (BUS,), section.get("id", "")
    waiting: list[tuple[Path, ET.Element]] = [((one.tag,), one) for one in section]
    while waiting:
        path, element = waiting.pop()
        if len(path) > DEEPEST:
            raise UnreadableOutput(TOOL, "its elements are deeper than any real ones")
        if len(element):
            waiting += [((*path, one.tag), one) for one in element]
        else:
            yield path, element.text or ""
