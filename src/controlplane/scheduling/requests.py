"""
What a placement is asked and what it answers: plain frozen values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from controlplane.scheduling.fleet import DomainKind

ONLY_SET: Final = "nodes"
"""Name of the node set of a request that did not name its sets."""

RefusalCode: TypeAlias = Literal["no_such_site", "no_such_instance_type", "never_fits", "domain_too_small", "insufficient_capacity"]
AlternativeKind: TypeAlias = Literal["fewer_spares", "wider_domain", "other_site", "smaller_gang"]


@dataclass(frozen=True)
class NodeSetRequest:
    """
    Identical nodes inside a request.

    Raises: ValueError for fewer than one node or fewer than one GPU.
    """

    name: str
    """Name of the set, unique in its request."""
    instance_type: str
    """Name of the sellable shape."""
    nodes: int
    """Different nodes wanted, at least 1."""
    gpus_per_node: int | None = None
    """GPUs wanted on each of them; None means whole nodes that nobody else uses."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError("a node set asks for at least one node")
        if self.gpus_per_node is not None and self.gpus_per_node < 1:
            raise ValueError("a share of a node has at least one GPU")


@dataclass(frozen=True)
class Request:
    """
    An order for nodes: either one set (`instance_type`, `nodes`, `gpus_per_node`) or several in `sets`, all or nothing.

    Raises: ValueError when it gives both or neither, repeats a set's name, or counts below zero.
    """

    id: str
    """Names the request in the answer."""
    site: str | None = None
    """The only site allowed; None lets placement choose one. A request never spans sites."""
    instance_type: str = ""
    """Name of the sellable shape of the one set."""
    nodes: int = 0
    """Nodes of the one set."""
    gpus_per_node: int | None = None
    """GPUs on each node of the one set; None means whole nodes."""
    spares: int = 0
    """Nodes beyond the gang, of the first set's shape, from the gang's domain or the nearest wider one."""
    spares_required: bool = True
    """False takes what spares there are instead of refusing."""
    within: DomainKind | None = None
    """The widest domain the gang may span, nodes of `near_nodes` included; None allows a site."""
    avoid_nodes: frozenset[str] = frozenset()
    """Nodes that must not be taken."""
    near_nodes: frozenset[str] = frozenset()
    """Nodes the cluster has already: their NVLink domain, leaf and block are preferred in that order, their site is kept."""
    sets: tuple[NodeSetRequest, ...] = ()
    """Several node sets that share one domain."""

    def __post_init__(self) -> None:
        if bool(self.sets) == bool(self.instance_type or self.nodes):
            raise ValueError("a request has either one shape or several sets")
        if self.spares < 0:
            raise ValueError("spares are counted from zero")
        if len({one.name for one in self.node_sets}) < len(self.node_sets):
            raise ValueError("two node sets have the same name")

    @property
    def node_sets(self) -> tuple[NodeSetRequest, ...]:
        """
        The sets asked for; one called `nodes` where the request did not name them.
        """
        return self.sets or (NodeSetRequest(ONLY_SET, self.instance_type, self.nodes, self.gpus_per_node),)


@dataclass(frozen=True)
class Placement:
    """
    Nodes for every set of a request, inside one domain.
    """

    request_id: str
    """The request answered."""
    domain_kind: DomainKind
    """The smallest kind of domain that holds the gang."""
    domain_name: str
    """Its name; the node's own id where one node is its own NVLink domain."""
    domain_path: tuple[str, ...]
    """Names from the site down to the domain."""
    nodes: Mapping[str, tuple[str, ...]]
    """Node ids per set name, in fabric order."""
    spares: tuple[str, ...]
    """Node ids of the spares, nearest first."""
    explanation: str
    """Why this domain, in plain words; names domains, never nodes."""

    @property
    def site(self) -> str:
        """
        Name of the site.
        """
        return self.domain_path[0]

    @property
    def node_ids(self) -> tuple[str, ...]:
        """
        All nodes of the gang, set after set, spares excluded.
        """
        return tuple(node for ids in self.nodes.values() for node in ids)


@dataclass(frozen=True)
class Alternative:
    """
    Something near the request that would fit now.
    """

    kind: AlternativeKind
    """What would have to give."""
    nodes: int
    """Size of the gang that fits."""
    spares: int
    """Spares that fit with it."""
    domain_kind: DomainKind
    """The kind of domain it would get."""
    domain_path: tuple[str, ...]
    """Names from the site down to that domain."""
    detail: str
    """The same in plain words; names no node."""


@dataclass(frozen=True)
class Refusal:
    """
    Why a request gets nothing; nothing was taken for it.
    """

    request_id: str
    """The request answered."""
    code: RefusalCode
    """`insufficient_capacity` may fit later; the other codes never fit this fleet, even empty."""
    missing_nodes: int
    """The fewest nodes which, added in the domain that lacks least, would make it fit."""
    free_nodes: int
    """Nodes the request could use now in that domain."""
    blocked: Mapping[str, int]
    """Nodes of the asked types in the allowed sites that the request cannot use, counted per reason."""
    best_alternative: Alternative | None
    """The nearest thing that fits now; None when nothing does."""
    detail: str
    """All of it in plain words."""
