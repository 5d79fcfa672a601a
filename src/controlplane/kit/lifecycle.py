"""
The lifecycle engine: claim, step, apply.

    claim   short transaction: due rows are leased, their fence rises, the attempt is counted, snapshots are read
    step    no transaction: one function per state, a frozen snapshot in, an Outcome out
    apply   short transaction: only under the fence of the claim and only if nobody moved the row meanwhile

States that need no outside call are *decisions*: claimed, decided and applied in one transaction, all due rows at once.
The rows are the queue; a nudge only makes a look come sooner. Every method is one transaction or none, so tests can interleave them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from sqlalchemy import Engine, Row, RowMapping, Table, bindparam, text
from sqlalchemy.orm import Session

from controlplane.kit import crashpoints
from controlplane.kit.db import EVERYTHING, Errand, in_transaction, run_errand
from controlplane.kit.events import Event, Move, record
from controlplane.kit.operations import Progress, advance
from controlplane.kit.outcome import Advance, Fail, Gone, Outcome, Wait
from controlplane.kit.states import StateTable
from controlplane.kit.written import RowChange, write_changes

log = logging.getLogger(__name__)
SUSPECT = 2  # claims without an answer after which a row is claimed alone


@dataclass(frozen=True, slots=True)
class Claim:
    """
    A row we may act on until the lease ends.
    """

    id: str
    """Which row."""
    state: str
    """Its state when it was claimed."""
    step: str
    """Part of the state."""
    fence: int
    """Ours; a later claim has a higher one."""
    attempts: int
    """Claims since the last answer, this one included."""
    wakes: int
    """Calls for attention seen so far."""
    overdue: bool
    """Whether its deadline has passed."""
    attention: str
    """Why a person was asked already."""
    row: RowMapping
    """All columns, as claimed."""
    snapshot: Any = None
    """What the step gets."""


@dataclass(frozen=True, slots=True)
class Result:
    """
    A claim and what came of it.
    """

    claim: Claim
    """Which row."""
    outcome: Outcome
    """What the step said."""
    broken: bool = False
    """Whether the step failed by a fault of ours: then attempts are not forgotten."""
    started: bool = True
    """False when the lease was too short to begin."""


NOW = "(SELECT cp_clock())"
"""The clock read once per statement, so that an index can be searched by it: the function alone may change from row to row."""
Snapshots = Callable[[Session, Sequence[Claim]], Mapping[str, Any]]
Step = Callable[[Any, Any], Outcome]
Decision = Callable[[Session, Sequence[Claim]], Mapping[str, Sequence[Outcome]]]
Apply = Callable[[Session, Sequence[Result]], None]


@dataclass(frozen=True)
class Kind:
    """
    One kind of resource as the engine sees it; put together in bootstrap from a room's parts.
    """

    table: StateTable
    """Its states."""
    rows: Table
    """Its rows."""
    steps: Mapping[str, Step]
    """State to step function."""
    snapshots: Snapshots
    """Reads what steps need, in bulk; a row without a snapshot is left alone."""
    apply: Apply
    """Stores the facts of outcomes, in the transaction that moves the rows."""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """State, or `state/step`, to the decision over all due rows there; an outcome list is a path of moves."""
    ends: Mapping[str, str] = field(default_factory=dict)
    """State to the end it brings to the resource's operation."""
    follows: str = ""
    """Column with the id of another resource whose operation tells the row's moves as well; empty where there is none."""

    @property
    def name(self) -> str:
        """
        The noun.
        """
        return self.table.kind


@dataclass(frozen=True, slots=True)
class Tempo:
    """
    The engine's times and counts.
    """

    lease_s: float = 60.0
    """How long a claim holds."""
    grace_s: float = 5.0
    """Extra wait before a lapsed lease is taken over."""
    max_attempts: int = 5
    """Claims without an answer before a person is asked."""
    slow_retry_s: float = 30.0
    """How often what must go is tried while it needs attention."""


