"""
Every query of the fabric checks room. All of it is the operators': checks belong to no tenant.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, RowMapping, select, text, update
from sqlalchemy.orm import Session

from controlplane.fabric_checks.models import AttendanceRow, FabricCheckNodeRow, FabricCheckRow
from controlplane.fabric_checks.states import Attendance, CheckSnapshot, Guest, Meeting, Run, lacking, tool_settings
from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.nodes import service as nodes


@dataclass(frozen=True, slots=True)
class CheckFilter:
    """
    Which checks are asked for; None: any.
    """

    state: str | None = None
    """In this state."""
    site: str | None = None
    """In this site."""
    leaf: str | None = None
    """Of this leaf or a rail of it."""
    node_id: str | None = None
    """With this node."""
    verdict: str | None = None
    """With this verdict."""


def list_checks(session: Session, which: CheckFilter, ask: PageAsk) -> Page[FabricCheckRow]:
    """
    A page of checks, oldest first.
    """
    query = select(FabricCheckRow)
    for column in ("state", "site", "leaf", "verdict"):
        value = getattr(which, column)
        if value is not None:
            query = query.where(getattr(FabricCheckRow, column) == value)
    if which.node_id is not None:
        mine = select(FabricCheckNodeRow.check_id).where(FabricCheckNodeRow.node_id == which.node_id)
        query = query.where(FabricCheckRow.id.in_(mine))
    return fetch_page(session, query, FabricCheckRow.id, ask)


def lock_check(session: Session, check_id: str) -> FabricCheckRow | None:
    """
    The check as it is now, locked until the transaction ends.
    """
    query = select(FabricCheckRow).where(FabricCheckRow.id == check_id).with_for_update()
    return session.execute(query, execution_options={"populate_existing": True}).scalar_one_or_none()


def members_of(session: Session, check_ids: Sequence[str]) -> dict[str, list[FabricCheckNodeRow]]:
    """
    The nodes of these checks, by check.
    """
    found: dict[str, list[FabricCheckNodeRow]] = {}
    query = select(FabricCheckNodeRow).where(FabricCheckNodeRow.check_id.in_(check_ids)).order_by(FabricCheckNodeRow.node_id)
    for one in session.execute(query).scalars():
        found.setdefault(one.check_id, []).append(one)
    return found


def read_snapshots(session: Session, rows: Sequence[RowMapping]) -> dict[str, CheckSnapshot]:
    """
    What the steps of these checks need; a few queries, however many.
    """
    ids = [row["id"] for row in rows]
    providers = nodes.read_providers(session, [row["provider_id"] for row in rows])
    members = members_of(session, ids)
    lent = nodes.lent_to(session, ids)
    attending = _attending(session, list(lent))
    now = session.execute(select(CpClock())).scalar_one()
    found = {}
    for row in rows:
        provider, mine = providers[row["provider_id"]], members.get(row["id"], [])
        meeting = None
        if row["id"] in lent:
            guests = _guests(row, provider, mine, lent[row["id"]])
            ended = frozenset(one["name"] for one in row["results"])
            meeting = Meeting(guests, attending.get(row["id"], {}), ended, (now - row["state_since"]).total_seconds())
        found[row["id"]] = _snapshot(row, provider, mine, meeting)
    return found


def _guests(
    row: RowMapping, provider: nodes.ProviderRef, members: Sequence[FabricCheckNodeRow], lent: Sequence[nodes.Lent]
) -> dict[str, Guest]:
    by_id = {one.node_id: one for one in lent}
    rail = Run.of(row["rounds"][0][0]).rail
    guests = {}
    for one in members:
        machine = by_id.get(one.node_id)
        arrived = one.arrived_at is not None
        guests[one.ref] = Guest(
            node_id=one.node_id,
            arrived=arrived,
            lost=_lost(machine),
            home=machine is not None and machine.step == "home",
            lacks=_lacks(row["tool"], rail, provider, one.told) if arrived else "",
        )
    return guests


def _lost(machine: nodes.Lent | None) -> str:
    if machine is None:
        return "it does not boot through us"
    if machine.step == "silent":
        return "it was started twice and never called"
    ended = machine.boot_state in {"ready", "failed", "ended"}
    return (machine.failure or "its system ended without asking for the check") if ended else ""


def _lacks(tool: Any, rail: int | None, provider: nodes.ProviderRef, told: dict[str, Any]) -> str:
    try:
        return lacking(tool, rail, tool_settings(provider.config), told)
    except ValueError as error:
        return str(error)


ATTENDING = text(
    """
    SELECT a.check_id, a.run, m.ref, a.result, a.detail, a.output, extract(epoch FROM cp_clock() - a.opened_at)::float8 AS waited_s,
      extract(epoch FROM cp_clock() - a.came_at)::float8 AS came_for_s, extract(epoch FROM cp_clock() - a.told_at)::float8 AS told_for_s
    FROM fabric_check_attendances a JOIN fabric_check_nodes m ON m.check_id = a.check_id AND m.node_id = a.node_id
    WHERE a.check_id = ANY(:checks) AND a.closed_at IS NULL ORDER BY a.check_id, a.run, a.node_id
    """
)


def _attending(session: Session, check_ids: Sequence[str]) -> dict[str, dict[str, tuple[Attendance, ...]]]:
    """
    The open runs of these checks, by check and run.
    """
    found: dict[str, dict[str, tuple[Attendance, ...]]] = {}
    for row in session.execute(ATTENDING, {"checks": list(check_ids)}) if check_ids else ():
        one = Attendance(row.ref, row.waited_s, row.came_for_s, row.result or None, row.told_for_s or 0.0, row.detail, row.output)
        runs = found.setdefault(row.check_id, {})
        runs[row.run] = (*runs.get(row.run, ()), one)
    return found


def _snapshot(
    row: RowMapping, provider: nodes.ProviderRef, members: Sequence[FabricCheckNodeRow], meeting: Meeting | None
) -> CheckSnapshot:
    return CheckSnapshot(
        id=row["id"],
        step=row["step"],
        provider=provider,
        tool=row["tool"],
        rounds=tuple(tuple(map(Run.of, some)) for some in row["rounds"]),
        refs=tuple(sorted(one.ref for one in members)),
        cancel=row["cancel_requested_at"] is not None,
        overdue=row["overdue"],
        end=row["ending"],
        meeting=meeting,
    )


GUEST = text(
    """
    SELECT c.id AS check_id, c.tool, c.rounds, p.config, n.id AS node_id, host(b.address) AS known_address, m.ref, m.told, m.arrived_at,
      a.run, a.came_at, a.result
    FROM boots b JOIN nodes n ON n.boot_id = b.id JOIN fabric_checks c ON c.id = n.check_id JOIN providers p ON p.id = c.provider_id
    JOIN fabric_check_nodes m ON m.check_id = c.id AND m.node_id = n.id
    LEFT JOIN fabric_check_attendances a ON a.check_id = c.id AND a.node_id = n.id AND a.closed_at IS NULL
    WHERE b.id = :boot AND b.purpose = 'fabric' AND b.state IN ('made', 'fetched', 'reporting') AND b.expires_at > cp_clock()
      AND n.state = 'checking' AND c.state IN ('starting', 'running')
    """
)


def find_guest(session: Session, boot_id: str) -> Row[Any] | None:
    """
    The machine of this boot in the check that it is lent to, with its open run if there is one, while the check still goes on; else None.
    """
    return session.execute(GUEST, {"boot": boot_id}).one_or_none()


ARRIVED = text(
    """
    UPDATE fabric_check_nodes SET address = CAST(:address AS inet), told = CAST(:told AS jsonb), arrived_at = cp_clock()
    WHERE check_id = :check AND node_id = :node AND arrived_at IS NULL
    """
)
CAME = text(
    """
    UPDATE fabric_check_attendances SET came_at = cp_clock()
    WHERE check_id = :check AND run = :run AND node_id = :node AND came_at IS NULL AND closed_at IS NULL
    """
)
PEERS = text(
    """
    SELECT m.ref, host(m.address) AS address, m.told, a.came_at
    FROM fabric_check_attendances a JOIN fabric_check_nodes m ON m.check_id = a.check_id AND m.node_id = a.node_id
    WHERE a.check_id = :check AND a.run = :run AND a.closed_at IS NULL
    """
)
ATTENDANCE = text(
    "SELECT came_at, closed_at, digest FROM fabric_check_attendances WHERE check_id = :check AND run = :run AND node_id = :node FOR UPDATE"
)
SAID = text(
    """
    UPDATE fabric_check_attendances SET result = :result, detail = :detail, output = :output, digest = :digest, told_at = cp_clock()
    WHERE check_id = :check AND run = :run AND node_id = :node
    """
)


def put_arrival(session: Session, check_id: str, node_id: str, address: str, told: Mapping[str, Any]) -> None:
    """
    The machine has come; only the first time counts.
    """
    session.execute(ARRIVED, {"check": check_id, "node": node_id, "address": address, "told": json.dumps(dict(told))})


def put_came(session: Session, check_id: str, run: str, node_id: str) -> None:
    """
    The machine has come to the run; only the first time counts.
    """
    session.execute(CAME, {"check": check_id, "run": run, "node": node_id})


def peers_of(session: Session, check_id: str, run: str) -> Sequence[Row[Any]]:
    """
    (ref, address, told, came_at) of the machines of an open run.
    """
    return session.execute(PEERS, {"check": check_id, "run": run}).all()


def lock_attendance(session: Session, check_id: str, run: str, node_id: str) -> Row[Any] | None:
    """
    (came_at, closed_at, digest) of the machine in the run, held until the transaction ends; None where it is in no such run.
    """
    return session.execute(ATTENDANCE, {"check": check_id, "run": run, "node": node_id}).one_or_none()


def put_word(session: Session, check_id: str, run: str, node_id: str, values: Mapping[str, str]) -> None:
    """
    The machine has said this of its part in the run.
    """
    session.execute(SAID, {"check": check_id, "run": run, "node": node_id, **values})


OPEN = text(
    """
    INSERT INTO fabric_check_attendances (check_id, run, node_id)
    SELECT m.check_id, :run, m.node_id FROM fabric_check_nodes m WHERE m.check_id = :check AND m.ref = ANY(:refs)
    """
)


def open_runs(session: Session, check_id: str, runs: Sequence[Run]) -> None:
    """
    The machines of these runs are called together.
    """
    if runs:
        session.execute(OPEN, [{"check": check_id, "run": run.name, "refs": list(run.refs)} for run in runs])


def close_runs(session: Session, check_id: str, names: Sequence[str]) -> None:
    """
    Nothing more is taken for these runs, and what tools printed is not kept.
    """
    _close(session, AttendanceRow.check_id == check_id, AttendanceRow.run.in_(names))


def close_all(session: Session, check_ids: Sequence[str]) -> None:
    """
    Nothing more is taken for any run of these checks.
    """
    _close(session, AttendanceRow.check_id.in_(check_ids))


def _close(session: Session, *which: ColumnElement[bool]) -> None:
    still = AttendanceRow.closed_at.is_(None)
    session.execute(update(AttendanceRow).where(still, *which).values(closed_at=CpClock(), output=""))


def put_returned(session: Session, check_ids: Sequence[str]) -> None:
    """
    These checks hold no node any more.
    """
    held = FabricCheckNodeRow.returned_at.is_(None)
    session.execute(
        update(FabricCheckNodeRow).where(FabricCheckNodeRow.check_id.in_(check_ids), held).values(returned_at=CpClock())
    )
    session.execute(update(FabricCheckRow).where(FabricCheckRow.id.in_(check_ids)).values(ended_at=CpClock()))


REPAIRED = text(
    """
    SELECT DISTINCT n.site, n.leaf FROM repair_tickets t JOIN nodes n ON n.id = t.node_id
    WHERE t.closed_at > cp_clock() - interval '1 day' AND n.state = 'available'
      AND NOT EXISTS (
        SELECT 1 FROM fabric_checks c WHERE c.scope = 'leaf' AND c.site = n.site AND c.leaf = n.leaf AND c.created_at >= t.closed_at)
      AND 2 <= (SELECT count(*) FROM nodes o WHERE o.site = n.site AND o.leaf = n.leaf AND o.state = 'available')
    ORDER BY n.site, n.leaf LIMIT :limit
    """
)


def repaired_leaves(session: Session, limit: int) -> Sequence[Any]:
    """
    (site, leaf) of leaves to which a node came back from repair within a day and which were not checked since.
    """
    return session.execute(REPAIRED, {"limit": limit}).all()
