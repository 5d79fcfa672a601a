"""Placement by example: what an operator would expect of a fleet that can be drawn on paper."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.scheduling.placement import (
    Fleet,
    NodeRow,
    NodeSetRequest,
    Placement,
    Refusal,
    Request,
    place,
    place_all,
)


def hgx(node: str, leaf: str = "l1", block: str = "b1", site: str = "s1", **changes: Any) -> NodeRow:
    """A free 8-GPU node that is its own NVLink domain."""
    return NodeRow(node, site, block, leaf, "r1", None, "h100", 8, 8, True, None)._replace(**changes)


def leaf_of(leaf: str, size: int, block: str = "b1", site: str = "s1") -> list[NodeRow]:
    """So many free nodes in one leaf, named after it."""
    return [hgx(f"{leaf}-{i:02d}", leaf, block, site) for i in range(size)]


def nvl72(rack: str, free: int, leaf: str = "l1") -> list[NodeRow]:
    """A rack of 18 nodes x 4 GPUs on one NVLink domain, so many of them free."""
    return [
        NodeRow(f"{rack}-{i:02d}", "s1", "b1", leaf, rack, rack, "gb200", 4, 4 if i < free else 0, True, None) for i in range(18)
    ]


def placed(rows: list[NodeRow], **request: Any) -> Placement:
    """The placement of a request that must fit."""
    answer = place(Fleet.from_rows(rows), Request("r", **request))
    assert isinstance(answer, Placement), answer
    return answer


def refused(rows: list[NodeRow], **request: Any) -> Refusal:
    """The refusal of a request that must not fit."""
    answer = place(Fleet.from_rows(rows), Request("r", **request))
    assert isinstance(answer, Refusal), answer
    return answer


def leaves(nodes: tuple[str, ...]) -> set[str]:
    """Leaves of nodes named by `leaf_of`."""
    return {node.split("-")[0] for node in nodes}


def test_a_gang_of_a_whole_rack_takes_the_only_full_nvlink_domain() -> None:
    """18 nodes fit one NVL72 rack and go there, although their leaf has more free nodes elsewhere."""
    answer = placed([*nvl72("rack-a", 17), *nvl72("rack-b", 18), *nvl72("rack-c", 9)], instance_type="gb200", nodes=18)
    assert (answer.domain_kind, answer.domain_name) == ("nvlink_domain", "rack-b")
    assert answer.domain_path == ("s1", "b1", "l1", "rack-b")
    assert answer.nodes["nodes"] == tuple(f"rack-b-{i:02d}" for i in range(18))


def test_a_gang_that_fits_several_racks_takes_the_tightest() -> None:
    """9 nodes go where exactly 9 are free, not into an empty rack."""
    answer = placed([*nvl72("rack-a", 18), *nvl72("rack-b", 9), *nvl72("rack-c", 12)], instance_type="gb200", nodes=9)
    assert answer.domain_name == "rack-b"


def test_equally_tight_racks_are_told_apart_by_what_is_left_around_them() -> None:
    """Of two full racks the one in the fuller leaf is taken; only then does the name decide."""
    rows = [*nvl72("rack-a", 18, "l1"), *nvl72("rack-b", 18, "l1"), *nvl72("rack-c", 18, "l2")]
    assert placed(rows, instance_type="gb200", nodes=18).domain_name == "rack-c"
    assert placed(rows[:36], instance_type="gb200", nodes=18).domain_name == "rack-a"


def test_nineteen_nodes_never_fit_an_nvl72_domain() -> None:
    """More nodes than a rack has, kept to one NVLink domain, is too small a domain for ever; the leaf is offered."""
    answer = refused([*nvl72("rack-a", 18), *nvl72("rack-b", 18)], instance_type="gb200", nodes=19, within="nvlink_domain")
    assert (answer.code, answer.missing_nodes, answer.free_nodes) == ("domain_too_small", 1, 18)
    assert answer.best_alternative is not None
    assert (answer.best_alternative.kind, answer.best_alternative.domain_kind) == ("wider_domain", "leaf")


def test_a_single_hgx_node_fills_the_fullest_leaf() -> None:
    """One node is its own NVLink domain; the one in the leaf with least left is taken, so that large leaves stay whole."""
    answer = placed([*leaf_of("l1", 8), *leaf_of("l2", 2)], instance_type="h100", nodes=1)
    assert (answer.domain_kind, answer.domain_name) == ("nvlink_domain", "l2-00")
    assert "l2-00" not in answer.explanation
    assert "leaf s1/b1/l2" in answer.explanation


def test_leaves_of_the_same_name_in_two_blocks_are_two_leaves() -> None:
    """Names repeat under each block; nodes of both never make one leaf."""
    rows = [*leaf_of("l1", 3), *(row._replace(id=f"other-{row.id}", block="b2") for row in leaf_of("l1", 3))]
    assert refused(rows, instance_type="h100", nodes=4, within="leaf").missing_nodes == 1


def test_held_unhealthy_partial_and_busy_nodes_are_counted_not_taken() -> None:
    """A whole-node request takes none of them, and its refusal says how many stood in the way for which reason."""
    rows = [
        hgx("free"),
        hgx("held", available=False, blocked_reason="held"),
        hgx("ill-1", available=False, blocked_reason="unhealthy"),
        hgx("ill-2", available=False, blocked_reason="unhealthy"),
        hgx("odd", available=False),
        hgx("half", free_gpus=4),
        hgx("full", free_gpus=0),
        hgx("mine"),
    ]
    answer = refused(rows, instance_type="h100", nodes=3, avoid_nodes=frozenset({"mine", "unknown"}))
    assert answer.blocked == {"unhealthy": 2, "avoided": 1, "busy": 1, "held": 1, "partly_used": 1, "unavailable": 1}
    assert (answer.code, answer.free_nodes, answer.missing_nodes) == ("insufficient_capacity", 1, 2)
    assert "2 unhealthy" in answer.detail


def test_a_node_with_a_gpu_too_few_is_not_sold_as_whole() -> None:
    """A node whose discovered GPUs are fewer than its type's serves shares of a node only."""
    rows = [*leaf_of("l1", 3), hgx("short", gpus=7, free_gpus=7)]
    assert refused(rows, instance_type="h100", nodes=4).blocked == {"lacks_gpus": 1}
    assert "short" in placed(rows, instance_type="h100", nodes=4, gpus_per_node=7).node_ids


