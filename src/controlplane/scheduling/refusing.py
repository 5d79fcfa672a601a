"""
Why a request got nothing: what lacks, what stands in the way, what would fit instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from controlplane.scheduling.fleet import KINDS, NOTHING, SITE, Fleet
from controlplane.scheduling.ledger import Ledger
from controlplane.scheduling.requests import Alternative, AlternativeKind, Refusal, RefusalCode, Request
from controlplane.scheduling.search import Choice, Plan, find, lack, usable

BUSY = "busy"
PARTLY_USED = "partly_used"
LACKS_GPUS = "lacks_gpus"
AVOIDED = "avoided"
EARLIER_REQUEST = "earlier_request"
UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class Denial:
    """
    A request that is refused before any node is looked at.
    """

    code: RefusalCode
    """Why."""
    detail: str
    """The same in plain words."""


def explain_refusal(now: Ledger, empty: Ledger, request: Request, plan: Plan | Denial) -> Refusal:
    """
    A refusal that tells `not now` from `never`, and leaves both ledgers as they were.
    """
    if isinstance(plan, Denial):
        wanted = sum(one.nodes for one in request.node_sets) + (request.spares if request.spares_required else 0)
        return Refusal(request.id, plan.code, wanted, 0, {}, None, plan.detail)
    blocked = _blocked(now, plan)
    with now.without(plan.avoid), empty.without(plan.avoid):
        code = _code(empty, plan)
        missing, free = _nearest_miss(now, plan)
        best = next(_alternatives(now, plan), None)
    return Refusal(
        request_id=request.id,
        code=code,
        missing_nodes=missing,
        free_nodes=free,
        blocked=blocked,
        best_alternative=best,
        detail=_detail(request, code, (missing, free), blocked, best),
    )


def _code(empty: Ledger, plan: Plan) -> RefusalCode:
    if find(empty, plan) is not None:
        return "insufficient_capacity"
    if plan.widest < SITE and find(empty, _widened(empty.fleet, plan)) is not None:
        return "domain_too_small"
    return "never_fits"


def _nearest_miss(ledger: Ledger, plan: Plan) -> tuple[int, int]:
    """
    The fewest nodes that would have to be added, and the nodes usable now, in the domain of the widest level that lacks least.

    A node added there also counts for the spares, which any domain of the site may give: the larger of both shortfalls per type.
    """
    fleet = ledger.fleet
    low, high = fleet.span(plan.widest, plan.root)
    domains = np.arange(low, high, dtype=np.int32)
    sites = domains
    for level in range(plan.widest, SITE):
        sites = fleet.levels[level].parent[sites]
    missing = np.zeros(len(domains), np.int32)
    with_spares = dict(plan.needs(plan.spares if plan.spares_required else 0))
    for type_code, steps in plan.needs(0):
        gang = lack(ledger, ((type_code, steps),), plan.widest, domains)
        at_site = lack(ledger, ((type_code, with_spares[type_code]),), SITE, sites)
        missing += np.maximum(gang, at_site)
    best = int(np.argmin(missing))
    free = usable(ledger, plan.needs(0), plan.widest, domains[best : best + 1])
    return int(missing[best]), int(free[0])


def _blocked(ledger: Ledger, plan: Plan) -> dict[str, int]:
    """Nodes of the asked types in the allowed sites that cannot be used, by reason, most first."""
    fleet = ledger.fleet
    rows = slice(0, len(fleet))
    if plan.root is not None:
        level, code = plan.root
        site = int(fleet.site[fleet.levels[level].row_start[code]])
        rows = fleet.levels[SITE].rows(site)
    needed = np.full(len(fleet.instance_type_names), np.iinfo(np.int32).max, np.int32)
    for type_code, steps in plan.needs(0):
        needed[type_code] = steps[-1][0]
    types = fleet.instance_type[rows]
    asked = np.isin(types, [demand.type_code for demand in plan.demands])
    need = needed[types]
    avoided = np.zeros(len(fleet), np.bool_)
    avoided[plan.avoid] = True
    left = asked & ((ledger.offer[rows] < need) | avoided[rows])
    found: dict[str, int] = {}
    reasons = np.where(fleet.available[rows], NOTHING, fleet.blocked_reason[rows])
    for code in np.unique(reasons[left & (reasons != NOTHING)]).tolist():
        found[fleet.blocked_reason_names[code]] = int(np.count_nonzero(left & (reasons == code)))
    left &= reasons == NOTHING
    # In this order: a node is counted under the first that applies.
    for reason, applies in (
        (UNAVAILABLE, ~fleet.available[rows]),
        (AVOIDED, avoided[rows]),
        (EARLIER_REQUEST, ledger.offer[rows] < fleet.offer[rows]),
        (LACKS_GPUS, fleet.capacity[rows] < need),
        (BUSY, fleet.free_gpus[rows] <= 0),
        (PARTLY_USED, np.ones(len(left), np.bool_)),
    ):
        count = int(np.count_nonzero(left & applies))
        if count:
            found[reason] = found.get(reason, 0) + count
        left &= ~applies
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _alternatives(ledger: Ledger, plan: Plan) -> Iterator[Alternative]:
    """What would fit now, the one that gives up least first."""
    fleet = ledger.fleet
    if plan.spares and plan.spares_required:
        choice = find(ledger, replace(plan, spares_required=False))
        if choice is not None:
            yield _alternative(fleet, "fewer_spares", plan.nodes, choice)
    if plan.widest < SITE:
        choice = find(ledger, _widened(fleet, plan))
        if choice is not None:
            yield _alternative(fleet, "wider_domain", plan.nodes, choice)
    if plan.root is not None:
        choice = find(ledger, replace(plan, root=None, near=None))
        if choice is not None:
            yield _alternative(fleet, "other_site", plan.nodes, choice)
    if len(plan.demands) == 1:
        demand = plan.demands[0]
        low, high = fleet.span(plan.widest, plan.root)
        largest = int(ledger.counts(demand.type_code, demand.needed_gpus, plan.widest)[low:high].max())
        if largest > 0:
            smaller = replace(plan, demands=(replace(demand, nodes=min(largest, demand.nodes)),), spares=0)
            choice = find(ledger, smaller)
            if choice is not None:
                yield _alternative(fleet, "smaller_gang", smaller.nodes, choice)


def _widened(fleet: Fleet, plan: Plan) -> Plan:
    """The same plan with the whole site allowed."""
    root = plan.root
    if root is not None:
        root = (SITE, int(fleet.site[fleet.levels[root[0]].row_start[root[1]]]))
    return replace(plan, widest=SITE, root=root)


def _alternative(fleet: Fleet, kind: AlternativeKind, nodes: int, choice: Choice) -> Alternative:
    path = fleet.path(choice.level, choice.code)
    # A node that is its own NVLink domain is told by its leaf: details name no node.
    row = int(fleet.levels[choice.level].row_start[choice.code])
    named = choice.level if choice.level or fleet.nvlink_domain[row] != NOTHING else 1
    where = f"{KINDS[named].replace('nvlink_domain', 'NVLink domain')} {'/'.join(path[: SITE - named + 1])}"
    size = "1 node" if nodes == 1 else f"{nodes} nodes"
    text = {
        "fewer_spares": f"{size} with {choice.spares} spares fit now in {where}",
        "wider_domain": f"{size} fit now in {where}",
        "other_site": f"{size} fit now at another site, in {where}",
        "smaller_gang": f"the largest gang that fits now is {size}, in {where}",
    }[kind]
    return Alternative(kind, nodes, choice.spares, KINDS[choice.level], path, text)


def _detail(
    request: Request, code: RefusalCode, figures: tuple[int, int], blocked: dict[str, int], best: Alternative | None
) -> str:
    missing, free = figures
    wanted = " and ".join(f"{one.nodes} x {one.instance_type}" for one in request.node_sets)
    anywhere = "of any site" if request.within else "at any one site"
    where = f"at site {request.site}" if request.site else anywhere
    inside = f" inside one {request.within.replace('nvlink_domain', 'NVLink domain')}" if request.within else ""
    spares = f" with {request.spares} spares" if request.spares and request.spares_required else ""
    verdict = {
        "insufficient_capacity": "does not fit now",
        "domain_too_small": "would not fit even if the fleet were empty, though a wider domain could hold it",
        "never_fits": "would not fit even if the fleet were empty",
    }[code]
    words = [f"{wanted}{spares}{inside} {where} {verdict}: {free} usable where least is missing, {missing} missing."]
    if blocked:
        words.append(f"Not usable: {', '.join(f'{count} {reason}' for reason, count in blocked.items())}.")
    if best is not None:
        words.append(f"{best.detail[0].upper()}{best.detail[1:]}.")
    return " ".join(words)
