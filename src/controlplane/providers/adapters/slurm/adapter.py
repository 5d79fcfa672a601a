"""
The adapter's door: what the ports ask, each call under one deadline.
"""

from __future__ import annotations

from datetime import datetime

from controlplane.providers.adapters.slurm.checks import Checks
from controlplane.providers.adapters.slurm.cli import Cli
from controlplane.providers.adapters.slurm.client import SlurmRest
from controlplane.providers.adapters.slurm.config import SlurmConfig
from controlplane.providers.adapters.slurm.jobs import Jobs
from controlplane.providers.adapters.slurm.names import Names
from controlplane.providers.adapters.slurm.nodes import Nodes
from controlplane.providers.adapters.slurm.output import reader
from controlplane.providers.adapters.slurm.own import Own
from controlplane.providers.adapters.slurm.peer import Peer
from controlplane.providers.adapters.slurm.requests import EXCLUDES
from controlplane.providers.adapters.slurm.tokens import Tokens
from controlplane.providers.adapters.slurm.walls import Walls, partitions
from controlplane.providers.checks import ChecksView, FabricRun
from controlplane.providers.clusters import (
    Capabilities,
    ClusterList,
    ClusterSpec,
    ClusterView,
    JobFeature,
    JobSpec,
    JobView,
    OutputChunk,
)
from controlplane.providers.deadline import one_call
from controlplane.providers.errors import Permanent, Unsupported
from controlplane.providers.machines import Deployment, MachineList, MachineView
from controlplane.providers.registry import AdapterInput, read_config

MIB = 1024 * 1024


def build(given: AdapterInput) -> SlurmAdapter:
    """
    An adapter for the Slurm that the config names; nothing has been asked of it yet. Raises Permanent for a config that is wrong.
    """
    config = read_config(SlurmConfig, given, "the Slurm provider's")
    try:
        names = Names(given.deployment, config.reason_prefix)
    except ValueError as error:
        raise Permanent(f"the installation's name: {error}", code="provider_config_invalid") from error
    tokens = Tokens(given.secrets, given.now)
    try:
        rest = SlurmRest(
            config.url,
            tokens,
            admin=config.user,
            timeout_s=config.timeout_s,
            max_body_bytes=config.max_body_mib * MIB,
            ca_file=config.ca_file,
        )
    except OSError as error:
        raise Permanent(f"ca_file cannot be read: {error}", code="provider_config_invalid") from error
    return SlurmAdapter(config, rest, names)


