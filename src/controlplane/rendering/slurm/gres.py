"""
gres.conf: device files by number, since a count alone is not believed, and the cores beside them.

Source: gres.conf(5); 22.05 removes GPUs without File= and puts the node out of service.
"""

from __future__ import annotations

from controlplane.rendering.slurm.conf import line
from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.hostlist import compress
from controlplane.rendering.slurm.plan import GpuGroup, Gpus, SlurmPlan


def gres_file(plan: SlurmPlan) -> RenderedFile:
    """
    The head's gres.conf, which workers get from there. Detection is off: what was sold is what must be there, or the node is put out.
    """
    lines = ["AutoDetect=off"]
    for shape in sorted(plan.shapes, key=lambda one: one.name):
        names = [worker.name for worker in plan.workers if worker.shape == shape.name]
        if shape.gpus is None or not names:
            continue
        nodes = compress(names)
        lines += [_group(nodes, shape.gpus, group) for group in sorted(shape.gpus.groups, key=lambda one: one.first)]
    return text_file(f"{plan.layout.conf_dir}/gres.conf", lines, on_change="reconfigure")


def _group(nodes: str, gpus: Gpus, group: GpuGroup) -> str:
    last = group.first + group.count - 1
    numbers = f"{group.first}" if group.count == 1 else f"[{group.first}-{last}]"
    cores = [("Cores", group.cores)] if group.cores else []
    return line(("NodeName", nodes), ("Name", "gpu"), ("Type", gpus.gres_type), ("File", f"{gpus.device_prefix}{numbers}"), *cores)
