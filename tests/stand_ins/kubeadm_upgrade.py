"""
In place of `kubeadm upgrade`: the first control plane brings the cluster's own configuration to the version of its kubeadm, others and
workers follow what the cluster says. An API server is another one once its manifest names another image.

Source: kubernetes.io, "kubeadm upgrade", "Upgrading kubeadm clusters", "Version Skew Policy".
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.stand_ins.kubelet import MANIFEST, MERGE, kubeconfig
from tests.stand_ins.machine import Answer, Api, fail, minor, put, route, trusting, version

ADMIN, OWN = "/etc/kubernetes/admin.conf", "/etc/kubernetes/kubelet.conf"
SPACE = "/api/v1/namespaces/kube-system/configmaps"
PATIENCE_S = 120.0
KUBELETS_BEHIND = 3


def apply(wanted: str) -> None:
    """
    This host's API server, and the cluster by its own configuration, are of the version, which is this kubeadm's.
    """
    if wanted != f"v{version()}":
        fail(f"the version to upgrade to, {wanted}, is not the kubeadm version v{version()}")
    api, _ = kubeconfig(ADMIN)
    agreed = _agreed(api)
    if minor(wanted) - minor(agreed["kubernetesVersion"]) not in {0, 1}:
        fail(f"from {agreed['kubernetesVersion']} to {wanted} is not one minor release")
    kubelets = [one["status"]["nodeInfo"]["kubeletVersion"] for one in api.ask("GET", "/api/v1/nodes")["items"]]
    if any(minor(wanted) - minor(one) > KUBELETS_BEHIND for one in kubelets):
        fail(f"there are kubelets that an API server of {wanted} does not take: {kubelets}")
    _serve(wanted)
    data = {"ClusterConfiguration": yaml.safe_dump({**agreed, "kubernetesVersion": wanted})}
    _patiently(lambda: api.ask("PATCH", f"{SPACE}/kubeadm-config", {"data": data}, MERGE), "the cluster's configuration")


def node() -> None:
    """
    This host has what the cluster says by now: its API server, if it has one, and the settings of its kubelet.
    """
    api, _ = kubeconfig(ADMIN if MANIFEST.exists() else OWN)
    agreed = _agreed(api)["kubernetesVersion"]
    if agreed != f"v{version()}":
        fail(f"this kubeadm is v{version()}, and the cluster {agreed}")
    if MANIFEST.exists():
        _serve(agreed)
    settings = api.ask("GET", f"{SPACE}/kubelet-config")["data"]["kubelet"]
    put("/var/lib/kubelet/config.yaml", settings, 0o644)


def _agreed(api: Api) -> Any:
    try:
        return yaml.safe_load(api.ask("GET", f"{SPACE}/kubeadm-config")["data"]["ClusterConfiguration"])
    except (Answer, OSError) as no:
        fail(f"FATAL: failed to get config map: {no}")


def _serve(wanted: str) -> None:
    """
    The API server of this host is of the version, and says so itself.
    """
    pod = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    (container,) = pod["spec"]["containers"]
    container["image"] = f"{container['image'].rsplit(':', 1)[0]}:{wanted}"
    put(MANIFEST, yaml.safe_dump(pod))
    own = Api(f"https://{route()[1]}:6443", trusting(str(Path("/etc/kubernetes/pki/ca.crt"))))

    def serves() -> None:
        if own.ask("GET", "/version")["gitVersion"] != wanted:
            raise Answer(503, "the API server is the old one")

    _patiently(serves, f"the API server of {wanted}")


def _patiently(act: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with suppress(Answer, OSError):
            act()
            return
        time.sleep(0.5)
    fail(f"timed out waiting for {what}")