class SlurmAdapter:
    """
    One Slurm as Clusters, SupportsJobs, SupportsOutput, SupportsFabricChecks and Machines. Safe to share between threads.
    """

    def __init__(self, config: SlurmConfig, rest: SlurmRest, names: Names) -> None:
        self._config = config
        self._rest = rest
        self._peer = Peer(rest, Cli(config.cli) if config.cli else None, config, names)
        files = reader(config.read)
        self._walls = Walls(self._peer, config)
        self._clusters: Walls | Own = Own(self._peer) if config.dedicated else self._walls
        self._jobs = Jobs(self._peer, config, files)
        self._nodes = Nodes(self._peer, config, self._walls, files)
        self._checks = Checks(self._peer, config, files)

    @property
    def errors_inside_success(self) -> int:
        """
        How often slurmrestd put errors into a success since this adapter was built; for metrics.
        """
        return self._rest.errors_inside_success

    def close(self) -> None:
        """
        Its connections are closed.
        """
        self._rest.close()

    def capabilities(self) -> Capabilities:
        """
        See `Clusters.capabilities`. Reads a listing too, so that a token that may not read is found out at once.
        """
        with one_call():
            version = self._peer.version()
            release = self._peer.release()
            self._peer.nodes()
            accounts = self._peer.has_accounts() and self._config.accounts == "auto"
            walls, notes = self._wall_facts(accounts=accounts)
        if self._config.dedicated:
            words = f"slurm {release}, api v0.0.{version}"
            return Capabilities(
                version=words, products=("slurm",), job_features=self._features(), volumes=tuple(self._config.volumes)
            )
        if not self._peer.has_cli:
            notes.append("no cli: clusters, drains and wipes are not possible, jobs are only read")
        elif version < EXCLUDES:
            notes.append("v0.0.38 cannot exclude nodes in a submit: such jobs are held, changed by scontrol, and released")
        if not self._config.scrub.enabled:
            notes.append("scrub is off: sell this pool to one tenant only")
        return Capabilities(
            version=f"slurm {release}, api v0.0.{version}",
            products=("slurm",) if self._peer.has_cli else (),
            job_output=bool(self._config.output_dir),
            drain=self._peer.has_cli,
            accounts=accounts,
            walls=tuple(walls),
            scrub=self._config.scrub.enabled and self._peer.has_cli,
            notes=tuple(notes),
            job_features=self._features(),
            volumes=tuple(self._config.volumes),
        )

    def _features(self) -> tuple[JobFeature, ...]:
        known: tuple[JobFeature, ...] = ("gangs", "priority", "launch_torchrun", "launch_mpi", "secret_env")
        images: tuple[JobFeature, ...] = ("image",) if self._config.containers else ()
        return (*known, *images, "mounts") if self._config.volumes else (*known, *images)

    def apply_cluster(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`.
        """
        with one_call():
            self._clusters.apply(spec)

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`.
        """
        with one_call():
            return self._clusters.observe(cluster_id)

    def delete_cluster(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`.
        """
        with one_call():
            self._clusters.delete(cluster_id)

    def list_clusters(self) -> ClusterList:
        """
        See `Clusters.list_clusters`.
        """
        with one_call():
            return self._clusters.list_ids()

    def drain(self, cluster_id: str, refs: tuple[str, ...], *, reason: str) -> None:
        """
        See `Clusters.drain`.
        """
        with one_call():
            self._clusters.drain(cluster_id, refs, reason=reason)

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """
        See `Clusters.undrain`.
        """
        with one_call():
            self._clusters.undrain(cluster_id, refs)

    def submit(self, job: JobSpec) -> str:
        """
        See `SupportsJobs.submit`.
        """
        with one_call():
            return self._jobs.submit(job)

    def find_job(self, cluster_id: str, token: str) -> JobView:
        """
        See `SupportsJobs.find_job`.
        """
        with one_call():
            return self._jobs.find(cluster_id, token)

    def list_jobs(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        See `SupportsJobs.list_jobs`.
        """
        with one_call():
            return self._jobs.list_views(cluster_id)

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        See `SupportsJobs.cancel`.
        """
        with one_call():
            self._jobs.cancel(cluster_id, token)

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        See `SupportsOutput.read_output`.
        """
        with one_call():
            return self._jobs.read_output(cluster_id, token, offset=offset, limit=limit)

    def list_machines(self) -> MachineList:
        """
        See `Machines.list_machines`.
        """
        with one_call():
            return self._nodes.list_views()

    def observe(self, ref: str) -> MachineView:
        """
        See `Machines.observe`.
        """
        with one_call():
            return self._nodes.observe(ref)

    def inspect(self, ref: str, token: str) -> None:  # noqa: ARG002 - the port's signature; Slurm keeps no inspections apart
        """
        See `Machines.inspect`.
        """
        with one_call():
            self._nodes.inspect(ref)

    def qualify(self, ref: str, token: str) -> None:
        """
        See `Machines.qualify`.
        """
        with one_call():
            self._nodes.qualify(ref, token)

    def deploy(self, deployment: Deployment) -> None:
        """
        See `Machines.deploy`.
        """
        with one_call():
            self._nodes.deploy(deployment)

    def release(self, ref: str, token: str, *, accepted_at: datetime) -> None:  # noqa: ARG002 - Slurm has no place for it
        """
        See `Machines.release`.
        """
        with one_call():
            self._nodes.release(ref, token)

    def wipe(self, ref: str, token: str) -> None:
        """
        See `Machines.wipe`.
        """
        with one_call():
            self._nodes.wipe(ref, token)

    def power(self, ref: str, *, on: bool, token: str) -> None:  # noqa: ARG002 - the port's signature
        """
        See `Machines.power`. Raises Unsupported: the nodes' power is their operator's.
        """
        raise Unsupported(f"Slurm does not switch the power of {ref}", code="provider_no_power")

    def prepare_checks(self, token: str, refs: tuple[str, ...]) -> None:
        """
        See `SupportsFabricChecks.prepare_checks`. Raises Unsupported where the operator configured no tools.
        """
        with one_call():
            self._checks.prepare(token, refs)

    def begin_checks(self, token: str, runs: tuple[FabricRun, ...]) -> None:
        """
        See `SupportsFabricChecks.begin_checks`.
        """
        with one_call():
            self._checks.begin(token, runs)

    def observe_checks(self, token: str) -> ChecksView:
        """
        See `SupportsFabricChecks.observe_checks`.
        """
        with one_call():
            return self._checks.observe(token)

    def end_checks(self, token: str) -> None:
        """
        See `SupportsFabricChecks.end_checks`.
        """
        with one_call():
            self._checks.end(token)

    def _wall_facts(self, *, accounts: bool) -> tuple[list[str], list[str]]:
        if not self._peer.has_cli:
            return [], []
        known = partitions(self._peer)
        notes = [
            f"partition {one.name} lets anybody reach nodes outside a wall: give it ReqResv=YES or AllowGroups"
            for one in known
            if not one.needs_reservation and not one.closed
        ]
        walls = ["reservation"]
        if not notes:
            walls.append("partition")
        if accounts:
            walls.append("account")
        scrubs_in = self._config.admin_partition or self._config.partition
        if self._config.scrub.enabled and any(one.name == scrubs_in and one.needs_reservation for one in known):
            notes.append(f"scrub jobs cannot run in {scrubs_in}, which needs a reservation: set admin_partition")
        missing = {self._config.partition, self._config.admin_partition} - {"", *(one.name for one in known)}
        notes += [f"partition {name} is not there" for name in sorted(missing)]
        return walls, notes
