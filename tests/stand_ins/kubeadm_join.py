"""
In place of `kubeadm join`, of workers and control planes, phase by phase in the order of releases whose control planes' kubelets ask their
own API server: what a control plane shares must be there, etcd must be healthy, its member is announced as a learner before it starts and
promoted when it has.

Source: kubernetes.io, "kubeadm join", "Creating Highly Available Clusters with kubeadm"; kubernetes, cmd/kubeadm/app/cmd/phases/join,
app/phases/etcd/local.go, app/util/etcd: the order of phases, what is checked, what is kept, what is tried again.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Callable
from typing import Any

import yaml

from tests.stand_ins import certificates
from tests.stand_ins.etcd import No, asked
from tests.stand_ins.kubeadm_files import (
    FOLDER,
    PKI,
    admin,
    check_shared,
    etcd_pod,
    kubeconfig,
    leaves,
    mark,
    preflight,
    serve_api,
    signature,
    start_kubelet,
    wait,
)
from tests.stand_ins.machine import Answer, Api, be_held_up, fail, hostname, put, route, trusting, version

Json = dict[str, Any]
BOOTSTRAP = FOLDER / "bootstrap-kubelet.conf"
ETCD_CALLS_S = 120.0
"""How long a call to etcd is tried again. Source: kubeadm's `timeouts.etcdAPICall`."""
DIAL_S = 2.0


def join(told: dict[str, Json], *, careful: bool, skipped: str = "") -> None:
    """
    This host is a member of the cluster that its document names, and whose authority it has seen to be the right one.
    """
    settings = told.get("JoinConfiguration")
    if settings is None or set(told) != {"JoinConfiguration"}:
        fail(f"join is not told {sorted(told)}")
    leads = "controlPlane" in settings
    preflight(settings["nodeRegistration"], careful=careful, leads=leads)
    found = settings["discovery"]["bootstrapToken"]
    server = f"https://{found['apiServerEndpoint']}"
    authority = discover(server, found["token"], found["caCertHashes"])
    api = Api(server, trusting("/run/stand-ins/found.crt"), {"Authorization": f"Bearer {found['token']}"})
    kubelet, cluster = _agreed(api, server)
    if leads:
        check_shared(cluster, authority)
        leaves(cluster)
        _prepare(cluster, authority)
        check_etcd()
    if skipped != "kubelet-start":
        _refuse_ready(api)
        local = f"https://{route()[1]}:6443" if leads else server
        if not (PKI / "ca.crt").exists():
            put(PKI / "ca.crt", authority, 0o644)
        put(BOOTSTRAP, kubeconfig(local, authority, "", found["token"]))
        start_kubelet(kubelet, settings["nodeRegistration"])
    if leads:
        join_etcd()
    wait((FOLDER / "kubelet.conf").exists, "the kubelet's TLS bootstrap")
    BOOTSTRAP.unlink(missing_ok=True)
    if leads:
        be_held_up()
        own = admin()
        wait(lambda: bool(own.ask("GET", f"/api/v1/nodes/{hostname()}")), "this Node")
        mark(own, hostname())


def _agreed(api: Api, server: str) -> tuple[str, Json]:
    """
    What the cluster says of its kubelets and of itself.
    """
    where = "/api/v1/namespaces/kube-system/configmaps"
    try:
        kubelet = api.ask("GET", f"{where}/kubelet-config")["data"]["kubelet"]
        cluster: Json = yaml.safe_load(api.ask("GET", f"{where}/kubeadm-config")["data"]["ClusterConfiguration"])
    except (Answer, OSError) as no:
        fail(f"{server}: {no}")
    if cluster["kubernetesVersion"] != f"v{version()}":
        fail(f"this host has v{version()}, the cluster {cluster['kubernetesVersion']}")
    return kubelet, cluster


def _refuse_ready(api: Api) -> None:
    """
    No kubelet is started beside a Node that is ready, and nothing that is ignored changes that.
    """
    name = hostname()
    try:
        there = api.ask("GET", f"/api/v1/nodes/{name}")
    except Answer as no:
        if no.status != 404:
            fail(f"cannot get Node {name!r}: {no}")
        return
    except OSError as no:
        fail(f"cannot get Node {name!r}: {no}")
    if any(one["type"] == "Ready" and one["status"] == "True" for one in there["status"].get("conditions") or []):
        fail(f'error execution phase kubelet-start: a Node with name "{name}" and status "Ready" already exists in the cluster')


