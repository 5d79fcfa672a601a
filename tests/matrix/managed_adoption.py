"""
Clusters that exist at a management cluster before us, each taken over, or let go again, under its fault. Until a cluster ran with us it is
not ours: whatever goes wrong, it stands there as it did, with the same Machines on the same hosts and without a mark of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from controlplane.clusters import adopting
from controlplane.identity import service as identity
from controlplane.kit.access import Principal
from controlplane.kit.errors import DomainError
from controlplane.nodes import service as nodes
from tests.matrix.cases import Case
from tests.matrix.life import AT_REST, Ended, Verdict
from tests.matrix.managed_cases import goes_by
from tests.matrix.managed_ground import ManagedGround
from tests.matrix.managed_life import DELETED, HELD, TENANCIES, ManagedLife
from workers.sweeps import check_providers, discover

OPERATIONS = frozenset({"adopt", "let_go"})
LOOKED_AT_EVERY_S = 601.0
MARK = "controlplane.internal/cluster"
FOUND = "SELECT id, provider_id FROM found_clusters WHERE ref = :ref AND gone_at IS NULL"
STATES = "SELECT id, state, step, reason, detail, attention FROM clusters"


def life_of(ground: Any, cases: Sequence[Case]) -> ManagedLife:
    """
    How the cases go: clusters are ordered, or they stand there already.
    """
    return AdoptionLife(ground, cases) if cases[0].operation in OPERATIONS else ManagedLife(ground, cases)


class AdoptionLife(ManagedLife):
    """
    One batch of clusters that stand there already.
    """

    at_rest = frozenset({*AT_REST, "adopting"})
    """Nodes of a cluster that is being taken over wait for it."""

    def __init__(self, ground: ManagedGround, cases: Sequence[Case]) -> None:
        super().__init__(ground, cases)
        self._names: dict[str, str] = {}
        """What Cluster API calls clusters of ours that were taken over."""
        self._asked_at: dict[str, datetime] = {}
        self._turns: dict[tuple[str, str], list[str]] = {}
        self._operator: Principal = identity.KeyAuthenticator(self.world.engine).authenticate(
            f"Bearer {self.world.keys.operator_key}", None
        )

    def run(self) -> Verdict:
        """
        Everything happens; what came of it is returned.
        """
        self._stand()
        for place, case in enumerate(self.cases):
            self._take(place, case)
        self._under_faults("taken over", [one for one in self.cases if one.operation == "adopt"])
        self._judge_standing()
        self._judge_taken()
        self._let_go()
        self._reap()  # of what was seen to be gone, and was not
        self._judge_standing()
        self._note_played()
        self._take_the_rest()
        self._rest("taken over at last", strict=True)
        self._judge_standing(all_ours=True)
        self._delete_all()
        self._rest("given back", strict=True)
        self._reap()
        self._must_be_clean("given back")
        self._next()
        self._judge_end()
        return self.verdict

    # What people do

    def _stand(self) -> None:
        """
        Somebody has a Cluster for each case, on machines that are in maintenance here; the others are free.
        """
        for one in self.ground.ids:
            self._do(one, "maintain")
        for place, case in enumerate(self.cases):
            self.ground.kit.stand(_name(place), self.ground.plan_of(case).workers)
        busy = set(self.ground.at_the_peer(self.ground.ledger.consumers))
        for row in self.world.rows("SELECT id, ref FROM nodes"):
            if row.ref not in busy:
                self._do(row.id, "requalify")
        self._rest("standing", strict=True)
        self._turns = {key: list(turns) for key, turns in self.ground.ledger.taken.items()}

    def _do(self, node_id: str, verb: str) -> None:
        self.world.do(lambda s: nodes.act(s, node_id, verb, reason="by hand", by=self._operator.id, check=lambda _: None))

    def _take(self, place: int, case: Case) -> None:
        found = self._found(place)
        name = f"c{place}-{len(self._names)}"
        wish = adopting.Wish(self.world.keys.tenant_id, self.world.people[0][1], name)
        cluster_id, _ = self.world.do(lambda s: adopting.adopt(s, self._operator, found.provider_id, found.id, wish))
        self._names[cluster_id], self._asked_at[cluster_id] = _name(place), self.world.clock()
        self._case_of[cluster_id] = case
        if self.ground.director.parts.get(cluster_id) is None and not self._note_done(case):
            self._cast(cluster_id, case)
            self.ground.director.parts[cluster_id].cluster = _name(place)

    def _found(self, place: int) -> Any:
        """
        What is told of the Cluster, once its provider was looked at.
        """
        if not self.world.rows(FOUND, ref=_name(place)):
            self.world.clock.advance(LOOKED_AT_EVERY_S)
            check_providers(self.world.engine, self.world.tools)
            discover(self.world.engine, self.world.tools)
        (found,) = self.world.rows(FOUND, ref=_name(place))
        return found

    def _note_done(self, case: Case) -> bool:
        return any(part.case == case for part in self.ground.director.parts.values())

    def _let_go(self) -> None:
        mine = [one for one in self.cases if one.operation == "let_go"]
        for cluster_id, case in self._clusters_of(mine):
            try:
                self.world.do(lambda s, one=cluster_id: adopting.let_go(s, self._operator, one, lambda _: None))
            except DomainError as error:
                self.verdict.broken.append(f"I6 {case.name}: cannot be let go: {error}")
        self._under_faults("let go", mine)
        left = {row.id: row for row in self.world.rows(f"{STATES} WHERE state <> 'deleted'")}
        self.verdict.broken += [
            f"I6 {case.name}: was not let go: {tuple(left[one])}"
            for one, case in self._case_of.items()
            if case in mine and one in left
        ]

    def _take_the_rest(self) -> None:
        """
        What was turned down or let go is taken over once nothing goes wrong any more.
        """
        gone = {row.id for row in self.world.rows(DELETED)}
        for cluster_id in [one for one in self._names if one in gone]:
            place = int(self._names[cluster_id].removeprefix("theirs-"))
            self._take(place, self.cases[place])

    def _note_played(self) -> None:
        played = {part.case: part.played for part in self.ground.director.parts.values()}
        for case in self.cases:
            self.verdict.ended.append(Ended(case, self._asked[case] > 0, played.get(case, 0), self._words.get(case, "")))

    # Judging

    def _look(self) -> None:
        """
        I1 and I7, at every moment: who has a host at the peer has it in our rows, or it is in nobody's; what is free is nobody's and clean.
        """
        consumers, residue, _, findings = self.ground.at_the_peer(self.ground.ledger.tell)
        held = {row.ref: self._peer_name(row.cluster) for row in self.world.rows(HELD)}
        found = [
            f"I1 {ref}: {one} has it, and by our rows {held[ref]}" for ref, one in consumers.items() if held.get(ref, one) != one
        ]
        free = {row.ref for row in self.world.rows("SELECT ref FROM nodes WHERE state IN ('available', 'reserved')")}
        found += [f"I7 {ref}: offered with data of {residue[ref]}" for ref in free & residue.keys()]
        self.verdict.broken += [one for one in (*findings, *found) if one not in self.verdict.broken]

    def _asking(self) -> list[Any]:
        return [row for row in super()._asking() if row.state != "maintenance"]  # where nodes were before, and go back to

    def _judge_taken(self) -> None:
        """
        Only what its provider meant is no takeover.
        """
        for row in self.world.rows(f"{STATES} WHERE state = 'deleted'"):
            case = self._case_of[row.id]
            if goes_by(case):
                self.verdict.broken.append(f"I6 {case.name}: was not taken over for what went by: {tuple(row)}")

    def _peer_name(self, made: str) -> str:
        return next((name for one, name in self._names.items() if f"cp-{one}".replace("_", "-") == made), made)

    def _judge_standing(self, *, all_ours: bool = False) -> None:
        """
        Each Cluster stands with the Machines it had, billed and marked where it is ours, and else neither, nodes in maintenance.
        """
        for key, turns in self._turns.items():
            now = self.ground.ledger.taken[key]
            if now != turns:
                self.verdict.broken.append(f"I9 {key[0]}: {key[1]} had {turns}, and has had {now}")
        marked = {
            one["metadata"]["name"]: one["metadata"].get("labels", {}).get(MARK) for one in self.ground.kit.objects("clusters")
        }
        for name in sorted({cluster for cluster, _ in self._turns} - set(marked)):
            self.verdict.broken.append(f"I9 {name}: it is gone, and was not ours to remove")
        hosts = self.ground.kit.kit.ask("GET", self.ground.kit.hosts())["items"]
        on_hosts = {one["metadata"]["labels"].get(MARK) for one in hosts} - {None}
        ours = set()
        for row in self.world.rows(STATES):
            if row.state == "deleted":
                continue
            ours.add(row.id)
            if row.state == "running" and marked.get(self._names[row.id]) != row.id:
                self.verdict.broken.append(f"I2 {self._name(row.id)}: runs, and is marked as {marked.get(self._names[row.id])}")
            if row.state != "running" and (all_ours or row.attention == ""):
                self.verdict.broken.append(f"I6 {self._name(row.id)}: ends {tuple(row)}")
        stray = (on_hosts | set(marked.values()) - {None}) - ours
        self.verdict.broken += [f"I2 {self._name(one)}: let go, and its marks are there" for one in sorted(stray)]
        wrong = self.world.rows(
            "SELECT a.cluster_id, c.state FROM meter_intervals m JOIN allocations a ON a.id = m.allocation_id"
            " JOIN clusters c ON c.id = a.cluster_id WHERE upper_inf(m.during) AND c.state <> 'running'"
        )
        self.verdict.broken += [f"I3 {self._name(row.cluster_id)}: billed while {row.state}" for row in wrong]

    def _meters(self) -> list[str]:
        """
        I3: one interval at most, not before it was asked for, and to the instant its return was accepted.
        """
        found = []
        for row in self.world.rows(TENANCIES):
            if row.intervals == 0 or row.cluster_id not in self._names:
                continue
            if row.intervals != 1 or row.until != row.given_back or row.since < self._asked_at[row.cluster_id]:
                words = (
                    f"metered {row.since} to {row.until}, asked for {self._asked_at[row.cluster_id]}, given back {row.given_back}"
                )
                found.append(f"I3 {self._name(row.cluster_id)} {row.id}: {words}, {row.intervals} intervals")
        return found


def _name(place: int) -> str:
    return f"theirs-{place}"