class Driver:
    """
    Drives the rows of one kind. Holds no state of its own: losing it loses nothing.
    """

    def __init__(self, engine: Engine, kind: Kind, tempo: Tempo) -> None:
        self.kind = kind
        self._engine = engine
        self._tempo = tempo
        rows = kind.rows.name
        due = f"""due_at <= {NOW} AND state = ANY(:states) AND NOT state || '/' || step = ANY(:decided)
                AND (lease_until IS NULL OR lease_until + make_interval(secs => :grace) < cp_clock())"""
        # A row that was claimed again and again without an answer may be what kills workers: it is claimed alone, so that others do not
        # share its fate. Once is not enough: after a crash a whole batch has been claimed once.
        self._claim_sql = text(
            f"""
            WITH oldest AS MATERIALIZED (
              SELECT id, attempts >= {SUSPECT} AS suspect FROM {rows} WHERE {due} ORDER BY due_at, attempts LIMIT 1)
            UPDATE {rows} SET fence = fence + 1, attempts = attempts + 1, lease_until = cp_clock() + make_interval(secs => :lease)
            WHERE id IN (
              SELECT id FROM {rows} WHERE {due}
                AND CASE WHEN (SELECT suspect FROM oldest) THEN id = (SELECT id FROM oldest) ELSE attempts < {SUSPECT} END
              ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED)
            RETURNING *, coalesce(deadline_at < cp_clock(), false) AS overdue,
              extract(epoch FROM cp_clock() - state_since)::float8 AS state_for_s
            """
        )
        self._decide_sql = text(
            f"""
            SELECT *, coalesce(deadline_at < cp_clock(), false) AS overdue FROM {rows}
            WHERE due_at <= {NOW} AND (state = ANY(:decided) OR state || '/' || step = ANY(:decided))
              AND (lease_until IS NULL OR lease_until < cp_clock())
            ORDER BY due_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
            """
        )
        self._driven = frozenset({*kind.steps, *(name.split("/")[0] for name in kind.decisions)})
        next_sql = f"""
            SELECT extract(epoch FROM least(
              (SELECT min(greatest(due_at, lease_until + make_interval(secs => :grace)))
               FROM {rows} WHERE due_at <= {NOW} AND state = ANY(:driven)),
              (SELECT due_at FROM {rows} WHERE due_at > {NOW} AND state = ANY(:driven) ORDER BY due_at LIMIT 1)
            ) - cp_clock())::float8 AS pause_s
            """
        self._next = Errand.of(text(next_sql))
        self._asked = {"driven": sorted(self._driven), "grace": tempo.grace_s}
        self._lock_sql = text(
            f"SELECT id, state, fence, wakes, reason, step, attention FROM {rows} WHERE id IN :ids ORDER BY id FOR UPDATE"
        ).bindparams(bindparam("ids", expanding=True))

    def claim(self, limit: int) -> list[Claim]:
        """
        Up to `limit` due rows are leased to the caller, with their snapshots; one that was claimed twice without an answer comes alone.
        """
        states = [name for name in self.kind.table.names() if name in self.kind.steps]

        def work(session: Session) -> list[Claim]:
            decided = list(self.kind.decisions)
            given = {
                "states": states,
                "decided": decided,
                "limit": limit,
                "lease": self._tempo.lease_s,
                "grace": self._tempo.grace_s,
            }
            claims = [_claim(row) for row in session.execute(self._claim_sql, given).mappings()]
            if not claims:
                return []
            seen = self.kind.snapshots(session, claims)
            crashpoints.reach("claim.before_commit")
            return [_with_snapshot(claim, seen[claim.id]) for claim in claims if claim.id in seen]

        claims = in_transaction(self._engine, EVERYTHING, work)
        if claims:
            crashpoints.reach("claim.after_commit")
        return claims

    def step(self, claim: Claim, tools: Any) -> Result:
        """
        What the state's step says of the claimed row; never raises for anything a step does.
        """
        if claim.attempts > self._tempo.max_attempts:
            return Result(claim, Wait("It was tried several times without an answer.", 0.0), broken=True)
        outcome, broken = tools.run(self.kind.steps[claim.state], claim.snapshot, attempt=claim.attempts)
        return Result(claim, outcome, broken=broken)

    def apply(self, results: Sequence[Result]) -> int:
        """
        The outcomes have taken effect where the claim still holds; the number of rows changed is returned.

        All in one transaction; if that fails, each in its own, so that one bad row cannot hold up the others.
        """
        if not results:
            return 0
        try:
            count = in_transaction(self._engine, EVERYTHING, lambda session: self._apply(session, results))
        except Exception:
            if len(results) == 1:
                log.exception("apply failed", extra={"kind": self.kind.name, "resource_id": results[0].claim.id})
                return 0
            return sum(self.apply([one]) for one in results)
        crashpoints.reach("apply.after_commit")
        return count

    def decide(self, limit: int) -> int:
        """
        Due rows of decision states have been decided, all in one transaction; their number is returned.
        """
        if not self.kind.decisions:
            return 0

        try:
            count = in_transaction(self._engine, EVERYTHING, lambda session: self._decide(session, self._due(session, limit)))
        except Exception:
            log.exception("decision failed; deciding one by one", extra={"kind": self.kind.name})
            return self._decide_singly(limit)
        if count:
            crashpoints.reach("decide.after_commit")
        return count

    def _due(self, session: Session, limit: int) -> list[Claim]:
        given = {"decided": list(self.kind.decisions), "limit": limit}
        return [_claim(row) for row in session.execute(self._decide_sql, given).mappings()]

    def _decide(self, session: Session, claims: Sequence[Claim]) -> int:
        by_decision: dict[Decision, list[Claim]] = {}
        for claim in claims:
            name = claim.state if claim.state in self.kind.decisions else f"{claim.state}/{claim.step}"
            by_decision.setdefault(self.kind.decisions[name], []).append(claim)
        count = 0
        for decision, some in by_decision.items():
            paths = decision(session, some)
            self._walk(session, [claim for claim in some if claim.id in paths], paths)
            count += len(paths)
        crashpoints.reach("decide.before_commit")
        return count

    def _decide_singly(self, limit: int) -> int:
        """
        Each due row decided in its own transaction; one that cannot be is put off, and in the end shown to a person.
        """
        due = in_transaction(self._engine, EVERYTHING, lambda session: self._due(session, limit))
        for claim in due:
            try:
                in_transaction(self._engine, EVERYTHING, lambda session, one=claim: self._decide(session, [one]))  # type: ignore[misc]
            except Exception:
                log.exception("decision failed", extra={"kind": self.kind.name, "resource_id": claim.id})
                in_transaction(self._engine, EVERYTHING, lambda session, one=claim: self._put_off(session, one))  # type: ignore[misc]
        return len(due)

    def _put_off(self, session: Session, claim: Claim) -> None:
        counted = replace(claim, attempts=claim.attempts + 1)
        outcome = Wait("Something failed on our side; it is tried again.", min(60.0, 2.0**counted.attempts))
        self._write(session, [Result(counted, outcome, broken=True)], {claim.id: claim.wakes})

    def next_due_in_s(self) -> float | None:
        """
        Seconds until there is a row to take, not above zero when there is one; None when there never is. A row that somebody has a
        claim on is to be had when the claim lapses. One round trip.
        """
        seconds: float | None = run_errand(self._engine, EVERYTHING, self._next, self._asked)[0].pause_s
        return seconds

    def _walk(self, session: Session, claims: Sequence[Claim], paths: Mapping[str, Sequence[Outcome]]) -> None:
        stage = 0
        walkers = list(claims)
        while walkers:
            self._write(
                session, [Result(claim, paths[claim.id][stage]) for claim in walkers], {claim.id: claim.wakes for claim in walkers}
            )
            stage += 1
            walkers = [_moved(claim, paths[claim.id][stage - 1]) for claim in walkers if len(paths[claim.id]) > stage]

    def _apply(self, session: Session, results: Sequence[Result]) -> int:
        found = {row.id: row for row in session.execute(self._lock_sql, {"ids": [one.claim.id for one in results]}).all()}
        mine = [one for one in results if one.claim.id in found and found[one.claim.id].fence == one.claim.fence]
        standing = {one.claim.id for one in mine if one.started and self._stands(one, found[one.claim.id])}
        undisturbed = [one for one in mine if one.claim.id in standing]
        self._release(session, [one for one in mine if one.claim.id not in standing])
        self._write(session, undisturbed, {one.claim.id: found[one.claim.id].wakes for one in undisturbed})
        crashpoints.reach("apply.before_commit")
        return len(undisturbed)

    def _stands(self, result: Result, now: Row[Any]) -> bool:
        """
        Whether the outcome counts. Whoever woke the row meanwhile was promised another look, and there is none once it is at rest: the step
        is repeated then, as after a crash.
        """
        if now.state != result.claim.state:
            return False
        target = None if isinstance(result.outcome, Wait) else self._target(result.outcome, result.claim)
        return target is None or target in self._driven or now.wakes == result.claim.wakes

    def _release(self, session: Session, results: Sequence[Result]) -> None:
        """
        The leases are free again and the rows are looked at soon; a row that somebody has brought to rest meanwhile stays at rest.
        """
        if not results:
            return
        released = text(
            f"""
            UPDATE {self.kind.rows.name} SET lease_until = NULL, attempts = greatest(attempts - 1, 0),
              due_at = CASE WHEN due_at IS NULL THEN NULL ELSE cp_clock() END
            WHERE id IN :ids
            """
        ).bindparams(bindparam("ids", expanding=True))
        session.execute(released, {"ids": [one.claim.id for one in results]})

    def _write(self, session: Session, results: Sequence[Result], wakes: Mapping[str, int]) -> None:
        if not results:
            return
        changes = [self._change(one, woken=wakes[one.claim.id] != one.claim.wakes) for one in results]
        write_changes(session, self.kind.rows.name, changes)
        self.kind.apply(session, results)
        moved = [(one, change) for one, change in zip(results, changes, strict=True) if change.state != one.claim.state]
        asked = [
            (one, change) for one, change in zip(results, changes, strict=True) if change.attention and not one.claim.attention
        ]
        record(
            session,
            [self._event(one, change, change.state) for one, change in moved]
            + [self._event(one, change, "needs_attention") for one, change in asked],
            [
                Move(self.kind.name, one.claim.id, one.claim.state, change.state, change.reason, _tenant(one), one.claim.fence)
                for one, change in moved
            ],
        )
        advance(session, self._progress(moved, asked))

    def _change(self, result: Result, *, woken: bool) -> RowChange:
        claim, outcome = result.claim, result.outcome
        present = self.kind.table.by_name[claim.state]
        if isinstance(outcome, Wait):
            poisoned = result.broken and claim.attempts >= self._tempo.max_attempts
            due: float | None = outcome.retry_in_s
            if claim.overdue:
                due = max(self._tempo.slow_retry_s, outcome.retry_in_s) if present.keeps_trying else None
            if poisoned or due == inf:
                due = None
            return RowChange(
                id=claim.id,
                state=claim.state,
                step=claim.step if outcome.step is None else outcome.step,
                reason=outcome.reason,
                detail=outcome.detail,
                due_in_s=0.0 if woken and due is not None else due,
                attention="attempts" if poisoned else "deadline" if claim.overdue else "",
                attempts=claim.attempts if result.broken else 0,
            )
        target = self._target(outcome, claim)
        if target is None:
            assert isinstance(outcome, Fail)
            return RowChange(
                id=claim.id,
                state=claim.state,
                step=claim.step,
                reason=outcome.message,
                detail=outcome.detail,
                due_in_s=self._tempo.slow_retry_s if present.keeps_trying else None,
                attention=outcome.code,
                attempts=0,
            )
        self.kind.table.check_move(claim.state, target)
        state = self.kind.table.by_name[target]
        return RowChange(
            id=claim.id,
            state=target,
            step="",
            reason=_reason(outcome) or state.says,
            detail=outcome.detail if isinstance(outcome, Fail) else "",
            due_in_s=0.0 if target in self._driven else None,
            longest_stay_s=state.longest_stay_s,
            attention="",
            attempts=0,
        )

    def _target(self, outcome: Outcome, claim: Claim) -> str | None:
        if isinstance(outcome, Advance):
            return outcome.to
        if isinstance(outcome, Gone):
            return self.kind.table.gone
        to = outcome.to if isinstance(outcome, Fail) else ""
        return to or self.kind.table.by_name[claim.state].fails_to

    def _event(self, result: Result, change: RowChange, verb: str) -> Event:
        return Event(
            type=f"{self.kind.name}.{verb}",
            resource_kind=self.kind.name,
            resource_id=result.claim.id,
            tenant_id=_tenant(result),
            project_id=result.claim.row.get("project_id"),
            data={"state": change.state, "before": result.claim.state, "reason": change.reason},
        )

    def _progress(self, moved: Sequence[tuple[Result, RowChange]], asked: Sequence[tuple[Result, RowChange]]) -> list[Progress]:
        steps = [
            Progress(
                told,
                change.state,
                change.reason,
                "failed" if isinstance(one.outcome, Fail) else self.kind.ends.get(change.state),
                one.outcome.code if isinstance(one.outcome, Fail) else "",
            )
            for one, change in moved
            for told in self._told(one.claim)
        ]
        return steps + [
            Progress(told, change.state, change.reason, "needs_attention", change.attention)
            for one, change in asked
            for told in self._told(one.claim)
        ]

    def _told(self, claim: Claim) -> tuple[str, ...]:
        """
        The resources whose operations tell of the row.
        """
        other = claim.row.get(self.kind.follows) if self.kind.follows else None
        return (claim.id,) if other is None else (claim.id, other)