def _prepare(cluster: Json, authority: str) -> None:
    """
    The administrator's way in, and the API server's manifest.
    """
    pair = "/var/lib/stand-ins/admin"
    certificates.made(pair, (str(PKI / "ca.crt"), str(PKI / "ca.key")), "kubernetes-admin", ["kubeadm:cluster-admins"])
    put(FOLDER / "admin.conf", kubeconfig(f"https://{cluster['controlPlaneEndpoint']}", authority, pair))
    serve_api(cluster)


def etcd_client(url: str) -> Api:
    """
    A member, asked with the certificate that kubeadm has for its health.
    """
    pair = str(PKI / "etcd/healthcheck-client")
    return Api(url, trusting(str(PKI / "etcd/ca.crt"), f"{pair}.crt", f"{pair}.key"), timeout_s=DIAL_S)


def endpoints() -> list[str]:
    """
    Where members are said to be: first by their pods, then by one that answers. Raises No.
    """
    pods = admin().ask("GET", "/api/v1/namespaces/kube-system/pods?labelSelector=component%3Detcd%2Ctier%3Dcontrol-plane")["items"]
    key = "kubeadm.kubernetes.io/etcd.advertise-client-urls"
    said = [one["metadata"]["annotations"][key] for one in pods if key in (one["metadata"].get("annotations") or {})]
    for url in said:
        try:
            members = asked(etcd_client(url), "/v3/cluster/member/list")["members"]
        except (No, OSError):
            continue
        return [url for one in members for url in one["clientURLs"]]
    raise No(f"error syncing endpoints with etcd: none of {said} answers")


def check_etcd() -> None:
    """
    Every member that has started is healthy: one that is dead lets nobody join.
    """

    def healthy() -> bool:
        for url in endpoints():
            try:
                told = asked(etcd_client(url), "/v3/maintenance/status")
            except (No, OSError) as no:
                raise No(f"etcd cluster is not healthy: failed to dial endpoint {url} with maintenance client: {no}") from None
            if told["errors"]:
                raise No(f"etcd cluster is not healthy: {url}: {told['errors']}")
        return True

    tried(healthy, "check-etcd")


def join_etcd() -> None:
    """
    The member of this host is a voter. One that was announced before is not announced again, and who votes already is left at that.
    """
    peer = f"https://{route()[1]}:2380"

    def announce() -> list[Json]:
        where = endpoints()
        members: list[Json] = asked(etcd_client(where[0]), "/v3/cluster/member/list")["members"]
        if not any(one["peerURLs"] == [peer] for one in members):
            given = {"peerURLs": [peer], "isLearner": True}
            members = asked(etcd_client(where[0]), "/v3/cluster/member/add", given)["members"]
        return members

    members = tried(announce, "etcd-join")
    named = {one["peerURLs"][0]: hostname() if one["peerURLs"] == [peer] else one["name"] or one["ID"] for one in members}
    etcd_pod(",".join(f"{name}={url}" for url, name in named.items()), "existing")

    def promote() -> bool:
        where = endpoints()
        mine = next(one for one in asked(etcd_client(where[0]), "/v3/cluster/member/list")["members"] if one["peerURLs"] == [peer])
        if mine["isLearner"]:
            asked(etcd_client(where[0]), "/v3/cluster/member/promote", {"ID": mine["ID"]})
        return True

    tried(promote, "etcd-join")


def tried(act: Callable[[], Any], phase: str) -> Any:
    """
    What it gave, once it gave something; the program has failed after as long as kubeadm tries.
    """
    end = time.monotonic() + ETCD_CALLS_S
    while True:
        try:
            return act()
        except (No, Answer, OSError) as no:
            if time.monotonic() > end:
                fail(f"error execution phase {phase}: {no}")
        time.sleep(0.5)


def discover(server: str, token: str, pins: list[str]) -> str:
    """
    The authority, first of a server that nobody vouches for: its words are signed with the token, and its authority has the right pin.
    """
    identity, secret = token.split(".")
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    where = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
    try:
        told = Api(server, blind).ask("GET", where)["data"]
        if told.get(f"jws-kubeconfig-{identity}") != signature(told["kubeconfig"], identity, secret):
            fail(f"token id {identity} is invalid for this cluster, or its secret is wrong")
        found = base64.b64decode(
            yaml.safe_load(told["kubeconfig"])["clusters"][0]["cluster"]["certificate-authority-data"]
        ).decode()
        if certificates.pin(found) not in pins:
            fail("cluster CA found in cluster-info ConfigMap is invalid: none of the public keys is pinned")
        put("/run/stand-ins/found.crt", found, 0o644)
        if Api(server, trusting("/run/stand-ins/found.crt")).ask("GET", where)["data"] != told:
            fail("the second look at cluster-info differs from the first")
    except (Answer, OSError) as no:
        fail(f"couldn't validate the identity of the API Server: {server}: {no}")
    return found
