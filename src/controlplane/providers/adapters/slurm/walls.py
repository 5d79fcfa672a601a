"""
A tenant's shared cluster: an endless reservation with exactly its members and its user, and what hangs on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.providers.adapters.slurm import marks
from controlplane.providers.adapters.slurm.answers import JobRecord, NodeRecord, ReservationRecord
from controlplane.providers.adapters.slurm.config import SlurmConfig
from controlplane.providers.adapters.slurm.marks import Mark
from controlplane.providers.adapters.slurm.names import Names, plain
from controlplane.providers.adapters.slurm.peer import Peer
from controlplane.providers.clusters import ClusterList, ClusterSpec, ClusterView, MemberState, MemberView
from controlplane.providers.errors import Busy, NotFound, ProviderError, Refused, Unknown
from controlplane.providers.machines import Check, CheckResult

ENDLESS = "2080-01-01T00:00:00"
"""`infinite` is only a year on 22.05, and a wall that ends would take its jobs with it."""
MAX_CANCELS = 200
"""Jobs one call cancels; the next call takes the rest."""
RETRY_S = 2.0
_COMING = frozenset({"POWERING_UP", "REBOOT_ISSUED", "FUTURE", "POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN", "PLANNED_UP"})
_DOWN = frozenset({"DOWN", "FAIL", "ERROR", "INVALID_REG", "INVAL"})


class Walls:
    """
    The Clusters port on reservations.
    """

    def __init__(self, peer: Peer, config: SlurmConfig) -> None:
        self._peer = peer
        self._config = config
        self._names = peer.names

    def apply(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`.
        """
        wanted = tuple(dict.fromkeys(plain(member.ref, "member") for member in spec.members))
        if not wanted or not spec.user or spec.user == self._config.user:
            raise Refused("a Slurm cluster needs members and a user of its tenant")
        plain(spec.user, "user")
        nodes = {node.name: node for node in self._peer.nodes()}
        missing = [ref for ref in wanted if ref not in nodes]
        if missing:
            raise Refused(f"this Slurm has no nodes {', '.join(missing[:20])}", code="provider_unknown_member")
        reservations = self._peer.reservations()
        name = self._names.reservation(spec.cluster_id)
        present = next((one for one in reservations if one.name == name), None)
        self._hold_if_taken(spec, wanted, reservations, present)
        self._account(spec)
        self._mark(spec, nodes)
        if present is None:
            self._create(spec, wanted)
            return
        leaving = [ref for ref in present.nodes if ref not in wanted]
        self._drain([nodes[ref] for ref in leaving if ref in nodes], f"leaves {spec.cluster_id}")
        busy = self._running_on(leaving) if leaving else {}
        keep = (*wanted, *(ref for ref in leaving if ref in busy))
        self._update(present, spec, keep)
        self._lift_leftovers(spec.cluster_id, wanted, leaving=busy)
        if busy:
            raise Busy(f"jobs still run on leaving members: {', '.join(sorted(busy))}", retry_in_s=RETRY_S)

    def observe(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`.
        """
        wall = self._peer.find_reservation(cluster_id)
        if wall is None:
            raise NotFound(f"no reservation of {cluster_id}")
        nodes = {node.name: node for node in self._peer.nodes()}
        memory = {ref: self._remembered(nodes[ref], cluster_id) for ref in wall.nodes if ref in nodes}
        load = Counter(ref for job in self._peer.jobs() if not job.ended and not job.waits for ref in job.nodes)
        seen = tuple(member_view(ref, nodes.get(ref), load[ref], self._names) for ref in wall.nodes)
        answers = answering(seen)
        memory = self._witness(seen, memory, complete=answers == "passed")
        members = tuple(replace(one, up_since=marks.instant(memory[one.ref].up) if one.ref in memory else None) for one in seen)
        found = [nodes[ref] for ref in wall.nodes if ref in nodes]
        counted: CheckResult = answers if answers != "passed" or all(node.gpus for node in found) else "failed"
        return ClusterView(
            cluster_id=cluster_id,
            members=members,
            verified_at=min(filter(None, (marks.instant(mark.verified) for mark in memory.values())), default=None),
            checks=(
                Check("nodes_answer", answers, f"{sum(node.answers for node in found)} of {len(wall.nodes)}"),
                Check("gpu_count", counted, gpu_words(found)),
                Check("fabric_bandwidth", "not_measured", "Slurm does not measure the fabric"),
            ),
        )

    def delete(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`. Busy until its jobs have ended, which is read, not waited for.
        """
        wall = self._peer.find_reservation(cluster_id)
        if wall is not None:
            self._end_jobs(cluster_id, wall)
            self._peer.cli.scontrol("delete", f"reservationname={wall.name}")
        self._lift_leftovers(cluster_id, ())

    def list_ids(self) -> ClusterList:
        """
        See `Clusters.list_clusters`.
        """
        ours = (self._names.cluster_id(one.name) for one in self._peer.reservations())
        return ClusterList(cluster_ids=tuple(one for one in ours if one), complete=True)

    def drain(self, cluster_id: str, refs: tuple[str, ...], *, reason: str) -> None:
        """
        See `Clusters.drain`.
        """
        self._drain(self._members(cluster_id, refs), reason)

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """
        See `Clusters.undrain`.
        """
        self._undrain([node.name for node in self._members(cluster_id, refs)])

    def take_out(self, ref: str) -> None:
        """
        The node is in no wall of ours; a wall whose last node it was is gone.
        """
        for wall in self._peer.reservations():
            if self._names.cluster_id(wall.name) is None or ref not in wall.nodes:
                continue
            rest = [one for one in wall.nodes if one != ref]
            if rest:
                self._peer.cli.scontrol("update", f"reservation={wall.name}", f"nodes={','.join(rest)}")
            else:
                self._peer.cli.scontrol("delete", f"reservationname={wall.name}")

    def _remembered(self, node: NodeRecord, cluster_id: str) -> Mark:
        try:
            return marks.read(mark_text(node, self._config), self._names.deployment).in_cluster(cluster_id)
        except marks.ForeignMark:
            return Mark()

    def _witness(self, seen: Iterable[MemberView], memory: dict[str, Mark], *, complete: bool) -> dict[str, Mark]:
        """
        What was seen for the first time is kept on the nodes, by slurmctld's clock, so that no later look can tell it otherwise.
        """
        verified = min((mark.verified for mark in memory.values() if mark.verified), default="")
        fresh = {one.ref for one in seen if one.state == "up" and one.ref in memory and not memory[one.ref].up}
        if not self._peer.has_cli or not (fresh or (complete and not verified)):
            return memory
        try:
            now = marks.stamp(self._peer.cli.controller_time())
            verified = verified or (now if complete else "")
            after = {
                ref: replace(mark, up=now if ref in fresh else mark.up, verified=mark.verified or verified)
                for ref, mark in memory.items()
                if mark.cluster
            }
            changed = [ref for ref, mark in after.items() if mark != memory[ref]]
            self._peer.write_nodes([mark_line(ref, after[ref], self._config, self._names.deployment) for ref in changed])
        except ProviderError:
            return memory  # what could not be kept was not seen: the next look tries again
        return {**memory, **after}

    def _members(self, cluster_id: str, refs: tuple[str, ...]) -> list[NodeRecord]:
        wall = self._peer.find_reservation(cluster_id)
        if wall is None:
            raise NotFound(f"no reservation of {cluster_id}")
        outside = [ref for ref in refs if ref not in wall.nodes]
        if outside:
            raise Refused(f"not members of {cluster_id}: {', '.join(outside[:20])}", code="provider_unknown_member")
        return [node for node in self._peer.nodes() if node.name in refs]

    def _hold_if_taken(
        self,
        spec: ClusterSpec,
        wanted: tuple[str, ...],
        reservations: Iterable[ReservationRecord],
        present: ReservationRecord | None,
    ) -> None:
        """
        Nothing is done while another wall, or a job of somebody else, is on a node that would join.
        """
        joining = set(wanted) - set(present.nodes if present else ())
        if not joining:
            return
        for other in reservations:
            if other is not present and joining & set(other.nodes):
                shared = ", ".join(sorted(joining & set(other.nodes)))
                raise Busy(f"reservation {other.name} holds {shared}", retry_in_s=5.0)
        strangers = {
            ref
            for job in self._peer.jobs()
            if not job.ended and not job.waits and job.user not in {spec.user, self._config.user}
            for ref in job.nodes
            if ref in joining
        }
        if strangers:
            raise Busy(f"jobs of others run on {', '.join(sorted(strangers))}", retry_in_s=5.0)

    def _create(self, spec: ClusterSpec, wanted: tuple[str, ...]) -> None:
        name = self._names.reservation(spec.cluster_id)
        # ignore_jobs: an administrator's job that runs or waits there must not keep the wall from standing
        self._peer.cli.scontrol(
            "create",
            "reservation",
            f"reservationname={name}",
            "starttime=now",
            f"endtime={ENDLESS}",
            f"nodes={','.join(wanted)}",
            f"users={spec.user}",
            "flags=ignore_jobs",
        )
        self._read_back(spec, wanted)

    def _update(self, present: ReservationRecord, spec: ClusterSpec, wanted: tuple[str, ...]) -> None:
        changes = []
        if set(present.nodes) != set(wanted):
            changes.append(f"nodes={','.join(wanted)}")
        if present.users != (spec.user,):
            changes.append(f"users={spec.user}")
        if changes:
            self._peer.cli.scontrol("update", f"reservation={present.name}", *changes)
            self._read_back(spec, wanted)

    def _read_back(self, spec: ClusterSpec, wanted: tuple[str, ...]) -> None:
        wall = self._peer.find_reservation(spec.cluster_id)
        if wall is None or set(wall.nodes) != set(wanted) or wall.users != (spec.user,):
            raise Unknown(f"the reservation of {spec.cluster_id} does not read back as it was asked")

    def _account(self, spec: ClusterSpec) -> None:
        if self._config.accounts == "off" or not self._peer.has_accounts():
            return
        account, cli = self._names.account(spec.tenant_id), self._peer.cli
        cli.sacctmgr("add", "account", account, "Description=tenant", f"Organization={self._names.deployment}")
        cli.sacctmgr("add", "user", spec.user, f"Account={account}")

    def _mark(self, spec: ClusterSpec, nodes: Mapping[str, NodeRecord]) -> None:
        """
        Each member remembers who may run on it before anybody can, so that a later wipe knows whom to look for.
        """
        lines = []
        for member in spec.members:
            node = nodes[member.ref]
            try:
                old = marks.read(mark_text(node, self._config), self._names.deployment)
            except marks.ForeignMark as error:
                raise Refused(f"{node.name} carries somebody else's mark: {error}", code="provider_held_by_other") from error
            if old.alloc and member.token and old.alloc != member.token and old.phase == "deployed":
                raise Refused(f"{node.name} is deployed for another allocation", code="provider_held_by_other")
            new = old.with_user(spec.user).in_cluster(spec.cluster_id)
            if new != old:
                lines.append(mark_line(node.name, new, self._config, self._names.deployment))
        self._peer.write_nodes(lines)

    def _end_jobs(self, cluster_id: str, wall: ReservationRecord) -> None:
        alive = [job for job in self._peer.jobs() if not job.ended and self._inside(job, wall)]
        if not alive:
            return
        # nothing may start any more, or a tenant that goes on submitting could hold the wall for ever
        self._drain([node for node in self._peer.nodes() if node.name in wall.nodes], f"deletes {cluster_id}")
        for job in alive[:MAX_CANCELS]:
            self._peer.cancel(job.job_id)
        raise Busy(f"{len(alive)} jobs of the cluster are ending", retry_in_s=RETRY_S)

    def _lift_leftovers(self, cluster_id: str, members: Iterable[str], *, leaving: Iterable[str] = ()) -> None:
        """
        No drain of ours is left on nodes that have left the cluster or came back, also when a call before this one broke off.
        """
        staying, going = set(members), set(leaving)
        ours = [node for node in self._peer.nodes() if node.drained and self._names.is_our_reason(node.reason)]
        left = []
        for node in ours:
            try:
                mark = marks.read(mark_text(node, self._config), self._names.deployment)
            except marks.ForeignMark:
                continue
            came_back = node.reason in {self._names.reason(f"{why} {cluster_id}") for why in ("leaves", "deletes")}
            if mark.cluster == cluster_id and node.name not in going and (node.name not in staying or came_back):
                left.append(node.name)
        self._undrain(left)

    def lift(self, node: NodeRecord) -> None:
        """
        No drain of ours is on the node.
        """
        if node.drained and self._names.is_our_reason(node.reason):
            self._undrain([node.name])

    def _drain(self, nodes: Iterable[NodeRecord], why: str) -> None:
        reason = self._names.reason(why)
        self._peer.write_nodes([f'update nodename={node.name} state=drain reason="{reason}"' for node in nodes if not node.drained])

    def _undrain(self, refs: Iterable[str]) -> None:
        """
        Our drains are lifted, looked at once more right before: an administrator's drain stays.
        """
        wanted = set(refs)
        if not wanted:
            return
        ours = [
            node.name
            for node in self._peer.nodes()
            if node.name in wanted and node.drained and self._names.is_our_reason(node.reason)
        ]
        # 24.11 keeps the old reason on an idle node; a later drain without a reason would look like ours
        pairs = ((f"update nodename={ref} state=undrain", f'update nodename={ref} reason="lifted"') for ref in ours)
        self._peer.write_nodes([line for pair in pairs for line in pair])

    def _running_on(self, refs: Iterable[str]) -> dict[str, int]:
        wanted = set(refs)
        return Counter(ref for job in self._peer.jobs() if not job.ended and not job.waits for ref in job.nodes if ref in wanted)

    def _inside(self, job: JobRecord, wall: ReservationRecord) -> bool:
        if job.reservation == wall.name:
            return True
        mine = job.user in wall.users and job.user != self._config.user
        return mine and not job.waits and bool(set(job.nodes) & set(wall.nodes))


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """
    What a partition lets in.
    """

    name: str
    """Its name."""
    needs_reservation: bool
    """ReqResv=YES: nobody reaches a node outside a wall."""
    closed: bool
    """Only named groups or accounts, or root, may use it."""


def partitions(peer: Peer) -> tuple[PartitionFacts, ...]:
    """
    All partitions. REST says nothing of ReqResv in the versions we speak, so scontrol is asked.
    """
    out = []
    for line in peer.cli.scontrol("-o", "-a", "show", "partition").splitlines():
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" not in facts:
            continue
        named = {facts.get(key, "ALL") for key in ("AllowGroups", "AllowAccounts")} != {"ALL"}
        closed = named or facts.get("RootOnly") == "YES"
        out.append(PartitionFacts(facts["PartitionName"], needs_reservation=facts.get("ReqResv") == "YES", closed=closed))
    return tuple(out)


def member_view(ref: str, node: NodeRecord | None, jobs: int, names: Names) -> MemberView:
    """
    The member as the port shows it.
    """
    if node is None:
        return MemberView(ref=ref, state="absent", gpus=None, jobs=jobs)
    return MemberView(
        ref=ref,
        state=member_state(node, jobs),
        gpus=node.gpus,
        jobs=jobs,
        reason=node.reason if node.drained or not node.answers else "",
        drained_by_us=node.drained and names.is_our_reason(node.reason),
        version=node.version,
    )


def member_state(node: NodeRecord, jobs: int) -> MemberState:
    """
    The node's states in the port's words. A node that only missed a ping is unknown: that is not a loss.
    """
    busy = jobs > 0 or bool(node.states & {"ALLOCATED", "MIXED", "COMPLETING"})
    state: MemberState = "unknown"
    if node.states & _DOWN:
        state = "down"
    elif node.states & _COMING:
        state = "joining"
    elif node.drained:
        state = "draining" if busy else "drained"
    elif node.answers and node.states & {"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED"}:
        state = "up"
    return state


def mark_text(node: NodeRecord, config: SlurmConfig) -> str:
    """
    The text of the node that carries our mark.
    """
    return node.extra if config.mark_field == "extra" else node.comment


def mark_line(ref: str, mark: marks.Mark, config: SlurmConfig, deployment: str) -> str:
    """
    The scontrol line that writes the mark.
    """
    return f"update nodename={ref} {config.mark_field}={mark.text(deployment)}"


def answering(members: Iterable[MemberView]) -> CheckResult:
    """
    Whether all members answer; not measured while one has only missed a ping or is on its way.
    """
    states = {member.state for member in members}
    if states <= {"up", "draining", "drained"}:
        return "passed"
    return "failed" if states & {"down", "absent"} else "not_measured"


def gpu_words(nodes: Iterable[NodeRecord]) -> str:
    """
    How many nodes have how many GPUs.
    """
    return ", ".join(f"{count} nodes of {gpus}" for gpus, count in sorted(Counter(node.gpus for node in nodes).items()))
