"""
The kit's API emulator as a process of its own, with Kueue and the MPI operator played in it.

Run by the benchmark: `python -m benchmarks.mpi.server <port> <nodes> <job seconds> <seconds between turns> <gangs at a time>`.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.kubernetes.server import equip, kit
from tests.kubernetes_kit import JOB_UID, QUEUE, KubernetesKit
from tests.mpi_operator import GROUP, STUB, MpiOperator

KUEUE = "kueue.x-k8s.io"
ENDS = frozenset({"Complete", "Failed", "Succeeded"})


def is_over(one: Any) -> bool:
    """
    Whether a Job or an MPIJob has ended.
    """
    return bool(ENDS & {told["type"] for told in (one.get("status") or {}).get("conditions") or []})


class Admission(MpiOperator):
    """
    The operator, and a Kueue that admits MPIJobs and Jobs of its queues, whole, while fewer than so many of them run.
    """

    def __init__(self, emulator: Any, most: int) -> None:
        self._most = most
        self._running = 0
        super().__init__(cast("KubernetesKit", SimpleNamespace(emulator=emulator)))
        acts = emulator.c_jobs

        def c_jobs() -> None:
            mine = [one for one in emulator.items("jobs", "batch") if QUEUE in (one["metadata"].get("labels") or {})]
            programs = list(emulator.items("mpijobs", GROUP))
            suspended = [one["spec"]["runPolicy"]["suspend"] for one in programs if not is_over(one)]
            waiting = [one for one in mine if one["spec"].get("suspend") and not is_over(one)]
            going = [one for one in mine if not one["spec"].get("suspend") and not is_over(one)]
            self._running = len(going) + suspended.count(False)
            for one in waiting:
                self._admit_job(one)
            acts()

        emulator.c_jobs = c_jobs

    def _admit(self, one: dict[str, Any]) -> None:
        if self._running < self._most:
            self._running += 1
            super()._admit(one)

    def _admit_job(self, job: Any) -> None:
        if self._running >= self._most:
            return
        self._running += 1
        meta, emulator = job["metadata"], self.emulator
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        named = {"name": f"job-{meta['name']}", "labels": {JOB_UID: meta["uid"]}, "ownerReferences": [owner]}
        emulator.make("workloads", {"metadata": named, "spec": {"active": True}}, KUEUE, meta["namespace"])
        emulator.update(emulator.find("jobs", "batch"), job, {**job, "spec": {**job["spec"], "suspend": False}}, "kueue")


def main(port: str, nodes: str, job_s: str, turn_s: str, most: str) -> None:
    """
    Serves until it is ended.
    """
    module = kit()
    module.STUBS["mpi"] = STUB
    emulator = module.Emulator(int(nodes), 8, 200_000, None, 0.01, float(job_s), tick=float(turn_s), stubs=("kueue", "mpi"))
    equip(emulator, module, 0)
    Admission(emulator, int(most))
    module.web.run_app(emulator.app(), host="127.0.0.1", port=int(port), access_log=None, print=None, shutdown_timeout=0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