def test_a_node_with_a_gpu_too_many_is_not_sold_as_whole() -> None:
    """A node that differs from its type is a finding for the operator, whichever way it differs."""
    assert refused([*leaf_of("l1", 3), hgx("long", gpus=9, free_gpus=9)], instance_type="h100", nodes=4).missing_nodes == 1


def test_shares_of_several_nodes_take_the_fullest_of_the_leaf() -> None:
    """Two nodes with 2 GPUs each leave the whole nodes of their leaf alone."""
    rows = [hgx("a"), hgx("b", free_gpus=3), hgx("c"), hgx("d", free_gpus=2)]
    assert placed(rows, instance_type="h100", nodes=2, gpus_per_node=2).node_ids == ("b", "d")


def test_whole_sets_choose_before_shares() -> None:
    """A set of shares never takes the whole nodes that another set of the order cannot do without."""
    rows = [*leaf_of("l1", 2), *(row._replace(free_gpus=4) for row in leaf_of("l2", 2))]
    sets = (NodeSetRequest("shares", "h100", 2, 2), NodeSetRequest("wholes", "h100", 2))
    answer = placed(rows, sets=sets)
    assert (leaves(answer.nodes["shares"]), leaves(answer.nodes["wholes"])) == ({"l2"}, {"l1"})


def test_shares_do_not_stand_in_for_whole_nodes() -> None:
    """Nodes enough for all sets together are not enough when too few of them are whole."""
    rows = [*leaf_of("l1", 1), *(row._replace(free_gpus=4) for row in leaf_of("l2", 3))]
    answer = refused(rows, sets=(NodeSetRequest("wholes", "h100", 2), NodeSetRequest("shares", "h100", 1, 2)))
    assert (answer.code, answer.missing_nodes) == ("insufficient_capacity", 1)


def test_a_share_takes_the_node_it_fills_best() -> None:
    """2 GPUs go to the node with 2 free, then to the one with 3, and never break a whole node while a used one has room."""
    rows = [hgx("a"), hgx("b", free_gpus=3), hgx("c", free_gpus=2), hgx("d", free_gpus=1)]
    wanted = [Request(f"r{i}", instance_type="h100", nodes=1, gpus_per_node=2) for i in range(3)]
    answers = place_all(Fleet.from_rows(rows), wanted)
    assert [one.node_ids for one in answers if isinstance(one, Placement)] == [("c",), ("b",), ("a",)]


def test_a_node_is_shared_down_to_its_last_gpu() -> None:
    """Four quarter shares fill one node; the fifth is refused; a whole node then is not to be had."""
    quarter = [Request(f"r{i}", instance_type="h100", nodes=1, gpus_per_node=2) for i in range(5)]
    answers = place_all(Fleet.from_rows([hgx("a")]), [*quarter, Request("w", instance_type="h100", nodes=1)])
    assert [isinstance(one, Placement) for one in answers] == [True] * 4 + [False] * 2
    last = answers[-1]
    assert isinstance(last, Refusal)
    assert last.blocked == {"earlier_request": 1}


