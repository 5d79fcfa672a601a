"""
What an operator says about one Kubernetes.
"""

from pydantic import BaseModel, ConfigDict, Field

from controlplane.providers.kube.work.config import WorkConfig


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
    others: list[str] = Field(default_factory=list, max_length=8)
    """URLs of its other API servers."""
    drivers: str
    """Group of our own certificate."""
    owners: str
    """Group of the certificates for its tenant's people."""
    mark: str
    """Annotation of nodes that leave."""
    api_mark: str = ""
    """Annotation of control planes that were upgraded: what their own API servers say that they are; empty: none."""


class KubernetesConfig(WorkConfig):
    """
    One registered Kubernetes.
    """

    url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$", max_length=500)
    """Of the API server, with the secret `token`; empty with the secret `kubeconfig`, which names it."""
    ca_pem: str = Field(default="", max_length=200_000)
    """Certificates that sign the API server's, as text; empty: the system's. A kubeconfig brings its own."""
    dedicated: OwnConfig | None = None
    """Where it is one cluster of ours, whose keys are the secrets; none: others share it."""
    machines_of: str = Field(default="", pattern=r"^(prv_[0-9a-z]{26})?$")
    """Where it is one cluster that stood before us, to be taken over whole: the provider that drives its machines, where they are enrolled.
    Empty: others share it."""
    join_server: str = Field(default="", pattern=r"^([^\s/:@]+:\d{1,5})?$", max_length=260)
    """With `machines_of`: host and port at which new workers reach the API server; empty: as the cluster tells hosts (kubeadm), or as we
    reach it (k3s)."""
    context: str = Field(default="", max_length=253)
    """Which context of the kubeconfig; empty: its current one."""
    timeout_s: float = Field(default=10.0, gt=0, le=20)
    """Longest one request may take."""
    max_body_mib: int = Field(default=64, ge=1, le=1024)
    """Larger answers are not read to their end."""
    page_size: int = Field(default=500, ge=1, le=5000)
    """Objects a list asks for at once."""
    tenant_url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$", max_length=500)
    """Where tenants reach the API server; empty: where we do."""
    tenant_ca_pem: str = Field(default="", max_length=200_000)
    """Certificates that sign the server's where tenants reach it; empty: those that we go by."""
    kubeconfig_max_s: int = Field(default=43_200, ge=600, le=86_400)
    """The longest that a tenant's kubeconfig may live, in seconds; the server may give less."""
    node_selector: str = Field(default="", pattern=r"^[ -~]*$", max_length=500)
    """Which nodes are machines to be sold, as a label selector; empty: all but those of the control plane."""
    settle_s: int = Field(default=10, ge=0, le=300)
    """How long a wiped node must show nothing of its last tenant before it counts as wiped, in seconds."""

    @property
    def whole(self) -> bool:
        """
        See `WorkConfig.whole`.
        """
        return self.dedicated is not None or bool(self.machines_of)
