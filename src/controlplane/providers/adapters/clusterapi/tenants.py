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
from typing import Any, TypeVar

from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.directory import Directory
from controlplane.providers.adapters.clusterapi.names import DRAIN, Names, notes_of
from controlplane.providers.circuits import Circuit
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import (
    AuthFailed,
    Busy,
    NotFound,
    NotSent,
    Permanent,
    Refused,
    Transient,
    Unknown,
    UnknownBeyond,
    Unsupported,
)
from controlplane.providers.kube.access import Access, from_kubeconfig
from controlplane.providers.kube.changing import Edit, change
from controlplane.providers.kube.client import FIELD_MANAGER, Expired, Kube
from controlplane.providers.kube.kubeconfigs import kubeconfig_text, token_request

Json = dict[str, Any]
MIB = 1024 * 1024
KEPT_S = 300.0
"""How long a way into a cluster is held before it is read anew; Cluster API renews certificates."""
MOST = 256
"""Ways that are held at once; the oldest goes first."""
AT_ONCE = 4
"""Calls to one cluster that are under way at once: one that hangs leaves the others the rest of what the provider may have."""
PLACE_WAIT_S = 1.0
MOST_OBJECTS = 50_000
"""Of one list in a tenant's cluster: its owner can make as many as it likes, and they would be ours to hold."""
AGAIN_S = 10.0
"""How long after a call that was not answered the next is sensible."""
SPACE, PEOPLE = "controlplane", "owner"
"""In a tenant's cluster: our namespace, and the account whose tokens its kubeconfigs hold."""
BINDING = "controlplane:owner"
RBAC = "rbac.authorization.k8s.io"
MAX_REASON = 200
AWAY = "provider_cluster_unreachable"
T = TypeVar("T")


