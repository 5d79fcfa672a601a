"""
What a dedicated Kubernetes cluster is made of. Everything a rendered file depends on stands in a `KubernetesPlan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Distribution = Literal["kubeadm", "k3s"]
Standing = Literal["stays", "leaves", "gone"]
"""Of a host: stays; leaves: nothing new comes to it and what runs there is evicted; gone: neither etcd nor the API shall know it."""
Part = Literal["api", "all"]
"""Of what a host is brought to another version: a control plane's API server and what stands beside it; or its kubelet too."""
API_PORT = 6443
"""Of both distributions."""


@dataclass(frozen=True, slots=True)
class Host:
    """
    A control plane.
    """

    name: str
    """What `hostname` says there, and the Node's name."""
    address: str
    """IPv4, reached from all hosts of the cluster."""
    standing: Standing = "stays"
    """What becomes of it."""


@dataclass(frozen=True, slots=True)
class Programs:
    """
    How a host gets Kubernetes' programs: shell commands of the operator's, which find VERSION in their environment.
    """

    fetch: str
    """Brings what `install` needs, while all runs; may be empty."""
    install: str
    """Puts the programs that PROGRAMS names in place, and restarts nothing."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """
    A host that has, or is to get, a later version than the cluster's oldest.
    """

    name: str
    """Its own."""
    version: str
    """Which."""
    part: Part
    """Of what."""


@dataclass(frozen=True, slots=True)
class Position:
    """
    Where a node hangs in the fabric. Empty words: not known.
    """

    block: str = ""
    """Spine group."""
    leaf: str = ""
    """Leaf switch inside the block."""
    rack: str = ""
    """Rack."""
    nvlink_domain: str = ""
    """NVLink rack; empty when NVLink ends at the node."""


@dataclass(frozen=True, slots=True)
class Worker:
    """
    One worker as control planes must know it; it joins by itself.
    """

    name: str
    """What `hostname` says there, and the Node's name."""
    address: str
    """IPv4."""
    shape: str
    """Name of its shape."""
    position: Position = Position()
    """In the fabric."""
    standing: Standing = "stays"
    """What becomes of it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """
    What identical workers have.
    """

    name: str
    """The instance type's name; nodes bear it as the label `node.kubernetes.io/instance-type`."""
    gpus: int = 0
    """GPUs of one node."""
    gpu_model: str = ""
    """The catalog's word; empty without GPUs."""
    rdma_interfaces: tuple[str, ...] = ()
    """Network interfaces of the compute fabric, for example `ens1f0np0`; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Networks:
    """
    Addresses inside the cluster; none of them may be in use between its hosts.
    """

    pods: str = "10.128.0.0/12"
    """Each node takes a /24 of it, so it bounds the number of nodes."""
    services: str = "10.96.0.0/16"
    """Of Services; the tenth is the name server's."""
    domain: str = "cluster.local"
    """Below which Services have names."""


@dataclass(frozen=True, slots=True)
class Chart:
    """
    A Helm chart that the operator offers, at the version that was tried.
    """

    source: str
    """Where helm finds it: an archive in the image, or an `oci://` address that the hosts reach."""
    version: str
    """Exactly this one."""


@dataclass(frozen=True, slots=True)
class Addons:
    """
    What runs in the cluster from the start.
    """

    gpus: bool = True
    """Device plugin and DCGM exporter on nodes with GPUs, or the GPU operator where its chart is offered."""
    metrics: bool = True
    """metrics-server."""
    charts: Mapping[str, Chart] = field(default_factory=dict)
    """By name out of `charts.KNOWN`: what is installed by helm."""


@dataclass(frozen=True)
class KubernetesPlan:
    """
    A dedicated cluster. `check_plan` says whether it can be rendered; every renderer calls it first.
    """

    cluster: str
    """A DNS label, from `checking.cluster_name`."""
    distribution: Distribution
    """Who sets it up."""
    version: str
    """Of Kubernetes, for example `1.36.2`: what every host has at least, and what hosts that join get."""
    control_planes: tuple[Host, ...]
    """One, three or five, and one more or less while one is replaced; the first by name founds the cluster, the others join it."""
    workers: tuple[Worker, ...]
    """In any order."""
    shapes: tuple[Shape, ...]
    """Of the workers."""
    networks: Networks = Networks()
    """Addresses inside."""
    addons: Addons = Addons()
    """What runs in it from the start."""
    registry: str = ""
    """Mirror that all images come from, with the path they have at their origin; empty: from their origin."""
    has_images: bool = False
    """Whether the hosts' own image holds all container images, so that nothing is pulled at first."""
    programs: Programs | None = None
    """How hosts get another version than their image has; none: they do not."""
    ahead: tuple[Ahead, ...] = ()
    """Hosts with a later version than `version`, while an upgrade is not complete."""
    founded: bool = False
    """Whether the cluster was in use once: then a control plane that finds no other one answering waits, and never founds."""
    departed: tuple[Host, ...] = ()
    """Hosts that were lost before they were known to be in: nothing stays of what they left in the API and, control planes, in etcd; those
    have an address here, workers none."""
    endpoint: str = ""
    """Host and port of the API of a cluster that others set up; empty: by the name that hosts of ours give it."""

    @property
    def minor(self) -> int:
        """
        The release: 36 of 1.36.2.
        """
        return int(self.version.split(".")[1])

    @property
    def api_name(self) -> str:
        """
        The API server's name on all hosts of the cluster. The hosts file gives it the addresses of all control planes, which Go programs
        try one after the other: so no load balancer stands before them.
        """
        return f"api.{self.cluster}.internal"

    @property
    def api_at(self) -> str:
        """
        Host and port by which hosts find the API.
        """
        return self.endpoint or f"{self.api_name}:{API_PORT}"

    @cached_property
    def founders(self) -> tuple[Host, ...]:
        """
        The control planes by name, without those that are gone.
        """
        return tuple(one for one in self.leads if one.standing != "gone")

    @property
    def founder(self) -> str:
        """
        Which control plane founds the cluster; `-` where none may. One that is alone has nobody to join.
        """
        return "-" if self.founded and len(self.founders) > 1 else self.founders[0].name

    @cached_property
    def leads(self) -> tuple[Host, ...]:
        """
        All control planes by name, with those that are gone.
        """
        return tuple(sorted(self.control_planes, key=lambda one: one.name))

    @cached_property
    def ordered(self) -> tuple[Worker, ...]:
        """
        The workers by name.
        """
        return tuple(sorted(self.workers, key=lambda one: one.name))

    @property
    def has_gpus(self) -> bool:
        """
        Whether any shape has GPUs.
        """
        return any(one.gpus for one in self.shapes)

    def shape(self, name: str) -> Shape:
        """
        The shape of this name. Raises KeyError.
        """
        return {one.name: one for one in self.shapes}[name]

    def image(self, name: str) -> str:
        """
        Where this image is pulled from.
        """
        return f"{self.registry}/{name.split('/', 1)[1]}" if self.registry else name
