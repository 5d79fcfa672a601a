"""
Nodes whose GPUs are partitioned by MIG: NVIDIA's device plugin with the strategy `mixed` gives each profile a resource of its own, and no
longer counts the GPUs that it belongs to as whole ones. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.providers.errors import Unsupported
from controlplane.providers.gpus import Slices
from controlplane.providers.kube.work.config import WorkConfig

Json = dict[str, Any]


def resource_of(profile: str, config: WorkConfig) -> str:
    """
    The extended resource of a profile: `nvidia.com/mig-1g.10gb`. A resource has no `+` in its name, so the plugin puts a dot there.
    """
    return f"{_prefix(config)}{profile.replace('+', '.')}"


def profiles_on(node: Json, config: WorkConfig) -> dict[str, int]:
    """
    Profile to how many such slices pods can have on the node, those that it has none of left out; empty where GPUs are not counted.
    """
    allocatable = node.get("status", {}).get("allocatable")
    if config.gpus_by == "dra" or not isinstance(allocatable, Mapping):
        return {}
    prefix = _prefix(config)
    found = {name.removeprefix(prefix): str(amount) for name, amount in allocatable.items() if name.startswith(prefix)}
    return {_profile(name): int(amount) for name, amount in found.items() if amount.isdecimal() and int(amount)}


def most_on_a_node(nodes: Iterable[Json], config: WorkConfig) -> dict[str, int]:
    """
    Profile to the most that one of the nodes has of it.
    """
    most: dict[str, int] = {}
    for node in nodes:
        for profile, amount in profiles_on(node, config).items():
            most[profile] = max(amount, most.get(profile, 0))
    return dict(sorted(most.items()))


def totals(nodes: Iterable[Json], config: WorkConfig) -> dict[str, int]:
    """
    Resource to how many of it all nodes have together.
    """
    sums: dict[str, int] = {}
    for node in nodes:
        for profile, amount in profiles_on(node, config).items():
            name = resource_of(profile, config)
            sums[name] = sums.get(name, 0) + amount
    return sums


def is_partitioned(node: Json, config: WorkConfig) -> bool:
    """
    Whether some of the node's GPUs are slices now.
    """
    return bool(profiles_on(node, config))


def is_slice(resource: str, config: WorkConfig) -> bool:
    """
    Whether the resource is slices of some profile.
    """
    return resource.startswith(_prefix(config))


def whole_gpus(node: Json, config: WorkConfig) -> int | None:
    """
    How many GPUs a partitioned node has, whole or in slices, by the label that counts them; None where it has no such label.
    """
    told = str((node["metadata"].get("labels") or {}).get(config.gpu_count_label, ""))
    return int(told) if told.isdecimal() else None


def refuse_slices(wanted: Slices | None, gpus: int, config: WorkConfig) -> None:
    """
    Such slices can be asked for here. Raises Unsupported.
    """
    if wanted is not None and (gpus or config.gpus_by == "dra"):
        raise Unsupported(
            "slices are given out by a device plugin alone, and in the place of whole GPUs", code="job_feature_unsupported"
        )


def able(nodes: Iterable[Json], wanted: Slices, config: WorkConfig) -> int:
    """
    How many of the nodes have so many of the slices.
    """
    return sum(profiles_on(one, config).get(wanted.profile, 0) >= wanted.per_node for one in nodes)


def held(limits: Mapping[str, Any], config: WorkConfig) -> tuple[str, int]:
    """
    The profile and number of slices among a container's limits; an empty profile for none.
    """
    prefix = _prefix(config)
    found = next((name for name in sorted(limits) if name.startswith(prefix)), "")
    return (_profile(found.removeprefix(prefix)), int(limits[found])) if found else ("", 0)


def limits(wanted: Slices | None, config: WorkConfig) -> dict[str, str]:
    """
    What a container asks for.
    """
    return {resource_of(wanted.profile, config): str(wanted.per_node)} if wanted is not None else {}


def _prefix(config: WorkConfig) -> str:
    return f"{config.gpu_resource.rpartition('/')[0]}/mig-"


def _profile(name: str) -> str:
    """
    As its maker writes it: what follows the memory is an attribute, behind a plus.
    """
    size, found, attribute = name.partition("gb.")
    return f"{size}gb+{attribute}" if found else name
