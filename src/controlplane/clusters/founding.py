"""
Products that a tenant has for itself alone: which of them an order wants, and who makes the files of its hosts.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy.orm import Session

from controlplane.clusters import dedicating, dedicating_kubernetes, joining, repository
from controlplane.clusters.dedicating import Founding, Stage
from controlplane.clusters.states import Order
from controlplane.kit.secrets import Sealer
from controlplane.rendering.kubernetes.checking import BadPlan as BadKubernetes
from controlplane.rendering.slurm.words import BadPlan as BadSlurm

__all__ = ["BAD_PLANS", "Founding", "account_of", "establish", "find_pool", "renew"]

BAD_PLANS = (BadSlurm, BadKubernetes)


def find_pool(pools: Sequence[Any], tenant_id: str, order: Order) -> Any:
    """
    The first provider of bare machines that offers what the order wants; None where none does, or where it wants nothing of its own.
    """
    types = {one.instance_type for one in order.sets if one.role == "worker"}
    if order.slurm is not None:
        return dedicating.find_pool(pools, tenant_id, order.site, types, order.slurm)
    if order.kubernetes is not None:
        return dedicating_kubernetes.find_pool(pools, tenant_id, order.site, types, order.kubernetes)
    return None


def account_of(order: Order) -> str:
    """
    Whom jobs run as in a product of one's own; empty where that is not fixed by the order.
    """
    return dedicating.JOBS_RUN_AS if order.slurm is not None else ""


def establish(
    session: Session, sealer: Sealer, order: Order, image_formats: Collection[str], *, tenant_id: str, cluster_id: str
) -> Founding:
    """
    The order has all that it needs before it has nodes. Raises NoCapacity where nobody offers it.
    """
    assert order.login is not None
    login = (order.login.ssh_keys, order.login.user_data)
    if order.kubernetes is not None:
        return dedicating_kubernetes.establish(
            session, sealer, order, image_formats, login=login, tenant_id=tenant_id, cluster_id=cluster_id
        )
    assert order.slurm is not None
    return dedicating.establish(
        session,
        sealer,
        tenant_id=tenant_id,
        cluster_id=cluster_id,
        site=order.site,
        roles={one.name: (one.role, one.instance_type) for one in order.sets},  # type: ignore[misc] # checked: a Slurm's
        login=login,
        wanted=order.slurm,
        image_formats=image_formats,
    )


def renew(session: Session, row: Any, stage: Stage, drain: Sequence[str] = ()) -> None:
    """
    The files of all hosts are those of the present members, and its scheduler is reached where it is. Raises one of BAD_PLANS.
    """
    if repository.came(row):
        joining.renew(session, row)
    elif row["kubernetes"] is not None:
        dedicating_kubernetes.renew(session, row, stage, drain)
    else:
        dedicating.renew(session, row, stage, drain)
