"""
The members of a cluster as intervals: when each could run jobs, and why not.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.providers.adapters.simulated.acts import OUR_PREFIX


@dataclass(frozen=True, slots=True)
class Span:
    """
    A half-open interval; `until` None is open.
    """

    since: int
    """First microsecond inside."""
    until: int | None
    """First microsecond after it."""
    reason: str = ""
    """Why a drain or an outage is there."""
    ours: bool = False
    """Whether a drain carries our prefix."""

    def holds(self, at: int) -> bool:
        """
        Whether the instant is inside.
        """
        return self.since <= at and (self.until is None or self.until > at)


@dataclass(frozen=True, slots=True)
class MemberRow:
    """
    One member, with everything that decides whether it is up.
    """

    row_id: int
    """Its row."""
    ref: str
    """The machine."""
    token: str
    """The allocation."""
    wanted_gpus: int
    """What the cluster's order says it brings."""
    gpus: int
    """What the machine has."""
    gpu_model: str
    """As in the catalog."""
    added_at: int
    """When the cluster got it."""
    base_at: int | None
    """When it would first answer, outages aside; None while its machine is not deployed or it never joins."""
    gone_at: int | None
    """When its machine was taken away: released."""
    leaving_at: int | None
    """From when it takes no new job because it is to be removed."""
    removed_at: int | None
    """When it left the cluster."""
    outages: tuple[Span, ...]
    """When the machine was dead."""
    drains: tuple[Span, ...]
    """When it was drained, and by whom."""
    leads: bool = False
    """Whether it is a control plane."""

    def answers(self, at: int) -> bool:
        """
        Whether the member is there and its machine alive.
        """
        return (
            self.base_at is not None
            and self.base_at <= at
            and (self.gone_at is None or self.gone_at > at)
            and not any(one.holds(at) for one in self.outages)
        )

    def takes_jobs(self, at: int) -> bool:
        """
        Whether a job could start on it.
        """
        return (
            not self.leads
            and self.answers(at)
            and (self.leaving_at is None or self.leaving_at > at)
            and (self.removed_at is None or self.removed_at > at)
            and not any(one.holds(at) for one in self.drains)
        )

    def next_answer(self, at: int) -> int | None:
        """
        The first instant from `at` on at which it answers; None when that is not known to come.
        """
        if self.base_at is None:
            return None
        instant = max(at, self.base_at)
        moved = True
        while moved:
            moved = False
            for one in self.outages:
                if one.holds(instant):
                    if one.until is None:
                        return None
                    instant, moved = one.until, True
        return None if self.gone_at is not None and self.gone_at <= instant else instant

    def edges(self) -> Iterable[int]:
        """
        The instants at which its state may change.
        """
        for one in (*self.outages, *self.drains):
            yield one.since
            if one.until is not None:
                yield one.until
        for instant in (self.base_at, self.gone_at, self.leaving_at, self.removed_at):
            if instant is not None:
                yield instant


_MEMBERS = """
SELECT m.id, m.ref, m.token, m.gpus AS wanted, m.added_at, m.join_us, m.leaving_at, m.removed_at, h.gpus, h.gpu_model,
  t.ready_at, t.release_requested_at, m.id IN (SELECT member FROM leads) AS leads
FROM members m JOIN machines h ON h.ref = m.ref LEFT JOIN tenancies t ON t.ref = m.ref AND t.token = m.token
WHERE m.object_id = :object_id
"""


def current_members(db: sqlite3.Connection, object_id: int, at: int, *, need_deployment: bool) -> list[MemberRow]:
    """
    Those that count as members at that time, in the order they were added.
    """
    rows = db.execute(
        _MEMBERS + " AND m.added_at <= :at AND (m.removed_at IS NULL OR m.removed_at > :at) ORDER BY m.id",
        {"object_id": object_id, "at": at},
    ).fetchall()
    return _complete(db, rows, object_id, need_deployment=need_deployment)


def all_members(db: sqlite3.Connection, object_id: int, *, need_deployment: bool) -> list[MemberRow]:
    """
    Every member the cluster object ever had.
    """
    rows = db.execute(_MEMBERS + " ORDER BY m.id", {"object_id": object_id}).fetchall()
    return _complete(db, rows, object_id, need_deployment=need_deployment)


def _complete(db: sqlite3.Connection, rows: list[sqlite3.Row], object_id: int, *, need_deployment: bool) -> list[MemberRow]:
    outages: defaultdict[str, list[Span]] = defaultdict(list)
    drains: defaultdict[str, list[Span]] = defaultdict(list)
    of_cluster = "WHERE ref IN (SELECT ref FROM members WHERE object_id = ?)"
    for ref, since, until, cause in db.execute(f"SELECT ref, from_at, until_at, cause FROM outages {of_cluster}", (object_id,)):
        outages[ref].append(Span(since, until, cause))
    for ref, since, until, reason, ours in db.execute(
        f"SELECT ref, from_at, until_at, reason, ours FROM drains {of_cluster} AND (until_at IS NULL OR until_at > from_at)",
        (object_id,),
    ):
        drains[ref].append(Span(since, until, reason, bool(ours)))
    return [_member(row, tuple(outages[row["ref"]]), tuple(drains[row["ref"]]), need_deployment=need_deployment) for row in rows]


def _member(row: sqlite3.Row, outages: tuple[Span, ...], drains: tuple[Span, ...], *, need_deployment: bool) -> MemberRow:
    base: int | None = None
    if row["join_us"] is not None and (row["ready_at"] is not None or not need_deployment):
        base = max(row["added_at"], row["ready_at"] or 0) + row["join_us"]
    return MemberRow(
        row_id=row["id"],
        ref=row["ref"],
        token=row["token"],
        wanted_gpus=row["wanted"],
        gpus=row["gpus"],
        gpu_model=row["gpu_model"],
        added_at=row["added_at"],
        base_at=base,
        gone_at=row["release_requested_at"],
        leaving_at=row["leaving_at"],
        removed_at=row["removed_at"],
        outages=outages,
        drains=drains,
        leads=bool(row["leads"]),
    )


def first_complete(members: list[MemberRow], since: int, at: int) -> int | None:
    """
    The first instant in [since, at] at which all members answered with all their GPUs; None when there was none.
    """
    if not members or any(one.gpus < one.wanted_gpus for one in members):
        return None
    instant = since
    while instant <= at:
        nexts = [one.next_answer(instant) for one in members]
        if any(one is None for one in nexts):
            return None
        latest = max(one for one in nexts if one is not None)
        if latest == instant:
            return instant
        instant = latest
    return None


def our_reason(reason: str) -> str:
    """
    A drain's reason as we write it at the peer.
    """
    return f"{OUR_PREFIX} {reason}"