def test_nodes_without_gpus_are_placed_whole() -> None:
    """A login node has no GPUs and is still given to one cluster only."""
    rows = [hgx("cpu-1", instance_type="login", gpus=0, free_gpus=0), *leaf_of("l1", 1)]
    first, second = place_all(Fleet.from_rows(rows), [Request(f"r{i}", instance_type="login", nodes=1) for i in range(2)])
    assert isinstance(first, Placement)
    assert first.node_ids == ("cpu-1",)
    assert isinstance(second, Refusal)


def test_spares_come_from_the_gangs_own_leaf_when_one_holds_both() -> None:
    """4 nodes with 2 spares go to the leaf with 6, although 4 alone would fit the tighter one."""
    answer = placed([*leaf_of("l1", 4), *leaf_of("l2", 8), *leaf_of("l3", 6)], instance_type="h100", nodes=4, spares=2)
    assert (answer.domain_kind, answer.domain_name) == ("leaf", "l3")
    assert leaves(answer.node_ids) == leaves(answer.spares) == {"l3"}


def test_spares_never_make_the_gang_wider() -> None:
    """Where no leaf holds both, the gang keeps a leaf and the spares come from the nearest wider domain."""
    rows = [*leaf_of("l1", 4), *leaf_of("l2", 3), *leaf_of("l3", 4, block="b2")]
    answer = placed(rows, instance_type="h100", nodes=4, spares=2)
    assert (answer.domain_kind, answer.domain_name) == ("leaf", "l1")
    assert leaves(answer.spares) == {"l2"}
    assert "2 in the same block" in answer.explanation


def test_required_spares_refuse_and_optional_ones_do_not() -> None:
    """One spare too few refuses the order unless spares are optional; the refusal offers the gang with fewer."""
    wanted = {"instance_type": "h100", "nodes": 4, "spares": 2}
    answer = refused(leaf_of("l1", 5), **wanted)
    assert (answer.code, answer.missing_nodes) == ("never_fits", 1)
    assert answer.best_alternative is not None
    assert (answer.best_alternative.kind, answer.best_alternative.spares) == ("fewer_spares", 1)
    assert len(placed(leaf_of("l1", 5), spares_required=False, **wanted).spares) == 1


def test_growing_prefers_the_clusters_leaf_then_its_block() -> None:
    """New nodes go beside the old ones even where another leaf would fit tighter; spilling over, they stay in the block."""
    rows = [*leaf_of("l1", 4), *leaf_of("l2", 6), *leaf_of("l3", 2, block="b2"), *leaf_of("l4", 7, block="b2")]
    near = frozenset({"l2-00"})
    rows = [row._replace(free_gpus=0) if row.id in near else row for row in rows]
    assert leaves(placed(rows, instance_type="h100", nodes=2, near_nodes=near).node_ids) == {"l2"}
    spilling = placed(rows, instance_type="h100", nodes=7, near_nodes=near)
    assert (spilling.domain_kind, spilling.domain_path) == ("block", ("s1", "b1"))
    assert [node.split("-")[0] for node in spilling.node_ids].count("l2") == 5
    beside = placed(rows, instance_type="h100", nodes=6, near_nodes=frozenset({"l1-00"}), within="block")
    assert [node.split("-")[0] for node in beside.node_ids].count("l1") == 4


def test_growing_keeps_the_site_and_the_domain_that_was_asked() -> None:
    """A cluster never grows into another site, nor out of the domain it must stay within."""
    rows = [*leaf_of("l1", 2), *leaf_of("l2", 5), *leaf_of("l9", 9, block="b9", site="s9")]
    near = frozenset({"l1-00"})
    rows[0] = rows[0]._replace(free_gpus=0)
    away = refused(rows, instance_type="h100", nodes=8, near_nodes=near)
    assert away.best_alternative is not None
    assert (away.missing_nodes, away.best_alternative.kind) == (2, "other_site")
    inside = refused(rows, instance_type="h100", nodes=2, near_nodes=near, within="leaf")
    assert (inside.code, inside.missing_nodes) == ("insufficient_capacity", 1)
    split = refused(rows, instance_type="h100", nodes=1, near_nodes=frozenset({"l1-00", "l2-00"}), within="leaf")
    assert split.code == "domain_too_small"


