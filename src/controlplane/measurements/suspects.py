"""
Which nodes the failures of pairs point at: a pair has two ends, and one failure does not say which of them is to blame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

FEWEST_PARTNERS: Final = 2
"""A node that fails with fewer others is not singled out."""


@dataclass(frozen=True, slots=True)
class PairResult:
    """
    How two nodes did together, in whichever direction.
    """

    one: str
    """A node."""
    other: str
    """Another node."""
    passed: bool
    """Whether it was good enough."""


def suspects(results: Iterable[PairResult]) -> dict[str, frozenset[str]]:
    """
    The nodes to blame, each with the partners it fails with.

    Whoever fails with the most partners explains those failures, and they count against nobody else any more; of nodes with equally many
    the one that did well with the fewest others goes first, and nodes that nothing tells apart go together. It ends when nobody is left
    who fails with two partners: a pair that fails alone blames neither of its ends. A pair with a failure in any direction failed.
    """
    failed: dict[str, set[str]] = {}
    good: dict[str, set[str]] = {}
    for one in results:
        if one.one == one.other:
            continue
        kept = good if one.passed else failed
        kept.setdefault(one.one, set()).add(one.other)
        kept.setdefault(one.other, set()).add(one.one)
    blamed: dict[str, frozenset[str]] = {}
    unexplained = {node: set(partners) for node, partners in failed.items()}
    while unexplained:
        ranks = {node: _rank(node, partners, failed, good) for node, partners in unexplained.items()}
        worst = max(ranks.values())
        if worst[0] < FEWEST_PARTNERS:
            break
        taken = {node for node, rank in ranks.items() if rank == worst}
        blamed |= {node: frozenset(unexplained[node]) for node in taken}
        unexplained = {node: partners - taken for node, partners in unexplained.items() if node not in taken}
        unexplained = {node: partners for node, partners in unexplained.items() if partners}
    return blamed


def _rank(node: str, unexplained: set[str], failed: Mapping[str, set[str]], good: Mapping[str, set[str]]) -> tuple[int, int]:
    did_well = good.get(node, set()) - failed.get(node, set())
    return len(unexplained), -len(did_well)
