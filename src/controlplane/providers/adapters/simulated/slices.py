"""
Parts of simulated GPUs. A GPU is partitioned when the first slice is asked of it, into slices of one profile, and whole again once none is
held: so orders for whole GPUs and for slices can be rehearsed on the same machines, and no GPU is ever both. Pure.

Source: NVIDIA Multi-Instance GPU user guide, supported profiles: how many of each fit on a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from controlplane.providers.adapters.simulated.members import MemberRow
from controlplane.providers.gpus import Slices

Device: TypeAlias = int | str
"""A whole GPU by its index, or a slice as `index/profile/number`."""
Nodes: TypeAlias = tuple[tuple[str, tuple[Device, ...]], ...]
"""Machines, and what a run or a replica holds on each."""
_FIT = (7, 1, 4, 3, 2, 1, 1)
_PROFILES = {
    "A100-SXM4-80GB": ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H100-SXM5-80GB": ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H200-SXM5-141GB": ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    "B200-SXM-180GB": ("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
    "GB200-NVL72-186GB": ("1g.23gb", "1g.23gb+me", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"),
}


def on_a_node(gpu_model: str, gpus: int) -> dict[str, int]:
    """
    Profile to the most that a machine with so many GPUs can have of it, all of them partitioned so; empty for models without.
    """
    return {profile: fit * gpus for profile, fit in zip(_PROFILES.get(gpu_model, ()), _FIT, strict=False)} if gpus else {}


def most_on_a_node(machines: Iterable[tuple[str, int]]) -> dict[str, int]:
    """
    Profile to the most that one of the machines, (GPU model, GPUs), can have of it.
    """
    most: dict[str, int] = {}
    for gpu_model, gpus in machines:
        for profile, amount in on_a_node(gpu_model, gpus).items():
            most[profile] = max(amount, most.get(profile, 0))
    return dict(sorted(most.items()))


def gpu_of(device: Device) -> int:
    """
    The index of the GPU that the device is, or is a part of.
    """
    return device if isinstance(device, int) else int(device.partition("/")[0])


def profile_of(device: Device) -> str:
    """
    What the slice is; empty for a whole GPU.
    """
    return "" if isinstance(device, int) else device.split("/")[1]


def could(member: MemberRow, gpus: int, mig: Slices | None) -> bool:
    """
    Whether the member, with nothing on it, could give so many whole GPUs, or these slices.
    """
    if mig is None:
        return member.wanted_gpus >= gpus
    return on_a_node(member.gpu_model, member.wanted_gpus).get(mig.profile, 0) >= mig.per_node


def held_on(refs: Iterable[str], used: Iterable[Nodes]) -> dict[str, set[Device]]:
    """
    What is held on each of the machines.
    """
    held: dict[str, set[Device]] = {ref: set() for ref in refs}
    for nodes in used:
        for ref, devices in nodes:
            if ref in held:
                held[ref].update(devices)
    return held


def give(member: MemberRow, held: Collection[Device], gpus: int, mig: Slices | None) -> tuple[Device, ...] | None:
    """
    So many whole GPUs, or these slices, that nobody holds: first of GPUs that are partitioned so already. None where it has no room.
    """
    count = min(member.gpus, member.wanted_gpus)
    if mig is None:
        used = set(map(gpu_of, held))
        free = [number for number in range(count) if number not in used]
        return tuple(free[:gpus]) if len(free) >= gpus else None
    parts: dict[int, set[Device]] = {number: set() for number in range(count)}
    for one in held:
        parts.setdefault(gpu_of(one), set()).add(one)
    found = _free_slots(parts, count, mig.profile, on_a_node(member.gpu_model, 1))
    return tuple(found[: mig.per_node]) if len(found) >= mig.per_node else None


def _free_slots(parts: Mapping[int, Collection[Device]], count: int, profile: str, fit: Mapping[str, int]) -> list[str]:
    usable = [number for number in range(count) if {profile_of(one) for one in parts[number]} <= {profile}]
    slots = [
        f"{number}/{profile}/{slot}"
        for number in sorted(usable, key=lambda number: (not parts[number], number))
        for slot in range(fit.get(profile, 0))
    ]
    taken = {one for number in usable for one in parts[number]}
    return [one for one in slots if one not in taken]
