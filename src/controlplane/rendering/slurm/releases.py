"""
What differs between Slurm's releases, as data: a new release is a new line.

Source: slurm.conf(5), cgroup.conf(5), topology.conf(5), scontrol(1) and RELEASE_NOTES of each release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReleaseName = Literal["22.05", "23.11", "24.11", "25.05", "25.11"]


@dataclass(frozen=True, slots=True)
class Release:
    """
    One release's own words.
    """

    name: ReleaseName
    """Year and month, as Slurm counts."""
    flat_topology: str
    """TopologyPlugin of a network without structure."""
    rest_plugins: str
    """Of slurmrestd, without slurmdbd: a plugin that needs it ends the daemon at its start."""
    rest_plugins_dbd: str
    """Of slurmrestd, with slurmdbd."""
    no_cgroups: str
    """CgroupPlugin where no controllers are to be used; older releases have no word for it and must name one they can load."""
    has_sackd: bool
    """Whether logins get their configuration from the head by sackd; if not, they hold slurm.conf themselves."""
    has_blocks: bool
    """Whether topology/block takes BlockSizes, as NVLink racks need."""
    has_imex: bool
    """Whether switch/nvidia_imex gives each job an IMEX channel of its own."""
    short_blocks: bool
    """Whether a block may have fewer nodes than BlockSizes' first number; if not, slurmctld ends at such a block."""
    reconfigure_takes_nodes: bool
    """Whether `scontrol reconfigure` adds and removes nodes and takes every key but ports and authentication; if not, daemons restart."""
    upgrades_from: tuple[ReleaseName, ...]
    """Releases whose state and daemons this one's slurmctld still understands, its own not among them."""


RELEASES: dict[ReleaseName, Release] = {
    release.name: release
    for release in (
        Release(
            name="22.05",
            flat_topology="topology/none",
            rest_plugins="openapi/v0.0.38",
            rest_plugins_dbd="openapi/v0.0.38,openapi/dbv0.0.38",
            no_cgroups="cgroup/v1",
            has_sackd=False,
            has_blocks=False,
            has_imex=False,
            short_blocks=False,
            reconfigure_takes_nodes=False,
            upgrades_from=(),
        ),
        Release(
            name="23.11",
            flat_topology="topology/default",
            rest_plugins="openapi/slurmctld",
            rest_plugins_dbd="openapi/slurmctld,openapi/slurmdbd",
            no_cgroups="cgroup/v1",
            has_sackd=True,
            has_blocks=False,
            has_imex=False,
            short_blocks=False,
            reconfigure_takes_nodes=True,
            upgrades_from=("22.05",),
        ),
        Release(
            name="24.11",
            flat_topology="topology/default",
            rest_plugins="openapi/slurmctld",
            rest_plugins_dbd="openapi/slurmctld,openapi/slurmdbd",
            no_cgroups="disabled",
            has_sackd=True,
            has_blocks=True,
            has_imex=True,
            short_blocks=False,
            reconfigure_takes_nodes=True,
            upgrades_from=("23.11",),
        ),
        Release(
            name="25.05",
            flat_topology="topology/flat",
            rest_plugins="openapi/slurmctld",
            rest_plugins_dbd="openapi/slurmctld,openapi/slurmdbd",
            no_cgroups="disabled",
            has_sackd=True,
            has_blocks=True,
            has_imex=True,
            short_blocks=True,
            reconfigure_takes_nodes=True,
            upgrades_from=("23.11", "24.11"),
        ),
        Release(
            name="25.11",
            flat_topology="topology/flat",
            rest_plugins="openapi/slurmctld",
            rest_plugins_dbd="openapi/slurmctld,openapi/slurmdbd",
            no_cgroups="disabled",
            has_sackd=True,
            has_blocks=True,
            has_imex=True,
            short_blocks=True,
            reconfigure_takes_nodes=True,
            upgrades_from=("24.11", "25.05"),
        ),
    )
}
"""Every release that can be rendered."""
