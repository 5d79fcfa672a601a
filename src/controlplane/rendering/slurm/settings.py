"""
What the Slurm adapter is told, so that jobs run through the same API as on a shared Slurm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.rendering.slurm.checking import check_plan
from controlplane.rendering.slurm.keys import JWT_SECRET
from controlplane.rendering.slurm.outputs import KEPT_IN
from controlplane.rendering.slurm.plan import SlurmPlan

ADMINISTRATOR = "root"
"""Whom tokens are made for: it may act for every user."""


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """
    A registration of the cluster with the adapter `slurm`.
    """

    config: Mapping[str, Any]
    """The adapter's config: plain JSON values."""
    secrets: tuple[str, ...]
    """Names, out of `ClusterKeys.secrets`, of what the adapter needs unsealed."""
    partitions: tuple[str, ...]
    """All partitions; the config names the default."""


def adapter_settings(
    plan: SlurmPlan, *, command_prefix: tuple[str, ...] = (), output_dir: str = "", dedicated: bool = False
) -> AdapterSettings:
    """
    How the cluster is driven: slurmrestd on the first head, the default partition, models and their GRES types.

    Args:
        plan: the cluster.
        command_prefix: runs a command on the head through a shell, for example `("ssh", "-oBatchMode=yes", "10.0.0.2")`; without it there
            are no reservations and no drains.
        output_dir: where job output is written, on a file system all workers see.
        dedicated: whether all of the Slurm is one cluster of ours, so that it needs no walls inside.
    """
    check_plan(plan)
    config: dict[str, Any] = {
        "url": f"http://{plan.heads[0].address}:{plan.ports.slurmrestd}",
        "user": ADMINISTRATOR,
        "partition": next(partition.name for partition in plan.partitions if partition.default),
        "node_gres": {shape.gpus.model: shape.gpus.gres_type for shape in plan.shapes if shape.gpus},
        "users": sorted(user.name for user in plan.users),
        "accounts": "auto" if plan.accounting else "off",
    }
    if command_prefix:
        config["cli"] = {"argv_prefix": list(command_prefix), "quote": True}
    if output_dir:
        config["output_dir"] = output_dir
    if dedicated:
        config |= {"dedicated": True, "keep_dir": KEPT_IN}
    return AdapterSettings(config, (JWT_SECRET,), tuple(sorted(partition.name for partition in plan.partitions)))
