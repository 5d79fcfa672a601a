"""Placement over the topology of a real training cluster."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from controlplane.scheduling.placement import Fleet, NodeRow, Placement, Refusal, Request, place, place_all

TOPOLOGY = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "alibaba-lingjun-2023" / "topo.csv.gz"


@pytest.fixture(scope="module")
def rows() -> list[NodeRow]:
    """The 847 hosts under their aggregation groups and switches, all free."""
    if not TOPOLOGY.exists():
        pytest.skip("the topology trace is not beside this checkout")
    with gzip.open(TOPOLOGY, "rt") as lines:
        hosts = list(csv.DictReader(lines))
    return [NodeRow(one["ip"], one["DSW"], one["PSW"], one["ASW"], one["ASW"], None, "a100", 8, 8, True, None) for one in hosts]


def test_switch_names_under_two_groups_are_different_leaves(rows: list[NodeRow]) -> None:
    """48 switch names stand under three groups as 119 pairs, and each pair is a leaf of its own."""
    fleet = Fleet.from_rows(rows)
    assert (len(fleet.site_names), len(fleet.block_names), len(fleet.leaf_names)) == (1, 3, 119)
    assert len(set(fleet.leaf_names)) == 48


def test_gangs_get_leaf_block_and_site_as_they_grow(rows: list[NodeRow]) -> None:
    """Each size gets the smallest domain that the real shape has for it."""
    fleet = Fleet.from_rows(rows)
    largest_leaf = max(Counter((row.block, row.leaf) for row in rows).values())
    largest_block = max(Counter(row.block for row in rows).values())
    expected = {
        largest_leaf: "leaf",
        largest_leaf + 1: "block",
        64: "block",
        largest_block: "block",
        largest_block + 1: "site",
        847: "site",
    }
    for nodes, kind in expected.items():
        answer = place(fleet, Request("r", instance_type="a100", nodes=nodes))
        assert isinstance(answer, Placement)
        assert (answer.domain_kind, len(set(answer.node_ids))) == (kind, nodes)
    never = place(fleet, Request("r", instance_type="a100", nodes=848))
    assert isinstance(never, Refusal)
    assert (never.code, never.missing_nodes) == ("never_fits", 1)


def test_a_day_of_gangs_fills_the_cluster_to_the_last_node(rows: list[NodeRow]) -> None:
    """Gangs of mixed sizes take every node exactly once, and the next one is refused for want of one."""
    sizes = [64, 32, 128, 16, 8, 8, 4, 4, 2, 2, 1, 1, 200, 100, 50, 100, 64, 32, 16, 8, 4, 2, 1]
    batch = [Request(f"r{i}", instance_type="a100", nodes=size) for i, size in enumerate([*sizes, 1])]
    assert sum(sizes) == 847
    *answers, last = place_all(Fleet.from_rows(rows), batch)
    placed = [one for one in answers if isinstance(one, Placement)]
    assert len({node for one in placed for node in one.node_ids}) == 847
    assert isinstance(last, Refusal)
    assert (last.code, last.missing_nodes, last.blocked) == ("insufficient_capacity", 1, {"earlier_request": 847})
