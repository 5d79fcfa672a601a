"""
What the lifecycle engine asks of this room: who may be brought up, what steps need, and what an outcome means beyond the move itself.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from controlplane.clusters import service as clusters
from controlplane.clusters.states import HOME_LOST, HOME_READY, Home
from controlplane.jobs import service as jobs
from controlplane.kit.lifecycle import Claim, Result
from controlplane.kit.outcome import Advance, Fail, Gone, Outcome, Wait
from controlplane.metering import service as metering
from controlplane.services import repository
from controlplane.services.models import ServiceVersionRow
from controlplane.services.states import MOST_KEPT, ServiceFacts, ServiceSnapshot

OPERATION_ENDS: Mapping[str, str] = {
    "running": "succeeded",
    "suspended": "succeeded",
    "deleted": "succeeded",
    "degraded": "failed",
    "failed": "failed",
}


def admit(session: Session, claims: Sequence[Claim]) -> Mapping[str, Sequence[Outcome]]:
    """
    What becomes of services that wait for their clusters, all at once.
    """
    homes = clusters.homes(session, sorted({claim.row["cluster_id"] for claim in claims}))
    return {claim.id: [_admission(claim, homes.get(claim.row["cluster_id"]))] for claim in claims}


def _admission(claim: Claim, home: Home | None) -> Outcome:
    if home is None or home.state in HOME_LOST:
        return Advance("deleting", f"Its cluster is {'deleted' if home is None else home.state}; it goes with it.")
    if claim.overdue:
        return Fail("waited_too_long", "Its cluster did not come to run in time.")
    if home.state not in HOME_READY:
        return Wait(f"Waits for its cluster, which is {home.state}.", 5.0)
    return Advance("rolling_out")


def snapshots(session: Session, claims: Sequence[Claim]) -> Mapping[str, ServiceSnapshot]:
    """
    What the steps of the claimed services may know; three queries and what homes take, for any number.
    """
    homes = clusters.homes(session, sorted({claim.row["cluster_id"] for claim in claims}))
    versions = repository.versions_of(session, [(claim.id, claim.row["current_version"]) for claim in claims])
    now = repository.clock(session)
    telling = [claim for claim in claims if (claim.state, claim.step) == ("rolling_out", "")]  # nobody else needs values
    secrets = jobs.give_secrets(
        session, {one.id: (one.row["project_id"], versions[one.id].template.get("secrets") or ()) for one in telling}
    )
    made = {
        claim.id: _snapshot(
            claim, homes.get(claim.row["cluster_id"]), versions[claim.id], (now - claim.row["state_since"]).total_seconds()
        )
        for claim in claims
    }
    return {key: replace(one, secrets=secrets.get(key, ())) for key, one in made.items()}


def _snapshot(claim: Claim, home: Home | None, version: ServiceVersionRow, state_age_s: float) -> ServiceSnapshot:
    row = claim.row
    return ServiceSnapshot(
        id=claim.id,
        state=claim.state,
        step=claim.step,
        tenant_id=row["tenant_id"],
        cluster_id=row["cluster_id"],
        cluster_state="deleted" if home is None else home.state,
        provider=None if home is None else home.provider,
        instances={} if home is None else home.instances,
        gpu_model="" if home is None else home.gpu_model,
        version=version.number,
        turn=row["turn"],
        template=version.template,
        replicas=row["replicas"],
        scaling=row["scaling"],
        rollout=row["rollout"],
        suspended=row["suspended"],
        state_age_s=state_age_s,
        next_tail=row["next_tail"],
    )


def apply(session: Session, results: Sequence[Result]) -> None:
    """
    What steps and decisions learnt is stored with the moves they made, in bulk; of services that are gone no output is kept.
    """
    told = [(one.claim, facts) for one in results if isinstance(facts := one.outcome.facts, ServiceFacts)]
    seen = [(claim, facts) for claim, facts in told if facts.observed]
    if seen:
        now = repository.clock(session)
        metering.note_spans(session, [span for claim, _ in seen if claim.row["seen_at"] is not None for span in _spans(claim, now)])
        sliced = [claim.id for claim, facts in seen if any(one.profile for one in facts.replicas)]
        shares = repository.shares_of(session, sliced)
        repository.store(session, [_columns(claim, facts, shares.get(claim.id, {})) for claim, facts in seen], now)
    ends = [
        {"id": claim.id, "number": claim.row["current_version"], "outcome": facts.outcome} for claim, facts in told if facts.outcome
    ]
    ends += [
        {"id": one.claim.id, "number": one.claim.row["current_version"], "outcome": "failed"}
        for one in results
        if isinstance(one.outcome, Fail)
    ]
    repository.store_outcomes(session, ends)
    repository.store_tails(session, [_tail(claim, one) for claim, facts in told for one in facts.tails])
    repository.forget_tails(session, [one.claim.id for one in results if isinstance(one.outcome, Gone)])


def _spans(claim: Claim, now: datetime) -> list[metering.Work]:
    """
    What it held since it was last seen: whole GPUs, and slices by profile.
    """
    row = claim.row
    where = (row["tenant_id"], row["project_id"], row["cluster_id"])
    whole = metering.Work("service", claim.id, *where, row["gpus_held"], row["seen_at"], now)
    parts = [(one["count"], (one["profile"], one["slices"], one["of"])) for one in row["slices_held"]]
    return [whole, *(replace(whole, gpus=count, profile=name, slices=some, of_slices=of) for count, (name, some, of) in parts)]


def _held(facts: ServiceFacts, shares: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """
    The slices that all replicas hold, by profile; of a profile that no version asked for the share is not known, so it counts nothing.
    """
    counts: Counter[str] = Counter()
    for one in facts.replicas:
        if one.profile in shares:
            counts[one.profile] += one.gpus
    known = [(name, count, shares[name]) for name, count in sorted(counts.items()) if count]
    return [{"profile": name, "count": count, "slices": some, "of": of} for name, count, (some, of) in known]


def _columns(claim: Claim, facts: ServiceFacts, shares: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    return {
        "id": claim.id,
        "seen": [one.document() for one in facts.replicas[:MOST_KEPT]],
        "wanted": facts.wanted,
        "address": facts.address,
        "trouble": facts.trouble,
        "next_tail": facts.next_tail,
        "gpus": sum(one.gpus for one in facts.replicas if not one.profile),
        "slices_held": _held(facts, shares),
    }


def _tail(claim: Claim, one: Any) -> dict[str, Any]:
    return {
        "service_id": claim.id,
        "replica": one.replica,
        "tenant_id": claim.row["tenant_id"],
        "version": one.version,
        "data": one.data,
    }
