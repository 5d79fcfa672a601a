"""Laws of placement, each checked against plain loops over small fleets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controlplane.scheduling.placement import (
    DomainKind,
    Fleet,
    NodeRow,
    NodeSetRequest,
    Placement,
    Refusal,
    Request,
    place,
    place_all,
)

KINDS: tuple[DomainKind, ...] = ("nvlink_domain", "leaf", "block", "site")
GPUS = {"big": 4, "small": 2}
Path = tuple[object, ...]


@st.composite
def fleets(draw: st.DrawFn, *, max_nodes: int = 16, well: bool = False, branches: int = 16) -> list[NodeRow]:
    """Rows of a small tree whose names repeat in every branch, with nodes in every condition unless `well`."""
    rows = []
    for index in range(draw(st.integers(1, max_nodes))):
        at = draw(st.integers(0, 15)) % branches
        kind = draw(st.sampled_from(("big", "big", "big", "small")))
        free = GPUS[kind] if well else draw(st.sampled_from((GPUS[kind], GPUS[kind], GPUS[kind], 0, 1, GPUS[kind] - 1)))
        reason = None if well else draw(st.sampled_from((None, None, None, None, None, "held", "unhealthy")))
        place_ = (f"s{at & 1}", f"b{at >> 1 & 1}", f"l{at >> 2 & 1}", f"r{at >> 3}")
        nvlink = place_[3] if at & 5 == 5 else None
        rows.append(NodeRow(f"n{index:02d}", *place_, nvlink, kind, GPUS[kind], free, reason is None, reason))
    return draw(st.permutations(rows))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Requests for one set, mostly of a size that has a chance."""
    kind = draw(st.sampled_from(("big", "big", "small")))
    return Request(
        draw(st.sampled_from(("one", "two"))),
        site=draw(st.sampled_from((None, None, "s0", "s1"))),
        instance_type=kind,
        nodes=draw(st.integers(1, 6)),
        gpus_per_node=draw(st.sampled_from((None, None, *range(1, GPUS[kind] + 1)))),
        spares=draw(st.sampled_from((0, 0, 0, 1, 2))),
        spares_required=draw(st.booleans()),
        within=draw(st.sampled_from((None, None, *KINDS))),
        avoid_nodes=frozenset(draw(st.sampled_from(((), (), ("n00", "n03", "n05"))))),
    )


def path(row: NodeRow) -> Path:
    """Where the node is, down to its NVLink domain, in an order that sorts like names."""
    own = ("", row.rack, row.id) if row.nvlink_domain is None else (row.nvlink_domain, "", "")
    return (row.site, row.block, row.leaf, own)


def serves(row: NodeRow, request: Request) -> bool:
    """Whether this node may be used for the request."""
    whole = request.gpus_per_node is None
    fits = row.free_gpus == row.gpus if whole else row.free_gpus >= (request.gpus_per_node or 0)
    asked = row.instance_type == request.instance_type and request.site in {None, row.site}
    return asked and fits and row.available and row.id not in request.avoid_nodes


def domains(rows: Sequence[NodeRow], level: int) -> dict[Path, list[NodeRow]]:
    """Rows by domain of one level."""
    found: dict[Path, list[NodeRow]] = {}
    for row in rows:
        found.setdefault(path(row)[: 4 - level], []).append(row)
    return found


def holders(rows: Sequence[NodeRow], request: Request) -> Iterator[tuple[int, Path]]:
    """Every allowed domain that could hold the gang, and whose site could hold the spares too where they are required."""
    usable = [row for row in rows if serves(row, request)]
    widest = KINDS.index(request.within) if request.within else 3
    for level in range(widest + 1):
        for where, inside in domains(usable, level).items():
            at_site = len(domains(usable, 3)[where[:1]])
            needed = request.nodes + (request.spares if request.spares_required else 0)
            if len(inside) >= request.nodes and at_site >= needed:
                yield level, where


def best(rows: Sequence[NodeRow], request: Request) -> tuple[int, Path]:
    """The domain that the rule asks for, by trying all."""
    usable = [row for row in rows if serves(row, request)]

    def key(one: tuple[int, Path]) -> tuple[object, ...]:
        level, where = one
        up = [len(domains(usable, wider)[where[: 4 - wider]]) for wider in range(level, 4)]
        wanted = request.nodes + request.spares
        free = sorted(row.free_gpus for row in domains(usable, level)[where])[: request.nodes]
        stranded = sum(free) if request.gpus_per_node is not None else 0
        return (level, sum(size < wanted for size in up), max(0, wanted - up[-1]), stranded, up, where)

    return min(holders(rows, request), key=key)