class NoWay(NotFound):
    """
    Cluster API keeps no kubeconfig of the cluster, yet or any more.
    """


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

    def __init__(self, kube: Kube, names: Names, config: ClusterApiConfig, directory: Directory) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._directory = directory
        self._ways: dict[str, Way] = {}
        self._circuits: dict[str, Circuit] = {}
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
            self._circuits.pop(cluster_id, None)
        self._renew(cluster_id)

    def nodes(self, cluster_id: str) -> Mapping[str, Json]:
        """
        Its Nodes by name; none while it has no API yet. Raises Busy while that does not answer.
        """
        try:
            return {one["metadata"]["name"]: one for one in self.ask(cluster_id, lambda kube: kube.list_all("/api/v1/nodes"))}
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

        self.ask(cluster_id, lambda kube: _change(kube, name, cordoned))

    def uncordon(self, cluster_id: str, name: str) -> None:
        """
        A cordon of ours is lifted; anybody else's stays.
        """

        def lifted(node: Json) -> Json | None:
            if DRAIN not in notes_of(node):
                return None
            spec = {"spec": {"unschedulable": None}} if drained_by_us(node) else {}
            return {"metadata": {"annotations": {DRAIN: None}}, **spec}

        self.ask(cluster_id, lambda kube: _change(kube, name, lifted))

    def issue(self, cluster_id: str, lifetime_s: int) -> Kubeconfig:
        """
        A kubeconfig with a token that the cluster's own API server made for it. Raises Refused, Unsupported without TLS.
        """
        if lifetime_s > self._config.kubeconfig_max_s:
            raise Refused(f"at most {self._config.kubeconfig_max_s} s here", code="kubeconfig_too_long")
        way = self._way(cluster_id)
        if not way.access.url.startswith("https:"):
            raise Unsupported("kubectl shows a token to servers with TLS only", code="kubeconfig_needs_tls")
        status = self.ask(cluster_id, lambda kube: _token(kube, lifetime_s)).get("status") or {}
        token, ends = status.get("token"), status.get("expirationTimestamp")
        if not isinstance(token, str) or not token or not ends:
            raise Unknown("the server's answer holds no token")
        server = {"server": way.access.url}
        if way.access.ca_pem:
            server["certificate-authority-data"] = base64.b64encode(way.access.ca_pem.encode()).decode()
        if way.access.server_name:
            server["tls-server-name"] = way.access.server_name
        return Kubeconfig(kubeconfig_text(cluster_id, server, {"token": token}), datetime.fromisoformat(ends).astimezone(UTC))

    def reach(self, cluster_id: str) -> None:
        """
        There is a way into the cluster, known a short while ago or now. Raises NoWay, Busy for one that cannot be used.
        """
        self._way(cluster_id)

    def ask(self, cluster_id: str, question: Callable[[Kube], T], *, changes: bool = False) -> T:
        """
        The cluster's answer. A credential that is refused is read anew once, for Cluster API may have renewed it. Raises NoWay; Busy while
        its API does not answer; UnknownBeyond instead where the question changes something and may have done so.
        """
        way = self._way(cluster_id)
        with self._lock:
            circuit = self._circuits.setdefault(cluster_id, Circuit(threading.BoundedSemaphore(AT_ONCE), wait_s=PLACE_WAIT_S))
        try:
            return _asked(cluster_id, circuit, way.kube, question, changes=changes)
        except AuthFailed:
            self._renew(cluster_id)
        except (Busy, UnknownBeyond) as error:
            if error.code == AWAY:  # it may have moved, or be gone
                self._renew(cluster_id)
            raise
        way = self._way(cluster_id)
        try:
            return _asked(cluster_id, circuit, way.kube, question, changes=changes)
        except AuthFailed as error:
            words = f"the API of {cluster_id} lets us not in: {error.detail}"
            raise Busy(words, retry_in_s=30.0, code=AWAY) from error

    def _renew(self, cluster_id: str) -> None:
        """
        The way in is read anew before the next question.
        """
        with self._lock:
            way = self._ways.pop(cluster_id, None)
        if way is not None:
            way.kube.close()

    def _way(self, cluster_id: str) -> Way:
        """
        The way in. Raises NoWay while there is none.
        """
        with self._lock:
            known = self._ways.get(cluster_id)
            if known is not None and time.monotonic() - known.read_at < KEPT_S:
                return known
        secret = self._kube.find(self._names.secret_path(self._directory.name(cluster_id)))
        if secret is None:
            raise NoWay(f"Cluster API keeps no kubeconfig of {cluster_id}")
        try:
            access = _read(secret)
            kube = Kube(
                access,
                timeout_s=self._config.cluster_timeout_s,
                max_body_bytes=self._config.max_body_mib * MIB,
                page_size=self._config.page_size,
                most=MOST_OBJECTS,
            )
        except (binascii.Error, UnicodeDecodeError, Permanent):
            # never repeated: it is an administrator's
            raise Busy("Cluster API's kubeconfig of the cluster cannot be used", code="provider_cluster_unreadable") from None
        fresh = Way(kube, access, time.monotonic())
        with self._lock:
            over = [known for known in [self._ways.pop(cluster_id, None)] if known is not None]
            self._ways[cluster_id] = fresh
            while len(self._ways) > MOST:
                oldest = min(self._ways, key=lambda one: self._ways[one].read_at)
                self._circuits.pop(oldest, None)
                over.append(self._ways.pop(oldest))
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


def _asked(cluster_id: str, circuit: Circuit, kube: Kube, question: Callable[[Kube], T], *, changes: bool) -> T:
    with as_theirs(cluster_id, changes=changes):
        circuit.enter()
        answered = True
        try:
            return question(kube)
        except (NotSent, Unknown) as error:
            answered = isinstance(error, Expired | UnknownBeyond)
            raise
        finally:
            circuit.leave(answered=answered)


@contextmanager
def as_theirs(cluster_id: str, *, changes: bool = False) -> Iterator[None]:
    """
    A tenant's cluster that is away says nothing of the provider, whose other clusters go on. What may have changed something there all the
    same is told as unknown.
    """
    try:
        yield
    except (Expired, UnknownBeyond):
        raise
    except (NotSent, Unknown) as error:
        kind: type[Transient] = UnknownBeyond if changes and isinstance(error, Unknown) else Busy
        raise kind(f"the API of {cluster_id} does not answer: {error.detail}", retry_in_s=AGAIN_S, code=AWAY) from error
