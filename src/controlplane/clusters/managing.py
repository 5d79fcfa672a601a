"""
A Kubernetes of one's own whose control planes its provider makes and keeps: who offers it, at which versions, of which nodes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from sqlalchemy.orm import Session

from controlplane.clusters import repository
from controlplane.clusters.models import ClusterRow
from controlplane.clusters.states import MANAGED, Order
from controlplane.kit.errors import FieldError, Invalid, NoCapacity
from controlplane.nodes import service as nodes
from controlplane.nodes.states import ProviderRef
from controlplane.rendering.kubernetes.laws import upgrade_refusal

PRODUCT = "managed_kubernetes"


def is_managed(kubernetes: Mapping[str, Any] | None) -> bool:
    """
    Whether what is kept with a cluster of its Kubernetes says that it is such a one.
    """
    return kubernetes is not None and kubernetes["distribution"] == MANAGED


def work_of(kubernetes: Mapping[str, Any] | None, provider: ProviderRef | None) -> tuple[str, ...] | None:
    """
    What work runs in the cluster, where that is its provider's to say and it has one; None: whatever its kind runs.
    """
    return provider.managed_work if is_managed(kubernetes) and provider is not None else None


def find_pools(pools: Sequence[Any], tenant_id: str, order: Order) -> list[Any]:
    """
    The providers that make what the order wants, the one that it would take first.
    """
    assert order.kubernetes is not None
    types = {one.instance_type for one in order.sets}
    return [
        pool
        for pool in pools
        if pool.site == order.site and not set(pool.tenants) - {tenant_id} and makes(pool, types, order.kubernetes.version)
    ]


def makes(pool: Any, types: Collection[str], version: str) -> bool:
    """
    Whether the provider says that it makes such a cluster of these instance types; an empty version is any.
    """
    said = pool.capabilities
    offered = said.get("kubernetes_versions", [])
    return (
        PRODUCT in said.get("products", [])
        and set(types) <= set(said.get("instance_types", []))
        and bool(offered)
        and version in {"", *offered}
    )


def facts_of(session: Session, tenant_id: str, order: Order) -> dict[str, Any]:
    """
    What is kept with the cluster: the version is fixed when it is ordered. Raises NoCapacity where nobody offers it.
    """
    assert order.kubernetes is not None
    pools = find_pools(nodes.read_pools(session, [order.site]), tenant_id, order)
    if not pools:
        types = " and ".join(sorted({one.instance_type for one in order.sets}))
        what = f"Kubernetes {order.kubernetes.version}".strip()
        raise NoCapacity(f"No provider in {order.site} makes a managed {what} of {types}.", code="product_not_available")
    return {"distribution": MANAGED, "version": order.kubernetes.version or pools[0].capabilities["kubernetes_versions"][0]}


def way_to(session: Session, row: ClusterRow, version: str | None) -> dict[str, str]:
    """
    The upgrade as it is kept: {version}. Raises Invalid for one that is not offered, or that cannot follow on the present one.
    """
    assert row.kubernetes is not None
    pool = next((one for one in nodes.read_pools(session, [row.site]) if one.id == row.provider_id), None)
    offered = [] if pool is None else pool.capabilities.get("kubernetes_versions", [])
    if version is None:
        known = f"offered: {', '.join(offered)}" if offered else "none is offered"
        _refuse("version_missing", f"Say which version of Kubernetes it shall have; {known}.")
    current = repository.kubernetes_version(row.kubernetes)
    refused = upgrade_refusal(current, version)
    if refused is not None:
        on_the_way = [one for one in offered if upgrade_refusal(current, one) is None]
        hint = f" Offered from here: {', '.join(on_the_way)}." if on_the_way else ""
        _refuse("kubernetes_upgrade_impossible", f"Kubernetes does not do this: {refused}.{hint}")
    if version not in offered:
        _refuse("version_not_offered", f"The cluster's provider does not offer Kubernetes {version}.")
    return {"version": version}


def _refuse(code: str, words: str) -> NoReturn:
    raise Invalid(words, errors=[FieldError("body.version", code, words)])
