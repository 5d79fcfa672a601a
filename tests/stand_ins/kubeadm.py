"""
In place of kubeadm: `init` looks at its documents, the host and the authorities as the real one does, writes what it writes, and leaves at
the API what it leaves there; `join` and `upgrade` are beside it.

Source: kubernetes.io, "Implementation details" of kubeadm, "kubeadm init", "kubeadm join", "Certificates".
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.stand_ins import certificates, kubeadm_upgrade
from tests.stand_ins.kubeadm_files import (
    ADMINS,
    FOLDER,
    PKI,
    encoded,
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
from tests.stand_ins.kubeadm_join import join
from tests.stand_ins.machine import Answer, Api, documents, fail, hostname, put, route, trusting, version
from tests.unit.rendering.kubernetes_types import DOCUMENTS, VERSIONS, misfits

Json = dict[str, Any]
JOINERS = "system:bootstrappers:kubeadm:default-node-token"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
IGNORED, SKIPPED = "--ignore-preflight-errors=all", "--skip-phases=kubelet-start"


def main(arguments: list[str]) -> None:
    """
    `init` or `join`, with `--config FILE` and perhaps flags that let them go on where another one ended; `upgrade`; or its version.
    """
    match arguments:
        case ["version", "-o", "short"]:
            print(f"v{version()}")
        case ["init", "--config", file, *rest] if set(rest) <= {IGNORED}:
            init(checked(documents(file)), careful=not rest)
        case ["join", "--config", file, *rest] if set(rest) <= {IGNORED, SKIPPED}:
            skipped = "kubelet-start" if SKIPPED in rest else ""
            join(checked(documents(file)), careful=IGNORED not in rest, skipped=skipped)
        case ["upgrade", "apply", wanted, "--yes"]:
            kubeadm_upgrade.apply(wanted)
        case ["upgrade", "node"]:
            kubeadm_upgrade.node()
        case _:
            fail(f"unknown command {arguments}")


def checked(found: list[Json]) -> dict[str, Json]:
    """
    The documents by kind, each of the API version and the types that the real one reads strictly.
    """
    wrong = [f"{one.get('kind')}: {each}" for one in found for each in misfits(one, DOCUMENTS.get(one["kind"], {}))]
    wrong += [f"{one['kind']} {one['apiVersion']}" for one in found if VERSIONS.get(one["kind"]) != one["apiVersion"]]
    kinds = [one["kind"] for one in found]
    if wrong or len(set(kinds)) < len(kinds):
        fail(f"error unmarshaling configuration: {wrong or kinds}")
    return {one["kind"]: one for one in found}


def init(told: dict[str, Json], *, careful: bool) -> None:
    """
    This host is the first control plane of a cluster.
    """
    if set(told) != {"InitConfiguration", "ClusterConfiguration", "KubeletConfiguration", "KubeProxyConfiguration"}:
        fail(f"init is not told {sorted(told)}")
    cluster, settings = told["ClusterConfiguration"], told["InitConfiguration"]
    if cluster["kubernetesVersion"] != f"v{version()}":
        fail(f"this kubeadm is v{version()} and does not deploy {cluster['kubernetesVersion']}")
    if cluster["certificatesDir"] != str(PKI) or not re.fullmatch(r"\d+h\d+m\d+s", cluster["certificateValidityPeriod"]):
        fail("certificatesDir or certificateValidityPeriod is not what this stand-in reads")
    preflight(settings["nodeRegistration"], careful=careful, leads=True)
    leaves(cluster)
    server, local = f"https://{cluster['controlPlaneEndpoint']}", f"https://{route()[1]}:6443"
    authority = (PKI / "ca.crt").read_text(encoding="ascii")
    name = hostname()
    for file, user, groups, at in (
        ("admin", "kubernetes-admin", [ADMINS], server),
        ("super-admin", "kubernetes-super-admin", ["system:masters"], local),
        ("kubelet", f"system:node:{name}", ["system:nodes"], local),
    ):
        certificates.made(f"/var/lib/stand-ins/{file}", (str(PKI / "ca.crt"), str(PKI / "ca.key")), user, groups)
        put(FOLDER / f"{file}.conf", kubeconfig(at, authority, f"/var/lib/stand-ins/{file}"))
    etcd_pod(f"{name}=https://{route()[1]}:2380", "new")
    serve_api(cluster)
    start_kubelet(yaml.safe_dump(told["KubeletConfiguration"]), settings["nodeRegistration"])
    pair = "/var/lib/stand-ins/super-admin"
    api = Api(local, trusting(str(PKI / "ca.crt"), f"{pair}.crt", f"{pair}.key"))
    wait(lambda: api.ask("GET", "/readyz") == "ok", "the API")
    wait(lambda: bool(api.ask("GET", f"/api/v1/nodes/{name}")), "this Node")
    _leave(api, told, server, authority, name)


def _leave(api: Api, told: dict[str, Json], server: str, authority: str, name: str) -> None:
    """
    What `kubeadm init` puts into a new cluster, as far as nodes that join and programs of ours need it.
    """
    (token,) = told["InitConfiguration"]["bootstrapTokens"]
    identity, secret = token["token"].split(".")
    if token["ttl"] != "0s" or set(token["usages"]) != {"signing", "authentication"}:
        fail("a token that ends, or may not be used for what nodes that join need")
    known = {
        "token-id": identity,
        "token-secret": secret,
        "auth-extra-groups": ",".join(token["groups"]),
        **{f"usage-bootstrap-{one}": "true" for one in token["usages"]},
    }
    kept = {"type": "bootstrap.kubernetes.io/token", "stringData": known, "data": {k: encoded(v) for k, v in known.items()}}
    del kept["stringData"]
    whom = kubeconfig(server, authority, "")
    public = {"kubeconfig": whom, f"jws-kubeconfig-{identity}": signature(whom, identity, secret)}
    anybody = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:anonymous"}
    joiners, nodes, admins = (
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": one} for one in (JOINERS, "system:nodes", ADMINS)
    )
    asks = {
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests"],
        "verbs": ["create", "get", "list", "watch"],
    }
    looks = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    for kind, body in (
        ("clusterroles", {"metadata": {"name": "system:node-bootstrapper"}, "rules": [asks]}),
        ("clusterroles", {"metadata": {"name": "kubeadm:get-nodes"}, "rules": [looks]}),
        ("clusterrolebindings", _bound(ADMINS, "cluster-admin", admins)),
        ("clusterrolebindings", _bound("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", joiners)),
        ("clusterrolebindings", _bound("kubeadm:get-nodes", "kubeadm:get-nodes", joiners)),
    ):
        _put(api, f"{RBAC}/{kind}", body)
    _put(api, "/api/v1/namespaces/kube-system/secrets", {"metadata": {"name": f"bootstrap-token-{identity}"}, **kept})
    cluster = yaml.safe_dump(told["ClusterConfiguration"])
    kubelet = yaml.safe_dump(told["KubeletConfiguration"])
    for space, file, data, subjects in (
        ("kube-public", "cluster-info", public, [anybody]),
        ("kube-system", "kubeadm-config", {"ClusterConfiguration": cluster}, [joiners, nodes]),
        ("kube-system", "kubelet-config", {"kubelet": kubelet}, [joiners, nodes]),
    ):
        _put(api, f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": file}, "data": data})
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [file], "verbs": ["get"]}
        _put(api, f"{RBAC}/namespaces/{space}/roles", {"metadata": {"name": f"kubeadm:{file}"}, "rules": [rule]})
        _put(
            api, f"{RBAC}/namespaces/{space}/rolebindings", {**_bound(f"kubeadm:{file}", f"kubeadm:{file}", *subjects, kind="Role")}
        )
    mark(api, name)


def _put(api: Api, where: str, body: Json) -> None:
    """
    The object is there; one of that name stays as it is, as after a start that was cut off.
    """
    try:
        api.ask("POST", where, body)
    except Answer as no:
        if no.status != 409:
            fail(f"{where}: {no}")


def _bound(name: str, role: str, *subjects: Json, kind: str = "ClusterRole") -> Json:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return {"metadata": {"name": name}, "roleRef": reference, "subjects": list(subjects)}
