"""
The search for a domain and the choice of nodes inside it, in codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from controlplane.scheduling.fleet import LEAF, NOTHING, NVLINK_DOMAIN, SITE, BoolArray, IntArray
from controlplane.scheduling.ledger import Ledger

Needs: TypeAlias = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Per type code: (GPUs needed, nodes that need at least as many), most GPUs first."""


@dataclass(frozen=True)
class Demand:
    """
    One node set in codes.
    """

    type_code: int
    """The instance type."""
    needed_gpus: int
    """What a node must offer; the type's GPUs for a whole node."""
    whole: bool
    """True where nobody else may use the node."""
    nodes: int
    """Nodes wanted."""


@dataclass(frozen=True, eq=False)
class Plan:
    """
    One request in codes; the first demand is the spares' shape.
    """

    demands: tuple[Demand, ...]
    """The node sets in the request's order."""
    spares: int
    """Spares wanted."""
    spares_required: bool
    """True where too few spares mean no placement."""
    widest: int
    """The widest level the gang may span."""
    root: tuple[int, int] | None
    """The domain (level, code) that must hold the gang; None allows the whole fleet."""
    avoid: IntArray
    """Rows that must not be taken."""
    near: tuple[IntArray, ...] | None
    """Per level the domains that hold the cluster's own nodes; None where there are none."""

    @property
    def nodes(self) -> int:
        """
        Nodes of the gang over all sets.
        """
        return sum(demand.nodes for demand in self.demands)

    def needs(self, spares: int) -> Needs:
        """
        The demands, and so many spares, summed up per type.
        """
        wanted: dict[int, dict[int, int]] = {}
        first = self.demands[0]
        for demand in (*self.demands, Demand(first.type_code, first.needed_gpus, whole=first.whole, nodes=spares)):
            of_type = wanted.setdefault(demand.type_code, {})
            of_type[demand.needed_gpus] = of_type.get(demand.needed_gpus, 0) + demand.nodes
        return tuple((code, _running(of_type)) for code, of_type in wanted.items())


@dataclass(frozen=True)
class Choice:
    """
    The domain that was chosen.
    """

    level: int
    """Its level."""
    code: int
    """Its code."""
    near_level: int
    """The smallest level at which it shares a domain with the cluster's own nodes."""
    rivals: int
    """How many domains of this level could hold the gang, this one included."""
    left_nodes: int
    """Usable nodes that remain in it after the gang, spares not counted."""
    spares: int
    """Spares that its site can give."""


def lack(ledger: Ledger, needs: Needs, level: int, domains: slice | IntArray) -> IntArray:
    """
    Nodes each of these domains would need more to serve the needs; zero exactly where they fit.

    A node that serves a larger need serves a smaller one of the same type, so by Hall's theorem it suffices to compare, for each
    size, the nodes that offer it with the nodes that need it or more.
    """
    total: IntArray | None = None
    for type_code, steps in needs:
        worst: IntArray | None = None
        for needed_gpus, nodes in steps:
            short = nodes - ledger.counts(type_code, needed_gpus, level)[domains]
            worst = short if worst is None else np.maximum(worst, short)
        assert worst is not None
        worst = np.maximum(worst, 0)
        total = worst if total is None else total + worst
    assert total is not None
    return total


def usable(ledger: Ledger, needs: Needs, level: int, domains: slice | IntArray) -> IntArray:
    """
    Nodes in each of these domains that serve at least the smallest need of their type.
    """
    total: IntArray | None = None
    for type_code, steps in needs:
        here = ledger.counts(type_code, steps[-1][0], level)[domains]
        total = here if total is None else total + here
    assert total is not None
    return total


def find(ledger: Ledger, plan: Plan) -> Choice | None:
    """
    The best domain for the plan, or None; takes nothing.
    """
    best: Choice | None = None
    for level in range(plan.widest + 1):
        if ledger.fleet.levels[level].largest_nodes < plan.nodes:
            continue
        choice = _best_at(ledger, plan, level)
        if choice is None:
            continue
        if plan.near is None:
            return choice
        if best is None or choice.near_level < best.near_level:
            best = choice
    return best


