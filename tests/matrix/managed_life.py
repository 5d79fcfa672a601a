"""
The course of many cases side by side on one management cluster: each has a cluster of its own, one operation of which is done under its
fault. Then it is healed and people see to what asks for them; everything is deleted, another tenant gets all hosts, and every promise
must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from controlplane.activity import resolving
from controlplane.clusters import issuing, replacing, scaling, upgrading
from controlplane.clusters import service as clusters
from controlplane.clusters.states import KubernetesOptions
from controlplane.clusters.steps.letting_in import issue
from controlplane.kit.errors import DomainError
from controlplane.kit.orphans import GAP_S, OLD_ENOUGH_S
from controlplane.nodes import service as nodes
from tests.matrix.cases import Case
from tests.matrix.life import AT_REST, Ended, Verdict
from tests.matrix.managed_cases import FINAL, RISES, goes_by
from tests.matrix.managed_ground import ADMIN, SITE, TYPE, ManagedGround
from tests.schedules.invariants import promises_of_rows
from workers.sweeps import Suspects, mend, reap

OLD, NEW = "1.34.2", "1.35.1"
HOUR_S = 3600.0
LONGEST_S = 6 * HOUR_S
SOON_S, LATER_S = 300.0, 1200.0
"""Longest pause between two looks in the first hour, in which whatever goes by has gone by; and after it."""
CALM = 3
WATCHED_S, LOOKED_AT_S = 420.0, 20.0
PROGRESS = """
    SELECT md5(string_agg(id || state || attention, ',' ORDER BY id)) AS mark FROM (
      SELECT id, state, attention FROM nodes UNION ALL SELECT id, state, attention FROM clusters) r
"""
BUSY = """
    SELECT id, state, step, reason, detail FROM nodes WHERE state <> ALL(:rest) AND attention = ''
    UNION ALL SELECT c.id, c.state, c.step, c.reason, c.detail FROM clusters c
    WHERE c.attention = ''
      AND c.state IN ('pending', 'placing', 'provisioning', 'bootstrapping', 'verifying', 'updating', 'upgrading', 'adopting', 'deleting')
"""
HELD = """
    SELECT n.ref, 'cp-' || replace(a.cluster_id, '_', '-') AS cluster FROM allocations a JOIN nodes n ON n.id = a.node_id
    WHERE a.state <> 'ended'
"""
TENANCIES = """
    SELECT a.id, n.ref, a.cluster_id, 'cp-' || replace(a.cluster_id, '_', '-') AS cluster, a.state, a.release_accepted_at AS given_back,
      lower(m.during) AS since, upper(m.during) AS until,
      (SELECT count(*) FROM meter_intervals o WHERE o.allocation_id = a.id AND NOT isempty(o.during)) AS intervals
    FROM allocations a JOIN nodes n ON n.id = a.node_id
    LEFT JOIN meter_intervals m ON m.allocation_id = a.id AND NOT isempty(m.during)
"""
ASKING = "SELECT id, state, attention, reason FROM clusters WHERE attention <> '' OR state = 'failed'"
ASIDE = """
    SELECT n.id, n.state, n.reason, n.attention FROM nodes n WHERE n.attention <> '' OR n.state IN ('quarantined', 'maintenance')
      OR EXISTS (SELECT 1 FROM node_holds h WHERE h.node_id = n.id AND h.lifted_at IS NULL)
"""
TOLD = """
    SELECT id, concat(reason, issues, checks) AS words FROM clusters UNION ALL SELECT id, concat(error, reason, steps) FROM operations
"""
LEAKED = """
    SELECT 'node' AS kind, id FROM nodes WHERE position(:secret in concat(reason, detail)) > 0
    UNION ALL SELECT 'cluster', id FROM clusters WHERE position(:secret in concat(reason, detail, issues, checks)) > 0
    UNION ALL SELECT 'event', id::text FROM events WHERE position(:secret in data::text) > 0
