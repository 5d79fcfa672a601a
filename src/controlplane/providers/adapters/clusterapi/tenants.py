"""
Tenants' own clusters, as far as we go into them: which Nodes there are, cordons, and credentials that end.

Cluster API keeps an administrator's kubeconfig of each cluster in the management cluster. It is read where it is needed, held in memory
for a while, and given to nobody.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.names import DRAIN, Names, notes_of
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, Permanent, Refused, Unknown, Unsupported
from controlplane.providers.kube.access import Access, from_kubeconfig
from controlplane.providers.kube.changing import Edit, change
from controlplane.providers.kube.client import FIELD_MANAGER, Kube
from controlplane.providers.kube.kubeconfigs import kubeconfig_text, token_request

Json = dict[str, Any]
MIB = 1024 * 1024
KEPT_S = 300.0
"""How long a way into a cluster is held before it is read anew; Cluster API renews certificates."""
MOST = 256
"""Ways that are held at once; the oldest goes first."""
SPACE, PEOPLE = "controlplane", "owner"
"""In a tenant's cluster: our namespace, and the account whose tokens its kubeconfigs hold."""
BINDING = "controlplane:owner"
RBAC = "rbac.authorization.k8s.io"
MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class Way:
    """
    How one cluster is reached.
    """

    kube: Kube
    """As its administrator."""
    access: Access
    """The same, for the parts that tenants may have: where it is, and who signs its certificate."""
    read_at: float
    """Monotonic."""


class Tenants:
    """
    The clusters of one management cluster, each by its own API.
    """

    def __init__(self, kube: Kube, names: Names, config: ClusterApiConfig) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._ways: dict[str, Way] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """
        No connection to any cluster is held.
        """
        with self._lock:
            for way in self._ways.values():
                way.kube.close()
            self._ways.clear()

    def forget(self, cluster_id: str) -> None:
        """
        Nothing of the cluster is held.
        """
        with self._lock:
            way = self._ways.pop(cluster_id, None)
        if way is not None:
            way.kube.close()

    def nodes(self, cluster_id: str) -> Mapping[str, Json]:
        """
        Its Nodes by name; none while it has no API yet. Raises Busy while that does not answer.
        """
        try:
            return {one["metadata"]["name"]: one for one in self._ask(cluster_id, lambda kube: kube.list_all("/api/v1/nodes"))}
        except NotFound:
            return {}

    def cordon(self, cluster_id: str, name: str, reason: str) -> None:
        """
        The Node is cordoned and bears our reason; a cordon that is there already stays whose it is, and a reason as it is.
        """

        def cordoned(node: Json) -> Json | None:
            cordon = bool(node.get("spec", {}).get("unschedulable"))
            if cordon and DRAIN in notes_of(node):
                return None
            spec = {} if cordon else {"spec": {"unschedulable": True}}
            return {"metadata": {"annotations": {DRAIN: reason[:MAX_REASON]}}, **spec}

        self._ask(cluster_id, lambda kube: _change(kube, name, cordoned))

    def uncordon(self, cluster_id: str, name: str) -> None:
        """
        A cordon of ours is lifted; anybody else's stays.
        """

        def lifted(node: Json) -> Json | None:
            if DRAIN not in notes_of(node):
                return None
            spec = {"spec": {"unschedulable": None}} if drained_by_us(node) else {}
            return {"metadata": {"annotations": {DRAIN: None}}, **spec}

        self._ask(cluster_id, lambda kube: _change(kube, name, lifted))

    def issue(self, cluster_id: str, lifetime_s: int) -> Kubeconfig:
        """
        A kubeconfig with a token that the cluster's own API server made for it. Raises Refused, Unsupported without TLS.
        """
        if lifetime_s > self._config.kubeconfig_max_s:
            raise Refused(f"at most {self._config.kubeconfig_max_s} s here", code="kubeconfig_too_long")
        way = self._way(cluster_id)
        if not way.access.url.startswith("https:"):
            raise Unsupported("kubectl shows a token to servers with TLS only", code="kubeconfig_needs_tls")
        status = self._ask(cluster_id, lambda kube: _token(kube, lifetime_s)).get("status") or {}
        token, ends = status.get("token"), status.get("expirationTimestamp")
        if not isinstance(token, str) or not token or not ends:
            raise Unknown("the server's answer holds no token")
        server = {"server": way.access.url}
        if way.access.ca_pem:
            server["certificate-authority-data"] = base64.b64encode(way.access.ca_pem.encode()).decode()
        if way.access.server_name:
            server["tls-server-name"] = way.access.server_name
        return Kubeconfig(kubeconfig_text(cluster_id, server, {"token": token}), datetime.fromisoformat(ends).astimezone(UTC))

    def _ask(self, cluster_id: str, question: Callable[[Kube], Any]) -> Any:
        """
        The cluster's answer. A credential that is refused is read anew once: Cluster API may have renewed it.
        """
        way = self._way(cluster_id)
        try:
            with _as_theirs(cluster_id):
                return question(way.kube)
        except AuthFailed:
            self.forget(cluster_id)
        way = self._way(cluster_id)
        try:
            with _as_theirs(cluster_id):
                return question(way.kube)
        except AuthFailed as error:
            words = f"the API of {cluster_id} lets us not in: {error.detail}"
            raise Busy(words, retry_in_s=30.0, code="provider_cluster_unreachable") from error

    def _way(self, cluster_id: str) -> Way:
        """
        The way in. Raises NotFound while there is none.
        """
        with self._lock:
            known = self._ways.get(cluster_id)
            if known is not None and time.monotonic() - known.read_at < KEPT_S:
                return known
        secret = self._kube.get(self._names.secret_path(cluster_id))
        try:
            access = _read(secret)
            kube = Kube(
                access,
                timeout_s=self._config.cluster_timeout_s,
                max_body_bytes=self._config.max_body_mib * MIB,
                page_size=self._config.page_size,
            )
        except (binascii.Error, UnicodeDecodeError, Permanent):
            # never repeated: it is an administrator's
            raise Busy("Cluster API's kubeconfig of the cluster cannot be used", code="provider_cluster_unreadable") from None
        fresh = Way(kube, access, time.monotonic())
        with self._lock:
            over = [known for known in [self._ways.pop(cluster_id, None)] if known is not None]
            self._ways[cluster_id] = fresh
            while len(self._ways) > MOST:
                over.append(self._ways.pop(min(self._ways, key=lambda one: self._ways[one].read_at)))
        for known in over:
            known.kube.close()  # what another thread has under way on it goes on: only idle connections are closed
        return fresh


