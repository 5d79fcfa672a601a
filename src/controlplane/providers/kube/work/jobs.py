"""
Jobs inside a cluster's namespace: found by their name before they are sent, judged by the Job and its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from threading import Semaphore
from typing import Any

from controlplane.providers.clusters import JobSpec, JobView, OutputChunk
from controlplane.providers.errors import Busy, NoCapacity, NotFound, Refused, Unsupported
from controlplane.providers.gpus import Slices
from controlplane.providers.kube.client import Conflict, Exists, Kube
from controlplane.providers.kube.work import mpi
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.folding import accounted, index, over, view
from controlplane.providers.kube.work.ground import Ground
from controlplane.providers.kube.work.manifests import (
    CONTAINER,
    claim,
    claim_name,
    claims,
    claims_gpus,
    job,
    mpi_job,
    refuse_unsendable,
    secret,
)
from controlplane.providers.kube.work.names import CANCELLED, TOKEN, Names, core, grouped, job_name
from controlplane.providers.kube.work.pool import ended
from controlplane.providers.kube.work.slicing import able
from controlplane.providers.kube.work.tracker import Tracker
from controlplane.providers.kube.work.walls import rank

Json = dict[str, Any]
MAX_CHANGES = 5
"""How often a Job is read anew when somebody else changes it at the same time."""
MAX_CHUNK_BYTES = 1024 * 1024
MAX_LOG_BYTES = 32 * 1024 * 1024
"""A log is read from its beginning, for the server knows no offset; beyond this nothing of one pod's output is shown."""
BATCH = "batch/v1"


