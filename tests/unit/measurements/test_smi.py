"""
nvidia-smi -q: the same facts from text and XML, nothing guessed, nothing expanded.
"""

from __future__ import annotations

import pytest

from controlplane.measurements.figures import NODE, Measurement, gpu
from controlplane.measurements.reading import UnreadableOutput
from controlplane.measurements.smi import GpuFacts, SmiResult
from controlplane.measurements.smi_text import parse_smi_text
from controlplane.measurements.smi_xml import parse_smi_xml
from tests.unit.measurements.smi_samples import TEXT, TYPE, XML

NEW = GpuFacts(
    index=0,
    product_name="NVIDIA H100 80GB HBM3",
    serial="1650000000001",
    uuid="GPU-00000000-0000-0000-0000-000000000001",
    pci_bus_id="00000000:19:00.0",
    persistence_mode=True,
    memory_bytes=81559 * 2**20,
    ecc_enabled=True,
    ecc_volatile_uncorrected=6,
    ecc_aggregate_uncorrected=43,
    remapped_rows_corrected=4,
    remapped_rows_uncorrected=5,
    remap_pending=True,
    remap_failed=False,
    retired_pages_single_bit=None,
    retired_pages_double_bit=None,
    retired_pages_pending=None,
    temperature_c=62,
    power_limit_w=700.0,
    clock_reasons=("hw_slowdown", "hw_thermal_slowdown", "sw_power_cap"),
    fabric_state="Completed",
)
OLD = GpuFacts(
    index=1,
    product_name="Tesla V100-SXM2-32GB",
    serial=None,
    uuid="GPU-00000000-0000-0000-0000-000000000002",
    pci_bus_id="00000000:3B:00.0",
    persistence_mode=False,
    memory_bytes=None,
    ecc_enabled=False,
    ecc_volatile_uncorrected=2,
    ecc_aggregate_uncorrected=None,
    remapped_rows_corrected=None,
    remapped_rows_uncorrected=None,
    remap_pending=None,
    remap_failed=None,
    retired_pages_single_bit=6,
    retired_pages_double_bit=1,
    retired_pages_pending=False,
    temperature_c=None,
    power_limit_w=250.0,
    clock_reasons=None,
    fabric_state=None,
)


@pytest.mark.parametrize("result", [parse_smi_text(TEXT), parse_smi_xml(XML)], ids=["text", "xml"])
def test_both_forms_tell_the_same(result: SmiResult) -> None:
    """Every fact of a new GPU and of an old one; what is absent is None."""
    assert result == SmiResult("550.54.14", "12.4", (NEW, OLD))


def test_figures_are_of_gpus() -> None:
    """Numbers and yes or no, and what the GPU did not say is missing."""
    found = parse_smi_text(TEXT).figures()
    assert Measurement("gpus", 2, "count", NODE) in found
    assert Measurement("gpu_memory", 81559 * 2**20, "bytes", gpu(0)) in found
    assert Measurement("gpu_memory", None, "bytes", gpu(1)) in found
    assert Measurement("gpu_remap_pending", 1, "yes", gpu(0)) in found
    assert Measurement("gpu_remap_failed", 0, "yes", gpu(0)) in found
    assert Measurement("gpu_clock_slowdowns", 2, "count", gpu(0)) in found
    assert Measurement("gpu_clock_slowdowns", None, "count", gpu(1)) in found


def test_one_unknown_count_makes_the_sum_unknown() -> None:
    """Three places, one of them silent."""
    text = TEXT.replace("SRAM Uncorrectable Parity     : 1", "SRAM Uncorrectable Parity     : N/A")
    assert parse_smi_text(text).gpus[0].ecc_volatile_uncorrected is None
    xml = XML.replace("<sram_uncorrectable_parity>1<", "<sram_uncorrectable_parity>[Unknown Error]<")
    assert parse_smi_xml(xml).gpus[0].ecc_aggregate_uncorrected is None


def test_one_unreadable_reason_makes_them_unknown() -> None:
    """The clocks may be held back by just that one."""
    text = TEXT.replace("HW Power Brake Slowdown       : Not Active", "HW Power Brake Slowdown       : N/A")
    assert parse_smi_text(text).gpus[0].clock_reasons is None


@pytest.mark.parametrize(
    "odd", ["62", "62 F", "hot C", "[GPU requires reset]", "9999 C", "Requested functionality has been deprecated"]
)
def test_words_that_are_no_figure_are_none(odd: str) -> None:
    """Without the unit, with another, or with a remark instead."""
    assert parse_smi_text(TEXT.replace("62 C", odd)).gpus[0].temperature_c is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "has failed"),
        ("No devices were found\n", "No devices"),
        (
            TEXT.replace("\nGPU 00000000:3B", "\nUnable to determine the device handle for GPU1: Unknown Error\nGPU 00000000:3B"),
            "Unable to determine",
        ),
        (
            TEXT.replace("Attached GPUs                             : 2", "Attached GPUs                             : 3"),
            "every attached GPU",
        ),
        (TEXT.removesuffix("    Processes                             : None\n"), "cut off inside a GPU"),
        (TEXT.replace("NVSMI LOG", "LOG"), "no full query"),
        ("x" * 20_000 + "\n", "longer than any real one"),
    ],
)
def test_text_that_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, or the tool did not reach a GPU or the driver."""
    with pytest.raises(UnreadableOutput, match=why):
        parse_smi_text(text)


BOMB = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>\n'
OUTSIDE = '<!DOCTYPE nvidia_smi_log SYSTEM "file:///etc/hostname">\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" ", "empty"),
        (XML[:-30], "not one whole XML"),
        (XML.replace(TYPE, BOMB), "declares"),
        (XML.replace(TYPE, OUTSIDE), "declares"),
        (XML.replace(TYPE, TYPE + TYPE), "declares"),
        (XML.replace(TYPE, TYPE.replace(">", ' [<!ENTITY a "b">]>')), "declares"),
        (XML.replace("12.4", "<![CDATA[12.4]]>"), "declares"),
        (XML.replace("12.4", "&a;"), "not one whole XML"),
        (XML.replace("nvidia_smi_log>", "other_log>"), "another document"),
        (XML.replace("<attached_gpus>2", "<attached_gpus>8"), "every attached GPU"),
        (XML.replace("<fabric>", "<a>" * 40 + "</a>" * 40 + "<fabric>"), "deeper"),
        ("<a>" * 100_000, "not one whole XML"),
        (XML.replace("12.4", "12.4\ud800"), "not one whole XML"),
    ],
)
def test_xml_that_cannot_be_trusted_is_refused(text: str, why: str) -> None:
    """Cut off, of another document, or declaring entities, inside or outside."""
    with pytest.raises(UnreadableOutput, match=why):
        parse_smi_xml(text)


def test_xml_without_any_type_is_read() -> None:
    """Later versions may leave it out."""
    assert parse_smi_xml(XML.replace(TYPE, "")) == parse_smi_xml(XML)