def after(rows: Sequence[NodeRow], request: Request, node_ids: Sequence[str]) -> list[NodeRow]:
    """The rows once these nodes are taken for the request."""
    taken = set(node_ids)
    share = request.gpus_per_node
    return [
        row._replace(free_gpus=row.free_gpus - (row.gpus if share is None else share)) if row.id in taken else row for row in rows
    ]


def free_node(index: int, where: Path, kind: str) -> NodeRow:
    """A new free node in this domain (a leaf or wider), in a leaf of its own where the domain is wider than one."""
    site, block, leaf = [*map(str, where), *("sx", "bx", "lx")[len(where) :]]
    return NodeRow(f"x{index}", site, block, leaf, "rx", None, kind, GPUS[kind], GPUS[kind], True, None)


@given(fleets(), requests())
@settings(deadline=None)
def test_fits_exactly_when_some_domain_fits(rows: list[NodeRow], request: Request) -> None:
    """A request is placed if and only if trying every domain finds one; a refusal has a count above zero."""
    answer = place(Fleet.from_rows(rows), request)
    assert isinstance(answer, Placement) == any(True for _ in holders(rows, request))
    if isinstance(answer, Refusal):
        assert answer.missing_nodes > 0


@given(fleets(), requests())
@settings(deadline=None, max_examples=150)
def test_domain_is_the_smallest_and_the_best_fit(rows: list[NodeRow], request: Request) -> None:
    """The chosen domain is the one that comparing all of them gives."""
    answer = place(Fleet.from_rows(rows), request)
    assume(isinstance(answer, Placement))
    assert isinstance(answer, Placement)
    level, where = best(rows, request)
    own = where[3][0] or where[3][2] if level == 0 else None  # type: ignore[index]
    assert answer.domain_kind == KINDS[level]
    assert answer.domain_path == (*where[:3], *([own] if level == 0 else []))


@given(fleets(), st.lists(requests(), min_size=1, max_size=5))
@settings(deadline=None)
def test_batch_takes_only_what_is_free_and_all_or_nothing(rows: list[NodeRow], batch: list[Request]) -> None:
    """Over a batch every node serves its requests within its free GPUs, in one domain, with the counts asked for."""
    by_id = {row.id: row for row in rows}
    used: Counter[str] = Counter()
    for request, answer in zip(batch, place_all(Fleet.from_rows(rows), batch), strict=True):
        if isinstance(answer, Refusal):
            continue
        taken = [*answer.node_ids, *answer.spares]
        assert len(set(taken)) == len(taken)
        assert len(answer.node_ids) == request.nodes
        assert len(answer.spares) == request.spares or not request.spares_required
        assert all(serves(by_id[node], request) for node in taken)
        depth = 4 - KINDS.index(answer.domain_kind)
        assert len({path(by_id[node])[:depth] for node in answer.node_ids}) == 1
        assert {by_id[node].site for node in taken} == {answer.site}
        assert KINDS.index(answer.domain_kind) <= KINDS.index(request.within or "site")
        used.update({node: request.gpus_per_node or by_id[node].gpus for node in taken})
    assert all(gpus <= by_id[node].free_gpus for node, gpus in used.items())


@given(fleets(), st.lists(requests(), min_size=2, max_size=5))
@settings(deadline=None, max_examples=150)
def test_batch_answers_as_one_by_one(rows: list[NodeRow], batch: list[Request]) -> None:
    """Each answer of a batch is the answer that a new snapshot would give after the earlier ones."""
    for request, answer in zip(batch, place_all(Fleet.from_rows(rows), batch), strict=True):
        alone = place(Fleet.from_rows(rows), request)
        if isinstance(answer, Placement):
            assert answer == alone
            rows = after(rows, request, [*answer.node_ids, *answer.spares])
        else:
            assert isinstance(alone, Refusal)
            assert (answer.code, answer.missing_nodes, answer.free_nodes) == (alone.code, alone.missing_nodes, alone.free_nodes)
            assert answer.best_alternative == alone.best_alternative
            assert sum(answer.blocked.values()) == sum(alone.blocked.values())


@given(fleets(), requests(), st.randoms())
@settings(deadline=None)
def test_order_of_rows_changes_nothing(rows: list[NodeRow], request: Request, random: Random) -> None:
    """The same rows in another order give the same answer."""
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert place(Fleet.from_rows(shuffled), request) == place(Fleet.from_rows(rows), request)


