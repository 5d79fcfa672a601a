"""
What collective libraries are told about the fabric, and the members of an NVLink domain.

Source: NCCL user guide, "Environment Variables" (system-wide defaults in /etc/nccl.conf, which a user's variables win over; `=` before a
name asks for exactly it); UCX, UCX_NET_DEVICES; NVIDIA IMEX guide, nodes_config.cfg.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.plan import Rdma, Shape, SlurmPlan, Worker

NCCL_CONF = "/etc/nccl.conf"
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"


def fabric_files(plan: SlurmPlan, worker: Worker) -> tuple[RenderedFile, ...]:
    """
    A worker's files about the fabric; none where it has none.
    """
    files = []
    rdma = plan.shape_of[worker.shape].rdma
    if rdma:
        files.append(text_file(NCCL_CONF, _nccl(rdma)))
    if plan.imex and worker.position.nvlink_domain:
        domain = worker.position.nvlink_domain
        members = sorted(IPv4Address(one.address) for one in plan.workers if one.position.nvlink_domain == domain)
        files.append(text_file(IMEX_NODES, map(str, members), on_change="imex"))
    return tuple(files)


def task_defaults(shape: Shape) -> Iterator[tuple[str, str]]:
    """
    Variables of a task that are not NCCL's own.
    """
    if shape.gpus:
        # else CUDA counts by speed, and a rank's GPU is not the one beside its network adapter
        yield "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
    if shape.rdma:
        yield "UCX_NET_DEVICES", ",".join(f"{device}:1" for device in shape.rdma.devices)


def _nccl(rdma: Rdma) -> Iterator[str]:
    yield f"NCCL_IB_HCA=={','.join(rdma.devices)}"
    yield f"NCCL_SOCKET_IFNAME=={rdma.interface}"
    if rdma.rail_optimised:
        yield "NCCL_CROSS_NIC=0"
    for name, value in (("GID_INDEX", rdma.gid_index), ("TC", rdma.traffic_class), ("SL", rdma.service_level)):
        if value is not None:
            yield f"NCCL_IB_{name}={value}"
