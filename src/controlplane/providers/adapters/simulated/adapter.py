"""
The simulated provider behind the ports: one object that owns machines, makes clusters and runs jobs in a world of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from controlplane.providers.adapters.simulated import batch, checks, effects, fabric, groups, hosting, metal_views, standing
from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.clock import Clock, real_now_us, to_us
from controlplane.providers.adapters.simulated.config import SimConfig
from controlplane.providers.adapters.simulated.durations import uniforms
from controlplane.providers.adapters.simulated.faults import Played, draw, incomplete, short
from controlplane.providers.adapters.simulated.founding import found_world
from controlplane.providers.adapters.simulated.store import Store
from controlplane.providers.adapters.simulated.world import load_fleet
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.checks import ChecksView, FabricRun
from controlplane.providers.clusters import Capabilities, ClusterList, ClusterSpec, ClusterView, JobSpec, JobView, OutputChunk
from controlplane.providers.errors import ProviderError
from controlplane.providers.fabrics import FabricView, NetworkSpec, PortRef, PortView
from controlplane.providers.machines import Deployment, MachineList, MachineView, Position
from controlplane.providers.registry import AdapterInput
from controlplane.providers.services import ServiceSpec, ServiceView
from controlplane.providers.tracking import GpuUse

Answer = TypeVar("Answer")
VERSION = "simulated 1"
"""What the peer says its version is."""
OWN_KUBERNETES = {"kubeadm": "1.36.2", "k3s": "1.36.2"}
"""What it says of the Kubernetes clusters that it makes for one tenant alone."""
_TRIM_EVERY = 4096


def build(given: AdapterInput) -> SimulatedProvider:
    """
    The adapter over its world, which is made when its file is not there. Raises Permanent for settings that cannot be.
    """
    config = SimConfig.from_mapping(given.config)
    return SimulatedProvider(config, deployment=given.deployment, now=given.now)


class SimulatedProvider:
    """
    Machines, Clusters, Fabrics, and jobs, output, services and fabric checks; safe to use from several threads and processes.
    """

    def __init__(self, config: SimConfig, *, deployment: str, now: Callable[[], datetime]) -> None:
        self._config = config
        self._deployment = deployment
        self._store = Store(Path(config.path))
        self._clock = Clock(kind=config.clock, now=now)
        start_us = to_us(now()) if config.clock == "input" else real_now_us()
        found_world(self._store, config, start_us)

    def close(self) -> None:
        """
        This thread's hold on the file is given up.
        """
        self._store.close()

    # Machines

    def list_machines(self) -> MachineList:
        """
        Every machine the peer has, with its tags.
        """

        def look(act: Act, at: int) -> tuple[int, bool, list[Any]]:
            rows = metal_views.machine_rows(act.db, at, site=self._config.site)
            whole = act.fault != "partial_list"
            return at, whole, rows if whole else _part(act, rows)

        at, whole, rows = self._read("list_machines", "*", look)
        return MachineList(machines=tuple(metal_views.view_of(row, at) for row in rows), complete=whole)

    def list_positions(self) -> tuple[Position, ...]:
        """
        Every machine's place as the fleet file tells it.
        """
        return tuple(
            Position(
                ref=one.ref,
                site=one.site,
                region=one.region,
                block=one.block,
                leaf=one.leaf,
                rack=one.rack,
                nvlink_domain=one.nvlink_domain if one.nvlink_domain == one.rack else None,
                instance_type=one.instance_type,
                gpus=one.gpus,
            )
            for one in load_fleet(self._config.fleet).machines()
            if self._config.site in {"", one.site}
        )

    def observe(self, ref: str) -> MachineView:
        """
        The machine as the peer sees it now.
        """
        return self._read("observe", ref, lambda act, at: metal_views.machine_view(act.db, at, ref))

    def inspect(self, ref: str, token: str) -> None:
        """
        The peer has begun to read the machine's inventory.
        """
        self._change("inspect", ref, {"ref": ref, "token": token}, token=token)

    def qualify(self, ref: str, token: str) -> None:
        """
        The peer has begun its acceptance checks.
        """
        self._change("qualify", ref, {"ref": ref, "token": token}, token=token)

    def deploy(self, deployment: Deployment) -> None:
        """
        The peer has begun to deploy.
        """
        self._change("deploy", deployment.ref, asdict(deployment), token=deployment.token, tenant=deployment.tenant_id)

    def release(self, ref: str, token: str, *, accepted_at: datetime) -> None:
        """
        The tenancy is being ended: networks detached first, then power off.
        """
        self._change("release", ref, {"ref": ref, "token": token, "accepted_at": to_us(accepted_at)}, token=token)

    def wipe(self, ref: str, token: str) -> None:
        """
        The peer has begun to wipe.
        """
        self._change("wipe", ref, {"ref": ref, "token": token}, token=token)

    def power(self, ref: str, *, on: bool, token: str) -> None:
        """
        The peer has been asked to switch power.
        """
        self._change("power", ref, {"ref": ref, "token": token, "turn_on": on}, token=token)

    # Clusters

    def capabilities(self) -> Capabilities:
        """
        What the simulated peer can do.
        """
        able = Capabilities(
            version=VERSION,
            products=("slurm", "baremetal", "kubernetes"),
            job_output=True,
            drain=True,
            accounts=True,
            walls=("cluster", "user"),
            scrub=True,
            job_features=("gangs", "priority", "launch_torchrun", "launch_mpi", "secret_env", "idle_stop", "mig"),
            only_in={"mig": "kubernetes"},
            notes=(
                "simulated: scripts are played by a small grammar, not run",
                "simulated: its Kubernetes has no API server, so it hands out no kubeconfigs",
            ),
            own_kubernetes=OWN_KUBERNETES,
            adopts=(standing.PRODUCT,),
        )
        return self._read("capabilities", "*", lambda act, _at: replace(able, mig=metal_views.slices(act.db, self._config.site)))

    def apply_cluster(self, spec: ClusterSpec) -> None:
        """
        The peer has been told the whole wanted cluster.
        """
        self._change("apply_cluster", spec.cluster_id, asdict(spec), token=spec.cluster_id, tenant=spec.tenant_id)

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """
        The cluster now.
        """
        return self._read("observe_cluster", cluster_id, lambda act, at: groups.view(act, cluster_id, at))

    def delete_cluster(self, cluster_id: str) -> None:
        """
        The cluster's jobs are cancelled and its objects are being removed.
        """
        self._change("delete_cluster", cluster_id, {"cluster_id": cluster_id}, token=cluster_id)

    def list_clusters(self) -> ClusterList:
        """
        Every cluster at the peer that carries our marks.
        """

        def look(act: Act, at: int) -> ClusterList:
            found = groups.names(act, at)
            if act.fault == "partial_list":
                return ClusterList(cluster_ids=tuple(_part(act, list(found))), complete=False)
            return ClusterList(cluster_ids=found, complete=True)

        return self._read("list_clusters", "*", look)

    def list_standing(self) -> tuple[Standing, ...]:
        """
        Every cluster that is not ours.
        """
        return self._read("list_standing", "*", lambda act, _at: standing.list_all(act, self._config.site))

    def adopt_cluster(self, adoption: Adoption) -> None:
        """
        The cluster is ours as it is.
        """
        self._change("adopt_cluster", adoption.spec.cluster_id, asdict(adoption), tenant=adoption.spec.tenant_id)

    def let_go(self, cluster_id: str) -> None:
        """
        The cluster is its owner's again.
        """
        self._change("let_go", cluster_id, {"cluster_id": cluster_id})

    def drain(self, cluster_id: str, refs: tuple[str, ...], *, reason: str) -> None:
        """
        No new job starts on the members; running ones go on.
        """
        self._change("drain", cluster_id, {"cluster_id": cluster_id, "refs": list(refs), "reason": reason})

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """
        Drains with our prefix are lifted; others are left alone.
        """
        self._change("undrain", cluster_id, {"cluster_id": cluster_id, "refs": list(refs)})

    # SupportsJobs and SupportsOutput

    def submit(self, job: JobSpec) -> str:
        """
        The attempt exists exactly once; the peer's id is returned.
        """
        job = batch.played(job)
        return cast("str", self._change("submit", job.token, asdict(job), token=job.token, tenant=job.tenant_id))

    def find_job(self, cluster_id: str, token: str) -> JobView:
        """
        The attempt by its token.
        """
        return self._read("find_job", token, lambda act, at: batch.find(act, cluster_id, token, at))

    def list_jobs(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        All attempts of the cluster the peer still remembers.
        """

        def look(act: Act, at: int) -> tuple[JobView, ...]:
            if act.fault == "partial_list":
                raise incomplete(f"jobs of {cluster_id}")
            return batch.list_of(act, cluster_id, at)

        return self._read("list_jobs", cluster_id, look)

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        The attempt has been asked to end.
        """
        self._change("cancel", token, {"cluster_id": cluster_id, "token": token}, token=token)

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        Up to `limit` bytes of the attempt's combined output from `offset` on.
        """
        return self._read(
            "read_output", token, lambda act, at: batch.output(act, cluster_id, token, at, offset=offset, limit=limit)
        )

    def gpu_use(self, cluster_id: str, token: str, *, window_s: int) -> GpuUse:
        """
        The use of the attempt's GPUs, as its environment says that it is.
        """
        return self._read("gpu_use", token, lambda act, at: batch.gpu_use(act, cluster_id, token, at, window_s=window_s))

    # Fabrics

    def observe_fabric(self) -> FabricView:
        """
        All tenant ports as the switches have them now.
        """

        def look(act: Act, at: int) -> FabricView:
            site = self._config.site
            if act.fault != "partial_list":
                return fabric.fabric_view(act.db, at, site=site)
            leaves = fabric.leaves_of(act.db, site)
            heard = _part(act, list(leaves))
            return fabric.fabric_view(act.db, at, site=site, mute=[one for one in leaves if one not in heard])

        return self._read("observe_fabric", "*", look)

    def observe_port(self, ref: PortRef) -> PortView:
        """
        One port as its switch has it now.
        """
        return self._read("observe_port", _place(ref), lambda act, at: fabric.port_view(act.db, at, ref))

    def observe_ports(self, switch: str) -> tuple[PortView, ...]:
        """
        All tenant ports of one switch as it has them now.
        """
        return self._read("observe_ports", switch, lambda act, at: fabric.ports_view(act.db, at, switch))

    def attach(self, ref: PortRef, network: NetworkSpec, *, turn: int = 0) -> None:
        """
        The port carries this network and no other.
        """
        given = {"port": asdict(ref), "network": asdict(network), "turn": turn}
        self._change("attach", _place(ref), given, token=network.name, tenant=network.tenant_id)

    def detach(self, ref: PortRef, *, only: int | None = None, turn: int = 0) -> None:
        """
        The port carries no tenant network, or not the one of `only`.
        """
        self._change("detach", _place(ref), {"port": asdict(ref), "only": only, "turn": turn})

    # SupportsFabricChecks

    def prepare_checks(self, token: str, refs: tuple[str, ...]) -> None:
        """
        The machines are being made ready for tools.
        """
        self._change("prepare_checks", token, {"token": token, "refs": list(refs)}, token=token)

    def begin_checks(self, token: str, runs: tuple[FabricRun, ...]) -> None:
        """
        The tools have begun.
        """
        self._change("begin_checks", token, {"token": token, "runs": [asdict(one) for one in runs]}, token=token)

    def observe_checks(self, token: str) -> ChecksView:
        """
        The session now.
        """
        return self._read("observe_checks", token, lambda act, at: checks.view(act.db, token, at))

    def end_checks(self, token: str) -> None:
        """
        Whatever runs under the token is ended and the machines are given up.
        """
        self._change("end_checks", token, {"token": token}, token=token)

    # SupportsServices

    def apply_service(self, spec: ServiceSpec) -> None:
        """
        The peer has been told the whole service.
        """
        self._change("apply_service", spec.service_id, asdict(spec), token=spec.service_id, tenant=spec.tenant_id)

    def observe_service(self, cluster_id: str, service_id: str) -> ServiceView:
        """
        The service now.
        """
        return self._read("observe_service", service_id, lambda act, at: hosting.view(act, cluster_id, service_id, at))

    def delete_service(self, cluster_id: str, service_id: str) -> None:
        """
        All of it is being removed.
        """
        self._change("delete_service", service_id, {"cluster_id": cluster_id, "service_id": service_id}, token=service_id)

    def list_services(self, cluster_id: str) -> tuple[str, ...]:
        """
        The ids of all services of the cluster.
        """

        def look(act: Act, at: int) -> tuple[str, ...]:
            if act.fault == "partial_list":
                raise incomplete(f"services of {cluster_id}")
            return hosting.names(act, cluster_id, at)

        return self._read("list_services", cluster_id, look)

    def read_replica(self, cluster_id: str, service_id: str, name: str, *, limit: int) -> bytes:
        """
        The last bytes that the replica printed.
        """
        return self._read(
            "read_replica", service_id, lambda act, at: hosting.output(act, cluster_id, service_id, name, at, limit=limit)
        )

    # One call

    def _read(self, operation: str, target: str, look: Callable[[Act, int], Answer]) -> Answer:
        def play(act: Act, played: Played | None) -> Answer:
            if played is not None and played.preset.error is not None:
                raise played.error(operation, target)
            if act.fault == "node_dies":
                effects.kill(act, target)
            if act.fault == "switch_forgets":
                fabric.forget(act.db, target.partition("/")[0], act.now)
            at = act.now - (act.wait_us("seconds") if act.fault == "stale_read" else 0)
            return look(act, at)

        return self._call(operation, target, "", "", play, reads=True)

    def _change(self, operation: str, target: str, payload: dict[str, Any], *, token: str = "", tenant: str = "") -> Any:
        def play(act: Act, played: Played | None) -> Any:
            when = None if played is None else played.preset.when
            if played is not None and when == "before":
                raise played.error(operation, target)
            if played is not None and when == "late":
                act.db.execute(
                    "INSERT INTO late_effects (due_at, deployment, operation, target, token, tenant_id, payload)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (act.now + act.wait_us("seconds"), self._deployment, operation, target, token, tenant, json.dumps(payload)),
                )
                raise played.error(operation, target)
            if act.fault == "switch_forgets":
                fabric.forget(act.db, target.partition("/")[0], act.now)
            answer = effects.bring_about(act, operation, payload)
            if when == "twice":
                effects.bring_about(act, operation, payload)
            if played is not None and when == "after":
                raise played.error(operation, target)
            return answer

        return self._call(operation, target, token, tenant, play, reads=False)

    def _call(
        self, operation: str, target: str, token: str, tenant: str, play: Callable[[Act, Played | None], Answer], *, reads: bool
    ) -> Answer:
        """
        One transaction: what came late, the fault if any, the effect, and the ledger's line.
        """
        failure: ProviderError | None = None
        answer: Answer | None = None
        with self._store.change() as db:
            now = self._clock.now_us(db)
            self._bring_late(now)
            played = draw(db, operation, target, tenant)
            act = self._act(now, played)
            act.seq = self._enter(act, operation, target, token, tenant, reads=reads)
            try:
                answer = play(act, played)
            except ProviderError as wrong:
                failure = wrong
            said = "ok" if failure is None else short(failure)
            db.execute("UPDATE calls SET effect = ?, answer = ? WHERE seq = ?", (int(act.changed), said, act.seq))
        if failure is not None:
            raise failure
        return cast("Answer", answer)

    def _act(self, now: int, played: Played | None) -> Act:
        return Act(
            db=self._store.connection(),
            now=now,
            seq=0,
            seed=self._config.seed,
            profile=self._config.profile,
            deployment=self._deployment,
            requeue=self._config.requeue,
            need_deployment=self._config.members_need_deployment,
            fault="" if played is None else played.name,
            params={} if played is None else played.params,
        )

    def _enter(self, act: Act, operation: str, target: str, token: str, tenant: str, *, reads: bool) -> int:
        seq = act.db.execute(
            "INSERT INTO calls (at, operation, target, token, tenant_id, reads, fault) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (act.now, operation, target, token, tenant, int(reads), act.fault),
        ).lastrowid
        number = int(seq or 0)
        if number % _TRIM_EVERY == 0:
            act.db.execute("DELETE FROM calls WHERE reads = 1 AND seq <= ?", (number - self._config.keep_read_calls,))
        return number

    def _bring_late(self, now: int) -> None:
        """
        Effects whose answer was given up on, and that were due by now, have come.
        """
        db = self._store.connection()
        for row in db.execute("SELECT * FROM late_effects WHERE due_at <= ? ORDER BY due_at, id", (now,)).fetchall():
            db.execute("DELETE FROM late_effects WHERE id = ?", (row["id"],))
            act = self._act(row["due_at"], None)
            act.deployment = row["deployment"]
            act.fault = ""
            act.seq = self._enter(act, row["operation"], row["target"], row["token"], row["tenant_id"], reads=False)
            said = "ok"
            try:
                effects.bring_about(act, row["operation"], json.loads(row["payload"]))
            except ProviderError as wrong:
                said = short(wrong)
            db.execute(
                "UPDATE calls SET effect = ?, answer = ?, fault = 'late_success' WHERE seq = ?", (int(act.changed), said, act.seq)
            )


def _place(ref: PortRef) -> str:
    return f"{ref.switch}/{ref.port}"


def _part(act: Act, whole: list[Any]) -> list[Any]:
    share = float(act.params["share"])
    return [one for index, one in enumerate(whole) if uniforms(act.seed, act.seq, index)[0] < share]
