"""
Jobs inside a cluster's wall: found by their token before they are sent, judged by their state.
"""

from __future__ import annotations

import re

from controlplane.providers.adapters.slurm.answers import JobRecord, ReservationRecord
from controlplane.providers.adapters.slurm.config import SlurmConfig
from controlplane.providers.adapters.slurm.names import plain
from controlplane.providers.adapters.slurm.output import MAX_CHUNK_BYTES, Reader, output_path
from controlplane.providers.adapters.slurm.peer import Peer
from controlplane.providers.adapters.slurm.requests import EXCLUDES, Submit, minutes
from controlplane.providers.clusters import FailureClass, JobPhase, JobSpec, JobView, OutputChunk
from controlplane.providers.errors import NoCapacity, NotFound, Refused, Unsupported
from controlplane.providers.launching import Gang, script_in_image, under_slurm
from controlplane.providers.volumes import check_mounts

LAUNCH_FAILED_SIGNAL = 53
"""slurmstepd could not open the output file or start the script: not the user's fault."""
MAX_ENV_BYTES = 256 * 1024
_BEHIND = {"high": 0, "normal": 1, "low": 2}
"""Steps of nice: a user may only step back, so the usual class stands one behind the highest."""
_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/@#+-]{0,299}")
_FAILURES: dict[str, FailureClass] = {
    "NODE_FAIL": "node_fault",
    "BOOT_FAIL": "node_fault",
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "LAUNCH_FAILED": "provider_fault",
    "RECONFIG_FAIL": "provider_fault",
    "REVOKED": "provider_fault",
}
_NOT_THE_USERS = frozenset({"SystemFailure", "NodeFail", "NodeDown", "PartitionDown", "InactiveLimit"})
_RUNNING = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"})


