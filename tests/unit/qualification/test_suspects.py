"""
Whom failures of pairs point at: the law that one failure blames nobody, and that the guilty are found among the innocent.
"""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.measurements.suspects import PairResult, suspects

NODES = st.sampled_from([f"n{number}" for number in range(7)])
RESULTS = st.lists(st.builds(PairResult, NODES, NODES, st.booleans()), max_size=30)


def failed(*pairs: str) -> list[PairResult]:
    """Failures written as `ab`."""
    return [PairResult(pair[0], pair[1], passed=False) for pair in pairs]


def good(*pairs: str) -> list[PairResult]:
    """Passes written as `ab`."""
    return [PairResult(pair[0], pair[1], passed=True) for pair in pairs]


def test_one_failure_blames_neither_end() -> None:
    """Nobody can tell which of the two it is."""
    assert suspects(failed("ab")) == {}
    assert suspects(failed("ab", "cd", "ef")) == {}


def test_both_ways_of_a_pair_are_one_partner() -> None:
    """Failing in both directions with the same node is failing with one node."""
    assert suspects(failed("ab", "ba")) == {}


def test_who_fails_with_two_is_blamed_and_its_partners_are_not() -> None:
    """The middle of a star explains all its failures."""
    assert suspects(failed("xa", "bx", "xc")) == {"x": frozenset("abc")}


def test_partners_of_two_bad_nodes_are_not_blamed() -> None:
    """A node that only fails with nodes that are to blame is innocent, though it fails with two."""
    bad = failed(*(one + other for one in "xy" for other in "abc"), "xy")
    assert suspects(bad) == {"x": frozenset("abcy"), "y": frozenset("abcx")}


def test_passes_tell_apart_who_fails_alike() -> None:
    """Of two sides that fail with each other only, the one that does well elsewhere is innocent."""
    square = failed("xa", "xb", "ya", "yb")
    assert set(suspects(square)) == set("xyab")
    assert set(suspects(square + good("ab", "ac", "bc"))) == set("xy")


def test_a_pair_that_failed_once_did_not_do_well() -> None:
    """A pass in one direction is no evidence when the other failed."""
    square = failed("xa", "xb", "ya", "yb")
    assert set(suspects(square + good("ax", "ay", "bx", "by"))) == set("xyab")


@given(results=RESULTS, shuffled=st.randoms())
def test_the_order_does_not_matter(results: list[PairResult], shuffled: object) -> None:
    """The same results in any order, and with their ends swapped, blame the same nodes."""
    other = [PairResult(one.other, one.one, passed=one.passed) for one in results]
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    assert suspects(other) == suspects(results)


@given(results=RESULTS)
def test_blame_is_enough_and_not_too_much(results: list[PairResult]) -> None:
    """Whoever is blamed fails with two others; and nobody who is left fails with two others who are left."""
    blamed = suspects(results)
    pairs = {frozenset((one.one, one.other)) for one in results if not one.passed and one.one != one.other}
    for node, partners in blamed.items():
        assert len(partners) >= 2
        assert all(frozenset((node, partner)) in pairs for partner in partners)
    left = [pair for pair in pairs if not pair & blamed.keys()]
    assert not any(one & other for one, other in combinations(left, 2))


@given(bad=st.sets(st.integers(0, 9), min_size=1, max_size=3))
def test_all_against_all_finds_exactly_the_bad(bad: set[int]) -> None:
    """When every pair of ten was tried and up to three nodes are bad, these are blamed and no other."""
    tried = [PairResult(f"n{one}", f"n{other}", passed=not bad & {one, other}) for one, other in combinations(range(10), 2)]
    assert set(suspects(tried)) == {f"n{one}" for one in bad}
