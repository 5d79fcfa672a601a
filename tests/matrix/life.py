"""
The course of many cases side by side: two tenants have the machines one after the other, the first while faults are played.

Each machine has a case of its own. After the first tenancy all is healed and people see to what asks for them; then every machine has to
come back, the second tenant gets it, and every promise must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.activity import resolving
from controlplane.catalog import service as catalog
from controlplane.clusters import replacing
from controlplane.clusters import service as clusters
from controlplane.kit.errors import DomainError
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from tests.factories.world import MASTER_KEY
from tests.matrix.cases import Case
from tests.matrix.flashing import NEW, WANTED
from tests.schedules.invariants import broken_promises

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ada"
LONGEST_S = 30 * 3600.0
"""No state lasts longer than its bound, and no node goes through more of them without rest than fit into this."""
CALM = 3
AT_REST = ("available", "active", "quarantined", "maintenance")
RESTLESS = """
    SELECT n.id, n.state, n.step, n.reason, n.attention FROM nodes n
    WHERE n.id = ANY(:ids) AND n.state <> ALL(:rest) AND n.attention = ''
"""
MOVING = """
    SELECT c.id, c.state, c.step, c.reason FROM clusters c
    WHERE c.state IN ('pending', 'bootstrapping', 'verifying', 'deleting', 'updating', 'provisioning') AND c.attention = ''
      AND NOT (c.state = 'provisioning' AND EXISTS (SELECT 1 FROM node_sets s WHERE s.cluster_id = c.id AND s.count >
        (SELECT count(*) FROM allocations a WHERE a.node_set_id = s.id AND a.state IN ('held', 'active'))))
      AND NOT (c.state = 'updating' AND c.step = 'placing')
"""
PROGRESS = """
    SELECT md5(string_agg(id || state || step || attention, ',' ORDER BY id)) AS mark FROM (
      SELECT id, state, step, attention FROM nodes UNION ALL SELECT id, state, step, attention FROM clusters) r
"""
ASIDE = """
    SELECT n.id, n.state, n.reason, n.attention,
      EXISTS (SELECT 1 FROM node_holds h WHERE h.node_id = n.id AND h.lifted_at IS NULL) AS held
    FROM nodes n WHERE n.id = ANY(:ids)
"""
BILLED = """
    SELECT a.id, a.node_id, lower(m.during) AS since, upper(m.during) AS until, a.release_accepted_at AS given_back,
      (SELECT min(b.ready_at) FROM boots b WHERE b.allocation_id = a.id) AS ready_at,
      (SELECT count(*) FROM meter_intervals o WHERE o.allocation_id = a.id AND NOT isempty(o.during)) AS intervals
    FROM allocations a JOIN meter_intervals m ON m.allocation_id = a.id AND NOT isempty(m.during) WHERE a.node_id = ANY(:ids)
"""
LEAKED = """
    SELECT 'node' AS kind, id FROM nodes WHERE position(:secret in concat(reason, detail)) > 0
    UNION ALL SELECT 'event', id::text FROM events WHERE position(:secret in data::text) > 0