def drained_by_us(node: Json) -> bool:
    """
    Whether the cordon is ours: our reason is on it, and the server says that we set it.
    """
    fields = node["metadata"].get("managedFields") or []
    who = [one.get("manager", "") for one in fields if "f:unschedulable" in ((one.get("fieldsV1") or {}).get("f:spec") or {})]
    return bool(node.get("spec", {}).get("unschedulable")) and DRAIN in notes_of(node) and FIELD_MANAGER in who


def owner_parts() -> tuple[tuple[str, Json], ...]:
    """
    Paths and bodies of what a tenant's kubeconfigs need in its cluster: the owner may do everything there.
    """
    account = {"kind": "ServiceAccount", "name": PEOPLE, "namespace": SPACE}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    return (
        (f"/api/v1/namespaces/{SPACE}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}),
        (
            f"/api/v1/namespaces/{SPACE}/serviceaccounts/{PEOPLE}",
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": PEOPLE, "namespace": SPACE},
                "automountServiceAccountToken": False,
            },
        ),
        (
            f"/apis/{RBAC}/v1/clusterrolebindings/{BINDING}",
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": BINDING},
                "roleRef": role,
                "subjects": [account],
            },
        ),
    )


def _token(kube: Kube, lifetime_s: int) -> Json:
    """
    The server's TokenRequest; the account is made when it is not there.
    """
    path, body = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{PEOPLE}/token", token_request(lifetime_s)
    try:
        return kube.create(path, body)
    except NotFound:
        for where, part in owner_parts():
            kube.apply(where, part)
        return kube.create(path, body)


def _change(kube: Kube, name: str, edit: Edit) -> None:
    path = f"/api/v1/nodes/{name}"
    change(kube, path, kube.get(path), edit)


def _read(secret: Json) -> Access:
    return from_kubeconfig(base64.b64decode((secret.get("data") or {}).get("value") or "", validate=True).decode())


@contextmanager
def _as_theirs(cluster_id: str) -> Iterator[None]:
    """
    A tenant's cluster that is away says nothing of the provider, whose other clusters go on.
    """
    try:
        yield
    except (NotSent, Unknown) as error:
        words = f"the API of {cluster_id} does not answer: {error.detail}"
        raise Busy(words, retry_in_s=10.0, code="provider_cluster_unreachable") from error
