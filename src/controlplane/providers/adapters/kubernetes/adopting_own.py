"""
A whole Kubernetes that stood before it was ours: seen, taken over as it is, held, and let go again.

What is written when it is taken over is marks: an object in kube-system, labels on its nodes, and a group for its owner's people. No
machine is changed and nothing starts anew. Its authority's key is never ours: what must be signed it signs itself.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.own import Seats, checks_of
from controlplane.providers.adapters.kubernetes.own_access import Doors, Signing
from controlplane.providers.adapters.kubernetes.own_marks import LEAVING, SYSTEM, OwnMarks, Whose, name_of, notes_of
from controlplane.providers.adapters.kubernetes.own_standing import PRODUCT, Scene, distribution_of, leads, plain, read_standing
from controlplane.providers.adapters.kubernetes.rights import EVERYTHING
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.clusters import Capabilities, ClusterList, ClusterSpec, ClusterView
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import Busy, NotFound, Refused, Unsupported
from controlplane.providers.joining import Door
from controlplane.providers.kube.access import Access
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.kubeconfigs import kubeconfig_text
from controlplane.providers.kube.rights import Rights
from controlplane.providers.kube.work.abilities import of_own, version_words
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.ground import OwnGround
from controlplane.providers.kube.work.names import ALLOCATION, Names, core, grouped, node_path
from controlplane.providers.kube.work.pool import Pool, ended
from controlplane.providers.kube.work.walls import Queueing

Json = dict[str, Any]
OWNERS = "controlplane:owners"
"""Group of the certificates for its tenant's people, as in clusters that we have set up."""
BINDING = grouped("rbac.authorization.k8s.io/v1", "clusterrolebindings", "controlplane-owners")
DRAIN_AGAIN_S = 5.0
KNOWN_S = 10.0
"""How long it is believed whose the cluster is, by those who need a hint only."""
STAYS = frozenset({"DaemonSet", "Node"})
"""Owners of pods that go with their node."""


