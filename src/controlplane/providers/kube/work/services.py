"""
Services inside a cluster's namespace: told whole, read back, and removed with all that belongs to them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from controlplane.providers.errors import Busy, NoCapacity, NotFound
from controlplane.providers.gpus import Slices
from controlplane.providers.kube.client import Exists, Kube
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.ground import Ground
from controlplane.providers.kube.work.names import SERVICE, TURN, Names, core, grouped, service_name
from controlplane.providers.kube.work.queues import FACTS_KEPT_S
from controlplane.providers.kube.work.serving import (
    CONTAINER,
    Offer,
    bare,
    beside,
    claims,
    claims_gpus,
    main,
    main_path,
    refuse_unsendable,
    scaler_of,
    scaler_paths,
)
from controlplane.providers.kube.work.slicing import able
from controlplane.providers.kube.work.standing import service_of, view
from controlplane.providers.services import ServiceSpec, ServiceView

Json = dict[str, Any]
VERSIONS_KEPT = 3
"""Secrets that stay: pods of the versions before may start again while the last one rolls out."""
MAX_READ_BYTES = 1024 * 1024
LINES = "2000"


class Services:
    """
    The SupportsServices port.
    """

    def __init__(self, kube: Kube, names: Names, config: WorkConfig, ground: Ground) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._ground = ground
        self._lock = threading.Lock()
        self._offer: tuple[float, Offer] | None = None

    def apply(self, spec: ServiceSpec) -> None:
        """
        See `SupportsServices.apply_service`. The main object comes first: what stands beside belongs to it, and its pods wait for their
        Secret. It is applied under the version that it was read at, so that a request that comes late changes nothing.
        """
        offer, settings = self.offer(), self._ground.settings(spec.gpu_model)
        refuse_unsendable(spec, offer, settings)
        self._ground.check(spec.cluster_id, spec.tenant_id)
        spread = spec.nodes > 1
        found = self._find(spec.cluster_id, spec.service_id, spread=spread)
        if spec.mig is not None:
            self._refuse_unsliced(spec, spec.mig)
        if found is None:
            self._refuse_impossible(spec)
        elif found["metadata"].get("deletionTimestamp"):
            raise Busy(f"{spec.service_id} is still being removed", retry_in_s=2.0)
        elif int((found["metadata"].get("annotations") or {}).get(TURN, 0)) > spec.turn:
            return
        api = self._ground.pool.devices.must_api() if claims_gpus(spec, settings) else ""
        if api and found is None:  # Kueue reads it as soon as there are pods; the main object owns it once there is one
            first = claims(self._names, spec, settings, api, None)
            self._kube.apply(first.path, first.body)
        made = self._put_main(spec, found)
        if api:
            owned = claims(self._names, spec, settings, api, made)
            self._kube.apply(owned.path, owned.body)
        scaler = scaler_of(spec, offer, settings)
        for one in beside(self._names, spec, settings, offer, made):
            self._kube.apply(one.path, one.body)
        self._tidy(spec, scaler, offer)

    def observe(self, cluster_id: str, service_id: str) -> ServiceView:
        """
        See `SupportsServices.observe_service`. Two or three calls.
        """
        found = self._find(cluster_id, service_id, spread=False)
        if found is None and self.offer().lws:
            found = self._find(cluster_id, service_id, spread=True)
        pods = self._kube.list_all(core(self._ns(cluster_id), "pods"), labels=self._labels(cluster_id, service_id))
        if found is None and not pods:
            raise NotFound(f"no service {service_id} in {cluster_id}")
        return view(found, pods, service_id, self._config, self._address(cluster_id, service_id, found))

    def delete(self, cluster_id: str, service_id: str) -> None:
        """
        See `SupportsServices.delete_service`. The server removes what the main object owns; what it does not own any more is named here.
        """
        offer = self.offer()
        for spread in (False, True) if offer.lws else (False,):
            found = self._find(cluster_id, service_id, spread=spread)
            if found is not None:
                self._kube.delete(main_path(self._names, cluster_id, service_id, spread=spread), uid=found["metadata"]["uid"])
        paths = [core(self._ns(cluster_id), "services", service_name(service_id))]
        paths += scaler_paths(self._names, cluster_id, service_id, offer).values()
        for path in paths:
            self._remove(path, cluster_id, service_id)
        for secret in self._secrets(cluster_id, service_id):
            self._kube.delete(core(self._ns(cluster_id), "secrets", secret["metadata"]["name"]), uid=secret["metadata"]["uid"])
        for kept in self._claims(cluster_id, service_id):
            self._delete_claims(cluster_id, kept)

    def list_ids(self, cluster_id: str) -> tuple[str, ...]:
        """
        See `SupportsServices.list_services`.
        """
        labels, ns = f"{self._names.selector(cluster_id)},{SERVICE}", self._ns(cluster_id)
        found = self._kube.list_all(grouped("apps/v1", "deployments", namespace=ns), labels=labels)
        if self.offer().lws:
            lws = grouped("leaderworkerset.x-k8s.io/v1", "leaderworkersets", namespace=ns)
            found += self._kube.list_all(lws, labels=labels)
        return tuple(sorted({service_of(one) for one in found if not one["metadata"].get("deletionTimestamp")}))

    def read(self, cluster_id: str, service_id: str, name: str, *, limit: int) -> bytes:
        """
        See `SupportsServices.read_replica`. Of a container that waits for its next start, what it printed before.
        """
        path = core(self._ns(cluster_id), "pods", service_name(name))
        pod = self._kube.get(path)
        if not self._names.marks(pod, cluster_id) or service_of(pod) != service_id:
            raise NotFound(f"no replica {name} of {service_id}")
        states = [one for one in pod.get("status", {}).get("containerStatuses") or [] if one.get("name") == CONTAINER]
        crashed = any((one.get("state") or {}).get("waiting") and one.get("restartCount") for one in states)
        query = {"container": CONTAINER, "tailLines": LINES, "limitBytes": str(MAX_READ_BYTES)}
        text = self._kube.read(f"{path}/log", **query, **({"previous": "true"} if crashed else {}))
        return text[-limit:]

    def offer(self) -> Offer:
        """
        What the server has beside its own kinds, as it said within the last minute.
        """
        with self._lock:
            if self._offer is None or time.monotonic() - self._offer[0] > FACTS_KEPT_S:
                groups = {str(one.get("name")) for one in self._kube.get("/apis").get("groups") or []}
                told = Offer(
                    lws="leaderworkerset.x-k8s.io" in groups,
                    keda="keda.sh" in groups,
                    cpu="metrics.k8s.io" in groups,
                    custom="custom.metrics.k8s.io" in groups,
                )
                self._offer = (time.monotonic(), told)
            return self._offer[1]

    def _put_main(self, spec: ServiceSpec, found: Json | None) -> Json:
        """
        Where a metric decides, what is there is told again within its bounds: leaving the number out would set it to 1.
        """
        replicas = spec.replicas
        if spec.scaling is not None and found is not None:
            replicas = min(max(int(found["spec"].get("replicas", 1)), spec.scaling.least), spec.scaling.most)
        body = main(self._names, spec, self._ground.settings(spec.gpu_model), self._ground.kueue(), replicas)
        path = main_path(self._names, spec.cluster_id, spec.service_id, spread=spec.nodes > 1)
        if found is not None:
            body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            return self._kube.apply(path, body)
        try:
            self._kube.create(path.rsplit("/", 1)[0], bare(body))
        except Exists as error:
            raise Busy(f"{spec.service_id} has just been made by another", retry_in_s=1.0) from error
        return self._kube.apply(path, body)

    def _tidy(self, spec: ServiceSpec, scaler: str, offer: Offer) -> None:
        """
        What earlier turns needed and this one does not is removed.
        """
        for kind, path in scaler_paths(self._names, spec.cluster_id, spec.service_id, offer).items():
            if kind != scaler:
                self._remove(path, spec.cluster_id, spec.service_id)
        if offer.lws:
            other = main_path(self._names, spec.cluster_id, spec.service_id, spread=spec.nodes == 1)
            self._remove(other, spec.cluster_id, spec.service_id)
        for secret in self._secrets(spec.cluster_id, spec.service_id):
            number = secret["metadata"]["name"].rpartition("-v")[2]
            if number.isdecimal() and int(number) <= spec.version - VERSIONS_KEPT:
                path = core(self._ns(spec.cluster_id), "secrets", secret["metadata"]["name"])
                self._kube.delete(path, uid=secret["metadata"]["uid"])
        for kept in self._claims(spec.cluster_id, spec.service_id):
            number = kept["metadata"]["name"].rpartition("-v")[2]
            if number.isdecimal() and int(number) <= spec.version - VERSIONS_KEPT:
                self._delete_claims(spec.cluster_id, kept)

    def _remove(self, path: str, cluster_id: str, service_id: str) -> None:
        found = self._kube.find(path)
        if found is not None and self._names.marks(found, cluster_id) and service_of(found) == service_id:
            self._kube.delete(path, uid=found["metadata"]["uid"])

    def _find(self, cluster_id: str, service_id: str, *, spread: bool) -> Json | None:
        found = self._kube.find(main_path(self._names, cluster_id, service_id, spread=spread))
        ours = found is not None and self._names.marks(found, cluster_id) and service_of(found) == service_id
        return found if ours else None

    def _claims(self, cluster_id: str, service_id: str) -> list[Json]:
        """
        What claims of the service's versions are made from; none where GPUs are counted.
        """
        api = self._ground.pool.devices.api() if self._ground.settings().gpus_by == "dra" else ""
        if not api:
            return []
        path = grouped(api, "resourceclaimtemplates", namespace=self._ns(cluster_id))
        return self._kube.list_all(path, labels=self._labels(cluster_id, service_id))

    def _delete_claims(self, cluster_id: str, kept: Json) -> None:
        api = self._ground.pool.devices.must_api()
        path = grouped(api, "resourceclaimtemplates", kept["metadata"]["name"], namespace=self._ns(cluster_id))
        self._kube.delete(path, uid=kept["metadata"]["uid"])

    def _secrets(self, cluster_id: str, service_id: str) -> list[Json]:
        return self._kube.list_all(core(self._ns(cluster_id), "secrets"), labels=self._labels(cluster_id, service_id))

    def _labels(self, cluster_id: str, service_id: str) -> str:
        service_name(service_id)  # refuses what could be more than a name
        return f"{self._names.selector(cluster_id)},{SERVICE}={service_id}"

    def _ns(self, cluster_id: str) -> str:
        return self._names.namespace(cluster_id)

    def _address(self, cluster_id: str, service_id: str, found: Json | None) -> str:
        spec = {} if found is None else found["spec"]
        pod = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or {}
        ports = [port for one in (pod.get("spec") or {}).get("containers") or [] for port in one.get("ports") or []]
        return f"{service_name(service_id)}.{self._ns(cluster_id)}.svc:{ports[0]['containerPort']}" if ports else ""

    def _refuse_unsliced(self, spec: ServiceSpec, wanted: Slices) -> None:
        """
        A replica has a place by its slices, and quota and queue know of them: nodes may have been partitioned since.
        """
        nodes = self._ground.nodes_now(spec.cluster_id)
        found = able(nodes, wanted, self._ground.settings())
        if found < spec.nodes:
            raise NoCapacity(
                f"a replica of {spec.nodes} nodes with {wanted} asked, {found} in the cluster", code="service_never_fits"
            )
        self._ground.admit_slices(spec.cluster_id, nodes)

    def _refuse_impossible(self, spec: ServiceSpec) -> None:
        nodes = self._ground.nodes_now(spec.cluster_id)
        pool, gpus, settings = self._ground.pool, spec.gpus_per_node, self._ground.settings(spec.gpu_model)
        able = sum(1 for one in nodes if not gpus or pool.gpus_like(one, spec.gpu, spec.gpu_model, settings) >= gpus)
        if able < spec.nodes:
            raise NoCapacity(
                f"a replica of {spec.nodes} nodes with {spec.gpus_per_node} GPUs asked, {able} in the cluster",
                code="service_never_fits",
            )
