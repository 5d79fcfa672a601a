"""
How jobs are held to what they were given: the plug-ins of slurm.conf and cgroup.conf, by what the workers' kernel has mounted.

Source: cgroup.conf(5) of 22.05 to 25.11.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.plan import SlurmPlan


@dataclass(frozen=True, slots=True)
class KernelWords:
    """
    slurm.conf's words for one way of confinement.
    """

    proctrack: str
    """ProctrackType: how a job's processes are known."""
    task: str
    """TaskPlugin: how they are held to their cores and devices."""
    gather: str
    """JobAcctGatherType: where their use is read."""
    prolog_flags: str
    """PrologFlags: Alloc runs the prolog before the first step; Contain needs control groups."""


def kernel_words(plan: SlurmPlan) -> KernelWords:
    """
    What slurm.conf says.
    """
    if plan.confinement == "none":
        return KernelWords("proctrack/linuxproc", "task/none", "jobacct_gather/linux", "Alloc")
    return KernelWords("proctrack/cgroup", "task/cgroup,task/affinity", "jobacct_gather/cgroup", "Alloc,Contain")


def cgroup_file(plan: SlurmPlan) -> RenderedFile:
    """
    The head's cgroup.conf, which workers get from there. A job sees its own GPUs only when devices are constrained.
    """
    lines = [f"CgroupPlugin={plan.words.no_cgroups if plan.confinement == 'none' else plan.confinement}"]
    if plan.confinement != "none":
        lines += ["ConstrainCores=yes", "ConstrainDevices=yes", "ConstrainRAMSpace=yes", "ConstrainSwapSpace=no"]
    return text_file(f"{plan.layout.conf_dir}/cgroup.conf", lines, on_change="reconfigure")