@given(fleets(max_nodes=12), requests(), fleets(max_nodes=1, well=True))
@settings(deadline=None)
def test_a_free_node_more_never_hurts(rows: list[NodeRow], request: Request, more: list[NodeRow]) -> None:
    """What could be placed can be placed after a free node was added."""
    grown = [*rows, *(row._replace(id="x") for row in more)]
    if isinstance(place(Fleet.from_rows(rows), request), Placement):
        assert isinstance(place(Fleet.from_rows(grown), request), Placement)


@given(fleets(max_nodes=10), requests())
@settings(deadline=None, max_examples=150)
def test_missing_count_is_exact(rows: list[NodeRow], request: Request) -> None:
    """So many nodes added in the right domain make it fit; one fewer makes it fit nowhere."""
    assume(request.within != "nvlink_domain" and (request.gpus_per_node or 0) <= GPUS[request.instance_type])
    answer = place(Fleet.from_rows(rows), request)
    assume(isinstance(answer, Refusal) and not answer.code.startswith("no_such"))
    assert isinstance(answer, Refusal)
    widest = KINDS.index(request.within) if request.within else 3

    def fits_somewhere(count: int) -> bool:
        return any(
            isinstance(
                place(Fleet.from_rows([*rows, *(free_node(i, where, request.instance_type) for i in range(count))]), request),
                Placement,
            )
            for where in domains(rows, widest)
        )

    assert fits_somewhere(answer.missing_nodes)
    assert not fits_somewhere(answer.missing_nodes - 1)


@given(fleets(max_nodes=12), requests())
@settings(deadline=None, max_examples=150)
def test_refusal_tells_never_from_not_now(rows: list[NodeRow], request: Request) -> None:
    """Only `insufficient_capacity` fits once every node is well and free; `domain_too_small` fits then in a wider domain."""
    answer = place(Fleet.from_rows(rows), request)
    assume(isinstance(answer, Refusal) and not answer.code.startswith("no_such"))
    assert isinstance(answer, Refusal)
    well = [row._replace(free_gpus=row.gpus, available=True, blocked_reason=None) for row in rows]
    wide = Request(**(vars(request) | {"within": None}))
    assert any(True for _ in holders(well, request)) == (answer.code == "insufficient_capacity")
    if answer.code != "insufficient_capacity":
        assert any(True for _ in holders(well, wide)) == (answer.code == "domain_too_small")


@given(fleets(max_nodes=12), requests())
@settings(deadline=None, max_examples=150)
def test_blocked_nodes_and_usable_nodes_are_all_nodes_asked(rows: list[NodeRow], request: Request) -> None:
    """In the allowed sites every node of the type is either usable or counted under exactly one reason."""
    answer = place(Fleet.from_rows(rows), request)
    assume(isinstance(answer, Refusal) and not answer.code.startswith("no_such"))
    assert isinstance(answer, Refusal)
    asked = [r for r in rows if r.instance_type == request.instance_type and request.site in {None, r.site}]
    assert sum(answer.blocked.values()) == len([row for row in asked if not serves(row, request)])
    assert answer.blocked.get("held", 0) == len([row for row in asked if row.blocked_reason == "held"])


@given(fleets(max_nodes=12), requests())
@settings(deadline=None, max_examples=150)
def test_alternative_really_fits(rows: list[NodeRow], request: Request) -> None:
    """What a refusal offers instead is placed when asked for, and a smaller gang is the largest one."""
    fleet = Fleet.from_rows(rows)
    answer = place(fleet, request)
    assume(isinstance(answer, Refusal) and answer.best_alternative is not None)
    assert isinstance(answer, Refusal)
    other = answer.best_alternative
    assert other is not None
    changes: dict[str, dict[str, Any]] = {
        "fewer_spares": {"spares": other.spares},
        "wider_domain": {"within": None},
        "other_site": {"site": None},
        "smaller_gang": {"nodes": other.nodes, "spares": 0},
    }
    found = place(fleet, Request(**(vars(request) | changes[other.kind])))
    assert isinstance(found, Placement)
    assert (found.domain_kind, found.domain_path) == (other.domain_kind, other.domain_path)
    if other.kind == "smaller_gang" and other.nodes < request.nodes:
        larger = Request(**(vars(request) | {"nodes": other.nodes + 1, "spares": 0}))
        assert isinstance(place(fleet, larger), Refusal)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6), st.integers(1, 12))
