"""
Slurm's nodes as machines. They belong to the operator and stay on; a tenancy is a mark, walls around it, and a scrub after it.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from controlplane.providers.adapters.slurm import marks, scrub
from controlplane.providers.adapters.slurm.answers import JobRecord, NodeRecord
from controlplane.providers.adapters.slurm.config import SlurmConfig
from controlplane.providers.adapters.slurm.marks import Mark
from controlplane.providers.adapters.slurm.names import plain
from controlplane.providers.adapters.slurm.output import Reader
from controlplane.providers.adapters.slurm.peer import Peer
from controlplane.providers.adapters.slurm.requests import Submit, minutes
from controlplane.providers.adapters.slurm.walls import Walls, mark_line, mark_text
from controlplane.providers.errors import Busy, NotFound, Refused, Unsupported
from controlplane.providers.machines import (
    Check,
    CheckResult,
    Deployment,
    Inventory,
    MachineList,
    MachineView,
    Phase,
    Power,
    WipeReport,
)

REPORTS_PER_LISTING = 64
"""Reports one listing reads anew; the others' phase is unknown until somebody looks at them."""
REPORTS_KEPT = 10_000
_OFF = frozenset({"POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN"})


class Nodes:
    """
    The Machines port.
    """

    def __init__(self, peer: Peer, config: SlurmConfig, walls: Walls, reader: Reader) -> None:
        self._peer = peer
        self._config = config
        self._walls = walls
        self._reader = reader
        self._names = peer.names
        self._models = {gres: model for model, gres in config.node_gres.items()}
        self._lock = threading.Lock()
        self._verdicts: dict[str, scrub.Verdict] = {}

    def list_views(self) -> MachineList:
        """
        See `Machines.list_machines`.
        """
        pool = self._config.partition
        nodes = [node for node in self._peer.nodes() if not pool or pool in node.partitions]
        jobs = self._peer.jobs()
        walled = self._walled()
        budget = REPORTS_PER_LISTING
        out = []
        for node in nodes:
            mark = self._mark(node) or Mark()
            fresh = bool(mark.wipe) and mark.wipe not in self._verdicts
            out.append(self._view(node, jobs=jobs, walled=walled, read_report=not fresh or budget > 0))
            budget -= fresh
        return MachineList(machines=tuple(out), complete=True)

    def observe(self, ref: str) -> MachineView:
        """
        See `Machines.observe`.
        """
        node = self._peer.node(ref)
        mark = self._mark(node)
        jobs: tuple[JobRecord, ...] = ()
        walled: frozenset[str] = frozenset()
        if mark and (mark.wipe or mark.phase == "releasing"):
            jobs = self._peer.jobs()
        if mark and mark.phase in {"deployed", "releasing"}:
            walled = self._walled()
        if mark and mark.phase == "deployed" and not mark.ready and _ready(node) and self._peer.has_cli:
            text = self._write(node, mark, replace(mark, ready=marks.stamp(self._peer.cli.controller_time())))
            written = text.text(self._names.deployment)
            node = replace(node, extra=written) if self._config.mark_field == "extra" else replace(node, comment=written)
        return self._view(node, jobs=jobs, walled=walled, read_report=True)

    def inspect(self, ref: str) -> None:
        """
        See `Machines.inspect`: the registration that slurmd sent is the inventory, and it is always there.
        """
        self._peer.node(ref)

    def qualify(self, ref: str, token: str) -> None:
        """
        See `Machines.qualify`: what Slurm registered is compared with what it was told to expect.
        """
        node, mark = self._marked(ref)
        self._write(node, mark, replace(mark, qualified=plain(token, "token")))

    def deploy(self, deployment: Deployment) -> None:
        """
        See `Machines.deploy`.
        """
        token = plain(deployment.token, "token")
        node, mark = self._marked(deployment.ref)
        if mark.alloc == token and mark.phase == "deployed":
            return
        if mark.alloc == token and mark.phase:
            raise Refused(f"the tenancy {token} of {node.name} is over", code="provider_tenancy_over")
        if mark.phase in {"deployed", "releasing"} and mark.alloc != token:
            raise Refused(f"{node.name} is held by {mark.alloc}", code="provider_held_by_other")
        if mark.check or (mark.wipe and self._scrubbing(mark.wipe)):
            raise Busy(f"{node.name} is being {'checked' if mark.check else 'scrubbed'}", retry_in_s=5.0)
        clean = bool(mark.wipe) and not self._verdict(node.name, mark.wipe).failure
        self._write(
            node,
            mark,
            replace(
                mark,
                alloc=token,
                phase="deployed",
                cluster=plain(deployment.cluster_id, "cluster id") if deployment.cluster_id else "",
                users="" if clean else mark.users,
                wipe="",
                network=plain(deployment.network, "network") if deployment.network else "",
                ready=marks.stamp(self._peer.cli.controller_time()) if _ready(node) else "",
                up="",
                verified="",
            ),
        )

    def release(self, ref: str, token: str) -> None:
        """
        See `Machines.release`. Busy until the tenant's jobs on the node have ended.
        """
        node, mark = self._marked(ref)
        if mark.alloc != token or mark.phase == "released":
            if mark.alloc and mark.alloc != token and mark.phase in {"deployed", "releasing"}:
                raise Refused(f"{node.name} is held by {mark.alloc}", code="provider_held_by_other")
            if mark.alloc != token:
                self._write(node, mark, replace(mark, alloc=plain(token, "token"), phase="released"))
            return
        mark = self._write(node, mark, replace(mark, phase="releasing"))
        left = self._tenants_on(node, mark, self._peer.jobs())
        for job in left:
            self._peer.cancel(job.job_id)
        if left:
            raise Busy(f"{len(left)} jobs on {node.name} are ending", retry_in_s=2.0)
        self._walls.take_out(node.name)
        self._write(node, mark, replace(mark, phase="released", network=""))

    def wipe(self, ref: str, token: str) -> None:
        """
        See `Machines.wipe`: the scrub job is looked for by its name before it is sent.
        """
        if not self._config.scrub.enabled:
            raise Unsupported("scrub is not enabled for this Slurm: sell its pool to one tenant only", code="provider_no_scrub")
        name = self._names.scrub_job(token)
        node, mark = self._marked(ref)
        jobs = self._peer.jobs()
        ended = mark.phase == "releasing" and node.name not in self._walled() and not self._tenants_on(node, mark, jobs)
        if mark.phase in {"deployed", "releasing"} and not ended:
            raise Refused(f"{node.name} is held by {mark.alloc}", code="provider_held_by_other")
        mark = self._write(node, mark, replace(mark, wipe=token, phase="released" if ended else mark.phase))
        if self._scrub_job(token, jobs) or self._verdict(node.name, token).report:
            return
        self._walls.lift(node)
        users = tuple(
            dict.fromkeys([*(one for one in mark.users.split("+") if one), *self._config.users, *self._config.scrub.users])
        )
        self._peer.submit(
            Submit(
                name=name,
                comment=name,
                script=scrub.script(self._config.scrub),
                output=scrub.report_path(self._config.scrub, token),
                nodes=1,
                tasks_per_node=1,
                minutes=minutes(self._config.scrub.timeout_s),
                gpus=node.gpus,
                partition=self._config.admin_partition or self._config.partition,
                env=scrub.environment(self._config.scrub, token=token, node=node.name, users=users),
                only=(node.name,),
                exclusive=True,
                requeue=False,
            ),
            self._config.user,
        )

    def _view(self, node: NodeRecord, *, jobs: tuple[JobRecord, ...], walled: frozenset[str], read_report: bool) -> MachineView:
        mark = self._mark(node)
        if mark is None:
            return MachineView(
                ref=node.name, power=_power(node), phase="unknown", inventory=self._inventory(node), failure="foreign mark"
            )
        phase, failure, wiped = self._phase(node, mark, jobs, walled, read_report=read_report)
        return MachineView(
            ref=node.name,
            power=_power(node),
            phase=phase,
            token=mark.alloc or None,
            ready_at=marks.instant(mark.ready) if phase == "deployed" else None,
            network=mark.network or None,
            inventory=self._inventory(node),
            wipe=wiped,
            checks=_checks(node) if mark.qualified else (),
            qualified_token=mark.qualified or None,
            failure=failure,
        )

    def _phase(
        self, node: NodeRecord, mark: Mark, jobs: tuple[JobRecord, ...], walled: frozenset[str], *, read_report: bool
    ) -> tuple[Phase, str, WipeReport | None]:
        if mark.phase == "deployed":
            # in its wall it has been deployed, whatever befell it since; the member's own state tells that
            ready = node.name in walled or _ready(node)
            return ("deployed" if ready else "deploying"), ("" if ready else f"not ready: {_words(node)}"), None
        if mark.phase == "releasing":
            done = node.name not in walled and not self._tenants_on(node, mark, jobs)
            return ("released" if done else "releasing"), "", None
        if not mark.wipe:
            return _at_rest(mark), "", None
        return self._wiping(node, mark, self._scrub_job(mark.wipe, jobs), read_report=read_report)

    def _wiping(
        self, node: NodeRecord, mark: Mark, job: JobRecord | None, *, read_report: bool
    ) -> tuple[Phase, str, WipeReport | None]:
        if job is not None and not job.ended:
            return "wiping", (f"the scrub waits: {job.reason} on {_words(node)}" if job.waits else ""), None
        if not read_report:
            return "unknown", "", None
        verdict = self._verdict(node.name, mark.wipe)
        if job is None and verdict.report is None:
            # never sent, or forgotten without a report: only a new wipe can tell
            return _at_rest(mark), verdict.failure, None
        if job is not None and "COMPLETED" not in job.states:
            return "failed", f"the scrub job ended {'+'.join(sorted(job.states))}; {verdict.failure}"[:500], verdict.report
        return ("failed" if verdict.failure else "wiped"), verdict.failure, verdict.report

    def _verdict(self, ref: str, token: str) -> scrub.Verdict:
        with self._lock:
            known = self._verdicts.get(token)
        if known is not None:
            return known
        if not self._config.scrub.enabled:
            return scrub.Verdict(None, "scrub is not enabled")
        path = scrub.report_path(self._config.scrub, token)
        try:
            raw = self._reader.read(path, owner=self._config.user, offset=0, limit=scrub.MAX_REPORT_BYTES)
        except NotFound:
            return scrub.Verdict(None, "the scrub left no report")
        except Refused as error:
            return scrub.Verdict(None, f"the scrub's report is not trusted: {error.detail}")
        verdict = scrub.verify(raw, token=token, node=ref)
        if verdict.report is not None:
            with self._lock:
                if len(self._verdicts) >= REPORTS_KEPT:
                    self._verdicts.clear()
                self._verdicts[token] = verdict
        return verdict

    def _scrub_job(self, token: str, jobs: tuple[JobRecord, ...]) -> JobRecord | None:
        name = self._names.scrub_job(token)
        found = [job for job in jobs if job.name == name and job.user == self._config.user]
        return max(found, key=lambda job: job.order) if found else None

    def _scrubbing(self, token: str) -> bool:
        job = self._scrub_job(token, self._peer.jobs())
        return job is not None and not job.ended

    def _tenants_on(self, node: NodeRecord, mark: Mark, jobs: tuple[JobRecord, ...]) -> list[JobRecord]:
        users = set(mark.users.split("+")) - {self._config.user, ""}
        return [job for job in jobs if not job.ended and not job.waits and node.name in job.nodes and job.user in users]

    def _walled(self) -> frozenset[str]:
        ours = (one for one in self._peer.reservations() if self._names.cluster_id(one.name) is not None)
        return frozenset(ref for one in ours for ref in one.nodes)

    def _mark(self, node: NodeRecord) -> Mark | None:
        try:
            return marks.read(mark_text(node, self._config), self._names.deployment)
        except marks.ForeignMark:
            return None

    def _marked(self, ref: str) -> tuple[NodeRecord, Mark]:
        node = self._peer.node(ref)
        mark = self._mark(node)
        if mark is None:
            raise Refused(f"{ref} carries somebody else's mark in {self._config.mark_field}", code="provider_held_by_other")
        return node, mark

    def _write(self, node: NodeRecord, old: Mark, new: Mark) -> Mark:
        if new != old:
            self._peer.write_nodes([mark_line(node.name, new, self._config, self._names.deployment)])
        return new

    def _inventory(self, node: NodeRecord) -> Inventory:
        kind = node.gpu_types[0] if len(node.gpu_types) == 1 else ""
        return Inventory(
            gpu_model=self._models.get(kind, ""),
            gpus=node.gpus,
            memory_gib=node.memory_mib // 1024,
            cpus=node.cpus,
            firmware={"slurmd": node.version} if node.version else {},
        )


def _at_rest(mark: Mark) -> Phase:
    return "released" if mark.phase == "released" else "idle"


def _ready(node: NodeRecord) -> bool:
    return node.answers and not node.drained


def _power(node: NodeRecord) -> Power:
    # Slurm reads no power supply; it only knows what its own power saving has switched off
    return "off" if node.states & _OFF else "unknown"


def _words(node: NodeRecord) -> str:
    return "+".join(sorted(node.states)) + (f" ({node.reason})" if node.reason else "")


def _checks(node: NodeRecord) -> tuple[Check, ...]:
    registered = "INVALID_REG" not in node.states and "INVAL" not in node.states and node.answers
    fits: CheckResult = "passed" if registered else "failed"
    return (
        Check("node_answers", "passed" if node.answers else "failed", _words(node)),
        Check("gpu_count", fits if node.gpus else "failed", f"{node.gpus} registered"),
        Check("memory", fits if node.memory_mib else "failed", f"{node.memory_mib} MiB"),
        Check("cpus", fits if node.cpus else "failed", f"{node.cpus} CPUs"),
        Check("gpu_burn_in", "not_measured", "Slurm runs no burn-in"),
        Check("fabric_bandwidth", "not_measured", "Slurm does not measure the fabric"),
    )
