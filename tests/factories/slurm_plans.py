"""
Plans of dedicated Slurm clusters: three real shapes, and keys that are the same in every run.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.rendering.slurm.keys import ClusterKeys, new_keys
from controlplane.rendering.slurm.layout import Timing
from controlplane.rendering.slurm.plan import (
    Accounting,
    Containers,
    GpuGroup,
    Gpus,
    HealthCheck,
    Host,
    Partition,
    Position,
    Rdma,
    Shape,
    SlurmPlan,
    User,
    Worker,
)
from controlplane.rendering.slurm.releases import ReleaseName

KEYS: ClusterKeys = new_keys(lambda size: bytes(number % 251 for number in range(size)))
HGX = Shape(
    name="hgx-h100-8",
    sockets=2,
    cores_per_socket=56,
    threads_per_core=2,
    memory_mib=2_063_000,
    system_memory_mib=65_536,
    gpus=Gpus("H100-SXM5-80GB", "h100", (GpuGroup(0, 4, "0-55"), GpuGroup(4, 4, "56-111"))),
    rdma=Rdma("infiniband", tuple(f"mlx5_{number}" for number in range(8)), "bond0"),
)
TRAY = Shape(
    name="gb200-4",
    sockets=2,
    cores_per_socket=72,
    threads_per_core=1,
    memory_mib=880_000,
    system_memory_mib=32_768,
    gpus=Gpus("GB200-186GB", "gb200", (GpuGroup(0, 2, "0-71"), GpuGroup(2, 2, "72-143"))),
    rdma=Rdma("roce", tuple(f"mlx5_{number}" for number in range(4)), "enp1s0", gid_index=3, traffic_class=106),
)
PLAIN = Shape(name="cpu-64", sockets=2, cores_per_socket=32, threads_per_core=1, memory_mib=250_000, system_memory_mib=2_000)


def hgx_worker(number: int) -> Worker:
    """
    A worker of the leaf-spine cluster, two to a leaf.
    """
    leaf = (number + 1) // 2
    return Worker(f"gpu-{number:03d}", f"10.20.0.{number + 10}", HGX.name, Position("b1", f"l{leaf}", f"r{leaf}"))


def leaf_spine() -> SlurmPlan:
    """
    Four HGX H100 below two leaves, with a login, containers and health checks, on 22.05.
    """
    return SlurmPlan(
        cluster="clu_leafspine",
        release="22.05",
        heads=(Host("head-1", "10.20.0.2"),),
        logins=(Host("login-1", "10.20.0.3"),),
        workers=tuple(hgx_worker(number) for number in range(1, 5)),
        shapes=(HGX,),
        partitions=(Partition("main", default=True), Partition("urgent", priority_tier=10, max_time_min=240)),
        users=(User("tn_one", 20_001),),
        containers=Containers(),
        health=HealthCheck(),
        confinement="cgroup/v1",
        sends_output=True,
    )


def nvl_rack() -> SlurmPlan:
    """
    Two NVL72 racks, the second with a tray less, as blocks on 24.11, with IMEX channels and two logins.
    """
    trays = [(rack, tray) for rack in (1, 2) for tray in range(1, 19) if (rack, tray) != (2, 18)]
    return SlurmPlan(
        cluster="clu_nvl",
        release="24.11",
        heads=(Host("head-1", "10.30.0.2"),),
        logins=(Host("login-1", "10.30.0.3"), Host("login-2", "10.30.0.4")),
        workers=tuple(
            Worker(f"r{rack}-t{tray:02d}", f"10.30.{rack}.{tray}", TRAY.name, Position("b1", f"l{rack}", f"r{rack}", f"nvl{rack}"))
            for rack, tray in trays
        ),
        shapes=(TRAY,),
        imex=True,
        users=(User("tn_one", 20_001),),
    )


def with_accounting() -> SlurmPlan:
    """
    Test hosts without GPUs that say more than they have, with accounting on the head, on 22.05.
    """
    return SlurmPlan(
        cluster="clu_books",
        release="22.05",
        heads=(Host("head", "10.77.150.1"),),
        workers=tuple(Worker(f"c{number}", f"10.77.150.{number + 10}", PLAIN.name) for number in (1, 2)),
        shapes=(PLAIN,),
        users=(User("tn_one", 20_001), User("tn_two", 20_002)),
        accounting=Accounting(buffer_pool_mib=128),
        confinement="none",
        made_up_sizes=True,
    )


def lab_worker(number: int) -> Worker:
    """
    A worker of the private network's cluster, alone below its leaf.
    """
    return Worker(f"n{number}", f"10.77.150.{number + 10}", "lab-8", Position("b1", f"l{number}"))


def lab(release: ReleaseName, *, workers: int) -> SlurmPlan:
    """
    Private hosts of eight made-up H100 each, told to be quick.
    """
    shape = replace(HGX, name="lab-8", memory_mib=1_000_000, system_memory_mib=1_000)
    return SlurmPlan(
        cluster="clu_lab",
        release=release,
        heads=(Host("head", "10.77.150.1"),),
        workers=tuple(lab_worker(number) for number in range(1, workers + 1)),
        shapes=(shape,),
        partitions=(Partition("main", default=True), Partition("gpus", (shape.name,))),
        users=(User("tn_one", 20_001),),
        confinement="none",
        made_up_sizes=True,
        timing=Timing(credential_s=5),
        scheduler=("batch_sched_delay=0", "sched_interval=1", "bf_interval=1", "bf_continue"),
    )