def take(ledger: Ledger, plan: Plan, choice: Choice) -> tuple[list[IntArray], list[IntArray]]:
    """
    The rows taken for each demand, and for the spares per level from the choice's to the site.

    The ledger no longer offers them. Nodes of one request are all different, also where it asks for parts of nodes.
    """
    gang: list[IntArray] = [np.empty(0, np.int32)] * len(plan.demands)
    reserved: list[tuple[Demand, IntArray, IntArray]] = []

    def reserve(demand: Demand, level: int, code: int, nodes: int) -> IntArray:
        rows = np.sort(_pick(ledger, demand, plan.near, (level, code), nodes))
        reserved.append((demand, rows, ledger.change(rows, NOTHING)))
        return rows

    for index in sorted(range(len(gang)), key=lambda at: -plan.demands[at].needed_gpus):
        gang[index] = reserve(plan.demands[index], choice.level, choice.code, plan.demands[index].nodes)
    spares: list[IntArray] = []
    wanted, code = choice.spares, choice.code
    for level in range(choice.level, SITE + 1):
        first = plan.demands[0]
        nodes = min(wanted, int(ledger.counts(first.type_code, first.needed_gpus, level)[code])) if wanted else 0
        spares.append(reserve(first, level, code, nodes) if nodes else np.empty(0, np.int32))
        wanted -= nodes
        code = int(ledger.fleet.levels[level].parent[code]) if level < SITE else code
    for demand, rows, before in reserved:
        if not demand.whole:
            ledger.change(rows, before - demand.needed_gpus)
    return gang, spares


def _running(of_type: dict[int, int]) -> tuple[tuple[int, int], ...]:
    steps, total = [], 0
    for needed_gpus in sorted(of_type, reverse=True):
        total += of_type[needed_gpus]
        if total:
            steps.append((needed_gpus, total))
    return tuple(steps)


def _best_at(ledger: Ledger, plan: Plan, level: int) -> Choice | None:
    """
    The best domain of one level that holds the gang.

    Ordered by: nearest to the cluster's own nodes; spares nearest; most spares; fewest GPUs stranded on nodes used in part; fewest
    usable nodes left in it, then in its leaf, block, site; first by name.
    """
    needs = plan.needs(0)
    low, high = ledger.fleet.span(level, plan.root)
    best: IntArray = (np.flatnonzero(lack(ledger, needs, level, slice(low, high)) == 0) + low).astype(np.int32)
    rivals = len(best)
    if not rivals:
        return None
    near_level = SITE
    if plan.near is not None:
        best, near_level = _smallest(best, _distance(ledger, plan.near, level, best) + level)
    spares = plan.spares
    if plan.spares:
        best, spares = _with_spares(ledger, plan, level, best)
        if not len(best):
            return None
    if len(plan.demands) == 1 and not plan.demands[0].whole and len(best) > 1:
        best, _ = _smallest(best, _stranded_gpus(ledger, plan.demands[0], level, best))
    above = best
    for wider in range(level, SITE + 1):
        if len(best) == 1:
            break
        best, _, above = _smallest_with(best, usable(ledger, needs, wider, above), above)
        above = ledger.fleet.levels[wider].parent[above] if wider < SITE else above
    code = int(best[0])
    left = int(usable(ledger, needs, level, slice(code, code + 1))[0]) - plan.nodes
    return Choice(level, code, near_level, rivals=rivals, left_nodes=left, spares=spares)


def _with_spares(ledger: Ledger, plan: Plan, level: int, domains: IntArray) -> tuple[IntArray, int]:
    """Those domains whose spares are nearest, and how many spares they get; none where required spares are not to be had."""
    needs = plan.needs(plan.spares)
    distance = np.zeros(len(domains), np.int32)
    above = domains
    for wider in range(level, SITE + 1):
        short = lack(ledger, needs, wider, above)
        distance += short > 0
        if wider < SITE:
            above = ledger.fleet.levels[wider].parent[above]
    if plan.spares_required:
        kept = short == 0
        domains, distance, short = domains[kept], distance[kept], short[kept]
    if not len(domains):
        return domains, 0
    nearest, _, short = _smallest_with(domains, distance, short)
    nearest, fewest = _smallest(nearest, short)
    return nearest, plan.spares - fewest


