"""
Sweeps that are not about driven rows: providers are asked how they are, and records whose time is over go.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from controlplane.clusters import finding, reaping, replacing
from controlplane.clusters.steps.finding import list_standing
from controlplane.fabric_checks import service as fabric_checks
from controlplane.jobs import service as jobs
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.orphans import Look, judge
from controlplane.nodes import checking, discovering, rotating, wiring
from controlplane.nodes import reaping as machines
from controlplane.nodes import service as nodes
from controlplane.nodes.cabling import WatchedSwitch
from controlplane.nodes.sightings import Answer, Target
from controlplane.nodes.states import NodeSnapshot, ProviderCheck, ProviderRef
from controlplane.nodes.steps.discovering import ask as ask_controller
from controlplane.nodes.steps.discovering import list_machines
from controlplane.nodes.steps.metal import ports
from controlplane.nodes.steps.metal.accounts import renew
from controlplane.nodes.steps.provider import check, end_deployment, is_deployed
from controlplane.providers.errors import ProviderError
from controlplane.providers.toolbox import Toolbox
from controlplane.services import reaping as service_reaping
from workers.webhooks import RepairHook

log = logging.getLogger(__name__)
Suspects = dict[str, Mapping[str, datetime]]
"""By owner of a list: since when what should be gone is seen on it. Lost with its process, which only makes removing later."""
BATCH = 20
SWITCHES = 64
TARGETS = 200
CALL_S = 30.0
"""Longer than any call to a switch, its queue included: none is begun when less is left of the lease it is made under."""
EXPIRED = text(
    """
    DELETE FROM idempotency_keys WHERE (principal_id, key) IN (
      SELECT principal_id, key FROM idempotency_keys WHERE created_at < cp_clock() - interval '24 hours' LIMIT 1000 FOR UPDATE SKIP LOCKED)
    """
)


@dataclass(frozen=True, slots=True)
class Owner:
    """
    Whose list is looked through for what nobody wants any more.
    """

    id: str
    """A provider's or a cluster's."""
    compare: Callable[[Session], tuple[Look, datetime]]
    """The list beside our rows, and when that is."""
    remove: Callable[[str], bool]
    """Whether this one of the list is gone, or will be; may raise any error of a provider."""
    note: Callable[[Session, Sequence[str], Mapping[str, str]], None]
    """Operators can read what was removed, and what was left alone and why."""
    unknown: str
    """Why what no row speaks of is left alone."""


def check_providers(engine: Engine, tools: Toolbox, suspects: Suspects | None = None) -> int:
    """
    Providers that were not asked lately have been asked what they can do; their number is returned. With suspects, what they have deployed
    that should be gone, and was seen twice, is being ended.
    """
    due = in_transaction(engine, EVERYTHING, lambda session: checking.due_providers(session, BATCH))
    for provider in due:
        found = check(provider, tools)
        in_transaction(engine, EVERYTHING, lambda session, one=provider, seen=found: checking.store(session, one.id, seen))  # type: ignore[misc]
        if suspects is not None and found.refs is not None:
            _reap(engine, _owner_of_machines(engine, tools, provider, found), suspects)
    return len(due)


def _owner_of_machines(engine: Engine, tools: Toolbox, provider: ProviderRef, found: ProviderCheck) -> Owner:
    places = {machines.name_of(*one): one for one in found.deployed}

    def end(name: str) -> bool:
        ref, token = places[name]
        if not is_deployed(provider, ref, token, tools):
            return False
        resting = in_transaction(engine, EVERYTHING, lambda session: machines.put_aside(session, provider, ref, token))
        if resting is not None:
            end_deployment(resting, tools)
        return resting is not None

    return Owner(
        id=provider.id,
        compare=lambda session: machines.compare(session, provider.id, found.deployed, complete=found.complete),
        remove=end,
        note=lambda session, gone, left: machines.note(session, provider.id, gone, left),
        unknown=machines.LEFT,
    )


def hear(engine: Engine, tools: Toolbox) -> int:
    """
    Jobs that a provider has told a change of are due; their number is returned.
    """
    tokens = tools.take_news()
    return in_transaction(engine, EVERYTHING, lambda session: jobs.tell_changed(session, tokens)) if tokens else 0


def reap(engine: Engine, tools: Toolbox, suspects: Suspects) -> int:
    """
    Clusters that came back after we saw them gone, and were seen twice, have been removed again; their number is returned. An incomplete
    list proves nothing.
    """
    count = 0
    watched = in_transaction(engine, EVERYTHING, reaping.watched_providers)
    _forget(suspects, {one.id for one in watched})
    for provider in watched:
        try:
            found = tools.clusters(provider).list_clusters()
        except ProviderError as error:
            log.info("a provider does not list its clusters", extra={"provider_id": provider.id, "code": error.code})
            continue
        owner = Owner(
            id=provider.id,
            compare=lambda s, one=provider, seen=found: reaping.compare(s, one.id, seen.cluster_ids, complete=seen.complete),  # type: ignore[misc]
            remove=lambda cluster_id, one=provider: _remove(engine, tools, one, cluster_id),  # type: ignore[misc]
            note=lambda s, gone, left, one=provider: reaping.note(s, one.id, gone, left),  # type: ignore[misc]
            unknown=reaping.UNKNOWN,
        )
        count += _reap(engine, owner, suspects)
    return count


def _remove(engine: Engine, tools: Toolbox, provider: ProviderRef, cluster_id: str) -> bool:
    """
    Whether what is left of the cluster is on its way: one that was never handed over to us keeps all but our marks.
    """
    foreign = in_transaction(engine, EVERYTHING, lambda session: finding.was_let_go(session, cluster_id))
    end = tools.adoption(provider).let_go if foreign else tools.clusters(provider).delete_cluster
    return _done(end, cluster_id)


def reap_services(engine: Engine, tools: Toolbox, suspects: Suspects) -> int:
    """
    Services that came back after we saw their clusters without them, and were seen twice, have been removed again; their number is
    returned.
    """
    count = 0
    watched = in_transaction(engine, EVERYTHING, service_reaping.watched_clusters)
    _forget(suspects, {one.id for one in watched})
    for cluster in watched:
        try:
            seen = tools.services(cluster.provider).list_services(cluster.id)
        except ProviderError as error:
            log.info("a cluster does not list its services", extra={"cluster_id": cluster.id, "code": error.code})
            continue
        owner = Owner(
            id=cluster.id,
            compare=lambda s, one=cluster, ids=seen: service_reaping.compare(s, one.id, ids),  # type: ignore[misc]
            remove=lambda service_id, one=cluster: _done(tools.services(one.provider).delete_service, one.id, service_id),  # type: ignore[misc]
            note=lambda s, gone, left, one=cluster: service_reaping.note(s, one.id, gone, left),  # type: ignore[misc]
            unknown="unknown_service",
        )
        count += _reap(engine, owner, suspects)
    return count


def _done(call: Callable[..., None], *given: str) -> bool:
    call(*given)
    return True


def _forget(suspects: Suspects, watched: Collection[str]) -> None:
    for gone in suspects.keys() - set(watched):
        del suspects[gone]


def _reap(engine: Engine, owner: Owner, suspects: Suspects) -> int:
    """
    What the rule lets go of the owner's list is removed, and operators hear of that and of what was left alone; once of each.
    """
    look, at = in_transaction(engine, EVERYTHING, owner.compare)
    before = suspects.get(owner.id, {})
    verdict = judge(look, before, at)
    suspects[owner.id] = {**verdict.suspects, **{one: before.get(one, at) for one in verdict.strange}}
    left = dict.fromkeys(verdict.strange, owner.unknown)
    if verdict.held:
        left |= dict.fromkeys(verdict.suspects, verdict.held)
    removed = []
    for one in verdict.remove:
        try:
            if owner.remove(one):
                removed.append(one)
        except ProviderError as error:
            log.info("what came back is still there", extra={"owner_id": owner.id, "found": one, "code": error.code})
    fresh = {one: why for one, why in left.items() if one not in before}
    if removed or fresh:
        in_transaction(engine, EVERYTHING, lambda session: owner.note(session, removed, fresh))
    return len(removed)


def mend(engine: Engine) -> int:
    """
    Clusters have begun to replace sick nodes, sick nodes that nobody holds are put aside, and services at rest go with their clusters; how
    many of all is returned.
    """
    replaced = in_transaction(engine, EVERYTHING, replacing.replace_sick)
    replaced += in_transaction(engine, EVERYTHING, service_reaping.follow_clusters)
    return replaced + in_transaction(engine, EVERYTHING, nodes.put_sick_aside)


def check_repaired(engine: Engine, *, wanted: bool) -> int:
    """
    Leaves to which a node came back from repair are being checked, where the operator wants that; how many checks began is returned.
    """
    return in_transaction(engine, EVERYTHING, fabric_checks.check_repaired) if wanted else 0


def watch_ports(engine: Engine, tools: Toolbox, pool: Executor, stopping: threading.Event | None = None) -> int:
    """
    Switches that were not looked at lately were asked for their ports, and told of those that are not as they should be; how many switches
    were due is returned. Each is a matter of its own: one that hangs or fails costs the others nothing.
    """
    due = in_transaction(engine, EVERYTHING, lambda session: wiring.due_switches(session, SWITCHES))

    def tend(switch: WatchedSwitch) -> None:
        if stopping is not None and stopping.is_set():
            return
        try:
            _tend(engine, tools, switch, stopping)
        except Exception:
            log.exception("looking at a switch failed", extra={"switch": switch.name})

    list(pool.map(tend, due))
    return len(due)


def _tend(engine: Engine, tools: Toolbox, switch: WatchedSwitch, stopping: threading.Event | None) -> None:
    """
    One look, one decision over the rows as they are after it, its calls, and what came of them.
    """
    found = ports.look(switch, tools)
    begin_by = time.monotonic() + wiring.LEASE_S - CALL_S
    judged = in_transaction(engine, EVERYTHING, lambda session: wiring.judge(session, switch, found))
    told = {}
    for mend in judged.mends:
        in_time = time.monotonic() < begin_by and not (stopping is not None and stopping.is_set())
        told[mend.node_id, mend.wire.name] = ports.tell(mend, tools) if in_time else "no_time_left"
    late = in_transaction(engine, EVERYTHING, lambda session: wiring.settle(session, judged, told))
    for mend in late:
        ports.take_back(mend, tools)


def rotate_controllers(engine: Engine, tools: Toolbox, pool: Executor, stopping: threading.Event | None = None) -> int:
    """
    The next part of every rotation that is due on a node at rest has been done; how many were is returned.
    """
    if stopping is not None and stopping.is_set():
        return 0
    claimed = in_transaction(engine, EVERYTHING, lambda session: rotating.claim_rotations(session, BATCH))

    def work(claim: tuple[NodeSnapshot, int]) -> None:
        node, fence = claim
        outcome, _ = tools.run(renew, node, attempt=1)
        in_transaction(engine, EVERYTHING, lambda session: rotating.store_rotation(session, node.id, fence, outcome))

    list(pool.map(work, claimed))
    return len(claimed)


def discover(engine: Engine, tools: Toolbox) -> int:
    """
    Providers that were not asked lately have told which machines they have, and which clusters that are not ours; how many were asked is
    returned.
    """
    due = in_transaction(engine, EVERYTHING, lambda session: discovering.due_providers(session, BATCH))
    for provider in due:
        listing = list_machines(provider, tools)
        if listing is not None:
            in_transaction(engine, EVERYTHING, lambda s, one=provider, seen=listing: discovering.store_listing(s, one.id, seen))  # type: ignore[misc]
        _look_for_clusters(engine, tools, provider)
    return len(due)


def _look_for_clusters(engine: Engine, tools: Toolbox, provider: ProviderRef) -> None:
    asked_at = in_transaction(engine, EVERYTHING, finding.asked_now)
    standing = list_standing(provider, tools)
    if standing is not None:
        in_transaction(engine, EVERYTHING, lambda session: finding.store(session, provider.id, standing, asked_at))


def look_at_targets(engine: Engine, tools: Toolbox, pool: Executor, stopping: threading.Event | None = None) -> int:
    """
    Controllers that an operator named and that were not asked lately have told their machines; how many were due is returned. Those that
    were not asked because it is stopping are asked when their time comes again.
    """
    due = in_transaction(engine, EVERYTHING, lambda session: discovering.due_targets(session, TARGETS))

    def ask(target: Target) -> Answer | None:
        return None if stopping is not None and stopping.is_set() else ask_controller(target, tools)

    answers = [one for one in pool.map(ask, due) if one is not None]
    for some in (answers[place : place + BATCH] for place in range(0, len(answers), BATCH)):
        in_transaction(engine, EVERYTHING, lambda session, batch=some: discovering.store_answers(session, batch))  # type: ignore[misc]
    return len(due)


def tell_repairs(engine: Engine, hook: RepairHook | None) -> int:
    """
    The operator's webhook has been told of repairs that nobody was told of yet; how many it took is returned.
    """
    if hook is None:
        return 0
    tickets = in_transaction(engine, EVERYTHING, lambda session: nodes.take_undelivered(session, BATCH))
    taken = [str(one["id"]) for one in tickets if hook.tell(one)]
    in_transaction(engine, EVERYTHING, lambda session: nodes.mark_delivered(session, taken))
    return len(taken)


def expire_records(engine: Engine) -> None:
    """
    Idempotency records older than a day are gone, a batch at a time.
    """
    in_transaction(engine, EVERYTHING, lambda session: session.execute(EXPIRED))
