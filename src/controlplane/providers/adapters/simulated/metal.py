"""
What calls do to machines: tenancies, wipes, surveys and power.

Nothing here waits: each effect writes down when the work will have been done, and views show what has come true by then.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.faults import CANARY_HOST, FORGOTTEN
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.machines import Deployment

PLACES = ("disk", "memory", "gpu_memory", "firmware", "bmc")
"""Where a tenancy leaves its traces."""
WIPE_CHECKS = {
    "disk": "disk_wiped",
    "memory": "memory_cleared",
    "gpu_memory": "gpu_memory_scrubbed",
    "firmware": "firmware_baseline",
    "bmc": "bmc_baseline",
}
"""What a wipe report calls the cleaning of each place."""
REACHABLE_SHARE = 0.9
"""The tenant's network is attached after this share of a deployment: a tenant may reach a machine before it is ready."""


def deploy(act: Act, wanted: Deployment) -> None:
    """
    A tenancy has begun; repeating it under its token changes nothing.
    """
    machine = _machine(act.db, wanted.ref)
    if act.fault == FORGOTTEN:
        _forget(act, wanted)
    mine = _tenancy(act.db, wanted.ref, wanted.token)
    if mine is not None:
        if mine["release_requested_at"] is not None or mine["tenant_id"] != wanted.tenant_id:
            raise Refused(f"{wanted.ref} ({machine['bmc']}): tenancy {wanted.token} is over or another's", code="tenancy_over")
        return
    holder = latest_tenancy(act.db, wanted.ref)
    if holder is not None:
        if holder["release_requested_at"] is None:
            raise Refused(f"{wanted.ref} ({machine['bmc']}) is held by {holder['token']}", code="machine_held")
        if holder["powered_off_at"] is None or holder["powered_off_at"] > act.now:
            raise Busy(f"{wanted.ref} ({machine['bmc']}) is still being released by {holder['token']}")
    if _running_wipe(act, wanted.ref) is not None:
        raise Busy(f"{wanted.ref} ({machine['bmc']}) is being wiped")
    takes = act.takes("deploy", wanted.ref, wanted.token)
    done = act.start + takes
    reached: int | None = act.start + round(takes * REACHABLE_SHARE)
    ready: int | None = done
    failed: int | None = None
    if act.fault in {"deploy_never_finishes", "deploy_fails"}:
        reached = ready = None
        failed = done if act.fault == "deploy_fails" else None
    act.db.execute(
        "INSERT INTO tenancies (id, ref, token, tenant_id, cluster_id, network, deployment, gpus, requested_at, reachable_from,"
        " ready_at, failed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(act.seq, wanted.ref, wanted.token, wanted.tenant_id, wanted.cluster_id, wanted.network),
            *(act.deployment, machine["gpus"], act.start, reached, ready, failed),
        ),
    )
    wake(act.db, wanted.ref, act.now)
    act.changed = True


def _forget(act: Act, wanted: Deployment) -> None:
    """
    The peer does not know any more that this tenancy was ever there and is over; what it was stays in the ledger by another name.
    """
    act.db.execute(
        "UPDATE tenancies SET token = token || '#' || id WHERE ref = ? AND token = ? AND powered_off_at <= ?",
        (wanted.ref, wanted.token, act.now),
    )


def release(act: Act, ref: str, token: str, accepted_at: int) -> None:
    """
    The tenancy is ending: networks first, then power. A token that never came is remembered as over, so that it cannot come late.
    """
    _machine(act.db, ref)
    mine = _tenancy(act.db, ref, token)
    hang = act.fault == "power_off_never"
    detached = act.start + act.takes("detach", ref, token)
    powered_off = None if hang else detached + act.takes("power_off", ref, token)
    if mine is None:
        holder = latest_tenancy(act.db, ref)
        held = holder is not None and (holder["powered_off_at"] is None or holder["powered_off_at"] > act.now)
        act.db.execute(
            "INSERT INTO tenancies (id, ref, token, tenant_id, cluster_id, network, deployment, gpus, requested_at,"
            " release_requested_at, release_accepted_at, detached_at, powered_off_at, release_seq, hidden)"
            " VALUES (?, ?, ?, '', '', '', ?, 0, ?, ?, ?, ?, ?, ?, ?)",
            (act.seq, ref, token, act.deployment, act.now, act.now, accepted_at, act.now, act.now, act.seq, int(held)),
        )
    elif mine["release_requested_at"] is None:
        act.db.execute(
            "UPDATE tenancies SET release_requested_at = ?, release_accepted_at = ?, detached_at = ?, powered_off_at = ?,"
            " release_seq = ? WHERE id = ?",
            (act.start, accepted_at, detached, powered_off, act.seq, mine["id"]),
        )
    elif mine["powered_off_at"] is None and not hang:
        act.db.execute("UPDATE tenancies SET powered_off_at = ? WHERE id = ?", (powered_off, mine["id"]))
    else:
        return
    wake(act.db, ref, act.now)
    act.changed = True


