"""
The whole matrix outside of a test run: `python -m tests.matrix.run --seeds 20`, or `make fault-matrix SEEDS=20`.

Prints each broken promise with the case that broke it, and a table; exits with 1 when there is one. `--only bare/wipe` plays a part.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.local.postgres import throwaway_postgres
from tests.conftest import Database
from tests.matrix import controllers, ironics, managed_adoption, managed_cases, owned, switches
from tests.matrix.cases import APART, OPERATIONS, Case, faults_of
from tests.matrix.controllers import RedfishRack
from tests.matrix.driven import Rack
from tests.matrix.ironics import IronicRack
from tests.matrix.life import Life, Verdict
from tests.matrix.managed_ground import ManagedGround
from tests.matrix.owned import SimulatedRegion
from tests.matrix.switches import FrrRack

BATCH = 240
Faults = Callable[[str], Iterable[str]]


@dataclass(frozen=True)
class Ground:
    """
    One adapter of the matrix.
    """

    build: Callable[[Database, Path, int], Any]
    """Makes so many machines."""
    faults: Faults
    """What can go wrong in an operation."""
    batch: int = BATCH
    """Cases side by side, at most."""
    operations: tuple[str, ...] = OPERATIONS
    """What happens there."""
    life: Callable[[Any, Sequence[Case]], Any] = Life
    """How it goes."""
    machines: Callable[[Sequence[Case]], int] = lambda cases: len(cases) * (2 if cases[0].operation == "replace" else 1)
    """How many cases side by side need."""
    apart: frozenset[str] = APART
    """Operations that are played by themselves."""


GROUNDS: Mapping[str, Ground] = {
    "bare": Ground(Rack, faults_of),
    "simulated": Ground(SimulatedRegion, owned.faults_here, 120),
    "frr_evpn": Ground(FrrRack, switches.faults_here, 120),
    "ironic": Ground(IronicRack, ironics.faults_here, 120),
    "redfish": Ground(RedfishRack, controllers.faults_here, 30),
    "clusterapi": Ground(
        ManagedGround,
        managed_cases.faults_here,
        24,
        managed_cases.OPERATIONS,
        managed_adoption.life_of,
        managed_cases.machines,
        managed_adoption.OPERATIONS,
    ),
}


def all_cases(seeds: int, first: int = 1) -> list[Case]:
    """
    Every case of the matrix, in the order of adapters, operations, faults and seeds.
    """
    return [
        Case(adapter, operation, fault, seed)
        for adapter in GROUNDS
        for operation in GROUNDS[adapter].operations
        for fault in GROUNDS[adapter].faults(operation)
        for seed in range(first, first + seeds)
    ]


def batches(cases: Sequence[Case], size: int = BATCH) -> Iterator[list[Case]]:
    """
    Cases that can be played side by side.
    """
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        apart = case.operation if case.operation in GROUNDS[case.adapter].apart else ""
        groups.setdefault((case.adapter, apart), []).append(case)
    for (adapter, apart), some in groups.items():
        most = min(size, GROUNDS[adapter].batch)
        step = max(1, most // 2) if apart == "replace" else most
        for at in range(0, len(some), step):
            yield some[at : at + step]


def play(database: Database, cases: Sequence[Case]) -> Verdict:
    """
    What became of the cases, which have one adapter and can be played side by side.
    """
    database.reset()
    kind = GROUNDS[cases[0].adapter]
    with tempfile.TemporaryDirectory(prefix="matrix") as folder:
        ground = kind.build(database, Path(folder), kind.machines(cases))
        try:
            verdict: Verdict = kind.life(ground, cases).run()
            return verdict
        finally:
            ground.close()


@dataclass
class Table:
    """
    The matrix, counted.
    """

    played: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Cases by adapter and operation."""
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Those whose fault was really met."""
    person: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Those that ended with a person."""
    broken: list[str] = field(default_factory=list)
    """Broken promises."""

    def add(self, verdict: Verdict) -> None:
        """
        The batch is counted.
        """
        for one in verdict.ended:
            cell = (one.case.adapter, one.case.operation)
            self.played[cell] += 1
            self.met[cell] += one.played > 0
            self.person[cell] += one.person
        self.broken += verdict.broken

    def rows(self) -> Iterator[str]:
        """
        As in the scoreboard.
        """
        yield "| Adapter | Operation | Cases | Fault met | Ended well | Ended with a person |"
        yield "|---|---|---|---|---|---|"
        for cell, count in self.played.items():
            well = count - self.person[cell]
            yield f"| {cell[0]} | {cell[1]} | {count} | {self.met[cell]} | {well} | {self.person[cell]} |"
        cases, people = self.played.total(), self.person.total()
        yield f"| all | | {cases} | {self.met.total()} | {cases - people} | {people} |"


@contextmanager
def _server() -> Iterator[str]:
    given = os.environ.get("CONTROLPLANE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with throwaway_postgres() as url:
        yield url


def main() -> int:
    """
    The matrix was played; 1 is returned when a promise was broken.
    """
    wanted = argparse.ArgumentParser(description=__doc__)
    wanted.add_argument("--seeds", type=int, default=20)
    wanted.add_argument("--first", type=int, default=1)
    wanted.add_argument("--batch", type=int, default=BATCH)
    wanted.add_argument("--only", default="", help="beginning of the cases' names: adapter/operation/fault/seed")
    given = wanted.parse_args()
    logging.disable(logging.CRITICAL)
    cases = [one for one in all_cases(given.seeds, given.first) if one.name.startswith(given.only)]
    table, began = Table(), time.monotonic()
    with _server() as url:
        database = Database(url, f"matrix{secrets.token_hex(4)}")
        with suppress(KeyboardInterrupt):  # what was played until then is told
            for some in batches(cases, given.batch):
                verdict = play(database, some)
                table.add(verdict)
                for words in verdict.broken:
                    print(words, flush=True)
                words = f"{table.played.total()} of {len(cases)} cases, {len(table.broken)} broken promises, last {some[-1].name}"
                print(f"{time.monotonic() - began:.0f} s: {words}", flush=True)
        database.close()
    print(*table.rows(), f"{len(table.broken)} broken promises, {time.monotonic() - began:.0f} s", sep="\n", flush=True)
    return 1 if table.broken else 0


if __name__ == "__main__":
    sys.exit(main())