class Taken:
    """
    The ports Clusters, SupportsAdoption, SupportsJoining and SupportsKubeconfigs on it.
    """

    def __init__(self, kube: Kube, names: Names, config: KubernetesConfig, way: Access, now: Callable[[], datetime]) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._way = way
        self._marks = OwnMarks(kube, names)
        self._seats = Seats(LEAVING)
        self._signing = Signing(kube, names, now)
        self._doors = Doors(kube, names, now, way.ca_pem, way.url, config.join_server)
        self._lock = threading.Lock()
        self._rights = Rights(kube)
        self._known: tuple[Whose, OwnGround] | None = None
        self._known_at = -KNOWN_S

    def capabilities(self, version: str, groups: Collection[str]) -> Capabilities:
        """
        See `Clusters.capabilities`: no cluster is ordered here.
        """
        gaps = self._rights.missing(EVERYTHING)
        adopts = () if gaps else (PRODUCT,)
        notes = ("nothing is taken over here, for the credential is none of a cluster administrator's",) if gaps else ()
        if gaps or self._marks.whose() is None:
            return Capabilities(version_words(version, None, groups), products=(), notes=notes, adopts=adopts)
        ground = self.ground()
        kueue = ground.kueue()
        told = of_own(version_words(version, kueue, groups), kueue, ground.offers(self._kube.list_all("/api/v1/nodes")))
        return replace(told, adopts=adopts)

    def ground(self, cluster_id: str = "") -> OwnGround:
        """
        What work in the cluster stands on. Raises NotFound where it is nobody's, or not this one.
        """
        whose = self._marks.check(cluster_id) if cluster_id else self._marks.whose()
        if whose is None:
            raise NotFound("this Kubernetes was not taken over")
        with self._lock:
            known = self._known
            if known is None or known[0] != whose:
                known = (whose, OwnGround(self._kube, self._names, self._config, whose.cluster_id, whose.tenant_id))
                self._known = known
            self._known_at = time.monotonic()
            return known[1]

    def ground_lately(self, cluster_id: str = "") -> OwnGround | None:
        """
        That ground as it was known within the last seconds, without asking; None where it is not known.
        """
        with self._lock:
            fresh = self._known is not None and time.monotonic() - self._known_at < KNOWN_S
            if not fresh or self._known is None or cluster_id not in {"", self._known[0].cluster_id}:
                return None
            return self._known[1]

    def list_standing(self) -> tuple[Standing, ...]:
        """
        See `SupportsAdoption.list_standing`: itself, while it is not ours.
        """
        if self._marks.whose() is not None:
            return ()
        return (read_standing(self._scene(), self._names.deployment),)

    def adopt(self, adoption: Adoption) -> None:
        """
        See `SupportsAdoption.adopt_cluster`. Everything is looked at before anything is written, and the mark once more after it.
        """
        spec, scene = adoption.spec, self._scene()
        if scene.uid != adoption.uid:
            raise Refused("it is another cluster by now", code="provider_cluster_changed")
        standing = read_standing(scene, self._names.deployment, spec.cluster_id)
        if standing.obstacles:
            words = "; ".join(one.message for one in standing.obstacles)
            raise Refused(words[:1000], code=f"provider_{standing.obstacles[0].code}")
        if {(one.ref, one.leads) for one in standing.hosts} != {(one.ref, one.leads) for one in spec.members}:
            raise Refused("its nodes are not those that were seen; look again", code="provider_cluster_changed")
        self._marks.take(spec)
        there = {name_of(one): one for one in scene.nodes}
        for one in spec.members:
            self._marks.mark(spec.cluster_id, there[one.ref], one.token)
        self._kube.apply(BINDING, self._binding(spec.cluster_id))
        if self._marks.whose() is None:
            self._strip(spec.cluster_id)
            raise Busy("it was let go meanwhile", retry_in_s=2.0)

    def let_go(self, cluster_id: str) -> None:
        """
        See `SupportsAdoption.let_go`. What was started in it through us goes on, as the rest.
        """
        self._strip(cluster_id)
        self._marks.give_up(cluster_id)
        with self._lock:
            self._known = None

    def apply(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`. Nodes that are marked and not wanted any more are emptied as far as budgets allow, then the API
        forgets them. Raises Busy while pods are left, Refused for a control plane.
        """
        self._marks.check(spec.cluster_id)
        wanted = {one.ref: one for one in spec.members}
        nodes = self._kube.list_all("/api/v1/nodes")
        for node in nodes:
            member = wanted.get(name_of(node))
            if member is not None:
                self._marks.mark(spec.cluster_id, node, member.token)
        going = [one for one in nodes if self._names.marks(one, spec.cluster_id) and name_of(one) not in wanted]
        heads = [name_of(one) for one in going if leads(one)]
        if heads:
            raise Refused(f"{heads[0]} is a control plane, which does not leave through us", code="provider_control_plane_stays")
        left = [name_of(one) for one in going if not self._part(one)]
        if left:
            raise Busy(f"pods are left on {len(left)} nodes that leave", retry_in_s=DRAIN_AGAIN_S)

    def observe(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`. A cordon of its owner's says nothing; one of ours is told as far as it is.
        """
        ground = self.ground(cluster_id)
        nodes = self._kube.list_all("/api/v1/nodes")
        offers = ground.offers(nodes)
        ground.follow(nodes)
        members = self._seats.members(nodes, ground.gpus)
        return ClusterView(
            cluster_id=cluster_id,
            members=members,
            checks=checks_of(members),
            job_features=offers.features,
            volumes=offers.volumes,
            mig=offers.mig,
        )

    def delete(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`: it ends with its machines, and until then is nobody's.
        """
        self.let_go(cluster_id)

    def list_ids(self) -> ClusterList:
        """
        See `Clusters.list_clusters`.
        """
        whose = self._marks.whose()
        return ClusterList(() if whose is None else (whose.cluster_id,), complete=True)

    def undrain(self, cluster_id: str, refs: Iterable[str]) -> None:
        """
        See `Clusters.undrain`.
        """
        self._marks.check(cluster_id)
        for one in self._marks.nodes(cluster_id):
            if name_of(one) in set(refs) and LEAVING in notes_of(one):
                self._marks.mark(cluster_id, one, notes_of(one).get(ALLOCATION, ""))

    def issue(self, cluster_id: str, tenant_id: str, lifetime_s: int) -> Kubeconfig:
        """
        See `SupportsKubeconfigs.issue_kubeconfig`: a certificate that the cluster signs when it is asked.
        """
        url = self._config.tenant_url or self._way.url
        if not url.startswith("https:"):
            raise Unsupported("kubectl shows a certificate to servers with TLS only", code="kubeconfig_needs_tls")
        if self._marks.check(cluster_id).tenant_id != tenant_id:
            raise Refused(f"{tenant_id} is not the tenant of {cluster_id}", code="provider_wrong_user")
        if lifetime_s > self._config.kubeconfig_max_s:
            raise Refused(f"at most {self._config.kubeconfig_max_s} s here", code="kubeconfig_too_long")
        certificate, key, ends = self._signing.sign(cluster_id, tenant_id, OWNERS, lifetime_s)
        server: Json = {"server": url}
        ca_pem = self._config.tenant_ca_pem or self._way.ca_pem
        server |= {"certificate-authority-data": _base64(ca_pem)} if ca_pem else {}
        server |= {"tls-server-name": self._way.server_name} if self._way.server_name and not self._config.tenant_url else {}
        user = {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
        return Kubeconfig(kubeconfig_text(cluster_id, server, user), ends)

    def open_door(self, cluster_id: str, lasts_s: int) -> Door:
        """
        See `SupportsJoining.open_door`.
        """
        self._marks.check(cluster_id)
        scene = self._plain_scene()
        return self._doors.open(cluster_id, distribution_of(scene), plain(scene.version), lasts_s)

    def close_door(self, cluster_id: str) -> None:
        """
        See `SupportsJoining.close_door`.
        """
        self._doors.close(cluster_id)

    def _strip(self, cluster_id: str) -> None:
        """
        Nothing but the object says that it is the cluster.
        """
        for one in self._marks.nodes(cluster_id):
            self._marks.unmark(cluster_id, one)
        self._doors.close(cluster_id)
        found = self._kube.find(BINDING)
        if found is not None and self._names.marks(found, cluster_id):
            self._kube.delete(BINDING, uid=str(found["metadata"]["uid"]))

    def _part(self, node: Json) -> bool:
        """
        Whether the API does not know the node any more: it was empty, or dead.
        """
        name = name_of(node)
        self._marks.bar(node)
        if self._seats.state(node) != "down" and not self._empty(name):
            return False
        self._kube.delete(node_path(name), uid=str(node["metadata"]["uid"]))
        return True

    def _empty(self, name: str) -> bool:
        """
        Whether nothing is on the node that could be lost; what is was asked to go.
        """
        pods = self._kube.list_all("/api/v1/pods", fields=f"spec.nodeName={name}")
        left = [one for one in pods if not ended(one) and _owner(one) not in STAYS]
        for one in left:
            space, pod = one["metadata"]["namespace"], name_of(one)
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": space}}
            try:
                self._kube.create(core(space, "pods", f"{pod}/eviction"), body)
            except (Busy, NotFound):
                continue
        return not left

    def _binding(self, cluster_id: str) -> Json:
        api = "rbac.authorization.k8s.io"
        return {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": BINDING.rsplit("/", 1)[1], "labels": self._names.labels(cluster_id)},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": api, "kind": "Group", "name": OWNERS}],
        }

    def _plain_scene(self) -> Scene:
        """
        Without its nodes.
        """
        found = self._kube.find(core(SYSTEM, "configmaps", "kubeadm-config"))
        text = None if found is None else str((found.get("data") or {}).get("ClusterConfiguration", ""))
        return Scene(
            uid=str(self._kube.get(f"/api/v1/namespaces/{SYSTEM}")["metadata"]["uid"]),
            version=str(self._kube.get("/version").get("gitVersion", "")),
            kubeadm=text,
            nodes=(),
            gpus={},
            mark=self._marks.find(),
        )

    def _scene(self) -> Scene:
        rest, nodes = self._plain_scene(), self._kube.list_all("/api/v1/nodes")
        ground = OwnGround(self._kube, self._names, self._config, "clu_none", "")
        gpus = {name_of(one): ground.gpus(one) for one in nodes}
        return Scene(rest.uid, rest.version, rest.kubeadm, nodes, gpus, rest.mark)


