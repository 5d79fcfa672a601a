"""
The Kubernetes kit for tests: the API emulator in a thread of this process, with what it lacks played beside it.

It lacks a container runtime, logs, leases of kubelets and Kueue's controller. Here scripts are run by this machine's bash (their sleeps
are shortened), the log endpoint answers what they printed, kubelets of ready nodes renew their leases, and a Job with a queue's label is
resumed once all its pods have room, as Kueue does.
Skips with a reason where the kit is absent; with CONTROLPLANE_CI=1 it fails instead.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import fcntl
import importlib.util
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter, build
from controlplane.providers.kube.work.names import SERVICE, TOKEN
from controlplane.providers.registry import AdapterInput
from tests import pod_policies
from tests.kits import CACHE, KITS, unusable

KIT = KITS / "kubernetes" / "kube_emulator.py"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
JOB_UID = "kueue.x-k8s.io/job-uid"
LEASES = "coordination.k8s.io"
BEAT_S = 0.2
"""How often kubelets give a sign of life."""
WHY = "example.org/why"
SPEED = 0.05
"""Seconds here for a second of a script's sleep."""
LOG = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/log")
UNTIDY = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""The kit stops its server without waiting for the last connections and tasks, which are then found unclosed."""
STUBS = {
    "mpi": "kubeflow.org/v2beta1 mpijobs MPIJob n",
    "keda": "keda.sh/v1alpha1 scaledobjects ScaledObject n",
    "metrics": "metrics.k8s.io/v1beta1 podmetrics PodMetrics n",
    "policies": f"{pod_policies.GROUP}/v1 {pod_policies.POLICY} MutatingAdmissionPolicy c"
    f"|{pod_policies.BINDING} MutatingAdmissionPolicyBinding c",
    "early-policies": f"{pod_policies.GROUP}/v1beta1 {pod_policies.POLICY} MutatingAdmissionPolicy c"
    f"|{pod_policies.BINDING} MutatingAdmissionPolicyBinding c",
    "extensions": "apiregistration.k8s.io/v1 apiservices APIService c",
}
"""Kinds that are stored and that nothing acts on, beside the kit's own."""
PREAMBLE = """sleep() { :; }; srun() { "$@"; }
mpirun() {
  local n=1
  while :; do case $1 in -n) n=$2; shift 2 ;; -x) shift 2 ;; *) break ;; esac; done
  for rank in $(seq 0 $((n - 1))); do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$rank "$@" || return; done
}
"""
"""What a script's programs are here: nothing sleeps, and processes of an MPI program run one after the other."""


