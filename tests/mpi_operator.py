"""
Kubeflow's MPI operator as far as its controller's text says what it does, played in the kit: workers, a launcher's Job once they run, the
launcher's end as the MPIJob's, and what a suspended one loses. Kueue's part is played beside it.

The kind is an open stub, so a field that the CRD does not know is looked for here.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes_kit import JOB_UID, QUEUE, KubernetesKit

STUB = "kubeflow.org/v2beta1 mpijobs MPIJob n"
KNOWN = {
    "": {"slotsPerWorker", "sshAuthMountPath", "mpiImplementation", "launcherCreationPolicy", "runPolicy", "mpiReplicaSpecs"},
    "runPolicy": {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "suspend"},
    "replicas": {"replicas", "restartPolicy", "template"},
}
"""Fields of the published v2beta1 that we may write."""
GROUP = "kubeflow.org"
ENDS = {"Complete": "Succeeded", "Failed": "Failed"}


def refuse_unknown(spec: dict[str, Any]) -> None:
    """
    Every field is one that the CRD has.
    """
    assert spec.keys() <= KNOWN[""], spec.keys()
    assert spec["runPolicy"].keys() <= KNOWN["runPolicy"]
    assert spec["mpiReplicaSpecs"].keys() == {"Launcher", "Worker"}
    assert all(one.keys() <= KNOWN["replicas"] for one in spec["mpiReplicaSpecs"].values())
    assert spec["mpiImplementation"] in {"OpenMPI", "Intel", "MPICH"}


class MpiOperator:
    """
    Acts at every turn of the kit's Job controller.
    """

    def __init__(self, kit: KubernetesKit) -> None:
        self.emulator = kit.emulator
        jobs = self.emulator.c_jobs

        def c_jobs() -> None:
            for one in list(self.emulator.items("mpijobs", GROUP)):
                self._act(one)
            jobs()

        self.emulator.c_jobs = c_jobs

    def _act(self, one: dict[str, Any]) -> None:
        refuse_unknown(one["spec"])
        status = one.get("status") or {}
        if any(told["type"] in ENDS.values() for told in status.get("conditions") or []):
            return
        if one["spec"]["runPolicy"]["suspend"]:
            self._lose(one)
            self._admit(one)
            return
        workers = [self._worker(one, number) for number in range(one["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"])]
        launcher = self._launcher(one)
        if launcher is None and all(pod["status"].get("phase") == "Running" for pod in workers):
            self._launch(one)
        elif launcher is not None:
            self._tell(one, launcher)

    def _admit(self, one: dict[str, Any]) -> None:
        """Kueue's part: whole, unless its Workload is inactive."""
        meta, emulator = one["metadata"], self.emulator
        assert QUEUE in meta["labels"], "nobody would admit it"
        name = f"mpijob-{meta['name']}"
        workload = emulator.data[("kueue.x-k8s.io", "workloads")].get((meta["namespace"], name))
        if workload is None:
            made = {"metadata": {"name": name, "labels": {JOB_UID: meta["uid"]}, **_owned(one)}, "spec": {"active": True}}
            workload = emulator.make("workloads", made, "kueue.x-k8s.io", meta["namespace"])
        if workload["spec"]["active"]:
            policy = {**one["spec"]["runPolicy"], "suspend": False}
            told = {**copy.deepcopy(one), "spec": {**one["spec"], "runPolicy": policy}}
            emulator.commit("MODIFIED", emulator.find("mpijobs", GROUP), told, one)

    def _worker(self, one: dict[str, Any], number: int) -> dict[str, Any]:
        meta = one["metadata"]
        name = f"{meta['name']}-worker-{number}"
        found = self.emulator.data[("", "pods")].get((meta["namespace"], name))
        if found is not None:
            pod: dict[str, Any] = found
            return pod
        made = copy.deepcopy(one["spec"]["mpiReplicaSpecs"]["Worker"]["template"])
        labels = {
            **made["metadata"]["labels"],
            **_labels(meta["name"], "worker"),
            "training.kubeflow.org/replica-index": str(number),
        }
        made["metadata"] = {**made["metadata"], "name": name, "labels": labels, **_owned(one)}
        made["spec"] |= {"hostname": name, "subdomain": f"{meta['name']}-worker", "restartPolicy": "Never"}
        created: dict[str, Any] = self.emulator.make("pods", made, ns=meta["namespace"])
        return created

    def _launch(self, one: dict[str, Any]) -> None:
        meta, policy = one["metadata"], one["spec"]["runPolicy"]
        template = copy.deepcopy(one["spec"]["mpiReplicaSpecs"]["Launcher"]["template"])
        template["metadata"]["labels"] |= _labels(meta["name"], "launcher")
        template["spec"]["restartPolicy"] = "Never"
        spec = {
            "backoffLimit": policy["backoffLimit"],
            "activeDeadlineSeconds": policy["activeDeadlineSeconds"],
            "template": template,
        }
        made = {"metadata": {"name": f"{meta['name']}-launcher", "labels": {"app": meta["name"]}, **_owned(one)}, "spec": spec}
        self.emulator.make("jobs", made, "batch", meta["namespace"])

    def _launcher(self, one: dict[str, Any]) -> Any:
        meta = one["metadata"]
        return self.emulator.data[("batch", "jobs")].get((meta["namespace"], f"{meta['name']}-launcher"))

    def _tell(self, one: dict[str, Any], launcher: dict[str, Any]) -> None:
        ends = [told for told in (launcher.get("status") or {}).get("conditions") or [] if told["type"] in ENDS]
        started = {"startTime": launcher["status"].get("startTime") if launcher.get("status") else None}
        if not ends:
            return
        end = {**ends[0], "type": ENDS[ends[0]["type"]]}
        over = {"completionTime": ends[0]["lastTransitionTime"]} if end["type"] == "Succeeded" else {}
        told = {**copy.deepcopy(one), "status": {"conditions": [end], **started, **over}}
        self.emulator.commit("MODIFIED", self.emulator.find("mpijobs", GROUP), told, one)
        self._remove_workers(one)

    def _lose(self, one: dict[str, Any]) -> None:
        """A suspended one has no pods, and its launcher's Job is suspended."""
        self._remove_workers(one)
        launcher = self._launcher(one)
        if launcher is not None and not launcher["spec"]["suspend"]:
            told = {**launcher, "spec": {**launcher["spec"], "suspend": True}}
            self.emulator.update(self.emulator.find("jobs", "batch"), launcher, told, "mpi-operator")

    def _remove_workers(self, one: dict[str, Any]) -> None:
        for pod in self.emulator.kids("pods", one):
            if not pod["metadata"].get("deletionTimestamp"):
                self.emulator.delete(self.emulator.find("pods"), pod, {})


def _labels(name: str, role: str) -> dict[str, str]:
    told = {"operator-name": "mpi-operator", "job-name": name, "job-role": role}
    return {f"training.kubeflow.org/{key}": value for key, value in told.items()}


def _owned(one: dict[str, Any]) -> dict[str, Any]:
    meta = one["metadata"]
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {"ownerReferences": [owner]}