def test_several_sets_share_the_smallest_domain_that_holds_all() -> None:
    """A login node in another leaf widens the domain to the block, and the GPU nodes still keep one leaf."""
    rows = [*leaf_of("l1", 4), *leaf_of("l2", 9), *leaf_of("l3", 9), hgx("cpu", "l4", instance_type="login", gpus=0, free_gpus=0)]
    sets = (NodeSetRequest("head", "login", 1), NodeSetRequest("workers", "h100", 4))
    answer = placed(rows, sets=sets)
    assert (answer.domain_kind, answer.domain_name) == ("block", "b1")
    assert answer.nodes["head"] == ("cpu",)
    assert leaves(answer.nodes["workers"]) == {"l1"}
    nothing = refused(rows, sets=(NodeSetRequest("head", "login", 2), NodeSetRequest("workers", "h100", 4)))
    assert (nothing.code, nothing.missing_nodes) == ("never_fits", 1)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"instance_type": "h100", "nodes": 1, "site": "nowhere"}, "no_such_site"),
        ({"instance_type": "h900", "nodes": 1}, "no_such_instance_type"),
        ({"instance_type": "h100", "nodes": 1, "site": "s2"}, "never_fits"),
        ({"instance_type": "h100", "nodes": 1, "gpus_per_node": 9}, "never_fits"),
        ({"instance_type": "h100", "nodes": 9}, "never_fits"),
        ({"instance_type": "h100", "nodes": 7, "within": "leaf"}, "domain_too_small"),
        ({"instance_type": "h100", "nodes": 8}, "insufficient_capacity"),
    ],
)
def test_refusals_name_their_code(request_: dict[str, Any], code: str) -> None:
    """Each way not to fit has its code; only a busy fleet is `insufficient_capacity`."""
    rows = [*leaf_of("l1", 4), *leaf_of("l2", 4), hgx("far", "l1", "b1", "s2", instance_type="login")]
    rows[0] = rows[0]._replace(free_gpus=0)
    answer = refused(rows, **request_)
    assert answer.code == code
    assert answer.detail.endswith(".")


def test_a_refusal_offers_the_largest_gang_and_says_where() -> None:
    """With nothing better to offer, the largest gang that fits now is named with its domain."""
    rows = [*leaf_of("l1", 3), *leaf_of("l2", 5, block="b2", site="s2")]
    other = refused(rows, instance_type="h100", nodes=6).best_alternative
    assert other is not None
    assert (other.kind, other.nodes, other.domain_path) == ("smaller_gang", 5, ("s2", "b2", "l2"))
    assert other.detail == "the largest gang that fits now is 5 nodes, in leaf s2/b2/l2"


def test_explanations_read_as_sentences() -> None:
    """A placement says what, where and why; a refusal what is missing and what would fit."""
    rows = [*leaf_of("l1", 4), *leaf_of("l2", 6)]
    assert placed(rows, instance_type="h100", nodes=3, spares=1).explanation == (
        "3 whole nodes of h100 in leaf s1/b1/l1 (the smallest kind of domain that fits, the best of 2; 1 usable left there). "
        "Spares: 1 in the same leaf of 1 wanted."
    )
    assert placed(rows, instance_type="h100", nodes=8, gpus_per_node=2).explanation == (
        "8 nodes of h100 with 2 GPUs each in block s1/b1 (the smallest kind of domain that fits, the only one; "
        "2 usable left there). It uses 2 leaves."
    )
    assert refused(rows, instance_type="h100", nodes=7, within="leaf", site="s1").detail == (
        "7 x h100 inside one leaf at site s1 would not fit even if the fleet were empty, though a wider domain could hold it: "
        "6 usable where least is missing, 1 missing. 7 nodes fit now in block s1/b1."
    )


def test_an_empty_fleet_refuses() -> None:
    """No rows, no types: the request is refused, not broken."""
    assert refused([], instance_type="h100", nodes=1).code == "no_such_instance_type"


def test_the_same_id_twice_is_no_fleet() -> None:
    """A repeated node id would let one node be sold twice."""
    with pytest.raises(ValueError, match="twin"):
        Fleet.from_rows([hgx("twin"), hgx("twin", "l2")])


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"instance_type": "h100", "nodes": 0},
        {"instance_type": "h100", "nodes": 1, "spares": -1},
        {"instance_type": "h100", "nodes": 1, "gpus_per_node": 0},
        {"instance_type": "h100", "nodes": 1, "sets": (NodeSetRequest("a", "h100", 1),)},
        {"sets": (NodeSetRequest("a", "h100", 1), NodeSetRequest("a", "h100", 2))},
    ],
)
def test_a_request_that_makes_no_sense_cannot_be_made(wrong: dict[str, Any]) -> None:
    """Counts below one, both shapes at once and repeated set names are refused at construction."""
    with pytest.raises(ValueError, match=r"\w"):
        Request("r", **wrong)
