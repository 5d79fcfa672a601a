"""
Pure checks of a ledger against the promises; each returns what is wrong, in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from controlplane.providers.adapters.simulated.fabric_judge import fabric_findings
from controlplane.providers.adapters.simulated.finding import Finding
from controlplane.providers.adapters.simulated.ledger import ClusterObject, Ledger, Tenancy, Use
from controlplane.providers.adapters.simulated.metal import PLACES
from controlplane.providers.adapters.simulated.slices import gpu_of, profile_of

PARTS = 7
"""Of compute that a GPU has."""


@dataclass(frozen=True, slots=True)
class Live:
    """
    What exists at the provider now.
    """

    deployments: frozenset[str]
    """Tokens of tenancies whose release was never asked for, or is not finished."""
    clusters: frozenset[str]
    """Ids of clusters that stand."""
    jobs: frozenset[str]
    """Tokens of jobs that are not over."""
    services: frozenset[str] = frozenset()
    """Ids of services that were not told to end, or have replicas left."""


@dataclass(frozen=True, slots=True)
class Billable:
    """
    What one allocation costs: the half-open interval [since, until).
    """

    token: str
    """The allocation."""
    ref: str
    """The machine."""
    tenant_id: str
    """Whose."""
    cluster_id: str
    """In which cluster."""
    gpus: int
    """GPUs of the machine."""
    since: datetime
    """When it was first usable: its cluster verified, and itself up."""
    until: datetime | None
    """When its release was accepted; None: it is still held."""


def overlapping_reach(ledger: Ledger) -> list[Finding]:
    """
    I1: the tenancies of one machine during which two of them could be reached at once.
    """
    found: list[Finding] = []
    for ref, held in _per_machine(ledger).items():
        spans = sorted((one for one in held if one.reachable_from is not None), key=lambda one: (one.reachable_from, one.order))
        latest: Tenancy | None = None
        for one in spans:
            assert one.reachable_from is not None
            if one.detached_at is not None and one.detached_at <= one.reachable_from:
                continue
            if latest is not None and (latest.detached_at is None or latest.detached_at > one.reachable_from):
                until = "still" if latest.detached_at is None else f"until {latest.detached_at.isoformat()}"
                found.append(
                    Finding(
                        "I1",
                        ref,
                        f"{latest.token} of {latest.tenant_id} reaches it {until}, {one.token} of {one.tenant_id}"
                        f" from {one.reachable_from.isoformat()}",
                    )
                )
            if latest is None or (
                latest.detached_at is not None and (one.detached_at is None or one.detached_at > latest.detached_at)
            ):
                latest = one
    return found


def double_objects(ledger: Ledger) -> list[Finding]:
    """
    I2: a token that is deployed on two machines at once, a cluster that stands twice, a job that is there twice.
    """
    found = []
    for token, refs in _grouped((one.token, one.ref) for one in ledger.tenancies if one.release_requested_at is None).items():
        if len(refs) > 1:
            found.append(Finding("I2", token, f"deployed on {', '.join(sorted(refs))} at once"))
    for cluster_id, made in _grouped((one.cluster_id, one.created_at.isoformat()) for one in _standing(ledger)).items():
        if len(made) > 1:
            found.append(Finding("I2", cluster_id, f"stands {len(made)} times"))
    for token, clusters in _grouped((one.token, one.cluster_id) for one in ledger.jobs).items():
        if len(clusters) > 1:
            found.append(Finding("I2", token, f"was submitted to {', '.join(sorted(clusters))}"))
    return found


def live_objects(ledger: Ledger) -> Live:
    """
    Everything that stands at the provider at the ledger's instant.
    """
    return Live(
        deployments=frozenset(one.token for one in ledger.tenancies if one.powered_off_at is None),
        clusters=frozenset(one.cluster_id for one in _standing(ledger)),
        jobs=frozenset(one.token for one in ledger.jobs if one.ended_at is None),
        services=frozenset(one.service_id for one in ledger.services if one.ended_at is None),
    )


def crowded_gpus(ledger: Ledger) -> list[Finding]:
    """
    I1: GPUs, or slices of them, that two runs of jobs or replicas of services held at once, and GPUs of which more was held than there is:
    whole ones in parts, more parts than seven, or parts of two profiles.
    """
    held: defaultdict[tuple[str, int], list[Use]] = defaultdict(list)
    for use in ledger.uses:
        if use.until is None or use.since < use.until:
            held[use.ref, gpu_of(use.gpu)].append(use)
    found = []
    for (ref, gpu), uses in held.items():
        there: list[Use] = []
        for after in sorted(uses, key=lambda one: one.since):
            there = [one for one in there if one.until is None or one.until > after.since]
            found += [
                Finding("I1", ref, f"GPU {gpu} is held by {before.holder} and by {after.holder} at once")
                for before in there
                if not (profile_of(after.gpu) and profile_of(after.gpu) == profile_of(before.gpu) and after.gpu != before.gpu)
            ]
            there.append(after)
            parts = [int(profile_of(one.gpu).partition("g.")[0]) for one in there if profile_of(one.gpu)]
            if sum(parts) > PARTS:
                found.append(Finding("I1", ref, f"GPU {gpu} is held in {sum(parts)} parts of {PARTS}"))
    return found


def unowned_or_missing(
    ledger: Ledger, *, deployments: Iterable[str], clusters: Iterable[str], jobs: Iterable[str], services: Iterable[str] = ()
) -> list[Finding]:
    """
    I2, both ways: what stands at the provider and nobody owns, and what somebody owns and is not there.
    """
    live = live_objects(ledger)
    found: list[Finding] = []
    for kind, there, owned in (
        ("deployment", live.deployments, frozenset(deployments)),
        ("cluster", live.clusters, frozenset(clusters)),
        ("job", live.jobs, frozenset(jobs)),
        ("service", live.services, frozenset(services)),
    ):
        found += [Finding("I2", one, f"{kind} at the provider that nobody owns") for one in sorted(there - owned)]
        found += [Finding("I2", one, f"{kind} that is owned and not at the provider") for one in sorted(owned - there)]
    return found


def billable_intervals(ledger: Ledger) -> list[Billable]:
    """
    I3: what every allocation should have been metered for, in the order of tokens. Allocations that were never usable are left out.

    Usable is when the cluster was verified, or, for a member that came later, when that member was first up. The end is the release
    as accepted and told to the peer; an allocation that was released before it was usable costs nothing.
    """
    verified = {one.cluster_id: one.verified_at for one in ledger.clusters if one.verified_at is not None}
    tenancies = {(one.ref, one.token): one for one in ledger.tenancies}
    found: dict[tuple[str, str], Billable] = {}
    for member in ledger.memberships:
        held = tenancies.get((member.ref, member.token))
        complete = verified.get(member.cluster_id)
        if held is None or complete is None or member.up_since is None or (member.ref, member.token) in found:
            continue
        if member.removed_at is not None and member.removed_at <= complete:
            continue
        since, until = max(complete, member.up_since), held.release_accepted_at
        if until is None or since < until:
            found[member.ref, member.token] = Billable(
                member.token, member.ref, held.tenant_id, member.cluster_id, held.gpus, since, until
            )
    return sorted(found.values(), key=lambda one: one.token)


def meter_differences(ledger: Ledger, metered: Mapping[str, tuple[datetime, datetime | None]]) -> list[Finding]:
    """
    I3: where metered intervals by token differ from the ledger's, to the microsecond.
    """
    found = []
    wanted = {one.token: (one.since, one.until) for one in billable_intervals(ledger)}
    for token in sorted(wanted.keys() | metered.keys()):
        ours, theirs = metered.get(token), wanted.get(token)
        if ours != theirs:
            found.append(Finding("I3", token, f"metered {_words(ours)}, was usable {_words(theirs)}"))
    return found


def peak_gpus(ledger: Ledger) -> dict[str, int]:
    """
    I4: the most GPUs each tenant held at once, from the request of a deployment to the accepted release.
    """
    edges: defaultdict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for one in ledger.tenancies:
        until = one.release_accepted_at or one.release_requested_at
        if until is not None and until <= one.requested_at:
            continue
        edges[one.tenant_id].append((one.requested_at, one.gpus))
        if until is not None:
            edges[one.tenant_id].append((until, -one.gpus))
    peaks = {}
    for tenant_id, changes in edges.items():
        held = most = 0
        # Within one instant what is given back counts before what is taken: intervals are half-open.
        for _, change in sorted(changes, key=lambda edge: (edge[0], edge[1])):
            held += change
            most = max(most, held)
        peaks[tenant_id] = most
    return peaks


def unwiped_reuse(ledger: Ledger) -> list[Finding]:
    """
    I7: machines deployed to somebody while traces of an earlier tenancy could still be read on them.
    """
    wipes = defaultdict(list)
    for wipe in ledger.wipes:
        if wipe.finished_at is not None:
            wipes[wipe.ref].append(wipe)
    found = []
    for ref, held in _per_machine(ledger).items():
        for before, after in pairwise(sorted(held, key=lambda one: one.order)):
            if before.reachable_from is None:
                continue
            cleared = {
                place
                for wipe in wipes[ref]
                if before.order < wipe.order < after.order
                and wipe.finished_at is not None
                and wipe.finished_at <= after.requested_at
                for place in wipe.cleared
            }
            left = [place for place in PLACES if place not in cleared]
            if left:
                found.append(
                    Finding("I7", ref, f"given to {after.token} of {after.tenant_id} with {', '.join(left)} of {before.tenant_id}")
                )
    return found


def early_power(ledger: Ledger) -> list[Finding]:
    """
    I7: tenancies whose network was taken away only after the power (R22 asks for the other order).
    """
    return [
        Finding("I7", one.ref, f"{one.token} was powered off before its network was detached")
        for one in ledger.tenancies
        if one.powered_off_at is not None and (one.detached_at is None or one.detached_at > one.powered_off_at)
    ]


def all_findings(ledger: Ledger) -> list[Finding]:
    """
    Everything that can be told from the ledger alone.
    """
    return [
        *overlapping_reach(ledger),
        *double_objects(ledger),
        *crowded_gpus(ledger),
        *unwiped_reuse(ledger),
        *early_power(ledger),
        *fabric_findings(ledger),
    ]


def _per_machine(ledger: Ledger) -> dict[str, list[Tenancy]]:
    held: defaultdict[str, list[Tenancy]] = defaultdict(list)
    for one in ledger.tenancies:
        held[one.ref].append(one)
    return held


def _standing(ledger: Ledger) -> list[ClusterObject]:
    return [one for one in ledger.clusters if one.deleted_at is None]


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for key, value in pairs:
        found[key].add(value)
    return found


def _words(span: tuple[datetime, datetime | None] | None) -> str:
    if span is None:
        return "never"
    return f"from {span[0].isoformat()} to {'now' if span[1] is None else span[1].isoformat()}"
