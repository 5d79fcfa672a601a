"""
Sweeps that are not about driven rows: providers are asked how they are, and records whose time is over go.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from datetime import datetime

from sqlalchemy import Engine, text

from controlplane.clusters import reaping, replacing
from controlplane.fabric_checks import service as fabric_checks
from controlplane.jobs import service as jobs
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.orphans import judge
from controlplane.nodes import checking, discovering, rotating, wiring
from controlplane.nodes import service as nodes
from controlplane.nodes.cabling import WatchedSwitch
from controlplane.nodes.sightings import Answer, Target
from controlplane.nodes.states import NodeSnapshot, ProviderRef
from controlplane.nodes.steps.discovering import ask as ask_controller
from controlplane.nodes.steps.discovering import list_machines
from controlplane.nodes.steps.metal import ports
from controlplane.nodes.steps.metal.accounts import renew
from controlplane.nodes.steps.provider import check
from controlplane.providers.errors import ProviderError
from controlplane.providers.toolbox import Toolbox
from controlplane.services import reaping as service_reaping
from workers.webhooks import RepairHook

log = logging.getLogger(__name__)
Suspects = dict[str, Mapping[str, datetime]]
"""By cluster: since when services that should be gone are seen. Lost with its process, which only makes removing later."""
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


def check_providers(engine: Engine, tools: Toolbox) -> int:
    """
    Providers that were not asked lately have been asked what they can do; their number is returned.
    """
    due = in_transaction(engine, EVERYTHING, lambda session: checking.due_providers(session, BATCH))
    for provider in due:
        found = check(provider, tools)
        in_transaction(engine, EVERYTHING, lambda session, one=provider, seen=found: checking.store(session, one.id, seen))  # type: ignore[misc]
    return len(due)


def hear(engine: Engine, tools: Toolbox) -> int:
    """
    Jobs that a provider has told a change of are due; their number is returned.
    """
    tokens = tools.take_news()
    return in_transaction(engine, EVERYTHING, lambda session: jobs.tell_changed(session, tokens)) if tokens else 0


def reap(engine: Engine, tools: Toolbox) -> int:
    """
    Clusters that came back after we saw them gone have been removed again; their number is returned. An incomplete list proves nothing.
    """
    count = 0
    for provider in in_transaction(engine, EVERYTHING, reaping.watched_providers):
        try:
            found = tools.clusters(provider).list_clusters()
        except ProviderError as error:
            log.info("a provider does not list its clusters", extra={"provider_id": provider.id, "code": error.code})
            continue
        back = in_transaction(engine, EVERYTHING, lambda s, one=provider, seen=found: reaping.returned(s, one.id, seen.cluster_ids))  # type: ignore[misc]
        gone = [cluster_id for cluster_id in back if _removed(tools, provider, cluster_id)]
        if gone:
            in_transaction(engine, EVERYTHING, lambda s, one=provider, ids=gone: reaping.note(s, one.id, ids))  # type: ignore[misc]
        count += len(gone)
    return count


def _removed(tools: Toolbox, provider: ProviderRef, cluster_id: str) -> bool:
    try:
        tools.clusters(provider).delete_cluster(cluster_id)
    except ProviderError as error:
        log.info("a cluster that came back is still there", extra={"cluster_id": cluster_id, "code": error.code})
        return False
    return True


def reap_services(engine: Engine, tools: Toolbox, suspects: Suspects) -> int:
    """
    Services that came back after we saw their clusters without them, and were seen twice, have been removed again; their number is
    returned.
    """
    count = 0
    watched = in_transaction(engine, EVERYTHING, service_reaping.watched_clusters)
    for gone in suspects.keys() - {one.id for one in watched}:
        del suspects[gone]
    for cluster in watched:
        try:
            seen = tools.services(cluster.provider).list_services(cluster.id)
        except ProviderError as error:
            log.info("a cluster does not list its services", extra={"cluster_id": cluster.id, "code": error.code})
            continue
        count += _reap_services(engine, tools, cluster, seen, suspects)
    return count


def _reap_services(
    engine: Engine, tools: Toolbox, cluster: service_reaping.WatchedCluster, seen: tuple[str, ...], suspects: Suspects
) -> int:
    look, at = in_transaction(engine, EVERYTHING, lambda session: service_reaping.compare(session, cluster.id, seen))
    before = suspects.get(cluster.id, {})
    verdict = judge(look, before, at)
    suspects[cluster.id] = {**verdict.suspects, **{one: before.get(one, at) for one in verdict.strange}}
    left = dict.fromkeys(verdict.strange, "unknown_service")
    if verdict.held:
        left |= dict.fromkeys(verdict.suspects, verdict.held)
    removed = []
    for one in verdict.remove:
        try:
            tools.services(cluster.provider).delete_service(cluster.id, one)
        except ProviderError as error:
            log.info("a service that came back is still there", extra={"service_id": one, "code": error.code})
            continue
        removed.append(one)
    fresh = {one: why for one, why in left.items() if one not in before}
    if removed or fresh:
        in_transaction(engine, EVERYTHING, lambda session: service_reaping.note(session, cluster.id, removed, fresh))
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
    Providers that were not asked lately have told which machines they have; how many were asked is returned.
    """
    due = in_transaction(engine, EVERYTHING, lambda session: discovering.due_providers(session, BATCH))
    for provider in due:
        listing = list_machines(provider, tools)
        if listing is not None:
            in_transaction(engine, EVERYTHING, lambda s, one=provider, seen=listing: discovering.store_listing(s, one.id, seen))  # type: ignore[misc]
    return len(due)


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