@settings(deadline=None)
def test_few_leaves_and_the_last_one_fits_best(sizes: list[int], nodes: int) -> None:
    """A gang in a block takes the largest leaves whole, and the rest from the smallest leaf that holds it."""
    rows = [
        NodeRow(f"n{leaf}-{i}", "s", "b", f"l{leaf}", "r", None, "big", 4, 4, True, None)
        for leaf, size in enumerate(sizes)
        for i in range(size)
    ]
    answer = place(Fleet.from_rows(rows), Request("r", instance_type="big", nodes=nodes))
    if not isinstance(answer, Placement) or answer.domain_kind != "block":
        assert nodes > sum(sizes) or nodes <= max(sizes)
        return
    left, order, expected = nodes, sorted(sizes), []
    while left > order[-1]:
        expected.append(order.pop())
        left -= expected[-1]
    last = min(size for size in order if size >= left)
    used = Counter(node.split("-")[0] for node in answer.node_ids)
    assert sorted(used.values()) == sorted([*expected, left])
    assert last in {sizes[int(leaf[1:])] for leaf, count in used.items() if count == left}


SETS = st.lists(
    st.tuples(st.sampled_from(("big", "small")), st.integers(1, 3), st.sampled_from((None, 1, 2))), min_size=1, max_size=3
)


@given(fleets(max_nodes=10, branches=2) | fleets(max_nodes=10), SETS)
@settings(deadline=None, max_examples=150)
def test_several_sets_fit_exactly_when_a_matching_exists(rows: list[NodeRow], wanted: list[tuple[str, int, int | None]]) -> None:
    """Several sets get different nodes of one domain of the smallest kind in which a matching exists, or nothing."""
    sets = tuple(NodeSetRequest(f"set{i}", *one) for i, one in enumerate(wanted))
    assume({one.instance_type for one in sets} <= {row.instance_type for row in rows})
    answer, second = place_all(Fleet.from_rows(rows), [Request("r", sets=sets)] * 2)
    slots = [one for one in sets for _ in range(one.nodes)]
    levels = [level for level in range(4) if any(matches(slots, inside) for inside in domains(rows, level).values())]
    assert isinstance(answer, Placement) == bool(levels)
    if isinstance(answer, Placement):
        by_id = {row.id: row for row in rows}
        assert answer.domain_kind == KINDS[levels[0]]
        assert len(set(answer.node_ids)) == len(slots)
        for one in sets:
            assert len(answer.nodes[one.name]) == one.nodes
            assert all(serves(by_id[node], as_request(one)) for node in answer.nodes[one.name])
            rows = after(rows, as_request(one), answer.nodes[one.name])
        assert isinstance(second, Placement) == any(matches(slots, inside) for inside in domains(rows, 3).values())


def as_request(one: NodeSetRequest) -> Request:
    """The set as a request of its own."""
    return Request("r", instance_type=one.instance_type, nodes=one.nodes, gpus_per_node=one.gpus_per_node)


def matches(slots: list[NodeSetRequest], rows: list[NodeRow]) -> bool:
    """Whether every slot can have a node of its own, by augmenting paths."""
    slot_of: dict[str, int] = {}

    def assign(slot: int, tried: set[str]) -> bool:
        for row in rows:
            if row.id not in tried and serves(row, as_request(slots[slot])):
                tried.add(row.id)
                if row.id not in slot_of or assign(slot_of[row.id], tried):
                    slot_of[row.id] = slot
                    return True
        return False

    return all(assign(slot, set()) for slot in range(len(slots)))


@given(fleets())
@settings(deadline=None)
def test_codes_never_mix_branches(rows: list[NodeRow]) -> None:
    """Two leaves share a code only if site, block and leaf are the same; the columns give the rows back."""
    fleet = Fleet.from_rows(rows)
    told = []
    for at, node in enumerate(fleet.node_ids):
        nvlink = int(fleet.nvlink_domain[at])
        told.append(
            NodeRow(
                node,
                fleet.site_names[fleet.site[at]],
                fleet.block_names[fleet.block[at]],
                fleet.leaf_names[fleet.leaf[at]],
                fleet.rack_names[fleet.rack[at]],
                None if nvlink < 0 else fleet.nvlink_domain_names[nvlink],
                fleet.instance_type_names[fleet.instance_type[at]],
                int(fleet.gpus[at]),
                int(fleet.free_gpus[at]),
                bool(fleet.available[at]),
                None if fleet.blocked_reason[at] < 0 else fleet.blocked_reason_names[fleet.blocked_reason[at]],
            )
        )
    assert sorted(told, key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)
    leaves = {(int(code), path(row)[:3]) for code, row in zip(fleet.leaf, told, strict=True)}
    assert len(leaves) == len({code for code, _ in leaves}) == len({where for _, where in leaves})
    assert list(chain(fleet.leaf)) == sorted(fleet.leaf)
