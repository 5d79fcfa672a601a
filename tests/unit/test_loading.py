"""
Loading a large part into a process: what is loaded is set apart from what is looked through for garbage, and looking goes on afterwards.
"""

from __future__ import annotations

import gc

import pytest

from controlplane.kit.loading import load


def test_what_is_loaded_is_set_apart() -> None:
    """The module is there, all that there is by now is kept for good, and garbage is looked for again."""
    kept = [[number] for number in range(1000)]
    before = gc.get_freeze_count()
    assert load("json.tool").__name__ == "json.tool"
    assert gc.get_freeze_count() >= before + len(kept)
    assert gc.isenabled()


def test_what_cannot_be_loaded_leaves_nothing_switched_off() -> None:
    """The error is the import's, and garbage is looked for again."""
    with pytest.raises(ModuleNotFoundError):
        load("controlplane.no_such_part")
    assert gc.isenabled()
