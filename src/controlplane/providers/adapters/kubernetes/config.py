"""
What an operator says about one Kubernetes.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from controlplane.providers.kube.settings import Cidr, LabelKey
from controlplane.providers.volumes import check_volume

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,299}")


def check_image(value: str) -> str:
    """
    The value can be an image's name. Raises ValueError.
    """
    if not _IMAGE.fullmatch(value):
        raise ValueError("not the name of an image")
    return value


MetricLabel = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Image = Annotated[str, AfterValidator(check_image)]


class Volume(BaseModel):
    """
    Storage that each cluster gets of its own once a job mounts it; it goes with the cluster.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    storage_class: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """The StorageClass that makes it."""
    size_gib: int = Field(ge=1, le=1_000_000)
    """How large it is."""
    access: Literal["ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce"] = "ReadWriteMany"
    """From how many nodes at once it can be used."""
    read_only: bool = False
    """Whether jobs may only read it."""


class OwnConfig(BaseModel):
    """
    A Kubernetes that is one cluster of ours; written by the control plane and by nobody else.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    cluster_id: str
    """Which cluster it is."""
    tenant_id: str
    """Whose."""
    server_name: str
    """The name in its API servers' certificates."""
    drivers: str
    """Group of our own certificate."""
    owners: str
    """Group of the certificates for its tenant's people."""
    mark: str
    """Annotation of nodes that leave."""
    api_mark: str = ""
    """Annotation of control planes that were upgraded: what their own API servers say that they are; empty: none."""


class KubernetesConfig(BaseModel):
    """
    One registered Kubernetes.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$", max_length=500)
    """Of the API server, with the secret `token`; empty with the secret `kubeconfig`, which names it."""
    ca_pem: str = Field(default="", max_length=200_000)
    """Certificates that sign the API server's, as text; empty: the system's. A kubeconfig brings its own."""
    dedicated: OwnConfig | None = None
    """Where it is one cluster of ours, whose keys are the secrets; none: others share it."""
    context: str = Field(default="", max_length=253)
    """Which context of the kubeconfig; empty: its current one."""
    timeout_s: float = Field(default=10.0, gt=0, le=20)
    """Longest one request may take."""
    max_body_mib: int = Field(default=64, ge=1, le=1024)
    """Larger answers are not read to their end."""
    page_size: int = Field(default=500, ge=1, le=5000)
    """Objects a list asks for at once."""
    image: Image = "docker.io/library/debian:bookworm-slim"
    """What jobs run in that name no image."""
    run_as_user: int = Field(default=10_001, ge=1, le=2_000_000_000)
    """The Unix user and group of every job's process; never root."""
    mpi_user: int = Field(default=1000, ge=1, le=2_000_000_000)
    """The Unix user and group of MPI's processes: SSH knows only users that the image has. `mpiuser` of the MPI operator's base images."""
    mpi_home: str = Field(default="/home/mpiuser", pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}){1,8}$")
    """That user's home in such images. It holds `.sshd_config`, by which a server runs without root, and gets the keys in `.ssh`."""
    keep_ended_s: int = Field(default=86_400, ge=600)
    """How long the server remembers an ended job and its output, in seconds."""
    pod_security: Literal["restricted", "baseline"] = "restricted"
    """The level that the namespaces enforce."""
    egress: list[Cidr] = Field(default_factory=list, max_length=64)
    """Where pods may connect besides their own namespace and name servers, for example the network of your object store."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """The extended resource that is a GPU."""
    gpu_runtime_class: str = Field(default="", max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")
    """The RuntimeClass that pods with GPUs name; empty: none, for the nodes' default one gives them GPUs."""
    gpu_count_label: LabelKey = "nvidia.com/gpu.count"
    """The label of a node that counts its GPUs, partitioned ones among them; needed where nodes are partitioned by MIG."""
    gpus_by: Literal["device_plugin", "dra"] = "device_plugin"
    """Who gives GPUs to pods on all nodes: a device plugin, which counts them, or a DRA driver, which is asked by attribute. Never both."""
    dra_class: str = Field(default="gpu.nvidia.com", max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """The DeviceClass of whole GPUs, which is also the name of their driver."""
    nvlink_attribute: str = Field(default="", max_length=120, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*)?$")
    """The device attribute, `domain/name`, that is true for a GPU with NVLink; empty: none tells."""
    queues_count_claims: bool = False
    """Whether Kueue is set up to count claims of that class as `gpu_resource`; if not, it is left alone with `gpus_by` dra."""
    gpu_model_label: LabelKey = "nvidia.com/gpu.product"
    """The label of a node that names its GPUs."""
    gpu_models: dict[str, str] = Field(default_factory=dict)
    """Catalog model to that label's value, for example `{"H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3"}`; with `gpus_by` dra, to the driver's
    `productName`, for example `NVIDIA H100 80GB HBM3`."""
    topology_labels: list[LabelKey] = Field(default_factory=list, max_length=8)
    """Labels of nodes from the widest to the narrowest, for Kueue's Topology; empty: placement without topology."""
    tenant_url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$", max_length=500)
    """Where tenants reach the API server; empty: where we do."""
    tenant_ca_pem: str = Field(default="", max_length=200_000)
    """Certificates that sign the server's where tenants reach it; empty: those that we go by."""
    kubeconfig_max_s: int = Field(default=43_200, ge=600, le=86_400)
    """The longest that a tenant's kubeconfig may live, in seconds; the server may give less."""
    node_selector: str = Field(default="", pattern=r"^[ -~]*$", max_length=500)
    """Which nodes are machines to be sold, as a label selector; empty: all but those of the control plane."""
    volumes: dict[Annotated[str, AfterValidator(check_volume)], Volume] = Field(default_factory=dict, max_length=32)
    """What jobs can mount, by name."""
    settle_s: int = Field(default=10, ge=0, le=300)
    """How long a wiped node must show nothing of its last tenant before it counts as wiped, in seconds."""
    queues: Literal["auto", "off"] = "auto"
    """auto: with Kueue, each cluster gets a queue and gangs are admitted whole; off: Kueue is left alone."""
    watches: Literal["auto", "off"] = "auto"
    """auto: jobs are followed by two watches for all of them; off: each job is asked for by itself."""
    watch_s: float = Field(default=30.0, ge=1, le=300)
    """How long one watch lasts, in seconds: a silent one is noticed, and a withdrawn credential told, soon after its end."""
    relist_s: float = Field(default=600, ge=1, le=86_400)
    """After how long watches begin anew with a list, in seconds: what a server failed to tell is found out then."""
    prometheus_url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$", max_length=500)
    """Where KEDA asks for the metrics that services are scaled by; empty: nowhere."""
    metrics_url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$", max_length=500)
    """Where we ask, as of Prometheus, how busy GPUs are; empty: nobody tells, and no job is stopped because its GPUs are idle."""
    metrics_every_s: int = Field(default=30, ge=1, le=300)
    """How often that source takes its figures, in seconds."""
    gpu_metric: str = Field(default="DCGM_FI_DEV_GPU_UTIL", pattern=r"^[A-Za-z_:][A-Za-z0-9_:]{0,127}$")
    """The figure that is a GPU's use in percent, of each GPU, with the labels of the pod that has it."""
    metrics_labels: list[MetricLabel] = Field(default=["namespace", "pod"], min_length=2, max_length=2)
    """Its labels for the pod's namespace and name; often `exported_namespace` and `exported_pod`."""
    cordon_reason: LabelKey | Literal[""] = ""
    """The annotation in which your administrators say why they cordoned a node; empty: there is none."""
