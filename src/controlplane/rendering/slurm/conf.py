"""
slurm.conf. Global keys first, then one line for each worker, then the partitions: a worker that joins adds its line and changes no other.

Source: slurm.conf(5) of 22.05 to 25.11.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controlplane.rendering.slurm import hooks
from controlplane.rendering.slurm.cgroups import kernel_words
from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.keys import jwt_path
from controlplane.rendering.slurm.plan import Partition, Shape, SlurmPlan, Worker
from controlplane.rendering.slurm.words import BadPlan

CONF = "slurm.conf"
TREE_WIDTHS = ((256, 16), (1024, 32), (4096, 64))
"""Up to so many workers, so wide a tree of daemons: two hops, and a value that growing by a node hardly ever changes."""
WIDEST = 128
SLOW_MESSAGES = 1024
"""From so many workers on, a message may take a minute."""
LOWEST_CREDENTIAL_S = 120
Key = tuple[str, str | int]


def conf_file(plan: SlurmPlan) -> RenderedFile:
    """
    The head's slurm.conf; workers and, from 23.11 on, logins get it from there.
    """
    return text_file(conf_path(plan), _lines(plan), on_change="reconfigure")


def conf_path(plan: SlurmPlan) -> str:
    """
    Where slurm.conf is.
    """
    return f"{plan.layout.conf_dir}/{CONF}"


def line(*keys: Key) -> str:
    """
    One line of `Key=Value` words. Raises BadPlan for a value that Slurm would read as something else than one word.
    """
    for key, value in keys:
        text = str(value)
        if not text or not text.isascii() or not text.isprintable() or any(letter in text for letter in " #\"'\\\t\r\n"):
            raise BadPlan(f"{key}: {text[:60]!r} is not one word of a configuration")
    return " ".join(f"{key}={value}" for key, value in keys)


def spool_dir(plan: SlurmPlan) -> str:
    """
    SlurmdSpoolDir; one of its own for each slurmd where several share a host.
    """
    return f"{plan.layout.spool_dir}/%n" if _share_hosts(plan) else plan.layout.spool_dir


def feature_set(shape: str) -> str:
    """
    The NodeSet of a shape's workers: named apart from nodes and partitions, which share one name space with it.
    """
    return f"shape.{shape}"


def _lines(plan: SlurmPlan) -> Iterator[str]:
    for title, keys in (
        ("Identity and authentication", _identity(plan)),
        ("Files and logs", _files(plan)),
        ("Jobs on a node", _nodes_side(plan)),
        ("Scheduling", _scheduling(plan)),
        ("Failures and repairs", _failures(plan)),
        ("Accounting", _accounting(plan)),
    ):
        yield f"# {title}"
        yield from (line(key) for key in keys)
    yield "# Workers"
    yield from _workers(plan)
    yield "# Partitions"
    yield from _partitions(plan)


def _identity(plan: SlurmPlan) -> Iterator[Key]:
    yield "ClusterName", plan.cluster
    for head in plan.heads:
        yield "SlurmctldHost", f"{head.name}({head.address})"
    yield "SlurmctldPort", plan.ports.slurmctld
    yield "SlurmdPort", plan.ports.slurmd
    yield "SlurmUser", "slurm"
    yield "SlurmdUser", "root"
    yield "AuthType", "auth/munge"
    if plan.timing.credential_s != LOWEST_CREDENTIAL_S:
        yield "AuthInfo", f"cred_expire={plan.timing.credential_s}"
    yield "AuthAltTypes", "auth/jwt"
    yield "AuthAltParameters", f"jwt_key={jwt_path(plan.layout)}"
    yield "CredType", "cred/munge"
    yield "SlurmctldParameters", "enable_configless"
    if plan.listen_named:
        yield "CommunicationParameters", "NoInAddrAny,NoCtldInAddrAny"
    yield "MailProg", "/bin/true"


def _files(plan: SlurmPlan) -> Iterator[Key]:
    layout, each = plan.layout, "-%n" if _share_hosts(plan) else ""
    yield "StateSaveLocation", layout.state_dir
    yield "SlurmdSpoolDir", spool_dir(plan)
    yield "SlurmctldPidFile", f"{layout.run_dir}/slurmctld.pid"
    yield "SlurmdPidFile", f"{layout.run_dir}/slurmd{each}.pid"
    yield "SlurmctldLogFile", f"{layout.log_dir}/slurmctld.log"
    yield "SlurmdLogFile", f"{layout.log_dir}/slurmd{each}.log"
    yield "SlurmctldDebug", "info"
    yield "SlurmdDebug", "info"


def _nodes_side(plan: SlurmPlan) -> Iterator[Key]:
    kernel = kernel_words(plan)
    if plan.made_up_sizes:
        yield "SlurmdParameters", "config_overrides"
    yield "ProctrackType", kernel.proctrack
    yield "TaskPlugin", kernel.task
    yield "JobAcctGatherType", kernel.gather
    yield "JobAcctGatherFrequency", 30
    yield "PrologFlags", kernel.prolog_flags
    if plan.has_gpus:
        yield "GresTypes", "gpu"
    if plan.imex:
        yield "SwitchType", "switch/nvidia_imex"
    yield "MpiDefault", "none"
    yield "LaunchParameters", "use_interactive_step"
    # a login's small limit on locked memory would follow the job and break RDMA
    yield "PropagateResourceLimitsExcept", "MEMLOCK,NOFILE"
    yield "Prolog", hooks.path(plan, "prolog")
    yield "Epilog", hooks.path(plan, "epilog")
    yield "TaskProlog", hooks.path(plan, "task_prolog")
    yield "PrologEpilogTimeout", plan.timing.hook_s


def _scheduling(plan: SlurmPlan) -> Iterator[Key]:
    yield "SelectType", "select/cons_tres"
    yield "SelectTypeParameters", "CR_Core_Memory"
    yield "SchedulerType", "sched/backfill"
    if plan.scheduler:
        yield "SchedulerParameters", ",".join(plan.scheduler)
    kind = plan.topology_kind
    yield "TopologyPlugin", plan.words.flat_topology if kind == "flat" else f"topology/{kind}"
    if len({partition.priority_tier for partition in plan.partitions}) > 1:
        yield "PreemptType", "preempt/partition_prio"
        yield "PreemptMode", "REQUEUE"
    # without it a job that names no memory gets all of its first node
    yield "DefMemPerCPU", _memory_per_cpu(plan.shapes)
    yield "MaxJobCount", plan.limits.max_jobs
    yield "MaxArraySize", plan.limits.max_array
    yield "MinJobAge", plan.limits.remember_s


def _failures(plan: SlurmPlan) -> Iterator[Key]:
    timing, size = plan.timing, len(plan.workers)
    # 2: a worker that rebooted by itself comes back too, not only one that was silent
    yield "ReturnToService", 2
    yield "JobRequeue", 1
    yield "SlurmctldTimeout", timing.slurmctld_timeout_s
    yield "SlurmdTimeout", timing.slurmd_timeout_s
    yield "MessageTimeout", 60 if size > SLOW_MESSAGES else 30
    yield "BatchStartTimeout", min(65_533, timing.hook_s + 60)
    yield "KillWait", timing.kill_wait_s
    yield "UnkillableStepTimeout", timing.unkillable_s
    yield "TreeWidth", next((width for most, width in TREE_WIDTHS if size <= most), WIDEST)
    yield "RebootProgram", hooks.path(plan, "reboot")
    yield "ResumeTimeout", timing.reboot_s
    # nodes are the tenant's for as long as the order lasts: Slurm never powers one off
    yield "SuspendTime", "INFINITE"
    if plan.health:
        yield "HealthCheckProgram", hooks.path(plan, "health")
        yield "HealthCheckInterval", plan.health.interval_s
        yield "HealthCheckNodeState", "ANY,CYCLE"


def _accounting(plan: SlurmPlan) -> Iterator[Key]:
    if plan.accounting is None:
        yield "AccountingStorageType", "accounting_storage/none"
        return
    types = sorted({shape.gpus.gres_type for shape in plan.shapes if shape.gpus})
    yield "AccountingStorageType", "accounting_storage/slurmdbd"
    yield "AccountingStorageHost", plan.heads[0].address
    yield "AccountingStoragePort", plan.ports.slurmdbd
    if types:
        yield "AccountingStorageTRES", ",".join(["gres/gpu", *(f"gres/gpu:{name}" for name in types)])
    if plan.accounting.enforce:
        yield "AccountingStorageEnforce", ",".join(sorted(set(plan.accounting.enforce)))
    yield "PriorityType", "priority/multifactor"
    yield "PriorityDecayHalfLife", "7-0"
    yield "PriorityWeightFairshare", 100_000
    yield "PriorityWeightQOS", 10_000
    yield "PriorityWeightAge", 1_000


def _workers(plan: SlurmPlan) -> Iterator[str]:
    """
    A NodeName=DEFAULT line stays in force for what the next one does not say: shapes without GPUs come first, all else is always said.
    """
    for shape in sorted(plan.shapes, key=lambda one: (one.gpus is not None, one.name)):
        yield line(("NodeName", "DEFAULT"), *_sizes(shape))
        yield from (_worker(worker) for worker in plan.ordered if worker.shape == shape.name)


def _sizes(shape: Shape) -> Iterator[Key]:
    yield "CPUs", shape.cpus
    yield "Boards", 1
    yield "SocketsPerBoard", shape.sockets
    yield "CoresPerSocket", shape.cores_per_socket
    yield "ThreadsPerCore", shape.threads_per_core
    yield "RealMemory", shape.memory_mib
    yield "MemSpecLimit", shape.system_memory_mib
    yield "Feature", shape.name
    yield "State", "UNKNOWN"
    if shape.gpus:
        yield "Gres", f"gpu:{shape.gpus.gres_type}:{shape.gpus.count}"


def _worker(worker: Worker) -> str:
    keys: list[Key] = [("NodeName", worker.name)]
    if worker.hostname and worker.hostname != worker.name:
        keys.append(("NodeHostname", worker.hostname))
    keys.append(("NodeAddr", worker.address))
    if worker.port:
        keys.append(("Port", worker.port))
    return line(*keys)


def _partitions(plan: SlurmPlan) -> Iterator[str]:
    used = sorted({shape for partition in plan.partitions for shape in partition.shapes})
    for shape in used:
        yield line(("NodeSet", feature_set(shape)), ("Feature", shape))
    preempts = len({partition.priority_tier for partition in plan.partitions}) > 1
    top = max(partition.priority_tier for partition in plan.partitions)
    for partition in sorted(plan.partitions, key=lambda one: one.name):
        mode: list[Key] = []
        if preempts:
            mode.append(("PreemptMode", "OFF" if partition.priority_tier == top else "REQUEUE"))
        yield line(*_partition(partition), *mode)


def _partition(partition: Partition) -> Iterator[Key]:
    yield "PartitionName", partition.name
    yield "Nodes", ",".join(feature_set(shape) for shape in sorted(partition.shapes)) or "ALL"
    yield "Default", "YES" if partition.default else "NO"
    yield "MaxTime", "INFINITE" if partition.max_time_min is None else partition.max_time_min
    yield "DefaultTime", partition.default_time_min
    yield "PriorityTier", partition.priority_tier
    yield "OverSubscribe", "NO"
    if partition.groups:
        yield "AllowGroups", ",".join(sorted(partition.groups))
    if partition.only_reservations:
        yield "ReqResv", "YES"
    yield "State", "UP"


def _memory_per_cpu(shapes: Iterable[Shape]) -> int:
    """
    MiB a job gets for each CPU when it asks for none: what every shape can give to all of its CPUs.
    """
    return max(1, min(((shape.memory_mib - shape.system_memory_mib) // shape.cpus for shape in shapes), default=1))


def _share_hosts(plan: SlurmPlan) -> bool:
    return any(worker.port for worker in plan.workers)
