"""
A real Slurm of another release under the contract suite, with nothing left out for being slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.contract.harness import Harness
from tests.contract.slurm_harness import SlurmHarness
from tests.slurm_kit import SLOW, other_kit

MARKS = SLOW


class PatientHarness(SlurmHarness):
    """
    The same with patience for a limit of a minute and for a requeue.
    """

    patience_s = 150.0
    lacks = frozenset({"machines"})


@contextmanager
def _open(directory: Path) -> Iterator[Harness]:
    del directory
    harness = PatientHarness(other_kit())
    try:
        yield harness
    finally:
        harness.close()


def harnesses() -> Mapping[str, Callable[[Path], AbstractContextManager[Harness]]]:
    """
    24.11 of Debian 13.
    """
    return {"slurm-24.11": _open}