def _distance(ledger: Ledger, near: tuple[IntArray, ...], level: int, domains: IntArray) -> IntArray:
    """Levels each domain must rise before it holds one of the cluster's own nodes; past the site where it never does."""
    distance = np.zeros(len(domains), np.int32)
    above = domains
    for wider in range(level, SITE + 1):
        distance += ~np.isin(above, near[wider])
        if wider < SITE:
            above = ledger.fleet.levels[wider].parent[above]
    return distance


def _stranded_gpus(ledger: Ledger, demand: Demand, level: int, domains: IntArray) -> IntArray:
    """Free GPUs that would remain on the nodes used, were each domain to give the nodes that offer least."""
    wanted = np.full(len(domains), demand.nodes, np.int32)
    stranded = np.zeros(len(domains), np.int32)
    serving = ledger.counts(demand.type_code, demand.needed_gpus, level)[domains]
    for offer in range(demand.needed_gpus, ledger.fleet.instance_type_gpus[demand.type_code] + 1):
        more = ledger.counts(demand.type_code, offer + 1, level)[domains]
        taken = np.minimum(wanted, serving - more)
        stranded += taken * (offer - demand.needed_gpus)
        wanted -= taken
        serving = more
    return stranded


def _pick(ledger: Ledger, demand: Demand, near: tuple[IntArray, ...] | None, domain: tuple[int, int], nodes: int) -> IntArray:
    """So many rows of a domain that has them: whole smaller domains first, largest first, so that few are used."""
    level, code = domain
    here = ledger.fleet.levels[level]
    rows = here.rows(code)
    counts = ledger.counts(demand.type_code, demand.needed_gpus, level)
    children = slice(int(here.child_start[code]), int(here.child_start[code + 1]))
    flat = level == NVLINK_DOMAIN or (level == LEAF and children.stop - children.start == rows.stop - rows.start)
    if flat or nodes == counts[code]:
        serving = ledger.serving(demand.type_code, demand.needed_gpus, rows)
        if nodes == len(serving):
            return serving
        return serving[np.argsort(ledger.offer[serving], kind="stable")[:nodes]]
    sizes = ledger.counts(demand.type_code, demand.needed_gpus, level - 1)[children]
    far = np.ones(len(sizes), np.bool_)
    if near is not None:
        far = ~np.isin(np.arange(children.start, children.stop), near[level - 1])
    picked = [
        _pick(ledger, demand, near, (level - 1, children.start + child), share) for child, share in _shares(sizes, far, nodes)
    ]
    return np.concatenate(picked)


def _shares(sizes: IntArray, far: BoolArray, nodes: int) -> list[tuple[int, int]]:
    """How many nodes each child gives: the largest whole, the rest from the smallest that holds it; near ones come first."""
    order = np.lexsort((-sizes, far))
    running = np.cumsum(sizes[order])
    whole = int(np.searchsorted(running, nodes))
    shares = [(int(child), int(sizes[child])) for child in order[:whole] if sizes[child]]
    rest = nodes - int(running[whole - 1]) if whole else nodes
    holders = order[whole:]
    holders = holders[(sizes[holders] >= rest) & (far[holders] == far[order[whole]])]
    last = holders[np.lexsort((holders, sizes[holders]))[0]]
    return [*shares, (int(last), rest)]


def _smallest(domains: IntArray, keys: IntArray) -> tuple[IntArray, int]:
    """The domains with the smallest key, in order, and that key."""
    smallest = keys.min()
    return domains[keys == smallest], int(smallest)


def _smallest_with(domains: IntArray, keys: IntArray, beside: IntArray) -> tuple[IntArray, int, IntArray]:
    """The same with a second column kept in step."""
    smallest = keys.min()
    kept = keys == smallest
    return domains[kept], int(smallest), beside[kept]
