"""
Clusters on the wire.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, StringConstraints

from controlplane.web.schemas import Body, Condition, Issue, Labels, Moment, Money, Name, Out, Status

Kind = Literal["slurm", "baremetal", "kubernetes"]
SetRole = Literal["worker", "head", "login", "control_plane"]
Distribution = Literal["kubeadm", "k3s", "managed"]
Count = Annotated[int, Field(ge=1, le=4096, description="How many nodes.", examples=[4])]
TypeName = Annotated[str, Field(min_length=1, max_length=63, description="An instance type by name.", examples=["hgx-h100-8"])]
SiteName = Annotated[str, Field(min_length=1, max_length=63, description="A site by name.", examples=["osl1"])]


SshKey = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True,
        max_length=8192,
        pattern=r"^(ssh-(rsa|ed25519)|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
        r" [A-Za-z0-9+/]{40,}={0,3}( [ -~]{0,200})?$",
    ),
    Field(
        description="A public key.",
        examples=["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ ada"],
    ),
]
UserData = Annotated[SecretStr, Field(min_length=1, max_length=65536, examples=["#cloud-config\npackages: [htop]\n"])]


ImageId = Annotated[str, StringConstraints(min_length=1, max_length=40)]


class NodeSetSpec(Body):
    """
    Identical nodes inside a cluster.
    """

    name: Name
    instance_type: TypeName
    count: Count
    role: SetRole = Field(
        default="worker",
        description="What the nodes are in a Slurm of one's own: one head, workers, logins if wanted; in a Kubernetes of one's own:"
        " one, three or five of control_plane, and workers.",
        examples=["worker"],
    )
    image: ImageId | None = Field(default=None, description="Instead of `spec.image` for these nodes.", examples=[None])


class SlurmIn(Body):
    """
    A Slurm of one's own, on nodes that are set up for it and shared with nobody.
    """

    accounting: bool = Field(default=False, description="Keep a history of jobs on the head (slurmdbd).", examples=[False])
    containers: bool = Field(default=False, description="Run jobs in container images (Enroot and Pyxis).", examples=[False])


class KubernetesIn(Body):
    """
    A Kubernetes of one's own, on nodes that are set up for it and shared with nobody.
    """

    distribution: Distribution = Field(
        default="kubeadm",
        description="Who sets it up; k3s is the light choice. managed: the provider, which makes and keeps the API servers as well, so"
        " that only workers are ordered, and nobody logs in to them.",
        examples=["kubeadm"],
    )
    version: str | None = Field(
        default=None,
        pattern=r"^1\.\d{1,3}\.\d{1,3}$",
        description="Of Kubernetes, where it must be this one; without it the one that the site offers.",
        examples=["1.36.2"],
    )


class LoginIn(Body):
    """
    How the owner of a cluster gets into its nodes.
    """

    ssh_keys: list[SshKey] = Field(min_length=1, max_length=64, description="Public keys, each as a line of authorized_keys.")
    user_data: UserData | None = Field(
        default=None, description="Given to cloud-init after the operator's own part; sealed at once and never shown again."
    )


class ClusterSpecIn(Body):
    """
    What is ordered.
    """

    kind: Kind = Field(description="The product the nodes are turned into.", examples=["slurm"])
    site: SiteName
    node_sets: list[NodeSetSpec] = Field(
        min_length=1, max_length=16, description="The nodes; all of them in one fabric domain, or none."
    )
    wait: bool = Field(default=False, description="Wait for capacity instead of being refused.", examples=[False])
    login: LoginIn | None = Field(
        default=None,
        description="For bare metal and for a Slurm or a Kubernetes of one's own: who may log in to the nodes, and what they run at first.",
    )
    slurm: SlurmIn | None = Field(
        default=None,
        description="For kind slurm: a Slurm of one's own instead of a part of a shared one; needs a head and a login.",
    )
    kubernetes: KubernetesIn | None = Field(
        default=None,
        description="For kind kubernetes: a Kubernetes of one's own instead of a part of a shared one; needs nodes of the role "
        "control_plane, and a login, unless it is managed.",
    )
    image: ImageId | None = Field(
        default=None,
        description="For bare metal and for a Slurm or a Kubernetes of one's own: a ready image, yours or a public one, that is "
        "written to the nodes' disks. Without one they run what their provider starts.",
        examples=["img_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )


class ClusterCreate(Body):
    """
    An order for a cluster.
    """

    name: Name
    labels: Labels = Field(default={}, description="Free key-value pairs.")
    spec: ClusterSpecIn = Field(description="What is ordered.")


class NodeSetCount(Body):
    """
    A new size of a node set.
    """

    name: Name
    count: Count


class ClusterPatch(Body):
    """
    A change; what is left out stays as it is.
    """

    labels: Labels | None = Field(default=None, description="Replaces all labels.")
    node_sets: list[NodeSetCount] = Field(default=[], max_length=16, description="Node sets that grow or shrink.")
    leaving: list[str] = Field(
        default=[],
        max_length=4096,
        description="Instances that a shrink should take; others are chosen newest first.",
        examples=[[]],
    )


class ImageCount(Out):
    """
    How many instances have an image.
    """

    image: str | None = Field(
        description="Its id; null for those on whose disks none was installed.", examples=["img_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    count: int = Field(description="How many.", examples=[4])


class UpgradeOut(Out):
    """
    How far the last upgrade of workers is.
    """

    max_unavailable: int = Field(description="Most workers that are out of use for it at a time.", examples=[1])
    drain_timeout_s: float = Field(description="How long running jobs are waited for.", examples=[14_400])
    upgraded: int = Field(description="Workers that are done and in use again.", examples=[3])
    out_of_use: int = Field(description="Workers that are out of use for it now.", examples=[1])
    stopping: bool = Field(description="Whether its owner asked to stop.", examples=[False])
    release: str | None = Field(description="Slurm's release that all hosts are to have; null where it stays.", examples=["23.11"])
    version: str | None = Field(description="Kubernetes' version that all hosts are to have; null for others.", examples=["1.36.2"])
    head_upgraded: bool = Field(
        description="Whether the head, or every node with the role control_plane, has it.", examples=[False]
    )


class NodeSetOut(Out):
    """
    A node set and how far it is.
    """

    id: str = Field(description="Its id.", examples=["nds_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Unique in the cluster.", examples=["workers"])
    instance_type: str = Field(description="What its nodes are.", examples=["hgx-h100-8"])
    count: int = Field(description="How many are ordered.", examples=[4])
    ready: int = Field(description="How many are deployed.", examples=[4])
    gpus_per_node: int = Field(description="GPUs of each node.", examples=[8])
    role: SetRole = Field(
        description="worker; head or login of a Slurm of one's own, control_plane of a Kubernetes.", examples=["worker"]
    )
    image: str | None = Field(description="The image that new ones get; null where none is installed.", examples=[None])
    images: list[ImageCount] = Field(
        description="What those in use have: several while an upgrade is under way, or after one that was stopped.",
        examples=[[{"image": "img_01k5x7p3r8w2v6t9q4n0m1c2d3", "count": 4}]],
    )


class SlurmOut(Out):
    """
    A Slurm of one's own.
    """

    release: str = Field(description="Slurm's release: the oldest that one of its hosts may have.", examples=["24.11"])
    head_release: str = Field(description="The head's, which is later while an upgrade is not complete.", examples=["24.11"])
    accounting: bool = Field(description="Whether it keeps a history of jobs.", examples=[False])
    containers: bool = Field(description="Whether jobs may name container images.", examples=[False])


class KubernetesOut(Out):
    """
    A Kubernetes of one's own.
    """

    distribution: Distribution = Field(description="Who sets it up.", examples=["kubeadm"])
    version: str = Field(description="Of Kubernetes: the oldest that one of its hosts may have.", examples=["1.36.2"])
    upgrading_to: str | None = Field(
        description="What some of its hosts have already, while an upgrade is not complete; null otherwise.", examples=["1.37.0"]
    )


class LoginOut(Out):
    """
    How the owner of a cluster gets into its nodes.
    """

    ssh_keys: list[str] = Field(
        description="Public keys.",
        examples=[["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ ada"]],
    )
    has_user_data: bool = Field(description="Whether user-data was given; it is never shown.", examples=[False])


class ClusterSpecOut(Out):
    """
    What was ordered.
    """

    kind: Kind = Field(description="The product.", examples=["slurm"])
    site: str = Field(description="Where.", examples=["osl1"])
    node_sets: list[NodeSetOut] = Field(description="The nodes.")
    wait: bool = Field(description="Whether it waits for capacity.", examples=[False])
    login: LoginOut | None = Field(
        description="Who may log in to the nodes; null where nobody but the operator does.", examples=[None]
    )
    slurm: SlurmOut | None = Field(description="For a Slurm of one's own; null for others.", examples=[None])
    kubernetes: KubernetesOut | None = Field(description="For a Kubernetes of one's own; null for others.", examples=[None])


class PlacementOut(Out):
    """
    Which kind of fabric domain holds the cluster.
    """

    domain_kind: str = Field(description="nvlink_domain, leaf, block or site.", examples=["leaf"])
    explanation: str = Field(description="Why.", examples=["4 nodes in one leaf, the smallest kind of fabric domain that fits."])


class ClusterStatus(Status):
    """
    Our side of a cluster.
    """

    placement: PlacementOut | None = Field(description="Null before placement.")
    running_at: Moment | None = Field(description="When it first ran.", examples=["2026-03-01T10:00:00Z"])
    upgrade: UpgradeOut | None = Field(description="The last upgrade of its workers; null where there was none.")


class ClusterOut(Out):
    """
    A cluster.
    """

    id: str = Field(description="Its id; never changes.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Unique in its project.", examples=["train-7b"])
    project_id: str = Field(description="Its project.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    labels: dict[str, str] = Field(description="Free key-value pairs.", examples=[{"team": "vision"}])
    created_at: Moment = Field(description="When it was ordered.", examples=["2026-03-01T09:58:00Z"])
    updated_at: Moment = Field(description="When it last changed.", examples=["2026-03-01T10:00:00Z"])
    spec: ClusterSpecOut = Field(description="What was ordered.")
    status: ClusterStatus = Field(description="How it is.")
    version: int = Field(description="Rises with every change; the ETag.", examples=[7])
    operation: str | None = Field(description="The operation under way, if any.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"])


class ClusterPlan(Out):
    """
    What an order would get now; nothing was changed.
    """

    placed: bool = Field(description="Whether it would be placed at once.", examples=[True])
    domain_kind: str | None = Field(description="The kind of fabric domain it would get.", examples=["leaf"])
    explanation: str = Field(description="Why, or what is missing.", examples=["4 nodes in one leaf."])
    missing_nodes: int = Field(description="Free nodes that are lacking; 0 when placed.", examples=[0])
    alternative: str | None = Field(description="The nearest order that would fit now.", examples=[None])
    price_per_hour: Money | None = Field(description="At today's prices; null where there is no price.")


class KubeconfigCreate(Body):
    """
    A way into a Kubernetes cluster that is asked for.
    """

    lifetime_s: int = Field(
        default=3600,
        ge=600,
        le=86_400,
        description="When it shall end, in seconds from now; the operator may allow less.",
        examples=[3600],
    )


class KubeconfigOut(Out):
    """
    A way into a Kubernetes cluster.
    """

    cluster_id: str = Field(description="Which cluster.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    kubeconfig: str | None = Field(
        description="A file for kubectl, shown once and kept nowhere; null in the repeat of an answer.",
        examples=["apiVersion: v1\nkind: Config\ncurrent-context: clu_01k5x7p3r8w2v6t9q4n0m1c2d3\n"],
    )
    expires_at: Moment | None = Field(
        description="When it ends; null in the repeat of an answer.", examples=["2026-03-01T11:00:00Z"]
    )


class ActionsOut(Out):
    """
    What may be done now.
    """

    actions: dict[str, str] = Field(
        description="Verb to the reason why it is not allowed now; empty where it is.", examples=[{"delete": "", "update": ""}]
    )


def cluster_out(view: Any) -> ClusterOut:
    """
    The cluster as its tenant sees it.
    """
    row = view.row
    placement = PlacementOut(**{key: row.placement[key] for key in ("domain_kind", "explanation")}) if row.placement else None
    status = ClusterStatus(
        state=row.state,
        reason=row.reason,
        since=row.state_since,
        deadline=row.deadline_at,
        conditions=[Condition(**one) for one in row.checks],
        issues=[Issue(**one) for one in row.issues]
        + ([Issue(code="needs_attention", message=row.reason)] if row.attention else []),
        placement=placement,
        running_at=row.running_at,
        upgrade=_upgrade_out(row.upgrade),
    )
    return ClusterOut(
        id=row.id,
        name=row.name,
        project_id=row.project_id,
        labels=row.labels,
        created_at=row.created_at,
        updated_at=row.updated_at,
        spec=ClusterSpecOut(
            kind=row.kind,
            site=row.site,
            node_sets=[_set_out(one, view.ready.get(one.id, 0)) for one in view.sets],
            wait=bool(row.spec.get("wait")),
            login=row.spec.get("login"),
            slurm=_slurm_out(row.slurm),
            kubernetes=_kubernetes_out(row.kubernetes),
        ),
        status=status,
        version=row.version,
        operation=view.operation_id,
    )


def _set_out(one: Any, ready: int) -> NodeSetOut:
    return NodeSetOut(
        id=one.id,
        name=one.name,
        instance_type=one.instance_type,
        count=one.count,
        ready=ready,
        gpus_per_node=one.gpus,
        role=one.role,
        image=one.image,
        images=[ImageCount(image=image or None, count=count) for image, count in sorted(one.images.items())],
    )


def _upgrade_out(told: dict[str, Any] | None) -> UpgradeOut | None:
    if told is None:
        return None
    return UpgradeOut(
        max_unavailable=told["at_once"],
        drain_timeout_s=told["drain_limit_s"],
        upgraded=len(told["done"]),
        out_of_use=len(told["batch"]),
        stopping=told["cancelled"],
        release=(told.get("install") or {}).get("release"),
        version=(told.get("install") or {}).get("version"),
        head_upgraded=told.get("head_done", False),
    )


def _slurm_out(facts: dict[str, Any] | None) -> SlurmOut | None:
    if facts is None:
        return None
    return SlurmOut(
        release=facts["offer"]["release"],
        head_release=(facts.get("install") or facts["offer"])["release"],
        accounting=facts["accounting"],
        containers=facts["containers"],
    )


def _kubernetes_out(facts: dict[str, Any] | None) -> KubernetesOut | None:
    if facts is None:
        return None
    return KubernetesOut(
        distribution=facts["distribution"],
        version=facts.get("version") or facts["offer"]["versions"][facts["distribution"]],
        upgrading_to=facts["install"]["version"] if facts.get("ahead") else None,
    )
