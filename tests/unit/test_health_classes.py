"""
What reports of trouble mean.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.health.classes import CLASSES, worst
from controlplane.health.controllers import class_of
from controlplane.health.xid import TABLE, find_xid, read_log

LOG = """
[  12.1] NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d
[  99.7] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 100.2] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 101.0] NVRM: Xid (PCI:0000:86:00): 31, pid=1896, name=python, MMU Fault
[ 102.0] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal
"""


@pytest.mark.parametrize(
    ("code", "health"),
    [(31, "info"), (63, "block_allocation"), (48, "drain"), (79, "quarantine"), (64, "quarantine"), (9999, "block_allocation")],
)
def test_xids_have_the_class_of_what_cures_them(code: int, health: str) -> None:
    """A user's fault is none of the machine's, hands are asked for where hands are needed, and an unknown number is not waved through."""
    assert find_xid(code).health == health
    assert find_xid(code).action


def test_every_number_stands_once() -> None:
    """The table is one to one and in order."""
    codes = [one.code for one in TABLE]
    assert codes == sorted(set(codes))


def test_a_kernel_log_is_read() -> None:
    """Each GPU's error once; other lines, those of switches among them, are passed over."""
    assert [(device, one.code) for device, one in read_log(LOG)] == [("PCI:0000:3b:00", 79), ("PCI:0000:86:00", 31)]


@pytest.mark.parametrize(
    ("name", "health", "found"),
    [
        ("gpu_health:GPU_SXM_3", "critical", "quarantine"),
        ("gpu_memory_ecc:GPU_SXM_3", "critical", "drain"),
        ("nvlink:GPU_SXM_3", "critical", "drain"),
        ("fan:12", "critical", "block_allocation"),
        ("a part nobody knows", "critical", "block_allocation"),
        ("gpu_health:GPU_SXM_3", "warning", "info"),
        ("gpu_health:GPU_SXM_3", "ok", "ok"),
        ("gpu_health:GPU_SXM_3", "unknown", None),
    ],
)
def test_a_controllers_facts_have_a_class_by_the_part(name: str, health: str, found: str | None) -> None:
    """What is critical follows by the part; what is unknown says nothing."""
    assert class_of(name, health) == found


@given(st.lists(st.sampled_from(CLASSES)), st.sampled_from(CLASSES))
def test_one_more_report_never_makes_it_better(before: list[str], more: str) -> None:
    """The worst of more is at least as bad, whatever the order."""
    assert CLASSES.index(worst([*before, more])) >= CLASSES.index(worst(before))
    assert worst(reversed([*before, more])) == worst([*before, more])


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    """Whatever a log holds is read without an error."""
    read_log(text)
