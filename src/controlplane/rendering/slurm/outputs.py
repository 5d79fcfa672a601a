"""
What jobs print, where no file system is shared: each worker sends what it has of it. The program is `sender.py`, as it stands there.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.plan import SlurmPlan

UNIT = "job-output.service"
KEPT_IN = "/home/{user}"
"""Folder of a user's jobs' output on the worker that a job's script runs on."""
RUNG = "/run/job-output-bell"
"""Touched when a job has ended: the program looks often for a while."""


def output_files(plan: SlurmPlan) -> tuple[RenderedFile, ...]:
    """
    The program and its unit; none where output is read in another way.
    """
    if not plan.sends_output:
        return ()
    program = files("controlplane.rendering.slurm").joinpath("sender.py").read_text("utf-8")
    return (
        text_file(program_path(plan), program.splitlines(), mode=0o755, on_change="output"),
        text_file(f"/etc/systemd/system/{UNIT}", _unit(plan), on_change="output"),
    )


def program_path(plan: SlurmPlan) -> str:
    """
    Where the program is on a worker.
    """
    return f"{plan.layout.hooks_dir}/job-output"


def wanted_by_slurmd(plan: SlurmPlan) -> tuple[str, ...]:
    """
    What slurmd's unit says, so that the program runs wherever slurmd does.
    """
    return (f"Wants={UNIT}",) if plan.sends_output else ()


def epilog_lines(plan: SlurmPlan) -> Iterator[str]:
    """
    What an epilog does for it; failing would drain the node, so it never does.
    """
    if plan.sends_output:
        yield f"touch {RUNG} 2>/dev/null || true"


def _unit(plan: SlurmPlan) -> Iterator[str]:
    homes = " ".join(f"{user.name}:{KEPT_IN.format(user=user.name)}" for user in sorted(plan.users, key=lambda one: one.name))
    yield from ("[Unit]", "Description=Sends what jobs print", "Wants=network-online.target", "After=network-online.target")
    yield from ("StartLimitIntervalSec=0", "", "[Service]", f"ExecStart=/usr/bin/env python3 {program_path(plan)} {RUNG} {homes}")
    yield from ("Restart=always", "RestartSec=5", "NoNewPrivileges=yes", "PrivateTmp=yes")
    yield from ("ProtectHome=read-only", "ProtectSystem=strict", "CapabilityBoundingSet=CAP_DAC_READ_SEARCH")