"""


@dataclass
class Ended:
    """
    What became of a case.
    """

    case: Case
    """Which."""
    person: bool = False
    """Whether somebody was asked for."""
    played: int = 0
    """How often its fault was met."""
    words: str = ""
    """Where its machine stood."""


@dataclass
class Verdict:
    """
    What became of a batch.
    """

    ended: list[Ended] = field(default_factory=list)
    """Each case."""
    broken: list[str] = field(default_factory=list)
    """Promises that were not kept, in words."""


class Life:
    """
    One batch on one ground.
    """

    def __init__(self, ground: Any, cases: Sequence[Case]) -> None:
        self.ground, self.world = ground, ground.world
        self.cases = list(cases)
        self.verdict = Verdict()
        self._asked: Counter[str] = Counter()
        self._words: dict[str, str] = {}
        self._case_of: dict[str, Case] = {}
        self.replaces = any(case.operation == "replace" for case in cases)
        self.updates = any(case.operation == "firmware" for case in cases)

    def run(self) -> Verdict:
        """
        Everything happens; what came of it is returned.
        """
        if not self.replaces:
            for node_id, case in zip(self.ground.ids, self.cases, strict=True):
                self._cast(node_id, case)
        self._rest("qualified")
        if self.updates:
            self._update_all()
        made = self._order_all(0, len(self.cases))
        self._rest("deployed")
        if self.replaces:
            self._replace(made)
        self._remember_tenants()
        self._delete_all()
        self._rest("given back")
        played: Counter[Case] = Counter()
        for part in self.ground.director.parts.values():
            played[part.case] += part.played
        for one, case in self._case_of.items():
            self.verdict.ended.append(Ended(case, self._asked[one] > 0, played[case], self._words.get(one, "")))
        self._come_back()
        self._order_all(1, len(self.ground.ids))
        self._rest("deployed for the next")
        self._judge_second()
        self._remember_tenants()
        self._delete_all()
        self._rest("given back by the next")
        self._judge_end()
        return self.verdict

    def _cast(self, one: str, case: Case, *, armed: bool = True) -> None:
        self._case_of[one] = case
        self.ground.director.cast(one, case, armed=armed)

    # What people do

    def _order_all(self, who: int, most: int) -> list[str]:
        free = self.world.rows(
            "SELECT count(*) AS n FROM nodes n WHERE state = 'available' AND id = ANY(:ids) AND NOT EXISTS "
            "(SELECT 1 FROM node_holds h WHERE h.node_id = n.id AND h.lifted_at IS NULL)",
            ids=self.ground.ids,
        )[0].n
        return [self._order(who, f"c{who}-{number}") for number in range(min(free, most))]

    def _order(self, who: int, name: str) -> str:
        tenant, project = self.world.people[who]
        sets = (clusters.SetOrder("workers", self.world.keys.instance_type, 1),)
        login = clusters.Login((KEY,), "") if self.ground.kind == "baremetal" else None
        wanted = clusters.Order(name, self.ground.kind, self.world.keys.site, sets, wait=True, login=login)
        sealer = Sealer.from_base64(MASTER_KEY)
        view, _ = self.world.do(lambda s: clusters.order_cluster(s, tenant, project, wanted, sealer))
        return str(view.row.id)

    def _replace(self, made: Sequence[str]) -> None:
        for cluster_id, case in zip(made, self.cases, strict=False):
            self._cast(cluster_id, case)
            (row,) = self.world.rows(
                "SELECT instance_id, node_id FROM allocations WHERE cluster_id = :c AND state = 'active'", c=cluster_id
            )
            self.ground.director.cast(row.node_id, case)
            tenant, project = self.world.people[0]
            given = (project, cluster_id, row.instance_id)
            self.world.do(lambda s, who=tenant, one=given: replacing.replace_instance(s, who, *one, lambda _: None))
        self._rest("replaced")

    def _delete_all(self) -> None:
        for row in self.world.rows("SELECT id, project_id FROM clusters WHERE state NOT IN ('deleting', 'deleted')"):
            tenant = next(person for person, project in self.world.people if project == row.project_id)
            self.world.do(lambda s, one=row, who=tenant: clusters.delete_cluster(s, who, one.project_id, one.id, lambda _: None))

    def _update_all(self) -> None:
        """
        The operator wants other firmware, and has every machine updated.
        """
        self.world.do(lambda s: catalog.put_parts(s, self.world.keys.instance_type, WANTED))
        for node_id in self.ground.ids:
            self.world.do(
                lambda s, one=node_id: nodes.act(s, one, "update-firmware", reason="new", by="test", check=lambda _: None)
            )
        self._rest("updated")

    def _remember_tenants(self) -> None:
        self.ground.director.tenanted |= {row.node_id for row in self.world.rows("SELECT DISTINCT node_id FROM allocations")}

    def _come_back(self) -> None:
        """
        Faults are over; an operator lets go on what waits, lifts holds and has what was put aside qualified again.
        """
        self.ground.heal()
        for _ in range(6):
            if not self._see_to_all():
                break
            self._rest("after a person looked")
        left = self.world.rows(
            "SELECT id, state, step, reason, detail, attention FROM nodes WHERE id = ANY(:ids) AND state <> 'available'",
            ids=self.ground.ids,
        )
        self.verdict.broken += [f"I6 {self._name(row.id)}: did not come back: {tuple(row)}" for row in left]

    def _see_to_all(self) -> int:
        waiting = self.world.rows(
            "SELECT id FROM nodes WHERE attention <> '' OR deadline_at < cp_clock() UNION ALL SELECT id FROM clusters WHERE attention <> ''"
        )
        for row in waiting:
            try:
                self.world.do(lambda s, one=row.id: resolving.resolve_resource(s, one, "resume"))
            except DomainError as error:
                self.verdict.broken.append(f"I6 {row.id}: cannot be resumed: {error}")
        holds = self.world.do(lambda s: [(one.node_id, one.id) for one in nodes.open_holds(s, self.ground.ids)])
        for node_id, hold_id in holds:
            self.world.do(lambda s, one=node_id, two=hold_id: nodes.lift_hold(s, one, two))
        aside = self.world.rows("SELECT id FROM nodes WHERE state = 'quarantined' AND id = ANY(:ids)", ids=self.ground.ids)
        for row in aside:
            self.world.do(lambda s, one=row.id: nodes.act(s, one, "requalify", reason="looked at", by="test", check=lambda _: None))
        return len(waiting) + len(holds) + len(aside)

    # Time

    def _rest(self, until: str) -> None:
        """
        All that can happen without people has happened, however long it takes; what then still moves breaks a promise.
        """
        passed, pace, mark, calm = 0.0, 0.001, None, 0
        while passed < LONGEST_S and calm < CALM:
            while self.world.tick() + self.ground.live():
                pass
            self.verdict.broken += self.ground.broken()
            now = self.world.rows(PROGRESS)[0].mark
            pace = 0.001 if now != mark else min(900.0, max(2.0, pace * 1.6))
            mark = now
            busy = self.world.rows(RESTLESS, ids=self.ground.ids, rest=list(AT_REST)) or self.world.rows(MOVING)
            calm = 0 if busy else calm + 1
            pauses = [row.pause_s for row in self.world.waiting() if row.pause_s > 0]
            pause = max(min(pauses, default=60.0), pace)
            self.world.clock.advance(pause)
            passed += pause
        if calm < CALM:
            left = self.world.rows(RESTLESS, ids=self.ground.ids, rest=list(AT_REST)) or self.world.rows(MOVING)
            self.verdict.broken += [f"I6 {self._name(row.id)}: still moving, not {until}: {tuple(row)}" for row in left]
        self._note_who_asks()

    def _note_who_asks(self) -> None:
        by_node = {
            row.node_id: row.cluster_id
            for row in self.world.rows("SELECT node_id, cluster_id FROM allocations WHERE state <> 'ended'")
        }
        for row in self.world.rows(ASIDE, ids=self.ground.ids):
            one = row.id if row.id in self._case_of else by_node.get(row.id, row.id)
            asks = row.state in {"quarantined", "maintenance"} or row.attention != "" or row.held
            self._asked[one] += asks
            if asks:
                self._words[one] = f"{row.state} {row.attention}: {row.reason}"
                if not row.reason:
                    self.verdict.broken.append(f"I6 {self._name(row.id)}: {row.state} without a reason")

    def _name(self, one: str) -> str:
        case = self._case_of.get(one)
        return f"{case.name} {one}" if case is not None else one

    # Judging

    def _judge_second(self) -> None:
        bad = self.world.rows("SELECT id, state, step, reason FROM clusters WHERE state NOT IN ('running', 'deleted')")
        self.verdict.broken += [f"I6 {row.id}: the next tenant's cluster is {tuple(row)}" for row in bad]

    def _judge_end(self) -> None:
        ids = self.ground.ids
        found = self.ground.broken() + self.ground.remains() + self._meters()
        if self.updates:
            shown = "SELECT id, inventory->'firmware'->>'BMC' AS version FROM nodes WHERE id = ANY(:ids)"
            rows = self.world.rows(shown, ids=ids)
            found += [f"I6 {self._name(row.id)}: ends with {row.version}" for row in rows if row.version != NEW]
            runs = {one.node_id: one.flash.version for one in self.ground.site.machines.values()}
            found += [f"I6 {self._name(one)}: {version} runs" for one, version in runs.items() if version != NEW]
        mine = {row.id for row in self.world.rows("SELECT id FROM allocations WHERE node_id = ANY(:ids)", ids=ids)}
        promised = broken_promises(self.world)
        found += [
            one
            for one in promised
            if not (one.startswith("I3") and one.split()[1].rstrip(":") in mine and self.ground.kind == "baremetal")
        ]
        idle = self.world.rows("SELECT id, state, reason FROM nodes WHERE state <> 'available' AND id = ANY(:ids)", ids=ids)
        found += [f"I6 {self._name(row.id)}: ends {tuple(row)}" for row in idle]
        used = self.world.rows("SELECT scope_id, resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')")
        found += [f"I4 still counted: {tuple(row)}" for row in used]
        found += [f"I10 a secret in {tuple(row)}" for row in self.world.rows(LEAKED, secret="bmc-canary-secret")]
        self.verdict.broken += found

    def _meters(self) -> list[str]:
        """
        I3 for machines we drive: one interval at most, not before the machine was ready, and to the instant its return was accepted.
        """
        if self.ground.kind != "baremetal":
            return []
        found = []
        for row in self.world.rows(BILLED, ids=self.ground.ids):
            early = self.ground.reports and (row.ready_at is None or row.since < row.ready_at)
            if row.intervals != 1 or row.until != row.given_back or early:
                found.append(f"I3 {row.id}: metered {row.since} to {row.until}, ready {row.ready_at}, given back {row.given_back}")
        return found