def wipe(act: Act, ref: str, token: str) -> None:
    """
    A wipe has begun. A wipe that hangs is begun again by a repeat, or replaced by one under another token.
    """
    machine = _machine(act.db, ref)
    holder = latest_tenancy(act.db, ref)
    if holder is not None and holder["release_requested_at"] is None:
        raise Refused(f"{ref} ({machine['bmc']}) is held by {holder['token']}: not wiped", code="machine_held")
    if holder is not None and (holder["powered_off_at"] is None or holder["powered_off_at"] > act.now):
        raise Busy(f"{ref} ({machine['bmc']}) is still being released by {holder['token']}")
    known = act.db.execute("SELECT * FROM wipes WHERE ref = ? AND token = ?", (ref, token)).fetchone()
    if known is not None and (known["finished_at"] is not None or act.fault == "wipe_never_finishes"):
        return
    running = _running_wipe(act, ref)
    if running is not None and running["finished_at"] is not None and running["token"] != token:
        raise Busy(f"{ref} ({machine['bmc']}) is being wiped under {running['token']}")
    finished, checks, cleared, failure = _wipe_outcome(act, machine, act.start + act.takes("wipe", ref, token))
    if known is not None:
        act.db.execute("DELETE FROM wipes WHERE id = ?", (known["id"],))
    act.db.execute(
        "INSERT INTO wipes (id, ref, token, requested_at, finished_at, checks, cleared, failure) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (act.seq, ref, token, act.start, finished, checks, json.dumps(cleared), failure),
    )
    act.changed = True


def _wipe_outcome(act: Act, machine: sqlite3.Row, finished: int) -> tuple[int | None, str | None, Sequence[str], str]:
    """
    When it ends, what the report says (None: no report), which places were really cleared, and why it failed.
    """
    said = [[WIPE_CHECKS[place], "passed", "read back: empty"] for place in PLACES]
    if act.fault == "wipe_never_finishes":
        return None, None, (), ""
    if act.fault == "wipe_fails":
        return (
            finished,
            None,
            (),
            f"wipe aborted on {machine['ref']} ({machine['bmc']}, {CANARY_HOST}): no answer from the cleaning image",
        )
    if act.fault == "wipe_check_fails":
        place = str(act.params["place"])
        said[PLACES.index(place)] = [WIPE_CHECKS[place], "failed", f"{machine['bmc']}, {CANARY_HOST}: still holds data"]
        cleared = tuple(one for one in PLACES if one != place)
        return finished, json.dumps(said), cleared, f"{WIPE_CHECKS[place]} failed on {machine['ref']} ({machine['bmc']})"
    if act.fault == "wipe_empty_report":
        return finished, "[]", (), ""
    if act.fault == "wipe_lies":
        return finished, json.dumps(said), (), ""
    return finished, json.dumps(said), PLACES, ""


def survey(act: Act, kind: str, ref: str, token: str) -> None:
    """
    An inspection or a qualification has begun; one that hangs is begun again by a repeat.
    """
    machine = _machine(act.db, ref)
    holder = latest_tenancy(act.db, ref)
    if kind == "qualify" and holder is not None and holder["release_requested_at"] is None:
        raise Refused(f"{ref} ({machine['bmc']}) is held by {holder['token']}: not tested", code="machine_held")
    hang = act.fault == f"{kind}_never_finishes"
    known = act.db.execute("SELECT * FROM surveys WHERE ref = ? AND kind = ? AND token = ?", (ref, kind, token)).fetchone()
    if known is not None and (known["finished_at"] is not None or hang):
        return
    if known is not None:
        act.db.execute("DELETE FROM surveys WHERE id = ?", (known["id"],))
    finished = None if hang else act.start + act.takes(kind, ref, token)
    checks = json.dumps(_qualification(act, machine, finished or act.start)) if kind == "qualify" else "[]"
    act.db.execute(
        "INSERT INTO surveys (id, ref, kind, token, requested_at, finished_at, checks) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (act.seq, ref, kind, token, act.start, finished, checks),
    )
    act.changed = True


