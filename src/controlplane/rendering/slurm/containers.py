"""
Enroot and Pyxis: images are unpacked on a worker's own disk, in folders that only the job's user can enter.

Source: enroot's doc/configuration.md, pyxis' wiki (Setup), plugstack.conf in spank(8).
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.rendering.slurm.fabric import NCCL_CONF
from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.plan import Containers, Rdma, SlurmPlan

RUNTIME = "/run/enroot"
"""Memory: a reboot clears what a job left."""
FOLDERS = ("cache", "data", "tmp")
"""Below the scratch folder; each user has one of its own in each."""


def plugstack_file(plan: SlurmPlan) -> RenderedFile | None:
    """
    The head's plugstack.conf, which workers and logins get from there; None without containers. `optional`: a host that lacks the plug-in
    still runs jobs that need no container.
    """
    if plan.containers is None:
        return None
    words = f"optional {plan.containers.plugin} runtime_path=/run/pyxis execute_entrypoint=0 container_scope=job sbatch_support=1"
    return text_file(f"{plan.layout.conf_dir}/plugstack.conf", [words], on_change="reconfigure")


def worker_files(plan: SlurmPlan, rdma: Rdma | None) -> tuple[RenderedFile, ...]:
    """
    Enroot's settings on a worker; none without containers.
    """
    if plan.containers is None:
        return ()
    files = [text_file("/etc/enroot/enroot.conf", _settings(plan.containers))]
    if rdma:
        files.append(
            text_file("/etc/enroot/mounts.d/30-nccl.fstab", [f"{NCCL_CONF} {NCCL_CONF} none x-create=file,bind,ro,nofail 0 0"])
        )
        files.append(text_file("/etc/enroot/environ.d/30-rdma.env", ["MELLANOX_VISIBLE_DEVICES=all"]))
    return tuple(files)


def prolog_lines(containers: Containers) -> Iterator[str]:
    """
    The job's user has its folders before the first container starts.
    """
    disk = containers.scratch_dir
    paths = [f'"{path}/$SLURM_JOB_UID"' for path in (RUNTIME, *(f"{disk}/{name}" for name in FOLDERS))]
    yield f'install -d -m 0700 -o "$SLURM_JOB_UID" -g "$(id -g "$SLURM_JOB_UID")" {" ".join(paths)}'


def folders(containers: Containers) -> tuple[str, ...]:
    """
    What a worker's start script makes, open to pass through and to nobody to write.
    """
    return (containers.scratch_dir, *(f"{containers.scratch_dir}/{name}" for name in FOLDERS))


def _settings(containers: Containers) -> Iterator[str]:
    yield f"ENROOT_RUNTIME_PATH {RUNTIME}/${{UID}}"
    for key, folder in (("CACHE", "cache"), ("DATA", "data"), ("TEMP", "tmp")):
        yield f"ENROOT_{key}_PATH {containers.scratch_dir}/{folder}/${{UID}}"
    yield "ENROOT_ROOTFS_WRITABLE yes"
    yield "ENROOT_REMAP_ROOT no"
    yield "ENROOT_MOUNT_HOME no"
    yield "ENROOT_RESTRICT_DEV yes"
