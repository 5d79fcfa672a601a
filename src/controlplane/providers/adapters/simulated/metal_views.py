"""
What the simulated peer says of its machines at one instant.
"""

from __future__ import annotations

import json
import sqlite3
from functools import lru_cache

from controlplane.providers.adapters.simulated.clock import from_us
from controlplane.providers.adapters.simulated.faults import CANARY_HOST
from controlplane.providers.adapters.simulated.slices import most_on_a_node
from controlplane.providers.errors import NotFound
from controlplane.providers.machines import Check, Inventory, MachineView, Phase, Power, WipeReport

_COLUMNS = """
SELECT m.ref, m.gpu_model, m.gpus, m.memory_gib, m.cpus, m.serial, m.firmware, m.bmc,
  t.id, t.token, t.requested_at, t.ready_at, t.failed_at, t.release_requested_at, t.powered_off_at, t.release_seq,
  t.network, t.reachable_from, t.detached_at,
  w.id, w.finished_at, w.failure,
  r.token, r.finished_at, r.checks,
  q.token, q.checks, i.id, p.id, p.turn_on, p.effective_at
FROM machines m
LEFT JOIN tenancies t ON t.id = (SELECT x.id FROM tenancies x WHERE x.ref = m.ref AND x.hidden = 0 AND x.requested_at <= :at
  ORDER BY x.id DESC LIMIT 1)
LEFT JOIN wipes w ON w.id = (SELECT x.id FROM wipes x WHERE x.ref = m.ref AND x.requested_at <= :at ORDER BY x.id DESC LIMIT 1)
LEFT JOIN wipes r ON r.id = (SELECT x.id FROM wipes x WHERE x.ref = m.ref AND x.finished_at <= :at AND x.checks IS NOT NULL
  ORDER BY x.id DESC LIMIT 1)
LEFT JOIN surveys q ON q.id = (SELECT x.id FROM surveys x WHERE x.ref = m.ref AND x.kind = 'qualify' AND x.finished_at <= :at
  ORDER BY x.id DESC LIMIT 1)
LEFT JOIN surveys i ON i.id = (SELECT x.id FROM surveys x WHERE x.ref = m.ref AND x.kind = 'inspect' AND x.finished_at <= :at
  ORDER BY x.id DESC LIMIT 1)
LEFT JOIN power_changes p ON p.id = (SELECT x.id FROM power_changes x WHERE x.ref = m.ref AND x.requested_at <= :at
  ORDER BY x.id DESC LIMIT 1)
"""


def machine_rows(db: sqlite3.Connection, at: int, ref: str | None = None, *, site: str = "") -> list[sqlite3.Row]:
    """
    The rows behind the views of all machines, of those of one site, or of one machine, at that time.
    """
    if site:
        return db.execute(_COLUMNS + "WHERE m.site = :site", {"at": at, "site": site}).fetchall()
    if ref is None:
        return db.execute(_COLUMNS, {"at": at}).fetchall()
    return db.execute(_COLUMNS + "WHERE m.ref = :ref", {"at": at, "ref": ref}).fetchall()


def slices(db: sqlite3.Connection, site: str) -> dict[str, int]:
    """
    MIG profile to the most that one machine, of all or of the site, can have of it.
    """
    kinds = "SELECT DISTINCT gpu_model, sold_gpus FROM machines WHERE :site IN ('', site)"
    return most_on_a_node((row["gpu_model"], row["sold_gpus"]) for row in db.execute(kinds, {"site": site}))


def machine_view(db: sqlite3.Connection, at: int, ref: str) -> MachineView:
    """
    The machine at that time. Raises NotFound for a name that is not there.
    """
    rows = machine_rows(db, at, ref)
    if not rows:
        raise NotFound(f"no machine is called {ref!r}", code="machine_not_found")
    return view_of(rows[0], at)


def view_of(row: sqlite3.Row, at: int) -> MachineView:
    """
    One row as the port shows it.
    """
    ref, gpu_model, gpus, memory_gib, cpus, serial, firmware, bmc, *later = row
    held_id, token, requested_at, ready_at, failed_at, release_at, off_at, release_seq, network, reached_at, *later = later
    detached_at, wipe_id, wipe_end, wipe_failure, report_token, report_end, report_checks, *later = later
    qualified, checks, inspected, power_id, turned_on, power_at = later
    inventory = _inventory(gpu_model, gpus, memory_gib, cpus, serial, firmware) if inspected is not None else None
    releasing = release_at is not None and release_at <= at
    off = releasing and off_at is not None and off_at <= at
    phase: Phase = "idle"
    failure = ""
    wiping = False
    if wipe_id is not None and (held_id is None or wipe_id > held_id):
        wiping = wipe_end is None or wipe_end > at
        phase = "wiping" if wiping else "wiped"
        if not wiping and wipe_failure:
            phase, failure = "failed", wipe_failure
    elif releasing:
        phase = "released" if off else "releasing"
    elif held_id is not None:
        phase = "deploying" if ready_at is None or ready_at > at else "deployed"
        if failed_at is not None and failed_at <= at:
            phase, failure = "failed", f"deployment of {ref} ({bmc}, {CANARY_HOST}) failed: image not written"
    on = _powered(
        wiping=wiping,
        held=held_id is not None and not off,
        since=0 if held_id is None else (release_seq if off else held_id),
        change=None if power_id is None else (power_id, bool(turned_on), power_at is not None and power_at <= at),
    )
    attached = held_id is not None and reached_at is not None and reached_at <= at and (detached_at is None or detached_at > at)
    return MachineView(
        ref,
        on,
        phase,
        token,
        from_us(ready_at) if ready_at is not None and ready_at <= at and requested_at <= at else None,
        inventory,
        None if report_token is None else WipeReport(report_token, from_us(report_end), _checks(report_checks)),
        () if checks is None else _checks(checks),
        qualified,
        failure,
        network if attached and network else None,
    )


def _powered(*, wiping: bool, held: bool, since: int, change: tuple[int, bool, bool] | None) -> Power:
    """
    On while held or wiped, unless a newer switch came true; a switch that has not come true leaves the opposite standing.
    """
    if wiping:
        return "on"
    if change is not None and change[0] > since:
        _, turned_on, done = change
        return "on" if turned_on == done else "off"
    return "on" if held else "off"


@lru_cache(maxsize=65536)
def _inventory(gpu_model: str, gpus: int, memory_gib: int, cpus: int, serial: str, firmware: str) -> Inventory:
    return Inventory(gpu_model, gpus, memory_gib, cpus, serial, json.loads(firmware))


@lru_cache(maxsize=65536)
def _checks(stored: str) -> tuple[Check, ...]:
    return tuple(Check(name, result, detail) for name, result, detail in json.loads(stored))