class Jobs:
    """
    The SupportsJobs and SupportsOutput ports.
    """

    def __init__(self, peer: Peer, config: SlurmConfig, reader: Reader) -> None:
        self._peer = peer
        self._config = config
        self._reader = reader
        self._names = peer.names

    def submit(self, spec: JobSpec) -> str:
        """
        See `SupportsJobs.submit`.
        """
        wall = self._wall(spec.cluster_id)
        plain(spec.token, "token")
        if wall.users != (spec.user,):
            raise Refused(f"{spec.user} is not the user of {spec.cluster_id}", code="provider_wrong_user")
        found = self._find(spec.cluster_id, spec.token, wall)
        held = spec.exclude != () and self._peer.version() < EXCLUDES
        if found is None:
            self._refuse_impossible(spec, wall)
            job_id = self._peer.submit(self._request(spec, wall, held=held), spec.user)
        else:
            job_id = found.job_id
        if held and (found is None or found.held):
            self._peer.cli.scontrol("update", f"jobid={job_id}", f"excnodelist={','.join(spec.exclude)}")
            self._peer.cli.scontrol("release", str(job_id))
        return str(job_id)

    def find(self, cluster_id: str, token: str) -> JobView:
        """
        See `SupportsJobs.find_job`.
        """
        found = self._find(cluster_id, token, self._peer.find_reservation(cluster_id))
        if found is None:
            raise NotFound(f"no job {token} in {cluster_id}")
        return view(found)

    def list_views(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        See `SupportsJobs.list_jobs`.
        """
        wall = self._peer.find_reservation(cluster_id)
        mine = [job for job in self._peer.jobs() if self._ours(job, cluster_id, wall)]
        first: dict[str, JobRecord] = {}
        for job in sorted(mine, key=lambda job: job.order):
            first.setdefault(job.name, job)
        return tuple(view(job) for job in first.values())

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        See `SupportsJobs.cancel`.
        """
        found = self._find(cluster_id, token, self._peer.find_reservation(cluster_id))
        if found is not None and not found.ended:
            self._peer.cancel(found.job_id)

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        See `SupportsOutput.read_output`. Also reads what a job left behind that slurmctld has forgotten.
        """
        if not self._config.output_dir:
            raise Unsupported("no output_dir is configured for this Slurm")
        wall = self._peer.find_reservation(cluster_id)
        found = self._find(cluster_id, token, wall)
        user = found.user if found else (wall.users[0] if wall and wall.users else "")
        if not user:
            raise NotFound(f"no job {token} in {cluster_id}")
        ended = found is None or found.ended
        path = output_path(self._config.output_dir, plain(user, "user"), plain(cluster_id, "cluster id"), plain(token, "token"))
        try:
            data = self._reader.read(path, owner=user, offset=offset, limit=limit)
        except NotFound:
            if found is not None and ended and not _ever_ran(found):
                return OutputChunk(offset=offset, data=b"", end=True)
            raise
        return OutputChunk(offset=offset, data=data, end=ended and len(data) < min(limit, MAX_CHUNK_BYTES))

    def _wall(self, cluster_id: str) -> ReservationRecord:
        wall = self._peer.find_reservation(cluster_id)
        if wall is None:
            raise NotFound(f"no reservation of {cluster_id}")
        return wall

    def _find(self, cluster_id: str, token: str, wall: ReservationRecord | None) -> JobRecord | None:
        named = [job for job in self._peer.jobs() if job.name == token and self._ours(job, cluster_id, wall)]
        return min(named, key=lambda job: job.order) if named else None

    def _ours(self, job: JobRecord, cluster_id: str, wall: ReservationRecord | None) -> bool:
        """
        Sent by us for this cluster. The mark alone would let another tenant pass off its job as this one's.
        """
        if job.comment != self._names.job_comment(cluster_id) or job.user == self._config.user:
            return False
        if wall is not None:
            return job.user in wall.users and job.reservation in {wall.name, ""}
        # after the wall is gone: 24.11 keeps its name on the job, 22.05 clears it
        return job.reservation in {self._names.reservation(cluster_id), ""} and job.ended

    def _refuse_impossible(self, spec: JobSpec, wall: ReservationRecord) -> None:
        room = len(set(wall.nodes) - set(spec.exclude))
        if spec.nodes > room:
            raise NoCapacity(f"{spec.nodes} nodes asked, {room} in the cluster", code="job_larger_than_cluster")
        if spec.launch is None and not spec.script.startswith("#!"):
            raise Refused("the script has no #! line", code="job_script_invalid")
        if spec.secret_files or (spec.image and self._config.containers != "pyxis"):
            raise Unsupported("this Slurm has no containers and no files of secrets", code="job_feature_unsupported")
        if spec.image and not _IMAGE.fullmatch(spec.image):
            raise Refused("that is no image's name", code="job_image_invalid")
        if spec.gpu is not None:
            raise Unsupported("GPUs are only counted here", code="job_feature_unsupported")
        if spec.mounts and not spec.image:
            raise Refused("only jobs with an image have mounts", code="job_mount_invalid")
        check_mounts(spec.mounts, self._config.volumes)
        env = {**spec.env, **spec.secret_env}
        size = sum(len(key) + len(value) for key, value in env.items())
        odd = [key for key, value in env.items() if not key or "=" in key or "\0" in key + value or "\n" in key]
        if odd or size > MAX_ENV_BYTES or "\0" in spec.script:
            raise Refused("the environment or script cannot be sent", code="job_env_invalid")

    def _request(self, spec: JobSpec, wall: ReservationRecord, *, held: bool) -> Submit:
        gpu_type = self._config.node_gres.get(spec.gpu_model, "") if spec.gpu_model else ""
        if spec.gpu_model and spec.gpus_per_node and self._config.node_gres and not gpu_type:
            raise Refused(f"no GRES type is configured for {spec.gpu_model}", code="job_gpu_model_unknown")
        accounts = self._config.accounts == "auto" and self._peer.has_accounts()
        folder = self._config.output_dir or self._config.keep_dir
        output = output_path(folder, spec.user, spec.cluster_id, spec.token) if folder else "/dev/null"
        return Submit(
            name=spec.token,
            comment=self._names.job_comment(spec.cluster_id),
            script=_script(spec, self._config),
            output=output,
            nodes=spec.nodes,
            tasks_per_node=spec.tasks_per_node,
            minutes=minutes(spec.time_limit_s),
            gpus=spec.gpus_per_node,
            gpu_type=gpu_type,
            reservation=wall.name,
            partition=self._config.partition,
            account=self._names.account(spec.tenant_id) if accounts else "",
            env={**spec.env, **spec.secret_env},
            exclude=() if held else spec.exclude,
            hold=held,
            requeue=spec.requeue,
            nice=_BEHIND[spec.priority] * self._config.nice_step,
        )


def _script(spec: JobSpec, config: SlurmConfig) -> str:
    """
    What slurmd runs on the first node.
    """
    gang = Gang(spec.nodes, spec.gpus_per_node, spec.tasks_per_node, spec.image, _mounts(spec, config))
    if spec.launch is not None:
        return under_slurm(spec.launch, gang)
    return script_in_image(spec.script, gang) if spec.image else spec.script


def _mounts(spec: JobSpec, config: SlurmConfig) -> tuple[str, ...]:
    """
    The mounts as Pyxis takes them.
    """
    made = []
    for one in spec.mounts:
        volume = config.volumes[one.volume]
        source = volume.path.replace("{user}", plain(spec.user, "user"))
        made.append(f"{source}:{one.path}{':ro' if one.read_only or volume.read_only else ''}")
    return tuple(made)


def view(job: JobRecord) -> JobView:
    """
    The record in the port's words.
    """
    state = phase(job)
    ended = job.ended
    ran = _ever_ran(job)
    return JobView(
        token=job.name,
        external_id=str(job.job_id),
        phase=state,
        reason=job.reason,
        failure=failure(job) if state == "failed" else None,
        exit_code=job.exit_code if ended and ran else None,
        signal=job.signal if ended and ran else None,
        nodes=job.nodes if ran else (),
        started_at=job.started_at if ran else None,
        ended_at=job.ended_at if ended else None,
        expected_start_at=job.started_at if state == "pending" else None,
        requeues=job.restarts,
    )


def phase(job: JobRecord) -> JobPhase:
    """
    The states in the port's words; a flag such as COMPLETING goes before the state it stands beside.
    """
    states = job.states
    folded: JobPhase = "unknown"
    if "COMPLETING" in states:
        folded = "completing"
    elif job.waits:
        folded = "pending"
    elif "COMPLETED" in states:
        folded = "succeeded"
    elif "CANCELLED" in states:
        folded = "cancelled"
    elif job.ended:
        folded = "failed"
    elif states & _RUNNING:
        folded = "running"
    return folded


def failure(job: JobRecord) -> FailureClass:
    """
    Why a failed job failed.
    """
    for state, cause in _FAILURES.items():
        if state in job.states:
            return cause
    if job.reason in {"NodeFail", "NodeDown"}:
        return "node_fault"
    # 22.05 says JobLaunchFailure of every script that a signal ended, so the signal decides
    if job.reason in _NOT_THE_USERS or (job.exit_code == 0 and job.signal == LAUNCH_FAILED_SIGNAL):
        return "provider_fault"
    return "user_error" if "FAILED" in job.states else "unknown"


def _ever_ran(job: JobRecord) -> bool:
    """
    Whether it got its nodes: a job that was cancelled while it waited has none.
    """
    return bool(job.nodes) and not job.waits and job.started_at is not None
