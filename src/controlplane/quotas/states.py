"""
The words of the room: whose counters, along which path of the tree, and what is asked of them. No state moves here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from controlplane.kit.access import ScopeKind

Resource = Literal["gpus", "clusters", "keys", "operations", "image_bytes"]
RESOURCES: tuple[Resource, ...] = ("clusters", "gpus", "image_bytes", "keys", "operations")
DEPTHS: dict[ScopeKind, int] = {"platform": 0, "reseller": 1, "tenant": 2, "project": 3}
PLATFORM_ID = "platform"
PROVIDER = "provider"
"""What a level above the viewer is called: a customer learns neither whose limit it was nor the numbers."""


@dataclass(frozen=True, slots=True)
class ScopeRef:
    """
    One place in the tree that has counters.
    """

    kind: ScopeKind
    """Its level."""
    id: str
    """`platform`, `rsl_…`, `ten_…` or `prj_…`."""
    reseller_id: str | None = None
    """The reseller it is, or belongs to; none for the platform."""
    tenant_id: str | None = None
    """The tenant it is, or belongs to; none above tenants."""

    @property
    def depth(self) -> int:
        """
        0 for the platform, 3 for a project.
        """
        return DEPTHS[self.kind]


PLATFORM_SCOPE = ScopeRef("platform", PLATFORM_ID)


@dataclass(frozen=True, slots=True)
class Chain:
    """
    The path from the root to whoever takes. Levels left empty take no part: a reseller's own key counts at platform and reseller.
    """

    reseller_id: str | None = None
    """The reseller."""
    tenant_id: str | None = None
    """The tenant."""
    project_id: str | None = None
    """The project."""

    def scopes(self) -> tuple[ScopeRef, ...]:
        """
        The levels from the root down.
        """
        reseller, tenant = self.reseller_id or None, self.tenant_id or None
        levels = [PLATFORM_SCOPE]
        if reseller:
            levels.append(ScopeRef("reseller", reseller, reseller))
        if tenant:
            levels.append(ScopeRef("tenant", tenant, reseller, tenant))
        if self.project_id:
            levels.append(ScopeRef("project", self.project_id, reseller, tenant))
        return tuple(levels)


@dataclass(frozen=True, slots=True)
class Need:
    """
    Some amount of one resource.
    """

    resource: Resource
    """What."""
    amount: int
    """How many; never negative."""
    gpu_model: str = ""
    """The GPU model, where it has one."""
    site: str = ""
    """The site, where it has one."""

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError(f"a need is not negative: {self.amount} {self.resource}")
        if self.resource not in RESOURCES:
            raise ValueError(f"there is no resource {self.resource!r}")
        check_place(self.resource, self.gpu_model, self.site)


def check_place(resource: str, gpu_model: str, site: str) -> None:
    """
    Returns when the need's place fits its resource: GPUs have a model and a site or neither, the rest no model. Raises ValueError.
    """
    if resource == "gpus" and bool(gpu_model) != bool(site):
        raise ValueError("GPUs are taken with their model and their site, or with neither")
    if resource != "gpus" and gpu_model:
        raise ValueError(f"{resource} have no GPU model")


def merged(needs: Iterable[Need]) -> tuple[Need, ...]:
    """
    One need per resource, model and site, in a fixed order, without the empty ones.
    """
    sums: dict[tuple[Resource, str, str], int] = {}
    for need in needs:
        key = (need.resource, need.gpu_model, need.site)
        sums[key] = sums.get(key, 0) + need.amount
    return tuple(Need(resource, amount, model, site) for (resource, model, site), amount in sorted(sums.items()) if amount)


@dataclass(frozen=True, slots=True)
class Limit:
    """
    One line of a scope's limits.
    """

    resource: Resource
    """What is limited."""
    ceiling: int | None
    """The most that may be held; none: no limit of its own, the levels above still bind."""
    gpu_model: str = ""
    """Only GPUs of this model; empty: all."""
    site: str = ""
    """Only in this site; empty: everywhere."""


@dataclass(frozen=True, slots=True)
class Counter:
    """
    A limit and what is held under it now.
    """

    resource: Resource
    """What is counted."""
    gpu_model: str
    """Only GPUs of this model; empty: all."""
    site: str
    """Only in this site; empty: everywhere."""
    ceiling: int | None
    """The limit; none: no limit of its own."""
    used: int
    """Held now."""


@dataclass(frozen=True, slots=True)
class ScopeQuotas:
    """
    All counters of one scope.
    """

    scope: ScopeRef
    """Whose."""
    version: int
    """Rises with every change of a limit and with nothing else."""
    counters: tuple[Counter, ...]
    """In the order resource, model, site."""


@dataclass(frozen=True, slots=True)
class Drift:
    """
    A counter that differs from what is held.
    """

    scope_id: str
    """Whose counter."""
    resource: str
    """Of what."""
    gpu_model: str
    """Of which model; empty: all."""
    site: str
    """In which site; empty: everywhere."""
    counted: int
    """What the counter says."""
    held: int
    """What the callers hold."""
