"""
What every node still offers while a batch is placed, with counts per domain that follow each node taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from controlplane.scheduling.fleet import LEAF, NOTHING, NVLINK_DOMAIN, BoolArray, Fleet, IntArray


class Ledger:
    """
    A working copy of one column of offers.

    A node of type t with offer g serves every request for t that needs at most g GPUs. Counts of such nodes per (type, GPUs
    needed, level) are made when first asked for and kept true afterwards, so a later request pays for the nodes that changed,
    not for the fleet.
    """

    def __init__(self, fleet: Fleet, offer: IntArray) -> None:
        self.fleet = fleet
        self.offer = offer.copy()
        self._counts: dict[int, dict[tuple[int, int], IntArray]] = {}

    def counts(self, type_code: int, needed_gpus: int, level: int) -> IntArray:
        """
        Nodes per domain of `level` that serve the need, shape (n_domains,); a live view, not to be written to.
        """
        of_type = self._counts.setdefault(type_code, {})
        found = of_type.get((needed_gpus, level))
        if found is None:
            found = of_type[needed_gpus, level] = self._count(type_code, needed_gpus, level)
        return found

    def serving(self, type_code: int, needed_gpus: int, rows: slice) -> IntArray:
        """
        The rows of this range that serve the need, rising.
        """
        serves = (self.offer[rows] >= needed_gpus) & (self.fleet.instance_type[rows] == type_code)
        found: IntArray = (np.flatnonzero(serves) + rows.start).astype(np.int32)
        return found

    def change(self, rows: IntArray, offers: IntArray | int) -> IntArray:
        """
        These different rows now offer this many GPUs; returns what they offered before.
        """
        before: IntArray = self.offer[rows]
        self.offer[rows] = offers
        after = self.offer[rows]
        types = self.fleet.instance_type[rows]
        for type_code, of_type in self._counts.items():
            mine = types == type_code
            if not mine.any():
                continue
            for (needed_gpus, level), counts in of_type.items():
                delta = (after >= needed_gpus).astype(np.int32) - (before >= needed_gpus)
                hit = mine & (delta != 0)
                np.add.at(counts, self.fleet.levels[level].of_row[rows[hit]], delta[hit])
        return before

    @contextmanager
    def without(self, rows: IntArray) -> Iterator[None]:
        """
        Within the block these rows offer nothing; after it they offer again what they did before.
        """
        before = self.change(rows, NOTHING)
        try:
            yield
        finally:
            self.change(rows, before)

    def _count(self, type_code: int, needed_gpus: int, level: int) -> IntArray:
        domains = self.fleet.levels[level]
        if level > LEAF:
            return _sums(self.counts(type_code, needed_gpus, level - 1), domains.child_start)
        serves = (self.offer >= needed_gpus) & (self.fleet.instance_type == type_code)
        if level == NVLINK_DOMAIN and domains.size == len(serves):
            each: IntArray = serves.astype(np.int32)
            return each
        return _sums(serves, domains.row_start)


def _sums(values: IntArray | BoolArray, starts: IntArray) -> IntArray:
    """Sums over the runs that begin at `starts` and end at the next one."""
    running = np.zeros(len(values) + 1, np.int32)
    np.cumsum(values, out=running[1:], dtype=np.int32)
    sums: IntArray = np.diff(running[starts])
    return sums