class Jobs:
    """
    The SupportsJobs and SupportsOutput ports.
    """

    def __init__(
        self,
        kube: Kube,
        names: Names,
        config: WorkConfig,
        ground: Ground,
        now: Callable[[], datetime],
        places: Semaphore | None = None,
    ) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._ground = ground
        self._now = now
        self._tracker = Tracker(kube, names, lasts_s=config.watch_s, relist_s=config.relist_s, places=places)

    def close(self) -> None:
        """
        No watch is open.
        """
        self._tracker.close()

    def submit(self, spec: JobSpec) -> str:
        """
        See `SupportsJobs.submit`. The Job comes first: its Secret belongs to it, and a pod waits for its Secret.
        """
        refuse_unsendable(spec, self._ground.settings(spec.gpu_model))
        if self._config.watches != "off":
            self._tracker.open()  # a watch that opens at the first look comes too late for that look, which asks then
        self._ground.check(spec.cluster_id, spec.tenant_id)
        found = self._find(spec.cluster_id, spec.token, of=(mpi.is_mpi(spec),))  # each try of a job is of one kind
        if found is None:
            self._refuse_impossible(spec)
            for volume in sorted({one.volume for one in spec.mounts}):
                self._have_claim(spec.cluster_id, volume)
            found = self._create(spec)
        if not over(found):
            uid = found["metadata"]["uid"]
            path = core(self._names.namespace(spec.cluster_id), "secrets", job_name(spec.token))
            self._kube.apply(path, secret(self._names, spec, uid))
            self._put_claims(spec, uid)
        return str(found["metadata"]["uid"])

    def find(self, cluster_id: str, token: str) -> JobView:
        """
        See `SupportsJobs.find_job`.
        """
        job, pods = self._read(cluster_id, token)
        return mpi.seen(view(job, pods), job, pods)

    def glance(self, cluster_id: str, token: str) -> JobView | None:
        """
        See `SupportsGlances.glance`. A failure is believed once all of its pods are known; that nothing runs any more never is.
        """
        if self._config.watches == "off":
            return None
        kept = self._recall(cluster_id, token)
        if kept is None or not accounted(*kept):
            return None
        job, pods, _ = kept
        return mpi.seen(view(job, pods), job, pods)

    def take_news(self) -> frozenset[str]:
        """
        See `SupportsNews.take_news`.
        """
        return self._tracker.memory.take_news()

    def list_views(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        See `SupportsJobs.list_jobs`. Two lists, however many jobs there are.
        """
        labels = f"{self._names.selector(cluster_id)},{TOKEN}"
        namespace = self._names.namespace(cluster_id)
        jobs = self._kube.list_all(grouped(BATCH, "jobs", namespace=namespace), labels=labels)
        if self._ground.mpi():
            jobs += map(mpi.as_job, self._kube.list_all(grouped(mpi.API, mpi.PLURAL, namespace=namespace), labels=labels))
        pods: dict[str, list[Json]] = {}
        for pod in self._kube.list_all(core(namespace, "pods"), labels=labels):
            pods.setdefault(pod["metadata"]["labels"][TOKEN], []).append(pod)
        of = {id(one): pods.get(one["metadata"]["labels"][TOKEN], []) for one in jobs}
        return tuple(mpi.seen(view(one, of[id(one)]), one, of[id(one)]) for one in jobs)

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        See `SupportsJobs.cancel`. The Job is kept, suspended and marked, so that its end can be read.
        """
        for _ in range(MAX_CHANGES):
            found = self._find(cluster_id, token)
            if found is None or over(found):
                return
            self._deactivate(cluster_id, found["metadata"]["uid"])
            kept = (found["metadata"].get("annotations") or {}).get(CANCELLED)
            at = kept or (self._kube.seen_at or self._now()).isoformat()
            marks = {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": {CANCELLED: at}}
            is_mpi, stopped = mpi.is_one(found), {"suspend": True}
            path = self._path(cluster_id, token, launched=is_mpi)
            try:
                self._kube.patch(path, {"metadata": marks, "spec": {"runPolicy": stopped} if is_mpi else stopped})
            except (Conflict, NotFound):
                continue
            return
        raise Busy(f"{token} was changed by others {MAX_CHANGES} times in a row", retry_in_s=2.0)

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        See `SupportsOutput.read_output`.

        The pods' logs stand one after the other. The next begins only when the one before has ended, so that offsets never move.
        """
        job, found = self._told_whole(cluster_id, token) or self._read(cluster_id, token)
        seen = view(job, found)
        pods = sorted((one for one in found if not mpi.is_worker(one)), key=_in_turn)
        finished = seen.phase in {"succeeded", "failed", "cancelled"}
        wanted = min(limit, MAX_CHUNK_BYTES)
        data, before = b"", 0
        for pod in pods:
            log = self._log(cluster_id, pod, max(0, offset + wanted - before))
            data += log[max(0, offset - before) :]
            before += len(log)
            if len(data) >= wanted or not (ended(pod) or finished):
                break
        else:
            if finished:
                return OutputChunk(offset, data[:wanted], end=len(data) < wanted)
        if not pods and not finished:
            raise NotFound(f"{token} has no output yet")
        return OutputChunk(offset, data[:wanted], end=False)

    def _log(self, cluster_id: str, pod: Json, limit: int) -> bytes:
        """
        The beginning of the pod's log; empty before its container has started.
        """
        if pod.get("status", {}).get("phase") == "Pending" or limit == 0:
            return b""
        path = core(self._names.namespace(cluster_id), "pods", f"{pod['metadata']['name']}/log")
        try:
            return self._kube.read(path, container=CONTAINER, limitBytes=str(min(limit, MAX_LOG_BYTES)))
        except NotFound:
            return b""

    def _put_claims(self, spec: JobSpec, uid: str = "") -> None:
        """
        The server has what the pods' claims are made from, where they get their GPUs so.
        """
        settings = self._ground.settings(spec.gpu_model)
        if claims_gpus(spec, settings):
            api = self._ground.pool.devices.must_api()
            path = grouped(api, "resourceclaimtemplates", job_name(spec.token), namespace=self._names.namespace(spec.cluster_id))
            self._kube.apply(path, claims(self._names, spec, settings, api, uid))

    def _create(self, spec: JobSpec) -> Json:
        self._put_claims(spec)
        kueue, settings = self._ground.kueue(), self._ground.settings(spec.gpu_model)
        launched = kueue is not None and mpi.is_mpi(spec)
        body = job(self._names, spec, settings, kueue)
        if kueue is not None and launched:
            body = mpi_job(self._names, spec, settings, kueue)
        if kueue is not None and spec.priority != "normal":
            known = rank(self._names, spec.priority, kueue)
            self._kube.apply(known.path, known.body)
        try:
            made = self._kube.create(self._path(spec.cluster_id, launched=launched), body)
        except Exists as error:
            found = self._find(spec.cluster_id, spec.token)
            if found is None:
                raise Busy(f"{spec.token} came and went", retry_in_s=2.0) from error
            return found
        made = mpi.as_job(made) if launched else made
        self._tracker.learn(made, ())
        return made

    def _have_claim(self, cluster_id: str, volume: str) -> None:
        """
        The cluster has a claim of the volume; one that is there stays as it is, for a claim cannot be changed. Where the
        operator has not said what the volume is, the claim is the owner's.
        """
        namespace = self._names.namespace(cluster_id)
        found = self._kube.find(core(namespace, "persistentvolumeclaims", claim_name(volume)))
        if volume not in self._config.volumes:
            self._refuse_gone(found, volume)
        elif found is None:
            try:
                self._kube.create(core(namespace, "persistentvolumeclaims"), claim(self._names, cluster_id, volume, self._config))
            except Exists as error:
                raise Busy(f"the claim of {volume} came meanwhile", retry_in_s=1.0) from error
        elif not self._names.marks(found, cluster_id):
            raise Refused(f"the claim of {volume} is not ours", code="provider_foreign_object")

    def _refuse_gone(self, found: Json | None, volume: str) -> None:
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise Refused(f"the claim of {volume} is not there any more", code="job_volume_unknown")

    def _find(self, cluster_id: str, token: str, of: Sequence[bool] = (False, True)) -> Json | None:
        """
        The attempt, when it is there and ours: a Job, or an MPIJob where `of` has that and the cluster knows the kind.
        """
        found = self._kube.find(self._path(cluster_id, token)) if False in of else None
        if found is None and True in of and self._ground.mpi():
            launched = self._kube.find(self._path(cluster_id, token, launched=True))
            found = None if launched is None else mpi.as_job(launched)
        if found is None:
            return None
        labels = found["metadata"].get("labels") or {}
        ours = self._names.marks(found, cluster_id) and labels.get(TOKEN) == token
        return found if ours else None

    def _read(self, cluster_id: str, token: str) -> tuple[Json, Sequence[Json]]:
        """
        The Job and its pods by asking; where watches are open they go on from here.
        """
        job = self._known(cluster_id, token)
        pods = self._pods(cluster_id, token)
        self._tracker.learn(job, pods)
        return job, pods

    def _recall(self, cluster_id: str, token: str) -> tuple[Json, Sequence[Json], bool] | None:
        kept = self._tracker.recall(self._names.namespace(cluster_id), token)
        return kept if kept is not None and self._names.marks(kept[0], cluster_id) else None

    def _told_whole(self, cluster_id: str, token: str) -> tuple[Json, Sequence[Json]] | None:
        """
        As the watches told it, when no pod can be missing: an offset into the output counts all of them. None: ask.
        """
        if not self._tracker.live:
            return None
        kept = self._recall(cluster_id, token)
        return (kept[0], kept[1]) if kept is not None and kept[2] and accounted(*kept) else None

    def _known(self, cluster_id: str, token: str) -> Json:
        found = self._find(cluster_id, token)
        if found is None:
            raise NotFound(f"no job {token} in {cluster_id}")
        return found

    def _pods(self, cluster_id: str, token: str) -> list[Json]:
        labels = f"{self._names.selector(cluster_id)},{TOKEN}={token}"
        return self._kube.list_all(core(self._names.namespace(cluster_id), "pods"), labels=labels)

    def _path(self, cluster_id: str, token: str = "", *, launched: bool = False) -> str:
        api, kind = (mpi.API, mpi.PLURAL) if launched else (BATCH, "jobs")
        return grouped(api, kind, job_name(token) if token else "", namespace=self._names.namespace(cluster_id))

    def _deactivate(self, cluster_id: str, uid: str) -> None:
        """
        Kueue will not start the Job again: it resumes a suspended Job that it has admitted.
        """
        kueue = self._ground.kueue()
        if kueue is None:
            return
        path = grouped(kueue.api, "workloads", namespace=self._names.namespace(cluster_id))
        for one in self._kube.list_all(path, labels=f"kueue.x-k8s.io/job-uid={uid}"):
            if (one.get("spec") or {}).get("active") is not False:
                self._kube.patch(f"{path}/{one['metadata']['name']}", {"spec": {"active": False}})

    def _refuse_impossible(self, spec: JobSpec) -> None:
        if spec.priority != "normal" and self._ground.kueue() is None:
            raise Unsupported("without Kueue there is no queue to stand first in", code="job_feature_unsupported")
        if mpi.is_mpi(spec) and not self._ground.mpi():
            raise Unsupported("there is no MPI operator with a Kueue beside it", code="job_feature_unsupported")
        if spec.nodes > 1 and self._ground.kueue() is None:
            raise Refused(
                "a job of several nodes needs a scheduler that starts all of its pods or none: install Kueue, or ask for one node",
                code="job_gang_unsupported",
            )
        if spec.mig is not None:
            self._refuse_unsliced(spec, spec.mig)
        if spec.exclude or self._room(spec, self._ground.nodes_lately(spec.cluster_id)) < spec.nodes:
            self._refuse_small(spec)

    def _refuse_unsliced(self, spec: JobSpec, wanted: Slices) -> None:
        """
        Enough nodes have so many of the slices, and quota and queue know of them: nodes may have been partitioned since.
        """
        nodes = self._ground.nodes_now(spec.cluster_id)
        found = able(nodes, wanted, self._ground.settings())
        if not found:
            raise Refused(f"no node of {spec.cluster_id} has {wanted}", code="job_mig_unknown")
        if found < spec.nodes:
            raise NoCapacity(f"{spec.nodes} nodes with {wanted} asked, {found} in the cluster", code="job_larger_than_cluster")
        self._ground.admit_slices(spec.cluster_id, nodes)

    def _refuse_small(self, spec: JobSpec) -> None:
        nodes = self._ground.nodes_now(spec.cluster_id)
        room = self._room(spec, nodes)
        if spec.gpu is not None and nodes and not any(self._like(spec, one) for one in nodes):
            raise Refused(f"no GPU of {spec.cluster_id} is like {spec.gpu}", code="job_gpu_unknown")
        if spec.nodes > room:
            raise NoCapacity(
                f"{spec.nodes} nodes with {spec.gpus_per_node} GPUs asked, {room} in the cluster", code="job_larger_than_cluster"
            )

    def _room(self, spec: JobSpec, nodes: Iterable[Json]) -> int:
        usable = [one for one in nodes if one["metadata"]["name"] not in spec.exclude]
        return sum(1 for one in usable if self._like(spec, one) >= spec.gpus_per_node)

    def _like(self, spec: JobSpec, node: Json) -> int:
        if not spec.gpus_per_node:
            return 0
        return self._ground.pool.gpus_like(node, spec.gpu, spec.gpu_model, self._ground.settings(spec.gpu_model))


def _in_turn(pod: Json) -> tuple[int, str]:
    """
    By rank; a pod that replaces a lost one comes after it.
    """
    return index(pod), str(pod["metadata"].get("creationTimestamp", ""))
