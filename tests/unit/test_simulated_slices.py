"""
Parts of simulated GPUs: given as long as there are any, never more than there are, and judged from outside.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.simulated.members import MemberRow
from controlplane.providers.adapters.simulated.slices import Device, give, gpu_of, most_on_a_node, on_a_node, profile_of
from controlplane.providers.gpus import Slices

H100 = "H100-SXM5-80GB"
MEMBER = MemberRow(1, "n1", "alc_1", 2, 2, H100, 0, 0, None, None, None, (), ())
PARTS = 7
ORDER = st.one_of(
    st.integers(0, 2).map(lambda gpus: (gpus, None)),
    st.tuples(st.sampled_from(sorted(on_a_node(H100, 1))), st.integers(1, 5)).map(lambda one: (0, Slices(*one))),
)


def test_what_a_machine_can_have_is_what_its_model_has() -> None:
    """Of each profile as many as fit on its GPUs; models without slices have none, and of several machines the most counts."""
    assert on_a_node(H100, 8)["3g.40gb"] == 16
    assert on_a_node("GB300-NVL72-279GB", 4) == {}
    told = most_on_a_node([(H100, 8), ("A100-SXM4-80GB", 4), ("GB200-NVL72-186GB", 4), ("L40S", 8), (H100, 0)])
    assert (told["1g.10gb"], told["1g.23gb"], told["7g.186gb"]) == (56, 28, 4)


def test_slices_fill_a_gpu_before_the_next_is_partitioned() -> None:
    """Whole GPUs are left for those who want whole ones; a GPU in parts is neither whole nor of another profile."""
    first = give(MEMBER, (), 0, Slices("3g.40gb", 1))
    assert first == ("0/3g.40gb/0",)
    assert give(MEMBER, first, 0, Slices("3g.40gb", 2)) == ("0/3g.40gb/1", "1/3g.40gb/0")
    assert give(MEMBER, first, 1, None) == (1,)
    assert give(MEMBER, first, 2, None) is None
    assert give(MEMBER, first, 0, Slices("1g.10gb", 7)) == tuple(f"1/1g.10gb/{slot}" for slot in range(7))
    assert give(MEMBER, first, 0, Slices("1g.10gb", 8)) is None
    assert give(MEMBER, (), 0, Slices("1g.99gb", 1)) is None
    assert give(replace(MEMBER, gpus=1), first, 0, Slices("3g.40gb", 2)) is None, "a GPU that fell off gives nothing"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ORDER, st.booleans()), max_size=12))
def test_nothing_is_given_twice(orders: list[tuple[tuple[int, Slices | None], bool]]) -> None:
    """Whatever comes and goes: each device once, no GPU both whole and in parts or of two profiles, and never more parts than seven."""
    holders: list[tuple[Device, ...]] = []
    for (gpus, mig), ends in orders:
        held = [one for devices in holders for one in devices]
        found = give(MEMBER, held, gpus, mig)
        if found is not None:
            assert len(found) == (gpus if mig is None else mig.per_node)
            holders.append(found)
        if ends and holders:
            holders.pop(0)
        there = [one for devices in holders for one in devices]
        assert len(set(there)) == len(there)
        for number in range(2):
            here = [profile_of(one) for one in there if gpu_of(one) == number]
            assert len(set(here)) <= 1
            assert len(here) <= 1 or "" not in here
            assert sum(int(one.partition("g.")[0]) for one in here if one) <= PARTS


@pytest.mark.parametrize("gone", [True, False])
def test_what_is_whole_again_can_be_given_whole(*, gone: bool) -> None:
    """Once nobody holds a part of it."""
    held = () if gone else ("0/7g.80gb/0",)
    assert give(MEMBER, held, 2, None) == ((0, 1) if gone else None)