@cache
def emulator_module() -> ModuleType:
    """
    The kit's module; the test is skipped where there is none.
    """
    if not KIT.exists():
        unusable("Kubernetes", f"{KIT} is not there")
    spec = importlib.util.spec_from_file_location("kube_emulator", KIT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kube_emulator"] = module
    spec.loader.exec_module(module)
    literally = module.dig

    def dig(thing: Any, path: str) -> Any:
        """A server's selector `status.successful` is over `status.succeeded`; the kit looks for a field of that name."""
        return str((thing.get("status") or {}).get("succeeded") or 0) if path == "status.successful" else literally(thing, path)

    module.dig = dig  # type: ignore[attr-defined]
    return module


@cache
def kubectl() -> Path:
    """
    The kit's real kubectl, installed once; the test is skipped where it cannot be had.
    """
    folder = CACHE / "kubernetes"
    folder.mkdir(parents=True, exist_ok=True)
    with (CACHE / "kubernetes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = Path(sys.base_prefix) / "bin" / "python3"  # the environment of the tests has no pip
        got = subprocess.run([python, KIT.with_name("get_tools.py"), folder], capture_output=True, text=True, check=False)
    if got.returncode:
        unusable("kubectl", f"the kit could not get it: {got.stderr.strip().splitlines()[-1:]}")
    return folder / "kubectl"


class KubernetesKit:
    """
    A running emulator and how to reach it.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.emulator = handle.emulator
        self.kubeconfig = kubeconfig(handle.url, {"token": self.emulator.token} if self.emulator.token else {})
        self._logs: dict[tuple[str, str], bytes] = {}

    def adapter(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), **config: Any) -> KubernetesAdapter:
        """
        Built as in production, with a kubeconfig.
        """
        secrets = {"kubeconfig": self.kubeconfig}
        return build(AdapterInput("prv_contract", {"cordon_reason": WHY, "settle_s": 0, **config}, secrets, "contract", now))

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/merge-patch+json", token: str = "") -> Any:
        """
        What the server answers to an administrator, or to whoever has the token.
        """
        data = None if body is None else json.dumps(body).encode()
        shown = token or self.emulator.token
        headers = {"Content-Type": kind, "User-Agent": "admin/1"} | ({"Authorization": f"Bearer {shown}"} if shown else {})
        request = urllib.request.Request(self.handle.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def asked(self) -> list[tuple[str, str]]:
        """
        Method and path of every request so far.
        """
        return [(method, path) for method, path, _ in tuple(self.emulator.log)]  # its server writes on meanwhile

    def play(self, *, kueue: bool) -> None:
        """
        From now on scripts run, logs are told and, if asked, queues admit.
        """
        kubelet, jobs, route = self.emulator.c_kubelet, self.emulator.c_jobs, self.emulator.route

        def c_kubelet() -> None:
            self._run_scripts()
            self._beat()
            kubelet()

        def c_jobs() -> None:
            if kueue:
                self._admit()
            jobs()

        async def logs(request: Any) -> Any:
            found = LOG.fullmatch(request.path)
            if found is None:
                return await route(request)
            self.emulator.who(request)
            await asyncio.sleep(0)
            text = self._logs.get((found[1], found[2]), b"")
            return emulator_module().web.Response(body=text[: int(request.query.get("limitBytes", len(text)))])

        self.emulator.c_kubelet, self.emulator.c_jobs, self.emulator.route = c_kubelet, c_jobs, logs

    def _beat(self) -> None:
        """Kubelets of nodes that are ready renew their leases."""
        if not self.emulator.due(("beat", ""), BEAT_S):
            return
        kept = self.emulator.data[(LEASES, "leases")]
        for node in list(self.emulator.items("nodes")):
            name = node["metadata"]["name"]
            if all(one["status"] != "True" for one in node["status"]["conditions"] if one["type"] == "Ready"):
                continue
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}
            lease = kept.get(("kube-node-lease", name))
            if lease is None:
                self.emulator.make("leases", {"metadata": {"name": name}, "spec": spec}, LEASES, "kube-node-lease")
            else:
                self.emulator.commit(
                    "MODIFIED", self.emulator.find("leases", LEASES), {**copy.deepcopy(lease), "spec": spec}, lease
                )

    def _run_scripts(self) -> None:
        for pod in list(self.emulator.items("pods")):
            meta = pod["metadata"]
            key = (meta["namespace"], meta["name"])
            started = not pod["spec"].get("nodeName") or pod["status"]["phase"] != "Pending" or key in self._logs
            if started or not {TOKEN, SERVICE} & (meta.get("labels") or {}).keys():
                continue
            if pod["spec"]["containers"][0]["name"] != "job":  # a service's pod: its image is not run
                self._logs[key] = b"listening\n"
                continue
            secret = self.emulator.data[("", "secrets")].get((key[0], pod["spec"]["volumes"][0]["secret"]["secretName"]))
            if secret is None:  # a kubelet waits for what it has to mount
                self.emulator.timers[("run", meta["uid"])] = time.time() + 0.05
                continue
            script = base64.b64decode(secret["data"]["script"]).decode()
            done = subprocess.run(
                ["bash", "-c", PREAMBLE + script],
                env=_environment(pod, secret),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            self._logs[key] = done.stdout
            seconds = SPEED * sum(map(int, re.findall(r"\bsleep (\d+)", script)))
            told = copy.deepcopy(pod)
            told["metadata"].setdefault("annotations", {}).update(
                {"emulator/run-seconds": str(seconds), "emulator/exit-code": str(done.returncode)}
            )
            self.emulator.commit("MODIFIED", self.emulator.find("pods"), told, pod)

    def _admit(self) -> None:
        emulator, kind = self.emulator, self.emulator.find("jobs", "batch")
        for job in sorted(emulator.items("jobs", "batch"), key=self._rank):
            meta = job["metadata"]
            if QUEUE not in (meta.get("labels") or {}) or (job.get("status") or {}).get("completionTime"):
                continue
            workload = emulator.data[("kueue.x-k8s.io", "workloads")].get((meta["namespace"], f"job-{meta['name']}"))
            if workload is None:
                labels = {JOB_UID: meta["uid"]}
                owner = [{"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}]
                made = {
                    "metadata": {"name": f"job-{meta['name']}", "labels": labels, "ownerReferences": owner},
                    "spec": {"active": True},
                }
                workload = emulator.make("workloads", made, "kueue.x-k8s.io", meta["namespace"])
            if job["spec"]["suspend"] and workload["spec"]["active"] and self._has_room(job):
                emulator.update(kind, job, {**job, "spec": {**job["spec"], "suspend": False}}, "kueue")
                return  # one at a time: its pods must be there before room is counted again

    def _rank(self, job: Any) -> int:
        """
        Kueue's order: by the value of the class that the Job names, then as they came.
        """
        named = (job["metadata"].get("labels") or {}).get(PRIORITY)
        known = self.emulator.data[("kueue.x-k8s.io", "workloadpriorityclasses")]
        return 0 if named is None else -int(known[("", named)]["value"])

    def _has_room(self, job: Any) -> bool:
        emulator, module = self.emulator, emulator_module()
        others = [one for one in emulator.items("jobs", "batch", job["metadata"]["namespace"]) if not one["spec"]["suspend"]]
        pods = [one for one in emulator.items("pods") if one["status"].get("phase") not in {"Succeeded", "Failed"}]
        for one in others:
            over = {"Complete", "Failed"} & {c["type"] for c in (one.get("status") or {}).get("conditions") or []}
            if not over and len(emulator.kids("pods", one)) < one["spec"]["parallelism"]:
                return False
        if any(not one["spec"].get("nodeName") for one in pods):
            return False
        spec = job["spec"]["template"]["spec"]
        asked = int((spec["containers"][0]["resources"].get("limits") or {}).get("nvidia.com/gpu", 0))
        room = 0
        for node in emulator.items("nodes"):
            name = node["metadata"]["name"]
            used = sum(
                module.pod_resources(one, "requests").get("nvidia.com/gpu", 0)
                for one in pods
                if one["spec"].get("nodeName") == name
            )
            free = int(node["status"]["allocatable"]["nvidia.com/gpu"]) - used
            good = module.node_selected(spec, node["metadata"]["labels"], name) and not node["spec"].get("unschedulable")
            room += bool(good and free >= asked)
        return bool(room >= job["spec"]["parallelism"])


def kubeconfig(url: str, user: dict[str, Any], **cluster: Any) -> str:
    """
    One that leads to the server as the user.
    """
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "emu",
            "clusters": [{"name": "emu", "cluster": {"server": url, **cluster}}],
            "users": [{"name": "emu", "user": user}],
            "contexts": [{"name": "emu", "context": {"cluster": "emu", "user": "emu"}}],
        }
    )


def _environment(pod: Any, secret: Any) -> dict[str, str]:
    made = {"PATH": "/usr/bin:/bin"}
    for one in pod["spec"]["containers"][0]["env"]:
        source = one.get("valueFrom") or {}
        if "secretKeyRef" in source:
            made[one["name"]] = base64.b64decode(secret["data"][source["secretKeyRef"]["key"]]).decode()
        elif "fieldRef" in source:
            made[one["name"]] = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        else:
            made[one["name"]] = one["value"]
    return made


async def _over() -> None:
    """The kit stops its loop before its tasks have heard that they are cancelled; `wait_for` of 3.11 can swallow one cancel."""
    for _ in range(20):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return
        for one in left:
            one.cancel()
        await asyncio.wait(left, timeout=0.2)


@contextmanager
def kubernetes_kit(
    *, nodes: int = 6, gpus: int = 8, kueue: bool = True, token: str | None = None, more: tuple[str, ...] = ()
) -> Iterator[KubernetesKit]:
    """
    An emulator of its own with free nodes.
    """
    stubs = (*(("kueue",) if kueue else ()), *more)
    loop: asyncio.AbstractEventLoop | None = None
    try:
        emulator_module().STUBS.update(STUBS)
        with emulator_module().running(nodes=nodes, gpus=gpus, stubs=stubs, token=token, tick=0.01) as handle:
            loop = handle.emulator.task.get_loop()
            kit = KubernetesKit(handle)
            kit.play(kueue=kueue)
            if {"policies", "early-policies"} & {*more}:
                pod_policies.play(kit.emulator, emulator_module().json_patch)
            yield kit
    finally:
        if loop is not None:
            loop.run_until_complete(_over())
            loop.close()