def _qualification(act: Act, machine: sqlite3.Row, at: int) -> list[list[str]]:
    left = sorted({f"{place} of {tenant}" for place, tenant in residue(act.db, machine["ref"], at)})
    down = act.db.execute(
        "SELECT 1 FROM outages WHERE ref = ? AND from_at <= ? AND (until_at IS NULL OR until_at > ?)", (machine["ref"], at, at)
    ).fetchone()
    counted = machine["gpus"] == machine["sold_gpus"]
    burned = act.fault != "qualify_fails"
    where = f"{machine['ref']} ({machine['bmc']}, {CANARY_HOST})"
    return [
        ["answers", "failed" if down else "passed", where],
        ["gpu_count", "passed" if counted else "failed", f"{machine['gpus']} of {machine['sold_gpus']} on {where}"],
        ["gpu_burn_in", "passed" if burned else "failed", where if burned else f"XID 79 on GPU 0 of {where}"],
        ["residue", "failed" if left else "passed", f"{where}: {', '.join(left) or 'nothing found'}"],
        ["fabric", "not_measured", "a simulated fabric has no figure"],
    ]


def power(act: Act, ref: str, token: str, *, turn_on: bool) -> None:
    """
    Power will be switched; a repeat under the token changes nothing unless the first never came true.
    """
    _machine(act.db, ref)
    hang = act.fault == "power_off_never" and not turn_on
    known = act.db.execute("SELECT * FROM power_changes WHERE ref = ? AND token = ?", (ref, token)).fetchone()
    if known is not None and (known["effective_at"] is not None or hang):
        return
    if known is not None:
        act.db.execute("DELETE FROM power_changes WHERE id = ?", (known["id"],))
    effective = None if hang else act.start + act.takes("power_on" if turn_on else "power_off", ref, token)
    act.db.execute(
        "INSERT INTO power_changes (id, ref, token, turn_on, requested_at, effective_at) VALUES (?, ?, ?, ?, ?, ?)",
        (act.seq, ref, token, int(turn_on), act.start, effective),
    )
    act.changed = True


def residue(db: sqlite3.Connection, ref: str, at: int) -> list[tuple[str, str]]:
    """
    What can be read from the machine at that time: (place, tenant) of every tenancy whose traces no real wipe has cleared.
    """
    found: list[tuple[str, str]] = []
    wipes = db.execute("SELECT id, cleared FROM wipes WHERE ref = ? AND finished_at <= ?", (ref, at)).fetchall()
    for tenancy in db.execute(
        "SELECT id, tenant_id FROM tenancies WHERE ref = ? AND reachable_from <= ? AND (detached_at IS NULL"
        " OR reachable_from <= detached_at) ORDER BY id",
        (ref, at),
    ):
        cleared = {place for wiped in wipes if wiped["id"] > tenancy["id"] for place in json.loads(wiped["cleared"])}
        found += [(place, tenancy["tenant_id"]) for place in PLACES if place not in cleared]
    return found


def latest_tenancy(db: sqlite3.Connection, ref: str) -> Any:
    """
    The newest tenancy of the machine, ended or not; None when there was never one.
    """
    return db.execute("SELECT * FROM tenancies WHERE ref = ? AND hidden = 0 ORDER BY id DESC LIMIT 1", (ref,)).fetchone()


def wake(db: sqlite3.Connection, ref: str, at: int) -> None:
    """
    The cluster that the machine is in will look at its queue again from `at` on.
    """
    db.execute(
        "UPDATE clusters SET next_event_at = min(coalesce(next_event_at, ?), ?) WHERE id IN"
        " (SELECT object_id FROM members WHERE ref = ? AND removed_at IS NULL)",
        (at, at, ref),
    )


def _machine(db: sqlite3.Connection, ref: str) -> sqlite3.Row:
    row: sqlite3.Row | None = db.execute("SELECT * FROM machines WHERE ref = ?", (ref,)).fetchone()
    if row is None:
        raise NotFound(f"no machine is called {ref!r}", code="machine_not_found")
    return row


def _tenancy(db: sqlite3.Connection, ref: str, token: str) -> Any:
    return db.execute("SELECT * FROM tenancies WHERE ref = ? AND token = ?", (ref, token)).fetchone()


def _running_wipe(act: Act, ref: str) -> Any:
    """
    The wipe that is going on, or hangs.
    """
    newest = act.db.execute("SELECT * FROM wipes WHERE ref = ? ORDER BY id DESC LIMIT 1", (ref,)).fetchone()
    if newest is None or (newest["finished_at"] is not None and newest["finished_at"] <= act.now):
        return None
    holder = latest_tenancy(act.db, ref)
    return newest if holder is None or newest["id"] > holder["id"] else None
