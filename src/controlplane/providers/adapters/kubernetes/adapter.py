"""
The adapter's door: what the ports ask, each call under one deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from controlplane.providers.adapters.kubernetes.access import access
from controlplane.providers.adapters.kubernetes.adopting_own import Taken, TakenGround
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.directory import Directory
from controlplane.providers.adapters.kubernetes.gauges import Gauges
from controlplane.providers.adapters.kubernetes.nodes import Nodes
from controlplane.providers.adapters.kubernetes.own import Own, own_access
from controlplane.providers.adapters.kubernetes.rights import adoption_needs, needs_for
from controlplane.providers.adapters.kubernetes.shared import Shared
from controlplane.providers.adapters.kubernetes.standing import PRODUCT
from controlplane.providers.adapters.kubernetes.taking import Taking
from controlplane.providers.adapters.kubernetes.tokens import Tokens
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.clusters import (
    Capabilities,
    ClusterList,
    ClusterSpec,
    ClusterView,
    JobSpec,
    JobView,
    OutputChunk,
)
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.deadline import one_call
from controlplane.providers.errors import Permanent, Refused, Unsupported
from controlplane.providers.joining import Door
from controlplane.providers.kube.access import Access
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.rights import Rights
from controlplane.providers.kube.work.abilities import NO_GANGS, features, of_own, version_words
from controlplane.providers.kube.work.figures import OwnersGauges
from controlplane.providers.kube.work.ground import OwnGround
from controlplane.providers.kube.work.jobs import Jobs
from controlplane.providers.kube.work.mpi import GROUP
from controlplane.providers.kube.work.names import Names
from controlplane.providers.kube.work.services import Services
from controlplane.providers.kube.work.slicing import most_on_a_node
from controlplane.providers.machines import Deployment, MachineList, MachineView
from controlplane.providers.registry import AdapterInput, read_config
from controlplane.providers.services import ServiceSpec, ServiceView
from controlplane.providers.tracking import GpuUse

MIB = 1024 * 1024
MAX_NOTE = 1000


def build(given: AdapterInput) -> KubernetesAdapter:
    """
    An adapter for the Kubernetes that the config names; nothing has been asked of it yet. Raises Permanent for a config that is wrong.
    """
    config = read_config(KubernetesConfig, given, "the Kubernetes provider's")
    try:
        names = Names(given.deployment)
    except Refused as error:
        raise Permanent(f"the installation's name: {error}", code="provider_config_invalid") from error
    way = access(config, given.secrets) if config.dedicated is None else own_access(config, given.secrets, given.now())
    kube = Kube(
        way,
        timeout_s=config.timeout_s,
        max_body_bytes=config.max_body_mib * MIB,
        page_size=config.page_size,
    )
    if config.machines_of:
        return KubernetesAdapter(config, kube, names, way, given.now, taken=Taken(kube, names, config, way, given.now))
    if config.dedicated is None:
        return KubernetesAdapter(config, kube, names, way, given.now)
    ground = OwnGround(kube, names, config, config.dedicated.cluster_id, config.dedicated.tenant_id)
    return KubernetesAdapter(config, kube, names, way, given.now, Own(kube, config, given.secrets, given.now, ground), ground)


class KubernetesAdapter:
    """
    One Kubernetes as Clusters, SupportsJobs, SupportsGlances, SupportsNews, SupportsOutput, SupportsGpuUse, SupportsServices,
    SupportsKubeconfigs, SupportsAdoption, Machines, and where it stood before us whole SupportsJoining. Safe to share between threads.
    """

    def __init__(
        self,
        config: KubernetesConfig,
        kube: Kube,
        names: Names,
        way: Access,
        now: Callable[[], datetime],
        own: Own | None = None,
        ground: OwnGround | None = None,
        taken: Taken | None = None,
    ) -> None:
        self._config = config
        self._kube = kube
        self._rights = Rights(kube)
        self._shared = Shared(kube, names, config, now)
        self._taken = taken
        self._clusters: Shared | Own | Taken = taken or own or self._shared
        self._ground: Shared | OwnGround | TakenGround = TakenGround(taken) if taken else ground or self._shared
        self._jobs = Jobs(kube, names, config, self._ground, now)
        self._nodes = Nodes(kube, names, config, self._shared.pool, now)
        self._gauges: Gauges | OwnersGauges = Gauges(names, config)
        if ground is not None:
            self._gauges = OwnersGauges(kube, names, lambda: ground.shown().figures)
        elif taken is not None:
            self._gauges = OwnersGauges(kube, names, lambda: taken.ground().shown().figures)
        self._tokens: Tokens | Own | Taken = taken or own or Tokens(kube, names, config, way, self._shared)
        self._services = Services(kube, names, config, self._ground)
        self._directory = Directory(kube, names) if own is None and taken is None else None
        self._taking = None if self._directory is None else Taking(kube, names, config, self._shared, self._directory)

    def close(self) -> None:
        """
        Its connections are closed, watches among them.
        """
        self._jobs.close()
        self._gauges.close()
        self._kube.close()

    def capabilities(self) -> Capabilities:
        """
        See `Clusters.capabilities`. A credential that lacks a right makes no product, and the notes say which.
        """
        with one_call():
            version = str(self._kube.get("/version").get("gitVersion", "unknown"))
            groups = {str(one.get("name")) for one in self._kube.get("/apis").get("groups") or []}
            if self._taken is not None:
                return self._taken.capabilities(version, groups)
            kueue = self._ground.kueue()
            told = version_words(version, kueue, groups)
            if isinstance(self._ground, OwnGround):
                return of_own(told, kueue, self._ground.offers(self._kube.list_all("/api/v1/nodes")))
            nodes = self._kube.list_all("/api/v1/nodes")
            claims = self._config.gpus_by == "dra"
            launches = self._ground.mpi()
            groups -= {GROUP} if not launches else set()
            needs = needs_for(queues=kueue is not None, groups=groups, volumes=bool(self._config.volumes), claims=claims)
            gaps = self._rights.missing(needs)
            unclaimed = claims and not self._shared.pool.devices.api()
            lacks = self._lacks(groups)
            counts = [] if unclaimed else [self._shared.pool.gpus(one) or 0 for one in nodes]
            sliced = most_on_a_node(nodes, self._config)
        notes = [_inventory(counts, len(nodes)), "network policies hold only where the cluster's network enforces them"]
        if kueue is None:
            notes.append(NO_GANGS)
        if unclaimed:
            notes.append(
                "nothing is ordered here, for GPUs are to be claimed and the server has no resource.k8s.io that we can write"
            )
        if lacks and not gaps:
            notes.append(f"namespaces that exist are not taken over, for the credential may not: {', '.join(lacks)}"[:MAX_NOTE])
        if gaps:
            notes.append(f"nothing is ordered here, for the credential may not: {', '.join(gaps)}"[:MAX_NOTE])
        return Capabilities(
            version=told,
            products=() if gaps or unclaimed else (PRODUCT,),
            adopts=() if gaps or unclaimed or lacks else (PRODUCT,),
            job_output=True,
            drain=True,
            walls=("namespace", "network_policy", "taint", *(["queue"] if kueue else [])),
            scrub=True,
            max_nodes_per_job=None if kueue else 1,
            notes=tuple(notes),
            job_features=features(self._config, queues=kueue is not None, sliced=bool(sliced), launches=launches),
            volumes=tuple(self._config.volumes),
            mig=sliced,
        )

    def apply_cluster(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`.
        """
        with self._at(spec.cluster_id):
            self._clusters.apply(spec)

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`.
        """
        with self._at(cluster_id):
            return self._clusters.observe(cluster_id)

    def delete_cluster(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`.
        """
        with self._at(cluster_id):
            self._clusters.delete(cluster_id)

    def list_clusters(self) -> ClusterList:
        """
        See `Clusters.list_clusters`.
        """
        with one_call():
            return self._clusters.list_ids()

    def drain(self, cluster_id: str, refs: tuple[str, ...], *, reason: str) -> None:
        """
        See `Clusters.drain`.
        """
        with self._at(cluster_id):
            for ref in refs:
                self._shared.pool.drain(cluster_id, ref, reason)

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """
        See `Clusters.undrain`.
        """
        with self._at(cluster_id):
            if self._taken is not None:
                self._taken.undrain(cluster_id, refs)
                return
            for ref in refs:
                self._shared.pool.undrain(cluster_id, ref)

    def submit(self, job: JobSpec) -> str:
        """
        See `SupportsJobs.submit`.
        """
        with self._at(job.cluster_id):
            return self._jobs.submit(job)

    def find_job(self, cluster_id: str, token: str) -> JobView:
        """
        See `SupportsJobs.find_job`.
        """
        with self._at(cluster_id):
            return self._jobs.find(cluster_id, token)

    def glance(self, cluster_id: str, token: str) -> JobView | None:
        """
        See `SupportsGlances.glance`.
        """
        return self._jobs.glance(cluster_id, token)

    def take_news(self) -> frozenset[str]:
        """
        See `SupportsNews.take_news`.
        """
        return self._jobs.take_news()

    def list_jobs(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        See `SupportsJobs.list_jobs`.
        """
        with self._at(cluster_id):
            return self._jobs.list_views(cluster_id)

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        See `SupportsJobs.cancel`.
        """
        with self._at(cluster_id):
            self._jobs.cancel(cluster_id, token)

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        See `SupportsOutput.read_output`.
        """
        with self._at(cluster_id):
            return self._jobs.read_output(cluster_id, token, offset=offset, limit=limit)

    def gpu_use(self, cluster_id: str, token: str, *, window_s: int) -> GpuUse:
        """
        See `SupportsGpuUse.gpu_use`. Raises Unsupported where nobody named a source.
        """
        with self._at(cluster_id):
            return self._gauges.use(cluster_id, token, window_s)

    def issue_kubeconfig(self, cluster_id: str, tenant_id: str, *, lifetime_s: int) -> Kubeconfig:
        """
        See `SupportsKubeconfigs.issue_kubeconfig`.
        """
        with self._at(cluster_id):
            return self._tokens.issue(cluster_id, tenant_id, lifetime_s)

    def list_standing(self) -> tuple[Standing, ...]:
        """
        See `SupportsAdoption.list_standing`.
        """
        with one_call():
            adopting = self._adopting()
            groups = self._kube.get("/apis").get("groups") or [] if self._taking is not None else []
            lacks = self._lacks({str(one.get("name")) for one in groups}) if self._taking is not None else ()
            if lacks:
                raise Unsupported(f"the credential may not: {', '.join(lacks)}"[:MAX_NOTE], code="adoption_not_offered")
            return adopting.list_standing()

    def adopt_cluster(self, adoption: Adoption) -> None:
        """
        See `SupportsAdoption.adopt_cluster`.
        """
        with one_call():
            self._adopting().adopt(adoption)

    def let_go(self, cluster_id: str) -> None:
        """
        See `SupportsAdoption.let_go`.
        """
        with one_call():
            self._adopting().let_go(cluster_id)

    def open_door(self, cluster_id: str, *, lasts_s: int) -> Door:
        """
        See `SupportsJoining.open_door`.
        """
        with one_call():
            return self._whole().open_door(cluster_id, lasts_s)

    def close_door(self, cluster_id: str) -> None:
        """
        See `SupportsJoining.close_door`.
        """
        with one_call():
            self._whole().close_door(cluster_id)

    def _whole(self) -> Taken:
        if self._taken is None:
            raise Unsupported("this Kubernetes is not taken over whole", code="adoption_not_offered")
        return self._taken

    def list_machines(self) -> MachineList:
        """
        See `Machines.list_machines`. Raises Unsupported where its machines are enrolled elsewhere.
        """
        if self._taken is not None:
            raise Unsupported("its machines are enrolled at the provider that drives them", code="provider_machines_elsewhere")
        with one_call():
            return self._nodes.list_views()

    def observe(self, ref: str) -> MachineView:
        """
        See `Machines.observe`.
        """
        with one_call():
            return self._nodes.observe(ref)

    def inspect(self, ref: str, token: str) -> None:  # noqa: ARG002 - the port's signature; no inspections are kept apart
        """
        See `Machines.inspect`.
        """
        with one_call():
            self._nodes.inspect(ref)

    def qualify(self, ref: str, token: str) -> None:
        """
        See `Machines.qualify`.
        """
        with one_call():
            self._nodes.qualify(ref, token)

    def deploy(self, deployment: Deployment) -> None:
        """
        See `Machines.deploy`.
        """
        with one_call():
            self._nodes.deploy(deployment)

    def release(self, ref: str, token: str, *, accepted_at: datetime) -> None:  # noqa: ARG002 - a node has no place for it
        """
        See `Machines.release`.
        """
        with one_call():
            self._nodes.release(ref, token)

    def wipe(self, ref: str, token: str) -> None:
        """
        See `Machines.wipe`.
        """
        with one_call():
            self._nodes.wipe(ref, token)

    def power(self, ref: str, *, on: bool, token: str) -> None:  # noqa: ARG002 - the port's signature
        """
        See `Machines.power`. Raises Unsupported: the nodes' power is their operator's.
        """
        raise Unsupported(f"Kubernetes does not switch the power of {ref}", code="provider_no_power")

    def apply_service(self, spec: ServiceSpec) -> None:
        """
        See `SupportsServices.apply_service`.
        """
        with self._at(spec.cluster_id):
            self._services.apply(spec)

    def observe_service(self, cluster_id: str, service_id: str) -> ServiceView:
        """
        See `SupportsServices.observe_service`.
        """
        with self._at(cluster_id):
            return self._services.observe(cluster_id, service_id)

    def delete_service(self, cluster_id: str, service_id: str) -> None:
        """
        See `SupportsServices.delete_service`.
        """
        with self._at(cluster_id):
            self._services.delete(cluster_id, service_id)

    def list_services(self, cluster_id: str) -> tuple[str, ...]:
        """
        See `SupportsServices.list_services`.
        """
        with self._at(cluster_id):
            return self._services.list_ids(cluster_id)

    def read_replica(self, cluster_id: str, service_id: str, name: str, *, limit: int) -> bytes:
        """
        See `SupportsServices.read_replica`.
        """
        with self._at(cluster_id):
            return self._services.read(cluster_id, service_id, name, limit=limit)

    @contextmanager
    def _at(self, cluster_id: str) -> Iterator[None]:
        """
        One call about one cluster, whose namespace is known by its name inside.
        """
        with one_call():
            if self._directory is not None:
                self._directory.locate(cluster_id)
            yield

    def _lacks(self, groups: Collection[str]) -> tuple[str, ...]:
        """
        What the credential may not do of what taking over needs.
        """
        policies, volumes = self._shared.policies.api(), bool(self._config.volumes)
        return self._rights.missing(adoption_needs(groups, policies=policies, volumes=volumes))

    def _adopting(self) -> Taking | Taken:
        adopting = self._taken or self._taking
        if adopting is None:
            raise Unsupported("a cluster of ours hands over nothing", code="adoption_not_offered")
        return adopting


def _inventory(counts: Sequence[int], nodes: int) -> str:
    return f"{sum(1 for one in counts if one)} of {nodes} nodes have GPUs, {sum(counts)} in all"