WAKE = {
    rows: text(
        f"""
        UPDATE {rows} SET wakes = wakes + 1, due_at = cp_clock()
        WHERE id IN (SELECT id FROM {rows} WHERE id IN :ids AND due_at IS NOT NULL ORDER BY id FOR UPDATE)
        """
    ).bindparams(bindparam("ids", expanding=True))
    for rows in ("nodes", "clusters", "jobs", "services", "fabric_checks")
}


def wake(session: Session, rows: str, ids: Sequence[str]) -> None:
    """
    The rows are due now, and a step that is under way will be followed by another look. Rows at rest stay at rest.
    """
    if rows not in WAKE:
        raise ValueError(rows)
    if ids:
        session.execute(WAKE[rows], {"ids": sorted(set(ids))})


def _claim(row: RowMapping) -> Claim:
    return Claim(
        row["id"], row["state"], row["step"], row["fence"], row["attempts"], row["wakes"], row["overdue"], row["attention"], row
    )


def _with_snapshot(claim: Claim, snapshot: Any) -> Claim:
    return replace(claim, snapshot=snapshot)


def _moved(claim: Claim, outcome: Outcome) -> Claim:
    assert isinstance(outcome, Advance)
    return replace(claim, state=outcome.to, step="", overdue=False, attention="")


def _reason(outcome: Outcome) -> str:
    if isinstance(outcome, Fail):
        return outcome.message
    return outcome.reason if isinstance(outcome, (Advance, Wait)) else ""


def _tenant(result: Result) -> str | None:
    return result.claim.row.get("tenant_id")
