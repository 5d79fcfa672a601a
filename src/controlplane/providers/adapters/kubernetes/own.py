"""
A Kubernetes that is one tenant's alone: its members are its nodes, a program on its control planes makes their list true, and whoever
comes in does so by a certificate that its own authority signed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.kit.certificates import sign_client
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig, OwnConfig
from controlplane.providers.clusters import ClusterList, ClusterSpec, ClusterView, MemberState, MemberView
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import NotFound, Permanent, Refused, Unsupported
from controlplane.providers.kube.access import Access
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.kubeconfigs import kubeconfig_text
from controlplane.providers.kube.reading import ready_condition
from controlplane.providers.kube.work.ground import OwnGround
from controlplane.providers.kube.work.names import LEADS
from controlplane.providers.machines import Check, CheckResult

Json = dict[str, Any]
Counted = Callable[[Json], int | None]
"""How many GPUs a node gives; None when it does not tell yet."""
DRIVER_FOR = timedelta(days=365)
"""Our own certificate lives as long as a process that holds it may; each start makes a new one."""
CERTIFICATE, KEY = "cluster_certificate", "cluster_key"
MARKED: Mapping[str, MemberState] = {"asked": "draining", "drained": "drained"}
"""What the program on the control planes writes on nodes that leave."""


def own_access(config: KubernetesConfig, secrets: Mapping[str, str], now: datetime) -> Access:
    """
    The way in for ourselves, signed by the cluster's own authority. Raises Permanent, without repeating a secret.
    """
    own = _own(config)
    if not config.url or not {CERTIFICATE, KEY} <= set(secrets):
        raise Permanent("a dedicated Kubernetes needs its url and its authority", code="provider_config_invalid")
    try:
        authority = secrets[CERTIFICATE], secrets[KEY]
        certificate, key = sign_client(authority, "controlplane", [own.drivers], now, now + DRIVER_FOR)
    except ValueError:
        raise Permanent("the keys of a dedicated Kubernetes cannot be read", code="provider_config_invalid") from None
    return Access(
        config.url.rstrip("/"),
        ca_pem=secrets[CERTIFICATE],
        server_name=own.server_name,
        cert_pem=certificate,
        key_pem=key,
        others=tuple(own.others),
    )


class Own:
    """
    The ports Clusters and SupportsKubeconfigs on a whole Kubernetes.
    """

    def __init__(
        self, kube: Kube, config: KubernetesConfig, secrets: Mapping[str, str], now: Callable[[], datetime], ground: OwnGround
    ) -> None:
        self._kube = kube
        self._ground = ground
        self._config = config
        self._own = _own(config)
        self._authority = secrets[CERTIFICATE], secrets[KEY]
        self._now = now
        self._seats = Seats(self._own.mark, self._own.api_mark)

    def apply(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`. Nothing is changed: members are told by files. Raises Refused while one of them is not there.
        """
        missing = {one.ref for one in spec.members} - {one.ref for one in self.observe(spec.cluster_id).members}
        if missing:
            raise Refused(f"{len(missing)} members are not in this Kubernetes", code="provider_unknown_member")

    def observe(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`: one list of nodes. A cordon of the owner's own says nothing; one of ours is told as far as it is. A
        cluster that was upgraded is asked for its version, too.
        """
        self._check(cluster_id)
        nodes = self._kube.list_all("/api/v1/nodes")
        offers = self._ground.offers(nodes)
        self._ground.follow(nodes)
        members = self._seats.members(nodes, self._ground.gpus)
        return ClusterView(
            cluster_id=cluster_id,
            members=members,
            checks=checks_of(members),
            version=_plain(self._kube.get("/version").get("gitVersion", "")) if any(one.api_version for one in members) else "",
            job_features=offers.features,
            volumes=offers.volumes,
            mig=offers.mig,
        )

    def delete(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`. It ends with its machines, not before. Raises Unsupported.
        """
        raise Unsupported(f"{cluster_id} ends with its machines", code="provider_dedicated")

    def list_ids(self) -> ClusterList:
        """
        See `Clusters.list_clusters`. It is one cluster for as long as there is one.
        """
        return ClusterList((self._own.cluster_id,), complete=False)

    def issue(self, cluster_id: str, tenant_id: str, lifetime_s: int) -> Kubeconfig:
        """
        See `SupportsKubeconfigs.issue_kubeconfig`. Nobody is asked: the certificate is signed here, and names the server that we ask.
        """
        self._check(cluster_id)
        if tenant_id != self._own.tenant_id:
            raise Refused(f"{tenant_id} is not the tenant of {cluster_id}", code="provider_wrong_user")
        if lifetime_s > self._config.kubeconfig_max_s:
            raise Refused(f"at most {self._config.kubeconfig_max_s} s here", code="kubeconfig_too_long")
        now = self._now()
        ends = (now + timedelta(seconds=lifetime_s)).replace(microsecond=0)
        certificate, key = sign_client(self._authority, tenant_id, [self._own.owners], now, ends)
        server = {
            "server": self._config.tenant_url or self._kube.url,
            "certificate-authority-data": _base64(self._authority[0]),
            "tls-server-name": self._own.server_name,
        }
        user = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        return Kubeconfig(kubeconfig_text(cluster_id, server, user), ends)

    def _check(self, cluster_id: str) -> None:
        if cluster_id != self._own.cluster_id:
            raise NotFound(f"{cluster_id} is not the cluster that this Kubernetes is")


@dataclass(frozen=True, slots=True)
class Seats:
    """
    How nodes of a whole Kubernetes are told as members.
    """

    mark: str
    """Annotation of nodes that leave."""
    api_mark: str = ""
    """Annotation of control planes that were upgraded; empty: none."""

    def members(self, nodes: Iterable[Json], gpus: Counted) -> tuple[MemberView, ...]:
        """
        All nodes; `gpus` tells how many a node gives.
        """
        return tuple(self._member(one, gpus) for one in nodes)

    def _member(self, node: Json, counted: Counted) -> MemberView:
        meta = node["metadata"]
        leads = LEADS in (meta.get("labels") or {})
        gpus = 0 if leads else counted(node)  # pods with GPUs never run on a control plane
        told = (meta.get("annotations") or {}).get(self.api_mark, "") if leads else ""
        kubelet = (node.get("status", {}).get("nodeInfo") or {}).get("kubeletVersion", "")
        return MemberView(meta["name"], self.state(node), gpus, version=_plain(kubelet), api_version=_plain(told))

    def state(self, node: Json) -> MemberState:
        """
        Where the node stands.
        """
        ready = ready_condition(node)
        if ready is None:
            return "joining"
        if ready.get("status") != "True":
            return "down"
        return MARKED.get((node["metadata"].get("annotations") or {}).get(self.mark, ""), "up")


def checks_of(members: Sequence[MemberView]) -> tuple[Check, ...]:
    """
    What is known of the whole.
    """
    up = sum(one.state == "up" for one in members)
    told: CheckResult = "passed" if members and up == len(members) else "failed"
    return (
        Check("nodes_answer", told, f"{up} of {len(members)}"),
        Check("fabric_bandwidth", "not_measured", "Kubernetes does not measure the fabric"),
    )


def _own(config: KubernetesConfig) -> OwnConfig:
    assert config.dedicated is not None
    return config.dedicated


def _plain(version: object) -> str:
    return str(version).removeprefix("v")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
