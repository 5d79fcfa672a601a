"""
In place of a kubelet: gets its certificate by the bootstrap token, registers its Node, is ready once a pod has brought a network, and shows
the GPUs that a device plugin would find. No container is run.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tests.stand_ins import certificates
from tests.stand_ins.api_server import IMAGE_TAG, REQUESTS, SIGNER
from tests.stand_ins.machine import Answer, Api, fail, hostname, minor, put, route, trusting, version
from tests.unit.rendering.kubernetes_types import DOCUMENTS, misfits

MANIFESTS = Path("/etc/kubernetes/manifests")
MANIFEST = MANIFESTS / "kube-apiserver.yaml"
RENEW_S = 10.0
"""Between two signs of life, in the Node's status: its Lease is the store's own, which renews every one. Source: "Node heartbeats"."""
CHAINS = "/etc/cni/net.d"
DEVICES = "/var/lib/kubelet/device-plugins"
MERGE = "application/merge-patch+json"
LOOK_S = 1.0
MAY = re.compile(
    r"(kubernetes\.io/(hostname|arch|os)|node\.kubernetes\.io/.+|kubelet\.kubernetes\.io/.+|topology\.kubernetes\.io/(zone|region)"
    r"|((?!([^/]*\.)?(kubernetes|k8s)\.io/).+))"
)
"""Labels that a kubelet takes for itself. Source: kubernetes.io, "Well-Known Labels", "NodeRestriction"."""


class Kubelet:
    """
    One Node, as long as its program runs.
    """

    def __init__(
        self,
        api: Api,
        labels: Mapping[str, str],
        *,
        name: str = "",
        networked: bool = False,
        node_version: str = "",
        pods: StaticPods | None = None,
    ) -> None:
        wrong = [one for one in labels if not MAY.fullmatch(one)]
        if wrong:
            fail(f"unknown labels in the kubernetes.io or k8s.io namespaces: {wrong}")
        self._api, self.name, self._labels = api, name or hostname(), dict(labels)
        self._version = node_version or f"v{version()}"
        self._networked, self._told = networked, ""
        self._pods, self._renewed = pods, 0.0

    def register(self) -> None:
        """
        The Node is there. One that is there already is taken over, as after a restart.
        """
        server = self._api.ask("GET", "/version")["gitVersion"]
        if minor(self._version) > minor(server):
            fail(f"a kubelet of {self._version} is newer than the API server, which is of {server}")
        own = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **self._labels}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": own},
            "spec": {},
            "status": self.status(),
        }
        try:
            self._api.ask("POST", "/api/v1/nodes", node)
        except Answer as no:
            if no.status != 409:
                raise
            self._api.ask("PATCH", f"/api/v1/nodes/{self.name}", {"metadata": {"labels": own}}, MERGE)

    def status(self, gpus: int = 0) -> dict[str, Any]:
        """
        What the Node says of itself.
        """
        good = self._networked or any(Path(CHAINS).glob("*.conflist"))
        words = "kubelet is posting ready status" if good else "container runtime network not ready: cni plugin not initialized"
        has = {"cpu": "8", "memory": "64Gi", "pods": "110", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        ready = {"type": "Ready", "status": str(good), "reason": "KubeletReady" if good else "KubeletNotReady", "message": words}
        info = {"kubeletVersion": self._version, "containerRuntimeVersion": "containerd://stand-in", "operatingSystem": "linux"}
        where = [{"type": "InternalIP", "address": route()[1]}, {"type": "Hostname", "address": self.name}]
        return {"capacity": has, "allocatable": has, "conditions": [ready], "nodeInfo": info, "addresses": where}

    def look(self) -> None:
        """
        What the pods of this Node bring has been done, and the Node says so where that is news.
        """
        asked = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}"
        pods = [one for one in self._api.ask("GET", asked)["items"] if one["status"].get("phase") == "Running"]
        for one in pods:
            self._copy(one)
        gpus = len(list(Path("/dev").glob("nvidia[0-9]*"))) if any(self._plugs(one) for one in pods) else 0
        status = self.status(gpus)
        if json.dumps(status) != self._told:
            try:
                self._api.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, MERGE)
            except Answer as no:
                if no.status != 404:  # a Node that was deleted stays so until this program starts again, as with a real one
                    raise
            self._told = json.dumps(status)

    def _copy(self, pod: Mapping[str, Any]) -> None:
        """
        Containers that copy a key of a ConfigMap to a place of the host have done so.
        """
        spec = pod["spec"]
        volumes = {one["name"]: one for one in spec.get("volumes") or []}
        for container in spec.get("initContainers") or []:
            match container.get("command"):
                case ["cp", "-f", source, target]:
                    mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
                    kept, place = mounts.get(str(Path(source).parent)), mounts.get(str(Path(target).parent))
                    if kept and place and "configMap" in kept and "hostPath" in place:
                        where = Path(place["hostPath"]["path"]) / Path(target).name
                        if not where.exists():
                            put(where, self._setting(pod, kept["configMap"]["name"], Path(source).name), 0o644)

    def _setting(self, pod: Mapping[str, Any], name: str, key: str) -> str:
        text: str = self._api.ask("GET", f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps/{name}")["data"][key]
        if key == "cni-conf.json" and [one["type"] for one in json.loads(text)["plugins"]][:1] != ["flannel"]:
            raise Answer(500, f"{name}/{key} is no chain of network plugins")
        return text

    def _plugs(self, pod: Mapping[str, Any]) -> bool:
        """
        The pod is a device plugin that sees GPUs: by a runtime that the cluster knows, at the kubelet's folder for plugins.
        """
        spec = pod["spec"]
        paths = {(one.get("hostPath") or {}).get("path") for one in spec.get("volumes") or []}
        if DEVICES not in paths or not spec.get("runtimeClassName"):
            return False
        self._api.ask("GET", f"/apis/node.k8s.io/v1/runtimeclasses/{spec['runtimeClassName']}")
        return True

    def renew(self) -> None:
        """
        The API hears that this Node is alive, and shows the pods of its manifests.
        """
        if self._pods is not None:
            self._pods.mirror(self._api, self.name)
        if self._told:
            status = json.loads(self._told)
            status["conditions"][0]["lastHeartbeatTime"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            self._api.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, MERGE)
        self._renewed = time.monotonic()

    def run(self) -> None:
        """
        Registers, then looks again and again; what fails is tried again, as by a real one.
        """
        registered = False
        while True:
            if self._pods is not None:
                self._pods.look()
            try:
                if not registered:
                    self.register()
                    registered = True
                self.look()
                if time.monotonic() - self._renewed > RENEW_S:
                    self.renew()
            except (Answer, OSError) as no:
                print(f"[stand-in for kubelet] {no}", file=sys.stderr)
            time.sleep(LOOK_S)


def kubeconfig(path: str) -> tuple[Api, dict[str, Any]]:
    """
    The API that the file leads to, and whom it speaks for.
    """
    whole = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    cluster, user = whole["clusters"][0]["cluster"], whole["users"][0]["user"]
    authority = put("/run/stand-ins/ca.crt", base64.b64decode(cluster["certificate-authority-data"]).decode(), 0o644)
    if "token" in user:
        headers = {"Authorization": f"Bearer {user['token']}"}
        return Api(cluster["server"], trusting(str(authority)), headers), user
    return Api(cluster["server"], trusting(str(authority), user["client-certificate"], user["client-key"])), user


def bootstrap(api: Api, key: str, name: str, patience_s: float = 60.0) -> str:
    """
    The certificate that makes its holder this Node, asked for with a bootstrap token; its key is at the path. Raises Answer, OSError.
    """
    asked = certificates.request(key, f"system:node:{name}", ["system:nodes"])
    spec = {
        "request": base64.b64encode(asked.encode()).decode(),
        "signerName": SIGNER,
        "usages": ["digital signature", "client auth"],
    }
    metadata = {"name": f"node-csr-{secrets.token_hex(8)}"}
    body = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": metadata, "spec": spec}
    api.ask("POST", REQUESTS, body)
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        status = api.ask("GET", f"{REQUESTS}/{metadata['name']}").get("status") or {}
        if status.get("certificate"):
            return base64.b64decode(status["certificate"]).decode()
        time.sleep(LOOK_S / 4)
    raise Answer(504, f"{metadata['name']} was not signed")


def come_in(first: str, final: str, beside: Callable[[], None]) -> None:
    """
    The second kubeconfig is there, made by the first where that holds a token. The API that is asked may be one of the host's own pods.
    """
    while not Path(final).exists():
        beside()
        if not Path(first).exists():
            fail(f"neither {final} nor {first} is there")
        try:
            api, _ = kubeconfig(first)
            pair = "/var/lib/kubelet/pki/kubelet-client-current"
            put(f"{pair}.crt", bootstrap(api, f"{pair}.key", hostname()))
        except (Answer, OSError) as no:
            print(f"[stand-in for kubelet] {no}", file=sys.stderr)
            time.sleep(LOOK_S)
            continue
        whole = yaml.safe_load(Path(first).read_text(encoding="utf-8"))
        whole["users"][0]["user"] = {"client-certificate": f"{pair}.crt", "client-key": f"{pair}.key"}
        put(final, yaml.safe_dump(whole))


def main(arguments: list[str]) -> None:
    """
    As kubelet.service runs it.
    """
    if arguments == ["--version"]:
        print(f"Kubernetes v{version()}")
        return
    flags = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("bootstrap-kubeconfig", "kubeconfig", "config"):
        flags.add_argument(f"--{name}", required=True)
    for name in ("node-labels", "pod-infra-container-image", "container-runtime-endpoint"):
        flags.add_argument(f"--{name}", default="")
    told = flags.parse_args(arguments)
    settings = yaml.safe_load(Path(told.config).read_text(encoding="utf-8"))
    wrong = misfits(settings, DOCUMENTS["KubeletConfiguration"])
    if wrong or settings["cgroupDriver"] != "systemd":
        fail(f"{told.config}: {wrong}")
    pods = StaticPods()
    come_in(told.bootstrap_kubeconfig, told.kubeconfig, pods.look)
    labels = dict(one.split("=", 1) for one in told.node_labels.split(",") if one)
    Kubelet(kubeconfig(told.kubeconfig)[0], labels, pods=pods).run()


class StaticPods:
    """
    The pods of this host's manifests: one for each, as long as the manifest says so; another manifest is another pod, and a program that
    ended is started again.
    """

    def __init__(self) -> None:
        self._running: dict[Path, tuple[str, subprocess.Popen[bytes]]] = {}

    def look(self) -> None:
        """
        They run as their manifests have it.
        """
        for path in sorted(MANIFESTS.glob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            told, child = self._running.get(path, ("", None))
            if not text or (text == told and child is not None and child.poll() is None):
                continue
            if child is not None:
                child.terminate()
                child.wait()
            (container,) = yaml.safe_load(text)["spec"]["containers"]
            program = str(Path(sys.argv[0]).with_name(container["command"][0]))
            environment = {**os.environ, IMAGE_TAG: container["image"].rsplit(":", 1)[1]}
            self._running[path] = text, subprocess.Popen([program, *container["command"][1:]], env=environment)

    def mirror(self, api: Api, node: str) -> None:
        """
        The API shows each of them. Raises Answer, OSError.
        """
        uid = ""
        for path in self._running:
            pod = yaml.safe_load(path.read_text(encoding="utf-8"))
            meta = pod["metadata"]
            where = f"/api/v1/namespaces/{meta['namespace']}/pods"
            name = f"{meta['name']}-{node}"
            try:
                api.ask("GET", f"{where}/{name}")
            except Answer as no:
                if no.status != 404:
                    raise
                uid = uid or api.ask("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
                meta["name"] = name
                meta["annotations"] = {**meta["annotations"], "kubernetes.io/config.mirror": "by-the-kubelet"}
                meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}]
                api.ask("POST", where, {**pod, "spec": {**pod["spec"], "nodeName": node}})
