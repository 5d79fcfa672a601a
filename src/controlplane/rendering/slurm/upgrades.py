"""
From one release to a later one without losing a job: in hops each side understands, accounting first, workers drained one after another.

Source: slurm.schedmd.com/upgrades.html; src/common/slurm_protocol_common.h (SLURM_MIN_PROTOCOL_VERSION of each release).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Literal

from controlplane.rendering.slurm.plan import SlurmPlan
from controlplane.rendering.slurm.releases import RELEASES, ReleaseName
from controlplane.rendering.slurm.words import BadPlan

UPGRADE_ORDER: tuple[Literal["slurmdbd", "head", "worker", "login"], ...] = ("slurmdbd", "head", "worker", "login")
"""Each speaks to older ones that come after it, never to newer ones."""


def upgrade_path(current: ReleaseName, target: ReleaseName) -> tuple[ReleaseName, ...]:
    """
    The releases to install one after another, fewest first; empty when nothing is to be done. Raises BadPlan when there is no way, as for
    a downgrade: an older slurmctld cannot read a newer one's state.
    """
    if current == target:
        return ()
    hops = [name for name in RELEASES if current in RELEASES[name].upgrades_from]
    ways = []
    for hop in hops:
        try:
            ways.append((hop, *upgrade_path(hop, target)))
        except BadPlan:
            continue
    if not ways:
        raise BadPlan(f"release: no way leads from {current} to {target}", code="slurm_upgrade_impossible")
    return min(ways, key=len)


def upgrade_waves(plan: SlurmPlan, *, at_once: int, busy: Iterable[str] = ()) -> tuple[tuple[str, ...], ...]:
    """
    The workers in the waves they are drained, upgraded and undrained in: idle ones first, so that jobs have longest to end.
    """
    if at_once < 1:
        raise BadPlan("at_once: at least one worker at a time", code="slurm_upgrade_impossible")
    working = set(busy)
    names = iter(sorted((worker.name for worker in plan.ordered), key=lambda name: name in working))
    return tuple(iter(lambda: tuple(islice(names, at_once)), ()))
