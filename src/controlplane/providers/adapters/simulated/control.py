"""
The hand that reaches into a simulated world from outside the ports: tests, demonstrations and operators of a rehearsal.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from controlplane.providers.adapters.simulated import checks, fabric, hosting, metal, standing
from controlplane.providers.adapters.simulated.clock import (
    advance_file_clock,
    file_now_us,
    from_us,
    real_now_us,
    set_file_clock,
    to_us,
)
from controlplane.providers.adapters.simulated.durations import MICROS
from controlplane.providers.adapters.simulated.faults import Rule, add_rule
from controlplane.providers.adapters.simulated.ledger import Call, Ledger, read_calls, read_ledger
from controlplane.providers.adapters.simulated.store import Store
from controlplane.providers.errors import NotFound
from controlplane.providers.fabrics import PortRef


class SimControl:
    """
    Sets faults, moves the clock, kills machines and reads the ledger of the world in one file.

    A world whose adapters run on the caller's clock (`clock: input`) has no clock of its own: give this object the same `now`;
    without it, it goes by the wall clock.
    """

    def __init__(self, path: str | Path, *, now: Callable[[], datetime] | None = None) -> None:
        self._store = Store(Path(path))
        if not self._store.path.exists():
            raise FileNotFoundError(self._store.path)
        self._now_of_callers = now

    def close(self) -> None:
        """
        This thread's hold on the file is given up.
        """
        self._store.close()

    # Clock

    def now(self) -> datetime:
        """
        The world's time.
        """
        with self._store.snapshot() as db:
            return from_us(self._now_us(db))

    def advance(self, seconds: float) -> datetime:
        """
        The file's clock, and every process that goes by it, has moved on; the new time is returned.
        """
        with self._store.change() as db:
            self._require_file_clock(db)
            return from_us(advance_file_clock(db, seconds))

    def freeze(self, at: datetime | None = None) -> None:
        """
        The file's clock stands still, at the given instant or where it is.
        """
        self.set_clock(at, rate=0.0)

    def set_clock(self, at: datetime | None = None, *, rate: float) -> None:
        """
        The file's clock goes on from the given instant, or from where it is, `rate` times as fast as a wall clock.
        """
        with self._store.change() as db:
            self._require_file_clock(db)
            set_file_clock(db, virtual_us=file_now_us(db) if at is None else to_us(at), rate=rate)

    # Faults

    def play(self, fault: str, operation: str = "*", target: str = "*", **rule: Any) -> int:
        """
        The fault is in force by a rule (`tenant`, `count`, `after`, `probability`, `seed`, `params`); its number is returned.

        Raises ValueError for a rule that could never be played.
        """
        with self._store.change() as db:
            return add_rule(db, Rule(fault, operation, target, **rule))

    def add_rule(self, rule: Rule) -> int:
        """
        The rule is in force; its number is returned. Raises ValueError for one that could never be played.
        """
        with self._store.change() as db:
            return add_rule(db, rule)

    def played(self, rule_id: int) -> int:
        """
        How often the rule's fault was played. Raises NotFound for a rule that is gone.
        """
        with self._store.snapshot() as db:
            row = db.execute("SELECT played FROM rules WHERE id = ?", (rule_id,)).fetchone()
            if row is None:
                raise NotFound(f"there is no rule {rule_id}")
            return int(row["played"])

    def heal(self) -> None:
        """
        No rule is in force, what was dead or silent is back, links are good, an administrator's drains are lifted, work that hung goes on
        from now.
        """
        with self._store.change() as db:
            now = self._now_us(db)
            db.execute("DELETE FROM rules")
            db.execute("DELETE FROM flaws")
            db.execute("UPDATE outages SET until_at = max(?, from_at) WHERE until_at IS NULL OR until_at > ?", (now, now))
            db.execute("UPDATE drains SET until_at = max(?, from_at) WHERE ours = 0 AND until_at IS NULL", (now,))
            db.execute(
                "UPDATE tenancies SET reachable_from = ?, ready_at = ? WHERE ready_at IS NULL AND failed_at IS NULL"
                " AND release_requested_at IS NULL AND tenant_id != ''",
                (now, now),
            )
            db.execute(
                "UPDATE tenancies SET powered_off_at = max(?, detached_at) WHERE powered_off_at IS NULL"
                " AND release_requested_at IS NOT NULL",
                (now,),
            )
            self._finish_hung_wipes(db, now)
            db.execute("UPDATE surveys SET finished_at = ? WHERE finished_at IS NULL", (now,))
            db.execute("UPDATE power_changes SET effective_at = ? WHERE effective_at IS NULL", (now,))
            db.execute("UPDATE links SET shut = 0, from_at = ? WHERE shut = 1 AND until_at IS NULL", (now,))
            db.execute("UPDATE members SET join_us = max(0, ? - added_at) WHERE join_us IS NULL", (now,))
            db.execute(
                "UPDATE clusters SET next_event_at = min(coalesce(next_event_at, ?), ?) WHERE deleted_at IS NULL", (now, now)
            )

    def _finish_hung_wipes(self, db: sqlite3.Connection, now: int) -> None:
        report = json.dumps([[metal.WIPE_CHECKS[place], "passed", "read back: empty"] for place in metal.PLACES])
        db.execute(
            "UPDATE wipes SET finished_at = ?, checks = ?, cleared = ? WHERE finished_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM tenancies t WHERE t.ref = wipes.ref AND t.id > wipes.id)",
            (now, report, json.dumps(metal.PLACES)),
        )

    def load(self, service_id: str, amount: float) -> None:
        """
        The metric that the service is scaled by sums up to the amount from now on. Raises NotFound.
        """
        with self._store.change() as db:
            hosting.load(db, service_id, amount)

    # Machines

    def kill_node(self, ref: str, *, for_s: float | None = None, after_s: float = 0.0) -> None:
        """
        The machine is dead, from now or a little later, for some time or until it is revived: its jobs are lost.
        """
        with self._store.change() as db:
            since = self._now_us(db) + round(after_s * MICROS)
            until = None if for_s is None else since + round(for_s * MICROS)
            db.execute("INSERT INTO outages (ref, from_at, until_at, cause) VALUES (?, ?, ?, 'killed')", (ref, since, until))
            metal.wake(db, ref, self._now_us(db))

    def revive_node(self, ref: str) -> None:
        """
        The machine answers again.
        """
        with self._store.change() as db:
            now = self._now_us(db)
            db.execute(
                "UPDATE outages SET until_at = max(?, from_at) WHERE ref = ? AND (until_at IS NULL OR until_at > ?)",
                (now, ref, now),
            )
            metal.wake(db, ref, now)

    def admin_drain(self, ref: str, reason: str) -> None:
        """
        An administrator has drained the machine with a reason of their own.
        """
        with self._store.change() as db:
            now = self._now_us(db)
            db.execute("UPDATE drains SET until_at = max(?, from_at) WHERE ref = ? AND until_at IS NULL", (now, ref))
            db.execute("INSERT INTO drains (ref, reason, ours, from_at) VALUES (?, ?, 0, ?)", (ref, reason, now))

    def admin_undrain(self, ref: str) -> None:
        """
        An administrator has put the machine back to work, whoever drained it.
        """
        with self._store.change() as db:
            now = self._now_us(db)
            db.execute("UPDATE drains SET until_at = max(?, from_at) WHERE ref = ? AND until_at IS NULL", (now, ref))
            metal.wake(db, ref, now)

    def set_gpus(self, ref: str, gpus: int) -> None:
        """
        The machine has so many GPUs from now on, whatever was bought.
        """
        with self._store.change() as db:
            db.execute("UPDATE machines SET gpus = ? WHERE ref = ?", (gpus, ref))

    def stand(self, name: str, refs: Sequence[str], *, version: str = "1.34.2") -> None:
        """
        Somebody else has a cluster of that name on the machines, which nobody is given and nobody wipes meanwhile.
        """
        with self._store.change() as db:
            standing.stand(db, name, tuple(refs), version)

    def remove_cluster(self, cluster_id: str) -> None:
        """
        The cluster's objects are gone, as if an administrator had removed them by hand.
        """
        with self._store.change() as db:
            now = self._now_us(db)
            for row in db.execute("SELECT id FROM clusters WHERE cluster_id = ? AND deleted_at IS NULL", (cluster_id,)).fetchall():
                db.execute("UPDATE clusters SET delete_requested_at = ?, deleted_at = ? WHERE id = ?", (now, now, row["id"]))
                db.execute("UPDATE members SET removed_at = ? WHERE object_id = ? AND removed_at IS NULL", (now, row["id"]))
                end_jobs = "UPDATE jobs SET phase = 'cancelled', reason = 'ClusterDeleted', ended_at = ? WHERE object_id = ?"
                db.execute(end_jobs + " AND phase IN ('pending', 'running')", (now, row["id"]))
                db.execute(
                    "UPDATE runs SET ended_at = ?, freed_at = ? WHERE object_id = ? AND ended_at IS NULL", (now, now, row["id"])
                )

    # Fabric

    def silence_switch(self, switch: str, *, for_s: float | None = None) -> None:
        """
        The switch answers nobody, from now for some time or until it is restored; what it carries goes on.
        """
        self.kill_node(switch, for_s=for_s)

    def restore_switch(self, switch: str) -> None:
        """
        The switch answers again.
        """
        self.revive_node(switch)

    def reboot_switch(self, switch: str) -> None:
        """
        The switch has started anew: it has lost every network, every turn and whatever was on its way in it.
        """
        with self._store.change() as db:
            fabric.forget(db, switch, self._now_us(db))

    def rewire(self, ref: PortRef, segment: int | None, *, tenant_id: str = "") -> None:
        """
        Somebody has put the port, a reserved one included, into a segment or into none by hand. Raises NotFound for no such port.
        """
        with self._store.change() as db:
            fabric.rewire(db, ref, segment, tenant_id, self._now_us(db))

    def spoil_link(self, machines: str, *, rail: int | None = None, factor: float | None) -> None:
        """
        Checks that begin from now on reach only this part of their speed on machines of this glob, on the rail or on all: 0 is a dead
        link, None a machine without the tool. A leaf's machines are `<leaf>-*`.
        """
        with self._store.change() as db:
            checks.add_flaw(db, machines, rail, factor)

    # Reading

    def ledger(self, at: datetime | None = None) -> Ledger:
        """
        What had physically happened by the instant, or by now.
        """
        with self._store.snapshot() as db:
            need = self._meta(db)["need_deployment"] == "1"
            return read_ledger(db, self._now_us(db) if at is None else to_us(at), need_deployment=need)

    def calls(self, *, after: int = 0, operation: str | None = None, target: str | None = None) -> tuple[Call, ...]:
        """
        Calls the peer got, in order.
        """
        with self._store.snapshot() as db:
            return read_calls(db, after=after, operation=operation, target=target)

    def checks(self, token: str) -> tuple[bool, int] | None:
        """
        The session of checks: (whether it has ended, how many runs were begun in it); None where there never was one.
        """
        with self._store.snapshot() as db:
            row = db.execute("SELECT ended_at IS NOT NULL AS over FROM check_sessions WHERE token = ?", (token,)).fetchone()
            runs = db.execute("SELECT count(*) AS begun FROM check_runs WHERE token = ?", (token,)).fetchone()
        return None if row is None else (bool(row["over"]), int(runs["begun"]))

    def contents(self, ref: str) -> tuple[tuple[str, str], ...]:
        """
        What the machine's next holder could read on it now: (place, canary) of every tenancy that no real wipe has cleared.
        """
        with self._store.snapshot() as db:
            left = metal.residue(db, ref, self._now_us(db))
        return tuple((place, canary_of(tenant, ref)) for place, tenant in left)

    def _now_us(self, db: sqlite3.Connection) -> int:
        if self._meta(db)["clock"] == "file":
            return file_now_us(db)
        return real_now_us() if self._now_of_callers is None else to_us(self._now_of_callers())

    def _require_file_clock(self, db: sqlite3.Connection) -> None:
        if self._meta(db)["clock"] != "file":
            raise ValueError("this world goes by its callers' clock; only a world with `clock: file` can be moved")

    @staticmethod
    def _meta(db: sqlite3.Connection) -> Mapping[str, str]:
        return {row["key"]: row["value"] for row in db.execute("SELECT key, value FROM meta")}


def canary_of(tenant_id: str, ref: str) -> str:
    """
    The string that a tenancy of the tenant leaves on the machine.
    """
    return f"canary-{hashlib.blake2b(f'{tenant_id}/{ref}'.encode(), digest_size=8).hexdigest()}"