"""
DELETED = "SELECT id FROM clusters WHERE state = 'deleted'"
UNENDED = "SELECT id, type, state FROM operations WHERE state IN ('pending', 'running') AND resource_kind = 'cluster'"


class ManagedLife:
    """
    One batch on one management cluster.
    """

    at_rest = frozenset(AT_REST)
    """States of nodes in which nobody is at work on them."""

    def __init__(self, ground: ManagedGround, cases: Sequence[Case]) -> None:
        self.ground, self.world = ground, ground.world
        self.cases = list(cases)
        self.verdict = Verdict()
        self._asked: Counter[Case] = Counter()
        self._words: dict[Case, str] = {}
        self._case_of: dict[str, Case] = {}
        self._suspects: Suspects = {}

    def run(self) -> Verdict:
        """
        Everything happens; what came of it is returned.
        """
        self._enrol()
        self._order()
        self._let_in()
        self._change()
        self._judge_running()
        self._delete()
        played: Counter[Case] = Counter()
        for part in self.ground.director.parts.values():
            played[part.case] += part.played
        for case in self.cases:
            self.verdict.ended.append(Ended(case, self._asked[case] > 0, played[case], self._words.get(case, "")))
        self._next()
        self._judge_end()
        return self.verdict

    # What people do

    def _enrol(self) -> None:
        mine = [one for one in self.cases if one.operation == "enrol"]
        for node_id, case in zip(self.ground.ids, mine, strict=False):
            self._cast(node_id, case)
        self._under_faults("enrolled", mine)

    def _order(self) -> None:
        cases = [one for one in self.cases if one.operation != "enrol"]
        for place, case in enumerate(cases):
            workers = self.ground.plan_of(case).workers
            self._cast(self._buy(0, f"c{place}", workers), case)
        self._under_faults("ordered", [one for one in cases if one.operation in {"deploy", "order"}])

    def _buy(self, who: int, name: str, workers: int) -> str:
        tenant, project = self.world.people[who]
        sets = (clusters.SetOrder("workers", TYPE, workers),)
        wish = clusters.Order(name, "kubernetes", SITE, sets, wait=True, kubernetes=KubernetesOptions("managed", OLD))
        view, _ = self.world.do(lambda s: clusters.order_cluster(s, tenant, project, wish))
        return str(view.row.id)

    def _let_in(self) -> None:
        """
        Whoever asks gets a kubeconfig that ends, or a refusal in words; once the fault is over, a kubeconfig.
        """
        mine = [one for one in self.cases if one.operation == "kubeconfig"]
        self.ground.restart()
        for healed in (False, True):
            for cluster_id, case in self._clusters_of(mine):
                for _ in range(3):
                    self._ask_in(cluster_id, case, must=healed)
                    self.world.clock.advance(5)
                    self.ground.live()
            self.ground.heal(*mine) if mine else None

    def _ask_in(self, cluster_id: str, case: Case, *, must: bool) -> None:
        tenant, project = self.world.people[0]
        try:
            ask = self.world.do(lambda s: issuing.allow_kubeconfig(s, tenant, project, cluster_id, 900))
            with self.ground.asking(cluster_id):
                text = issue(ask, self.world.tools).text
        except DomainError as error:
            if must:
                self.verdict.broken.append(f"I6 {case.name}: no kubeconfig: {error}")
        except Exception as error:  # noqa: BLE001 - whatever else comes would be a 500 at the edge
            self.verdict.broken.append(f"I10 {case.name}: {type(error).__name__}: {error}")
        else:
            if ADMIN in text:
                self.verdict.broken.append(f"I10 {case.name}: the administrator's token was given out")

    def _change(self) -> None:
        mine = [one for one in self.cases if one.operation in {"watch", "grow", "shrink", "replace", "upgrade"}]
        for cluster_id, case in self._clusters_of(mine):
            self._begin(cluster_id, case)
        if any(one.operation == "watch" for one in mine):
            self._watch()
        self._under_faults("changed", mine)

    def _watch(self) -> None:
        """
        Clusters have been looked at for a while.
        """
        for _ in range(int(WATCHED_S / LOOKED_AT_S)):
            self._tick()
            self.world.clock.advance(LOOKED_AT_S)

    def _begin(self, cluster_id: str, case: Case) -> None:
        tenant, project = self.world.people[0]
        given = (tenant, project, cluster_id, lambda _: None)
        workers = self.ground.plan_of(case).workers
        if case.operation in {"grow", "shrink"}:
            counts = {"workers": workers + (1 if case.operation == "grow" else -1)}
            self.world.do(lambda s: scaling.change_cluster(s, *given, counts=counts))
        elif case.operation == "replace":
            rows = self.world.rows("SELECT instance_id FROM allocations WHERE cluster_id = :c AND state = 'active'", c=cluster_id)
            self.world.do(lambda s: replacing.replace_instance(s, *given[:3], rows[0].instance_id, given[3]))
        elif case.operation == "upgrade":
            self.world.do(lambda s: upgrading.upgrade_workers(s, *given, upgrading.Wish(version=NEW)))

    def _delete(self) -> None:
        self._delete_all()
        self._under_faults("given back", [one for one in self.cases if one.operation in {"delete", "release", "wipe"}])
        self._reap()
        self._must_be_clean("given back")

    def _delete_all(self) -> None:
        for row in self.world.rows("SELECT id, project_id FROM clusters WHERE state NOT IN ('deleting', 'deleted')"):
            tenant = next(person for person, project in self.world.people if project == row.project_id)
            self.world.do(lambda s, one=row, who=tenant: clusters.delete_cluster(s, who, one.project_id, one.id, lambda _: None))

    def _next(self) -> None:
        """
        Another tenant gets every host.
        """
        self._buy(1, "all", len(self.ground.ids))
        self._rest("the next tenant's", strict=True)
        bad = self.world.rows("SELECT id, state, step, reason FROM clusters WHERE state NOT IN ('running', 'deleted')")
        self.verdict.broken += [f"I6 {row.id}: the next tenant's cluster is {tuple(row)}" for row in bad]
        self._delete_all()
        self._rest("given back by the next", strict=True)
        self._must_be_clean("given back by the next")

    def _reap(self) -> None:
        """
        What came back after it was gone is removed, some time later.
        """
        self.world.clock.advance(OLD_ENOUGH_S + 1)
        for _ in range(3):
            reap(self.world.engine, self.world.tools, self._suspects)
            self.world.clock.advance(GAP_S + 1)
            self.ground.live()

    def _under_faults(self, until: str, cases: Sequence[Case]) -> None:
        """
        All that can happen under the faults has happened, then these cases are healed, a person has looked, and all has come to rest.
        """
        self._rest(until, strict=not cases)
        self._note_who_asks()
        if not cases:
            return
        self.ground.heal(*cases)
        for _ in range(6):
            self._rest(f"{until}, healed", strict=True)
            if not self._see_to_all() + self._mend():
                break

    def _mend(self) -> int:
        """
        Clusters that have been degraded for a while replace what is sick, as sweeps have them do; how many that are, or were, is returned.
        """
        degraded = len(self.world.rows("SELECT id FROM clusters WHERE state = 'degraded'"))
        if degraded:
            self._watch()
            mend(self.world.engine)
        return degraded

    def _see_to_all(self) -> int:
        waiting = self.world.rows(
            "SELECT id FROM nodes WHERE attention <> '' UNION ALL SELECT id FROM clusters WHERE attention <> '' AND state <> 'failed'"
        )
        for row in waiting:
            try:
                self.world.do(lambda s, one=row.id: resolving.resolve_resource(s, one, "resume"))
            except DomainError as error:
                self.verdict.broken.append(f"I6 {self._name(row.id)}: cannot be resumed: {error}")
        sick = self.world.rows("SELECT node_id, source, check_name FROM health_reports WHERE class <> 'ok'")
        well = [nodes.Report(row.node_id, row.source, row.check_name, "ok") for row in sick]
        aside = self.world.rows("SELECT id FROM nodes WHERE state = 'quarantined'")
        if aside:
            self.world.do(lambda s: nodes.report(s, well))
        holds = self.world.do(lambda s: [(one.node_id, one.id) for one in nodes.open_holds(s, self.ground.ids)])
        for node_id, hold_id in holds:
            self.world.do(lambda s, one=node_id, two=hold_id: nodes.lift_hold(s, one, two))
        for row in aside:
            self.world.do(lambda s, one=row.id: nodes.act(s, one, "requalify", reason="looked at", by="test", check=lambda _: None))
        return len(waiting) + len(holds) + len(aside)

    # Time

    def _tick(self) -> None:
        while self.world.tick() + self.ground.live():
            self._look()
        self._look()

    def _look(self) -> None:
        """
        I1 and I7, at every moment: who has a host at the peer has it in our rows, and what is free is nobody's and clean.
        """
        ledger = self.ground.ledger
        consumers, residue, there, findings = self.ground.at_the_peer(ledger.tell)
        held = {row.ref: row.cluster for row in self.world.rows(HELD)}
        found = [
            f"I1 {ref}: {one} has it, and by our rows {held.get(ref)}" for ref, one in consumers.items() if held.get(ref) != one
        ]
        free = {row.ref for row in self.world.rows("SELECT ref FROM nodes WHERE state IN ('available', 'reserved')")}
        found += [f"I7 {ref}: offered with data of {residue[ref]}" for ref in free & residue.keys()]
        gone = {f"cp-{row.id}".replace("_", "-"): row.id for row in self.world.rows(DELETED)}
        ghosts = [gone[one] for one in there if one in gone]
        found += [
            f"I2 {self._name(one)}: it is there, and by our rows it is deleted"
            for one in ghosts
            if one in self._case_of and self._case_of[one].fault not in RISES
        ]
        self.verdict.broken += [one for one in (*findings, *found) if one not in self.verdict.broken]

    def _rest(self, until: str, *, strict: bool) -> None:
        """
        All that can happen without people has happened, however long it takes; what then still moves breaks a promise where that is strict.
        """
        passed, pace, mark, calm = 0.0, 0.001, None, 0
        while passed < LONGEST_S and calm < CALM:
            self._tick()
            now = self.world.rows(PROGRESS)[0].mark
            pace = 0.001 if now != mark else min(SOON_S if passed < HOUR_S else LATER_S, max(2.0, pace * 1.6))
            mark = now
            calm = 0 if self.world.rows(BUSY, rest=list(self.at_rest)) else calm + 1
            pauses = [row.pause_s for row in self.world.waiting() if row.pause_s > 0]
            pause = max(min(pauses, default=60.0), pace)
            self.world.clock.advance(pause)
            passed += pause
        if calm < CALM and strict:
            left = self.world.rows(BUSY, rest=list(self.at_rest))
            self.verdict.broken += [f"I6 {self._name(row.id)}: still moving, not {until}: {tuple(row)}" for row in left]

    def _note_who_asks(self) -> None:
        last = self.ground.director.last_of
        for row in self._asking():
            case = self._case_of.get(row.id) or self._case_of.get(last.get(row.id, ""))
            if case is None:
                self.verdict.broken.append(f"I6 {row.id}: asks for a person without a fault: {tuple(row)}")
                continue
            self._asked[case] += 1
            if goes_by(case):
                self.verdict.broken.append(f"I6 {case.name}: a person was asked for what went by: {tuple(row)}")
            self._words[case] = f"{row.state} {row.attention}: {row.reason}"
            if not row.reason:
                self.verdict.broken.append(f"I6 {case.name}: {row.state} without a reason")

    def _asking(self) -> list[Any]:
        return [*self.world.rows(ASKING), *self.world.rows(ASIDE)]

    # Judging

    def _judge_running(self) -> None:
        """
        With every fault of changes healed: each cluster is as ordered, at the peer and in our rows, and who stayed was never touched.
        """
        rows = self.world.rows(
            "SELECT id, state, reason, detail, kubernetes->>'version' AS version FROM clusters WHERE state <> 'failed'"
        )
        consumers, *_ = self.ground.at_the_peer(self.ground.ledger.tell)
        held: dict[str, set[str]] = {}
        for row in self.world.rows(HELD):
            held.setdefault(row.cluster, set()).add(row.ref)
        for row in rows:
            case, name = self._case_of[row.id], f"cp-{row.id}".replace("_", "-")
            there = {ref for ref, one in consumers.items() if one == name}
            if row.state != "running" and case.operation not in {"delete", "release", "wipe"}:
                self.verdict.broken.append(f"I6 {case.name}: ends {tuple(row)}")
            if there != held.get(name, set()):
                self.verdict.broken.append(f"I2 {case.name}: has {sorted(there)}, and by our rows {sorted(held.get(name, set()))}")
            versions = self.ground.at_the_peer(lambda one=name: self.ground.ledger.versions(one))
            if versions != {f"v{row.version}"}:
                self.verdict.broken.append(f"I2 {case.name}: has {sorted(versions)}, and by our rows {row.version}")
            wanted = self._wanted(case)
            if wanted is not None and len(there) != wanted:
                self.verdict.broken.append(f"I2 {case.name}: {len(there)} workers, not {wanted}")
            self._judge_undisturbed(case, name, there)

    def _wanted(self, case: Case) -> int | None:
        """
        Workers that it must have; None where the operation may have been given up.
        """
        workers = self.ground.plan_of(case).workers
        if case in self._asked or case.fault in FINAL:
            return None
        return workers + {"grow": 1, "shrink": -1}.get(case.operation, 0)

    def _judge_undisturbed(self, case: Case, name: str, there: set[str]) -> None:
        if case.operation == "upgrade" or case.fault == "machine_deleted" or self._asked[case]:
            return
        for ref in there:
            turns = self.ground.ledger.taken.get((name, ref), [])
            if len(turns) != 1:
                self.verdict.broken.append(f"I9 {case.name}: {ref} was taken from its tenant and given again: {turns}")

    def _must_be_clean(self, until: str) -> None:
        self.verdict.broken += [f"I2 {until}: {one}" for one in self.ground.kit.remains()]
        left = self.world.rows("SELECT id, state, step, reason, detail, attention FROM nodes WHERE state <> 'available'")
        self.verdict.broken += [f"I6 {self._name(row.id)}: did not come back: {tuple(row)}" for row in left]
        left = self.world.rows("SELECT id, state, step, reason, detail, attention FROM clusters WHERE state <> 'deleted'")
        self.verdict.broken += [f"I6 {self._name(row.id)}: was not deleted: {tuple(row)}" for row in left]

    def _judge_end(self) -> None:
        found = promises_of_rows(self.world) + self._meters()
        used = self.world.rows("SELECT scope_id, resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')")
        found += [f"I4 still counted: {tuple(row)}" for row in used]
        found += [f"I10 a secret in {tuple(row)}" for row in self.world.rows(LEAKED, secret=ADMIN)]
        found += [f"I5 {row.id}: tells of hosts: {row.words}" for row in self.world.rows(TOLD) if "metal-" in (row.words or "")]
        found += [f"I6 {row.id}: {row.type} never ended: {row.state}" for row in self.world.rows(UNENDED)]
        self.verdict.broken += found

    def _meters(self) -> list[str]:
        """
        I3: one interval at most, not before the host's Node was there, and to the instant its return was accepted.
        """
        found = []
        for row in self.world.rows(TENANCIES):
            if row.intervals == 0:
                continue
            joined = self.ground.ledger.joined.get((row.cluster, row.ref))
            early = joined is None or row.since < joined.replace(microsecond=0)
            if row.intervals != 1 or row.until != row.given_back or early:
                words = f"metered {row.since} to {row.until}, Node there {joined}, given back {row.given_back}, {row.intervals} intervals"
                found.append(f"I3 {self._name(row.cluster_id)} {row.id}: {words}")
        return found

    # Cases

    def _cast(self, one: str, case: Case) -> None:
        self._case_of[one] = case
        self.ground.cast(one, case)

    def _clusters_of(self, cases: Sequence[Case]) -> list[tuple[str, Case]]:
        running = {row.id for row in self.world.rows("SELECT id FROM clusters WHERE state IN ('running', 'degraded')")}
        return [(one, case) for one, case in self._case_of.items() if case in cases and one in running]

    def _name(self, one: str) -> str:
        case = self._case_of.get(one) or self._case_of.get(self.ground.director.last_of.get(one, ""))
        return f"{case.name} {one}" if case is not None else one
