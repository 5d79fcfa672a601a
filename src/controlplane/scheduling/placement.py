"""
Placement: a pure function of a fleet snapshot and requests.

All or nothing; in the smallest domain that fits; there, where least is left over. ADR 0006 has the whole rule.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from controlplane.scheduling.fleet import KINDS, NOTHING, NVLINK_DOMAIN, SITE, DomainKind, Fleet, IntArray, NodeRow
from controlplane.scheduling.ledger import Ledger
from controlplane.scheduling.refusing import Denial, explain_refusal
from controlplane.scheduling.requests import Alternative, NodeSetRequest, Placement, Refusal, RefusalCode, Request
from controlplane.scheduling.search import Choice, Demand, Plan, find, take

__all__ = [
    "Alternative",
    "DomainKind",
    "Fleet",
    "NodeRow",
    "NodeSetRequest",
    "Placement",
    "Refusal",
    "RefusalCode",
    "Request",
    "place",
    "place_all",
]


def place(fleet: Fleet, request: Request) -> Placement | Refusal:
    """
    The nodes this request gets from this fleet, or why it gets none; the same answer every time.
    """
    return place_all(fleet, (request,))[0]


def place_all(fleet: Fleet, requests: Iterable[Request]) -> list[Placement | Refusal]:
    """
    One answer per request, in their order, each seeing the nodes of the earlier ones as taken.

    The fleet is copied once for the batch. After the first request of a shape another costs time in the number of domains and of
    nodes it takes, not of nodes in the fleet, unless it is refused: counting what blocks it looks at every node.
    """
    now = Ledger(fleet, fleet.offer)
    empty: Ledger | None = None
    answers: list[Placement | Refusal] = []
    for request in requests:
        plan = _plan(fleet, request)
        if isinstance(plan, Plan):
            with now.without(plan.avoid):
                choice = find(now, plan)
                if choice is not None:
                    answers.append(_placed(now, request, plan, choice))
                    continue
        empty = empty or Ledger(fleet, fleet.capacity)
        answers.append(explain_refusal(now, empty, request, plan))
    return answers


def _plan(fleet: Fleet, request: Request) -> Plan | Denial:
    """The request in the fleet's codes, or a denial where its names are unknown or its own nodes already span too much."""
    if request.site is not None and request.site not in fleet.site_names:
        return Denial("no_such_site", f"There is no site {request.site} in the fleet.")
    for wanted in request.node_sets:
        if wanted.instance_type not in fleet.instance_type_names:
            return Denial("no_such_instance_type", f"No node of the fleet is of type {wanted.instance_type}.")
    near_rows = _rows(fleet, request.near_nodes)
    near = tuple(np.unique(level.of_row[near_rows]) for level in fleet.levels) if len(near_rows) else None
    widest = KINDS.index(request.within) if request.within else SITE
    root = None if request.site is None else (SITE, fleet.site_names.index(request.site))
    if near is not None and (request.within is not None or request.site is None):
        if len(near[widest]) > 1:
            text = f"The cluster's own nodes are in {len(near[widest])} different domains of the kind {KINDS[widest]}."
            return Denial("domain_too_small", text)
        own_site = int(fleet.site[near_rows[0]])
        if root is not None and root[1] != own_site:
            return Denial("domain_too_small", f"The cluster's own nodes are at another site than {request.site}.")
        root = (widest, int(near[widest][0]))
    return Plan(
        demands=tuple(_demand(fleet, wanted) for wanted in request.node_sets),
        spares=request.spares,
        spares_required=request.spares_required,
        widest=widest,
        root=root,
        avoid=_rows(fleet, request.avoid_nodes),
        near=near,
    )


def _rows(fleet: Fleet, node_ids: frozenset[str]) -> IntArray:
    """Rows of the nodes that the fleet knows, rising."""
    return np.array(sorted(fleet.row_of[one] for one in node_ids if one in fleet.row_of), dtype=np.int32)


def _demand(fleet: Fleet, wanted: NodeSetRequest) -> Demand:
    code = fleet.instance_type_names.index(wanted.instance_type)
    whole = wanted.gpus_per_node is None
    needed_gpus = fleet.instance_type_gpus[code] if wanted.gpus_per_node is None else wanted.gpus_per_node
    return Demand(type_code=code, needed_gpus=needed_gpus, whole=whole, nodes=wanted.nodes)


def _placed(ledger: Ledger, request: Request, plan: Plan, choice: Choice) -> Placement:
    fleet = ledger.fleet
    gang, spares = take(ledger, plan, choice)
    path = fleet.path(choice.level, choice.code)
    names = [tuple(fleet.node_ids[row] for row in rows.tolist()) for rows in gang]
    return Placement(
        request_id=request.id,
        domain_kind=KINDS[choice.level],
        domain_name=path[-1],
        domain_path=path,
        nodes=dict(zip((wanted.name for wanted in request.node_sets), names, strict=True)),
        spares=tuple(fleet.node_ids[row] for rows in spares for row in rows.tolist()),
        explanation=_explanation(fleet, request, plan, choice, (gang, spares)),
    )


def _explanation(fleet: Fleet, request: Request, plan: Plan, choice: Choice, taken: tuple[list[IntArray], list[IntArray]]) -> str:
    gang, spares = taken
    words = [" and ".join(_wanted(wanted) for wanted in request.node_sets)]
    words.append(f"in {_domain(fleet, choice)}")
    if plan.nodes == 1:
        words.append("where it leaves least over.")
    else:
        first = "the smallest kind of domain that fits" if plan.near is None else "as near the cluster's nodes as fits"
        rivals = "the only one" if choice.rivals == 1 else f"the best of {choice.rivals}"
        words.append(f"({first}, {rivals}; {choice.left_nodes} usable left there).")
    leaves = len(np.unique(fleet.leaf[np.concatenate(gang)]))
    if leaves > 1:
        words.append(f"It uses {leaves} leaves.")
    found = [
        f"{len(rows)} in the same {KINDS[level].replace('nvlink_domain', 'NVLink domain')}"
        for level, rows in enumerate(spares, choice.level)
        if len(rows)
    ]
    if plan.spares:
        words.append(f"Spares: {', '.join(found) or 'none'} of {plan.spares} wanted.")
    return " ".join(words)


def _wanted(wanted: NodeSetRequest) -> str:
    nodes = "node" if wanted.nodes == 1 else "nodes"
    if wanted.gpus_per_node is None:
        return f"{wanted.nodes} whole {nodes} of {wanted.instance_type}"
    return f"{wanted.nodes} {nodes} of {wanted.instance_type} with {wanted.gpus_per_node} GPUs each"


def _domain(fleet: Fleet, choice: Choice) -> str:
    path = fleet.path(choice.level, choice.code)
    own_domain = choice.level == NVLINK_DOMAIN and fleet.nvlink_domain[_first_row(fleet, choice)] == NOTHING
    if own_domain:
        return f"leaf {'/'.join(path[:-1])}"
    return f"{KINDS[choice.level].replace('nvlink_domain', 'NVLink domain')} {'/'.join(path)}"


def _first_row(fleet: Fleet, choice: Choice) -> int:
    return int(fleet.levels[choice.level].row_start[choice.code])
