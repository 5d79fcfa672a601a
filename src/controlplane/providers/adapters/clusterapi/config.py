"""
What an operator says about one management cluster.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from controlplane.providers.kube.settings import Cidr, LabelKey
from controlplane.providers.kube.work.config import WorkConfig

_VERSION = re.compile(r"1\.\d{1,3}\.\d{1,3}")


def _version(value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise ValueError("not a version such as 1.34.2")
    return value


Version = Annotated[str, AfterValidator(_version)]
ObjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
ClassName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,62}$")]


NOT_THERE = frozenset(
    {
        *("egress", "cordon_reason", "gpus_by", "queues_count_claims"),
        *("metrics_url", "metrics_every_s", "gpu_metric", "metrics_labels"),
    }
)
"""Settings of work that mean nothing in a cluster that is its tenant's alone, or that it shows itself."""


class TenantWork(WorkConfig):
    """
    Jobs and services in the clusters that are made.
    """

    @model_validator(mode="after")
    def _only_what_is_there(self) -> "TenantWork":
        odd = sorted(self.model_fields_set & NOT_THERE)
        if odd:
            raise ValueError(f"not for clusters of tenants' own: {', '.join(odd)}")
        if "gpu_resource" in self.model_fields_set:
            raise ValueError("gpu_resource stands beside work, for it is not only work's")
        return self

    @property
    def whole(self) -> bool:
        """
        See `WorkConfig.whole`.
        """
        return True


class ClusterApiConfig(BaseModel):
    """
    One registered management cluster.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$", max_length=500)
    """Of the API server, with the secret `token`; empty with the secret `kubeconfig`, which names it."""
    ca_pem: str = Field(default="", max_length=200_000)
    """Certificates that sign the API server's, as text; empty: the system's. A kubeconfig brings its own."""
    context: str = Field(default="", max_length=253)
    """Which context of the kubeconfig; empty: its current one."""
    timeout_s: float = Field(default=10.0, gt=0, le=20)
    """Longest one request to the management cluster may take."""
    cluster_timeout_s: float = Field(default=5.0, gt=0, le=20)
    """Longest one request to a tenant's cluster may take."""
    max_body_mib: int = Field(default=64, ge=1, le=1024)
    """Larger answers are not read to their end."""
    page_size: int = Field(default=500, ge=1, le=5000)
    """Objects a list asks for at once."""
    namespace: ObjectName
    """Where the BareMetalHosts are. Metal3 takes hosts of a Machine's own namespace only, so our Clusters are there, too."""
    host_selector: str = Field(default="", pattern=r"^[ -~]*$", max_length=500)
    """Which BareMetalHosts are machines to be sold, as a label selector; empty: all of the namespace."""
    cluster_class: ClassName
    """The ClusterClass that our Clusters are of."""
    class_namespace: ObjectName | None = None
    """Where the ClusterClass is; none: in `namespace`."""
    machine_classes: dict[Annotated[str, Field(min_length=1, max_length=63)], ObjectName] = Field(min_length=1, max_length=64)
    """Instance type to the ClusterClass's class of machine deployments that makes workers of it."""
    versions: list[Version] = Field(min_length=1, max_length=32)
    """Versions of Kubernetes that may be ordered and upgraded to; the first is what orders get that name none."""
    control_planes: Literal[0, 1, 3, 5] = 3
    """Machines of each control plane, from the operator's own pool; 0: the ClusterClass's control plane is not made of machines."""
    pin_variable: VariableName = "hostPin"
    """The ClusterClass's variable that becomes a worker's hostSelector: the value of the label `controlplane.internal/pin`."""
    variables: dict[VariableName, Any] = Field(default_factory=dict, max_length=64)
    """Values of more variables of the ClusterClass, the same for all Clusters."""
    pod_cidrs: list[Cidr] = Field(default_factory=list, max_length=4)
    """Networks of pods; empty: the ClusterClass's."""
    service_cidrs: list[Cidr] = Field(default_factory=list, max_length=4)
    """Networks of services; empty: the ClusterClass's."""
    max_unavailable: int = Field(default=1, ge=1, le=64)
    """Workers of one node set that an upgrade has out of use at a time."""
    drain_limit_s: int = Field(default=0, ge=0, le=604_800)
    """Seconds after which a worker that leaves is taken though its pods cannot be evicted; 0: disruption budgets hold without limit."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """The extended resource that is a GPU in tenants' clusters."""
    gpu_count_label: LabelKey | Literal[""] = ""
    """The label of a BareMetalHost that says how many GPUs it has; empty: nobody tells, for Metal3's inspection does not."""
    gpu_model_label: LabelKey | Literal[""] = ""
    """The label of a BareMetalHost that names its GPUs."""
    gpu_models: dict[str, str] = Field(default_factory=dict)
    """Catalog model to that label's value."""
    kubeconfig_max_s: int = Field(default=43_200, ge=600, le=86_400)
    """The longest that a tenant's kubeconfig may live, in seconds; the cluster may give less."""
    work: TenantWork = Field(default_factory=TenantWork)
    """How jobs and services run in tenants' clusters. Labels and GPU models here are those of Nodes there."""

    @property
    def works(self) -> WorkConfig:
        """
        The settings of work, whole.
        """
        return self.work.model_copy(update={"gpu_resource": self.gpu_resource})

    @property
    def classes_in(self) -> str:
        """
        The namespace of the ClusterClass.
        """
        return self.class_namespace or self.namespace