class TakenGround:
    """
    The Ground of a cluster that is known by its mark only.
    """

    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    @property
    def pool(self) -> Pool:
        """
        See `Ground.pool`.
        """
        return self._any().pool

    def settings(self, gpu_model: str = "") -> WorkConfig:
        """
        See `Ground.settings`.
        """
        return self._any().settings(gpu_model)

    def check(self, cluster_id: str, tenant_id: str) -> None:
        """
        See `Ground.check`.
        """
        self._taken.ground(cluster_id).check(cluster_id, tenant_id)

    def kueue(self) -> Queueing | None:
        """
        See `Ground.kueue`.
        """
        return self._any().kueue()

    def mpi(self) -> bool:
        """
        See `Ground.mpi`.
        """
        return self._any().mpi()

    def nodes_now(self, cluster_id: str) -> list[Json]:
        """
        See `Ground.nodes_now`.
        """
        return self._taken.ground(cluster_id).nodes_now(cluster_id)

    def nodes_lately(self, cluster_id: str) -> list[Json]:
        """
        See `Ground.nodes_lately`.
        """
        known = self._taken.ground_lately(cluster_id)
        return [] if known is None else known.nodes_lately(cluster_id)

    def admit_slices(self, cluster_id: str, nodes: list[Json]) -> None:
        """
        See `Ground.admit_slices`.
        """
        self._taken.ground(cluster_id).admit_slices(cluster_id, nodes)

    def _any(self) -> OwnGround:
        return self._taken.ground_lately() or self._taken.ground()


def _owner(pod: Json) -> str:
    """
    The kind of what made the pod.
    """
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(one.get("kind", "")) for one in owners if one.get("controller")), "")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
