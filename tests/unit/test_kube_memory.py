"""
What is remembered on a machine's own object: nobody's words but ours are read, and no call of ours takes another's place unseen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.marks import Mark
from controlplane.providers.errors import Busy
from controlplane.providers.kube.memory import MACHINE, MachineMark, read, rewriting

OLD = Mark(alloc="alc_1", phase="deployed", beat="2026-03-01T10:00:00Z")
NEW = replace(OLD, phase="releasing")


def machine(mark: MachineMark | None) -> dict[str, Any]:
    """One with this memory."""
    notes = {} if mark is None else {MACHINE: mark.text("cp")}
    return {"metadata": {"name": "n1", "annotations": notes}}


def test_a_memory_takes_only_the_place_of_the_one_that_was_read() -> None:
    """What another call wrote meanwhile stays, and the caller tries again; what stands already is not written twice."""
    edit = rewriting(OLD, NEW, "cp")
    patch = edit(machine(OLD))
    assert patch is not None
    assert read(Mark, {"metadata": {**machine(None)["metadata"], **patch["metadata"]}}, "cp") == NEW
    assert edit(machine(NEW)) is None
    for other in (replace(OLD, alloc="alc_2"), None):
        with pytest.raises(Busy):
            edit(machine(other))


def test_an_older_or_newer_memory_is_read_as_far_as_it_is_known() -> None:
    """A field that this kind of machine does not have is passed over."""
    assert read(MachineMark, machine(OLD), "cp") == MachineMark(alloc="alc_1", phase="deployed")
    assert read(Mark, machine(None), "cp") == Mark()
