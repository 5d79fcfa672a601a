"""
The adapter's door: what the ports ask, each call under one deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime

from controlplane.providers.adapters.clusterapi import folding
from controlplane.providers.adapters.clusterapi.classes import faults
from controlplane.providers.adapters.clusterapi.clusters import Clusters
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.directory import Directory
from controlplane.providers.adapters.clusterapi.hosts import Hosts
from controlplane.providers.adapters.clusterapi.names import HOSTS, Names
from controlplane.providers.adapters.clusterapi.rights import class_needs, needs_for
from controlplane.providers.adapters.clusterapi.taking import Taking
from controlplane.providers.adapters.clusterapi.tenants import Tenants
from controlplane.providers.adapters.clusterapi.works import Works
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.clusters import Capabilities, ClusterList, ClusterSpec, ClusterView, JobSpec, JobView, OutputChunk
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.deadline import one_call
from controlplane.providers.errors import Permanent, Refused
from controlplane.providers.kube.access import operators_access
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.rights import Rights
from controlplane.providers.kube.work.abilities import features
from controlplane.providers.kube.work.names import Names as WorkNames
from controlplane.providers.machines import Deployment, MachineList, MachineView
from controlplane.providers.registry import AdapterInput, read_config
from controlplane.providers.services import ServiceSpec, ServiceView
from controlplane.providers.tracking import GpuUse

MIB = 1024 * 1024
MAX_NOTE = 1000
PRODUCT = "managed_kubernetes"


def build(given: AdapterInput) -> ClusterApiAdapter:
    """
    An adapter for the management cluster that the config names; nothing has been asked of it yet. Raises Permanent for a wrong config.
    """
    config = read_config(ClusterApiConfig, given, "the Cluster API provider's")
    try:
        names = Names(given.deployment, config.namespace)
    except Refused as error:
        raise Permanent(f"the installation's name: {error}", code="provider_config_invalid") from error
    kube = Kube(
        operators_access(given.secrets, url=config.url, ca_pem=config.ca_pem, context=config.context),
        timeout_s=config.timeout_s,
        max_body_bytes=config.max_body_mib * MIB,
        page_size=config.page_size,
    )
    return ClusterApiAdapter(config, kube, names, given.now)


class ClusterApiAdapter:
    """
    One management cluster as Clusters, SupportsKubeconfigs, SupportsAdoption and Machines, and its clusters as SupportsJobs,
    SupportsGlances, SupportsNews, SupportsOutput, SupportsGpuUse and SupportsServices. Safe to share between threads.
    """

    def __init__(self, config: ClusterApiConfig, kube: Kube, names: Names, now: Callable[[], datetime]) -> None:
        self._config = config
        self._kube = kube
        self._rights = Rights(kube, config.namespace)
        self._class_rights = Rights(kube, config.classes_in)
        self._hosts = Hosts(kube, names, config, now)
        self._directory = Directory(kube, names)
        self._tenants = Tenants(kube, names, config, self._directory)
        self._clusters = Clusters(kube, names, config, self._hosts, self._tenants, self._directory, now)
        self._works = Works(self._clusters, self._tenants, WorkNames(names.deployment), config, now)
        self._taking = Taking(kube, names, config, self._hosts, self._directory)

    def close(self) -> None:
        """
        Its connections are closed, those into tenants' clusters among them.
        """
        self._works.close()
        self._tenants.close()
        self._kube.close()

    def capabilities(self) -> Capabilities:
        """
        See `Clusters.capabilities`. With a credential or a ClusterClass that lacks something there is no product; notes say what.
        """
        with one_call():
            version = str(self._kube.get("/version").get("gitVersion", "unknown"))
            api = self._directory.api()
            gaps = self._rights.missing(needs_for(self._config)) + self._class_rights.missing(class_needs(self._config))
            lacks = ("the credential may not: " + ", ".join(gaps),) if gaps else faults(self._kube, self._config, api)
            notes = [] if gaps else self._notes()
        notes += [f"nothing is ordered here: {one}"[:MAX_NOTE] for one in lacks]
        return Capabilities(
            version=f"cluster-api {api}, {HOSTS.replace('/', ' ')}, kubernetes {version}",
            products=() if lacks else (PRODUCT,),
            drain=True,
            walls=("machine", "control_plane"),
            scrub=True,
            notes=tuple(notes),
            job_output=True,
            job_features=features(self._config.works, queues=False),
            volumes=tuple(self._config.work.volumes),
            managed_work=("jobs", "services"),
            kubernetes_versions=tuple(self._config.versions),
            instance_types=tuple(sorted(self._config.machine_classes)),
            adopts=() if lacks else (PRODUCT,),
        )

    def apply_cluster(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`.
        """
        with one_call():
            self._clusters.apply(spec)

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`.
        """
        with one_call():
            return self._clusters.observe(cluster_id, self._works.notice)

    def delete_cluster(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`.
        """
        with one_call():
            self._works.forget(cluster_id)
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
        with one_call():
            self._clusters.drain(cluster_id, refs, reason)

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """
        See `Clusters.undrain`.
        """
        with one_call():
            self._clusters.undrain(cluster_id, refs)

    def issue_kubeconfig(self, cluster_id: str, tenant_id: str, *, lifetime_s: int) -> Kubeconfig:
        """
        See `SupportsKubeconfigs.issue_kubeconfig`.
        """
        with one_call():
            return self._clusters.issue(cluster_id, tenant_id, lifetime_s)

    def submit(self, job: JobSpec) -> str:
        """
        See `SupportsJobs.submit`.
        """
        with one_call():
            return self._works.submit(job)

    def find_job(self, cluster_id: str, token: str) -> JobView:
        """
        See `SupportsJobs.find_job`.
        """
        with one_call():
            return self._works.find_job(cluster_id, token)

    def glance(self, cluster_id: str, token: str) -> JobView | None:
        """
        See `SupportsGlances.glance`.
        """
        return self._works.glance(cluster_id, token)

    def take_news(self) -> frozenset[str]:
        """
        See `SupportsNews.take_news`.
        """
        return self._works.take_news()

    def list_jobs(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        See `SupportsJobs.list_jobs`.
        """
        with one_call():
            return self._works.list_jobs(cluster_id)

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        See `SupportsJobs.cancel`.
        """
        with one_call():
            self._works.cancel(cluster_id, token)

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        See `SupportsOutput.read_output`.
        """
        with one_call():
            return self._works.read_output(cluster_id, token, offset=offset, limit=limit)

    def gpu_use(self, cluster_id: str, token: str, *, window_s: int) -> GpuUse:
        """
        See `SupportsGpuUse.gpu_use`. Raises Unsupported where the cluster's owner named no source.
        """
        with one_call():
            return self._works.gpu_use(cluster_id, token, window_s)

    def apply_service(self, spec: ServiceSpec) -> None:
        """
        See `SupportsServices.apply_service`.
        """
        with one_call():
            self._works.apply_service(spec)

    def observe_service(self, cluster_id: str, service_id: str) -> ServiceView:
        """
        See `SupportsServices.observe_service`.
        """
        with one_call():
            return self._works.observe_service(cluster_id, service_id)

    def delete_service(self, cluster_id: str, service_id: str) -> None:
        """
        See `SupportsServices.delete_service`.
        """
        with one_call():
            self._works.delete_service(cluster_id, service_id)

    def list_services(self, cluster_id: str) -> tuple[str, ...]:
        """
        See `SupportsServices.list_services`.
        """
        with one_call():
            return self._works.list_services(cluster_id)

    def read_replica(self, cluster_id: str, service_id: str, name: str, *, limit: int) -> bytes:
        """
        See `SupportsServices.read_replica`.
        """
        with one_call():
            return self._works.read_replica(cluster_id, service_id, name, limit=limit)

    def list_standing(self) -> tuple[Standing, ...]:
        """
        See `SupportsAdoption.list_standing`.
        """
        with one_call():
            return self._taking.list_standing()

    def adopt_cluster(self, adoption: Adoption) -> None:
        """
        See `SupportsAdoption.adopt_cluster`.
        """
        with one_call():
            self._taking.adopt(adoption)

    def let_go(self, cluster_id: str) -> None:
        """
        See `SupportsAdoption.let_go`.
        """
        with one_call():
            self._taking.let_go(cluster_id)

    def list_machines(self) -> MachineList:
        """
        See `Machines.list_machines`.
        """
        with one_call():
            return self._hosts.list_views()

    def observe(self, ref: str) -> MachineView:
        """
        See `Machines.observe`.
        """
        with one_call():
            return self._hosts.observe(ref)

    def inspect(self, ref: str, token: str) -> None:  # noqa: ARG002 - the port's signature; no inspections are kept apart
        """
        See `Machines.inspect`.
        """
        with one_call():
            self._hosts.inspect(ref)

    def qualify(self, ref: str, token: str) -> None:
        """
        See `Machines.qualify`.
        """
        with one_call():
            self._hosts.qualify(ref, token)

    def deploy(self, deployment: Deployment) -> None:
        """
        See `Machines.deploy`.
        """
        with one_call():
            self._hosts.deploy(deployment)

    def release(self, ref: str, token: str, *, accepted_at: datetime) -> None:  # noqa: ARG002 - a host has no place for it
        """
        See `Machines.release`.
        """
        with one_call():
            self._hosts.release(ref, token)

    def wipe(self, ref: str, token: str) -> None:
        """
        See `Machines.wipe`.
        """
        with one_call():
            self._hosts.wipe(ref, token)

    def power(self, ref: str, *, on: bool, token: str) -> None:  # noqa: ARG002 - switching to where it is changes nothing
        """
        See `Machines.power`.
        """
        with one_call():
            self._hosts.power(ref, on=on)

    def _notes(self) -> list[str]:
        """
        What operators should know of hosts and Clusters that stand there.
        """
        hosts = self._hosts.list_all()
        counts = Counter(folding.state_of(one) or "unknown" for one in hosts)
        notes = [f"{len(hosts)} hosts: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))]
        wrong = sorted(one["metadata"]["name"] for one in hosts if folding.trouble(one))
        if wrong:
            notes.append(f"{len(wrong)} hosts are in trouble, {wrong[0]} among them")
        never = sorted(one["metadata"]["name"] for one in hosts if folding.never_cleans(one))
        if never:
            notes.append(f"{len(never)} hosts are never cleaned and not taken, {never[0]} among them")
        others = self._clusters.foreign()
        if others:
            notes.append(
                f"{len(others)} Clusters here are not ours and left alone until they are taken over: {', '.join(others[:5])}"
            )
        return notes
