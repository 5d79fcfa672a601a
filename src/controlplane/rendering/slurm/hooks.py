"""
Programs slurmd runs on a worker: prolog, epilog, task prolog, reboot, health check. Absolute paths, so that every release runs them.

Source: slurm.schedmd.com/prolog_epilog.html: a prolog or epilog that fails drains the node, a task prolog prints `export NAME=value`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from controlplane.rendering.slurm import containers, fabric, outputs
from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.plan import Shape, SlurmPlan, Worker

Hook = Literal["prolog", "epilog", "task_prolog", "reboot", "health"]
GPU_RELEASE_TRIES = 15
"""Looks at a GPU that a finished job still holds, 2 s apart, before the node is drained."""


def path(plan: SlurmPlan, hook: Hook) -> str:
    """
    Where the program is on a worker.
    """
    return f"{plan.layout.hooks_dir}/{hook}"


def hook_files(plan: SlurmPlan, worker: Worker) -> tuple[RenderedFile, ...]:
    """
    All programs of this worker; they take effect with the next job.
    """
    shape = plan.shape_of[worker.shape]
    bodies: list[tuple[Hook, Iterator[str]]] = [
        ("prolog", _prolog(plan, shape)),
        ("epilog", _epilog(plan, shape)),
        ("task_prolog", _task_prolog(shape)),
        ("reboot", _reboot()),
    ]
    if plan.health:
        bodies.append(("health", _health(worker, shape)))
    return tuple(text_file(path(plan, hook), ["#!/bin/sh", *body], mode=0o755) for hook, body in bodies)


def _prolog(plan: SlurmPlan, shape: Shape) -> Iterator[str]:
    yield "# Before a job's first step on this node. A failure drains the node and requeues the job."
    yield "set -eu"
    if shape.gpus:
        yield "# SLURM_JOB_GPUS has the numbers of the device files the job was given"
        yield "for number in $(printf '%s' \"${SLURM_JOB_GPUS:-}\" | tr ',' ' '); do"
        yield f'  [ -c "{shape.gpus.device_prefix}$number" ] || {{ echo "GPU $number has no device file" >&2; exit 1; }}'
        yield "done"
    if plan.containers:
        yield from containers.prolog_lines(plan.containers)
    yield "exit 0"


def _epilog(plan: SlurmPlan, shape: Shape) -> Iterator[str]:
    yield "# After a job's last step on this node. A failure drains the node."
    yield "set -eu"
    yield from outputs.epilog_lines(plan)
    if shape.gpus:
        yield "# a process that still holds a GPU would spoil the next job on it"
        yield "command -v nvidia-smi >/dev/null 2>&1 || exit 0"
        yield "for number in $(printf '%s' \"${SLURM_JOB_GPUS:-}\" | tr ',' ' '); do"
        yield "  tries=0"
        yield '  while [ -n "$(nvidia-smi --id="$number" --query-compute-apps=pid --format=csv,noheader 2>/dev/null)" ]; do'
        yield "    tries=$((tries + 1))"
        yield f'    [ "$tries" -lt {GPU_RELEASE_TRIES} ] || {{ echo "GPU $number is still held" >&2; exit 1; }}'
        yield "    sleep 2"
        yield "  done"
        yield "done"
    yield "exit 0"


def _task_prolog(shape: Shape) -> Iterator[str]:
    yield "# Before each task, as the job's user: defaults that the user's own values win over."
    defaults = dict(fabric.task_defaults(shape))
    for name, value in sorted(defaults.items()):
        yield f'[ -n "${{{name}:-}}" ] || echo "export {name}={value}"'
    yield "exit 0"


def _reboot() -> Iterator[str]:
    yield "# What `scontrol reboot` runs here once the node is idle."
    yield "exec systemctl reboot"


def _health(worker: Worker, shape: Shape) -> Iterator[str]:
    yield "# slurmd's look at its node. It only drains; undraining is for whoever repaired it."
    yield "set -eu"
    name = worker.name if worker.hostname and worker.hostname != worker.name else "$(hostname -s)"
    yield "drain() {"
    yield f'  scontrol update nodename="{name}" state=drain reason="health: $1"'
    yield "  exit 0"
    yield "}"
    if shape.gpus:
        for group in sorted(shape.gpus.groups, key=lambda one: one.first):
            for number in range(group.first, group.first + group.count):
                yield f'[ -c {shape.gpus.device_prefix}{number} ] || drain "GPU {number} is missing"'
    if shape.rdma:
        yield f"for device in {' '.join(shape.rdma.devices)}; do"
        yield '  grep -qs ACTIVE "/sys/class/infiniband/$device/ports/1/state" || drain "$device has no link"'
        yield "done"
    yield "exit 0"
