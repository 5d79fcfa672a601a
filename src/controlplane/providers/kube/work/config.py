"""
What an operator says about jobs and services in a Kubernetes.
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
Access = Literal["ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce"]


class Volume(BaseModel):
    """
    Storage that each cluster gets of its own once a job mounts it; it goes with the cluster.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    storage_class: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """The StorageClass that makes it."""
    size_gib: int = Field(ge=1, le=1_000_000)
    """How large it is."""
    access: Access = "ReadWriteMany"
    """From how many nodes at once it can be used."""
    read_only: bool = False
    """Whether jobs may only read it."""


class WorkConfig(BaseModel):
    """
    One Kubernetes, as far as what runs in it needs to know.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

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
    volumes: dict[Annotated[str, AfterValidator(check_volume)], Volume] = Field(default_factory=dict, max_length=32)
    """What jobs can mount, by name."""
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

    @property
    def whole(self) -> bool:
        """
        Whether it is one tenant's alone: nothing keeps its pods apart from others'.
        """
        return False
