"""
What the server told last of jobs and their pods: as much as their fold needs, and no more of ended ones than a fixed number.

Events may come twice, late or out of order: a version that is not newer than what is known changes nothing. Whatever is missing here is
no proof of anything; the server is asked then.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from controlplane.providers.clusters import JobPhase
from controlplane.providers.kube.work.folding import INDEX, over, phase
from controlplane.providers.kube.work.mpi import as_job, is_one, is_worker
from controlplane.providers.kube.work.names import CANCELLED, TOKEN
from controlplane.providers.kube.work.pool import ended

Json = dict[str, Any]
Kind = Literal["jobs", "pods", "mpijobs"]
"""MPIJobs are kept as Jobs are, and told apart."""
Key = tuple[str, str]
"""Namespace and token."""
ENDED_KEPT = 2000
"""Ended jobs that are remembered, for the one or two looks that follow their end."""
MOST_KEPT = 50_000
"""Tokens of which something is remembered; whoever may do anything in a cluster can make more."""
GONE_KEPT = 4096
"""Removals that are remembered, so that a late event does not bring the object back."""
_ANNOTATIONS = (CANCELLED, INDEX)
_META = ("name", "namespace", "uid", "resourceVersion", "labels", "creationTimestamp", "deletionTimestamp")
_SPEC = ("suspend", "completions", "nodeName")


class Memory:
    """
    Jobs and pods by the token they carry. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[Key, Json] = {}
        self._pods: dict[Key, dict[str, Json]] = {}
        self._whole: set[Key] = set()
        """Jobs all of whose pods were known at one time, and no event was missed since."""
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._phases: dict[Key, JobPhase] = {}
        self._changed: set[Key] = set()

    def __len__(self) -> int:
        """
        Objects that are remembered.
        """
        with self._lock:
            return len(self._jobs) + sum(map(len, self._pods.values()))

    @property
    def crowded(self) -> bool:
        """
        Whether more is told than is remembered.
        """
        return max(len(self._jobs), len(self._pods)) > MOST_KEPT

    def see(self, kind: Kind, thing: Json) -> None:
        """
        The object is as told, unless a newer version of it is known.
        """
        key, seen = _key(thing), _slim(_plain(kind, thing))
        with self._lock:
            if key is None or seen["metadata"]["uid"] in self._gone:
                return
            if kind == "pods":
                self._see_pod(key, seen)
            else:
                self._see_job(key, seen)

    def lose(self, kind: Kind, thing: Json) -> None:
        """
        The object is not there any more.
        """
        key, uid, name = _key(thing), thing["metadata"]["uid"], thing["metadata"]["name"]
        with self._lock:
            self._gone[uid] = None
            while len(self._gone) > GONE_KEPT:
                self._gone.popitem(last=False)
            if key is None:
                return
            known = self._pods.get(key, {}).get(name) if kind == "pods" else self._jobs.get(key)
            if known is None or known["metadata"]["uid"] != uid:
                return
            if kind != "pods":
                self._forget(key)
                return
            self._drop_pod(key, name)
            if not is_worker(known):
                self._whole.discard(key)  # its log went with it; of a worker of an MPIJob nobody reads one
            self._changed.add(key)

    def begin(self, kind: Kind, things: Iterable[Json]) -> None:
        """
        These are known of the kind and nothing else, as after a gap.
        """
        with self._lock:
            if kind != "pods":
                self._begin_jobs(kind, things)
                return
            self._whole.clear()
            self._changed.update(self._pods)
            self._pods = {}
            for thing in things:
                if (key := _key(thing)) is not None:
                    self._see_pod(key, _slim(thing))

    def _begin_jobs(self, kind: Kind, things: Iterable[Json]) -> None:
        before = {key for key, job in self._jobs.items() if is_one(job) == (kind == "mpijobs")}
        self._jobs = {key: job for key, job in self._jobs.items() if key not in before}
        for thing in things:
            key, seen = _key(thing), _slim(_plain(kind, thing))
            # a list of MPIJobs has those that ended long ago
            if key is not None and (kind == "jobs" or key in before or not over(seen)):
                self._see_job(key, seen)
        for key in before - self._jobs.keys():
            self._forget(key)

    def learn(self, job: Json, pods: Sequence[Json]) -> None:
        """
        The job and all of its pods are as the server answered just now.
        """
        key = _key(job)
        if key is None:
            return
        with self._lock:
            self._see_job(key, _slim(job))
            for pod in pods:
                self._see_pod(key, _slim(pod))
            if key in self._jobs:
                self._whole.add(key)

    def recall(self, namespace: str, token: str) -> tuple[Json, tuple[Json, ...], bool] | None:
        """
        The job, its pods, and whether these are all that there are; None when the job is not remembered.
        """
        key = (namespace, token)
        with self._lock:
            job = self._jobs.get(key)
            return None if job is None else (job, tuple(self._pods.get(key, {}).values()), key in self._whole)

    def take_news(self) -> frozenset[str]:
        """
        Tokens of the jobs whose phase is another than at the last call; folding waits until here, however many pods changed.
        """
        with self._lock:
            found = set()
            for key in self._changed & self._jobs.keys():
                now = phase(self._jobs[key], tuple(self._pods.get(key, {}).values()))
                if self._phases.get(key) != now:
                    self._phases[key] = now
                    found.add(key[1])
            self._changed.clear()
            return frozenset(found)

    def _see_job(self, key: Key, seen: Json) -> None:
        known = self._jobs.get(key)
        if known is not None and not _newer(seen, known):
            return
        if known is not None and known["metadata"]["uid"] != seen["metadata"]["uid"]:
            self._forget(key)
        self._jobs[key] = seen
        self._changed.add(key)
        if over(seen):
            self._ended[key] = None
            while len(self._ended) > ENDED_KEPT:
                self._forget(self._ended.popitem(last=False)[0])

    def _see_pod(self, key: Key, seen: Json) -> None:
        name = seen["metadata"]["name"]
        known = self._pods.get(key, {}).get(name)
        if known is not None and not _newer(seen, known):
            return
        if ended(seen) and key not in self._jobs:
            self._drop_pod(key, name)  # of a job that is forgotten, or not known yet: then the server is asked
            return
        self._pods.setdefault(key, {})[name] = seen
        self._changed.add(key)

    def _drop_pod(self, key: Key, name: str) -> None:
        pods = self._pods.get(key, {})
        pods.pop(name, None)
        if not pods:
            self._pods.pop(key, None)

    def _forget(self, key: Key) -> None:
        self._jobs.pop(key, None)
        self._pods.pop(key, None)
        self._ended.pop(key, None)
        self._phases.pop(key, None)
        self._whole.discard(key)
        self._changed.discard(key)


def _key(thing: Json) -> Key | None:
    token = (thing["metadata"].get("labels") or {}).get(TOKEN)
    return None if token is None else (thing["metadata"]["namespace"], token)


def _newer(seen: Json, known: Json) -> bool:
    """
    Versions are numbers that rise; one that is none is believed, for nothing is known of its age.
    """
    new, old = seen["metadata"]["resourceVersion"], known["metadata"]["resourceVersion"]
    return int(new) > int(old) if new.isdecimal() and old.isdecimal() else bool(new != old)


def _plain(kind: Kind, thing: Json) -> Json:
    return as_job(thing) if kind == "mpijobs" else thing


def _slim(thing: Json) -> Json:
    meta, spec = thing["metadata"], thing.get("spec") or {}
    kept: Json = {name: meta[name] for name in _META if name in meta}
    notes = meta.get("annotations") or {}
    kept["annotations"] = {name: notes[name] for name in _ANNOTATIONS if name in notes}
    return {
        **({"kind": thing["kind"]} if is_one(thing) else {}),
        "metadata": kept,
        "spec": {name: spec[name] for name in _SPEC if name in spec},
        "status": thing.get("status") or {},
    }
