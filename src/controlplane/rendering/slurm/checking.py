"""
Whether a plan can be rendered: every word is one Slurm takes as a word, every reference has its target, every number makes sense.
"""

from __future__ import annotations

from controlplane.rendering.slurm.plan import Gpus, Rdma, Shape, SlurmPlan
from controlplane.rendering.slurm.releases import RELEASES
from controlplane.rendering.slurm.words import BadPlan, Findings

MAX_WORKERS = 10_000
MIN_UID = 1000
MAX_UID = 60_000
MAX_MEMORY_MIB = 1 << 26


def check_plan(plan: SlurmPlan) -> None:
    """
    The plan can be rendered. Raises BadPlan with everything that is wrong.
    """
    found = Findings()
    if plan.release not in RELEASES:
        raise BadPlan(f"release: {plan.release!r} is not one of {', '.join(RELEASES)}")
    if plan.install and plan.install.release != plan.release and plan.release not in RELEASES[plan.install.release].upgrades_from:
        raise BadPlan(f"install: {plan.install.release} does not understand {plan.release}", code="slurm_upgrade_impossible")
    found.word("cluster", plan.cluster, "cluster")
    _hosts(plan, found)
    _workers(plan, found)
    for shape in plan.shapes:
        _shape(shape, found)
    found.unique([shape.name for shape in plan.shapes], "shapes")
    types = {(shape.gpus.model, shape.gpus.gres_type) for shape in plan.shapes if shape.gpus}
    found.unique([model for model, _ in types], "shapes.gpus.model")
    _partitions(plan, found)
    _users(plan, found)
    _options(plan, found)
    _numbers(plan, found)
    _paths(plan, found)
    found.settle()


def _hosts(plan: SlurmPlan, found: Findings) -> None:
    found.require(met=bool(plan.heads), field="heads", code="missing", message="a cluster needs a head")
    found.require(
        met=len(plan.heads) <= 1 or plan.shared_state,
        field="heads",
        code="needs_shared_state",
        message="several heads need one state directory that all of them see",
    )
    for role, hosts in (("heads", plan.heads), ("logins", plan.logins)):
        for number, host in enumerate(hosts):
            found.word("host", host.name, f"{role}.{number}.name")
            found.address(host.address, f"{role}.{number}.address")
    names = [host.name for host in (*plan.heads, *plan.logins)] + [worker.name for worker in plan.workers]
    found.unique(names, "names")


def _workers(plan: SlurmPlan, found: Findings) -> None:
    found.require(met=bool(plan.workers), field="workers", code="missing", message="a cluster needs a worker")
    found.require(
        met=len(plan.workers) <= MAX_WORKERS, field="workers", code="too_many", message=f"more than {MAX_WORKERS} workers"
    )
    for worker in plan.workers:
        where = f"workers.{worker.name[:64]}"
        found.word("host", worker.name, f"{where}.name")
        found.address(worker.address, f"{where}.address")
        if worker.hostname:
            found.word("host", worker.hostname, f"{where}.hostname")
        if worker.port:
            found.between(worker.port, 1, 65_535, f"{where}.port")
        found.require(
            met=worker.shape in plan.shape_of, field=f"{where}.shape", code="unknown", message=f"no shape {worker.shape[:60]!r}"
        )
        position = worker.position
        for part in ("block", "leaf", "rack", "nvlink_domain"):
            value = getattr(position, part)
            if value:
                found.word("label", value, f"{where}.position.{part}")
        found.require(
            met=not position.leaf or bool(position.block),
            field=f"{where}.position",
            code="incomplete",
            message="a leaf is in a block",
        )
    seats = [f"{worker.address}:{worker.port or plan.ports.slurmd}" for worker in plan.workers]
    found.unique(seats, "addresses")


def _shape(shape: Shape, found: Findings) -> None:
    where = f"shapes.{shape.name[:64]}"
    found.word("label", shape.name, f"{where}.name")
    found.between(shape.sockets, 1, 16, f"{where}.sockets")
    found.between(shape.cores_per_socket, 1, 512, f"{where}.cores_per_socket")
    found.between(shape.threads_per_core, 1, 8, f"{where}.threads_per_core")
    found.between(shape.memory_mib, 1, MAX_MEMORY_MIB, f"{where}.memory_mib")
    found.between(shape.system_memory_mib, 0, max(0, shape.memory_mib - 1), f"{where}.system_memory_mib")
    if shape.gpus:
        _gpus(shape.gpus, f"{where}.gpus", found)
    if shape.rdma:
        _rdma(shape.rdma, f"{where}.rdma", found)


def _gpus(gpus: Gpus, where: str, found: Findings) -> None:
    found.require(met=bool(gpus.model.strip()), field=f"{where}.model", code="missing", message="the catalog's model is needed")
    found.word("label", gpus.gres_type, f"{where}.gres_type")
    found.word("path", gpus.device_prefix, f"{where}.device_prefix")
    found.between(gpus.count, 1, 64, f"{where}.count")
    numbers = [number for group in gpus.groups for number in range(group.first, group.first + min(group.count, 65))]
    found.unique([str(number) for number in numbers], f"{where}.groups")
    for group in gpus.groups:
        found.between(group.first, 0, 255, f"{where}.groups.first")
        found.between(group.count, 1, 64, f"{where}.groups.count")
        if group.cores:
            found.word("cores", group.cores, f"{where}.groups.cores")


def _rdma(rdma: Rdma, where: str, found: Findings) -> None:
    found.require(met=bool(rdma.devices), field=f"{where}.devices", code="missing", message="at least one device is needed")
    found.unique(rdma.devices, f"{where}.devices")
    for device in rdma.devices:
        found.word("device", device, f"{where}.devices")
    found.word("device", rdma.interface, f"{where}.interface")
    for name in ("gid_index", "traffic_class", "service_level"):
        value = getattr(rdma, name)
        if value is not None:
            found.between(value, 0, 255, f"{where}.{name}")


def _partitions(plan: SlurmPlan, found: Findings) -> None:
    for partition in plan.partitions:
        where = f"partitions.{partition.name[:64]}"
        found.word("label", partition.name, f"{where}.name")
        found.between(partition.default_time_min, 1, 525_600, f"{where}.default_time_min")
        found.between(partition.priority_tier, 1, 65_533, f"{where}.priority_tier")
        if partition.max_time_min is not None:
            found.between(partition.max_time_min, partition.default_time_min, 525_600, f"{where}.max_time_min")
        for shape in partition.shapes:
            found.require(met=shape in plan.shape_of, field=f"{where}.shapes", code="unknown", message=f"no shape {shape[:60]!r}")
        found.unique(partition.shapes, f"{where}.shapes")
        for group in partition.groups:
            found.word("account", group, f"{where}.groups")
    found.unique([partition.name for partition in plan.partitions], "partitions")
    found.require(
        met=sum(partition.default for partition in plan.partitions) == 1,
        field="partitions",
        code="one_default",
        message="exactly one partition is the default",
    )


def _users(plan: SlurmPlan, found: Findings) -> None:
    for user in plan.users:
        found.word("account", user.name, f"users.{user.name[:64]}.name")
        found.between(user.uid, MIN_UID, MAX_UID, f"users.{user.name[:64]}.uid")
    found.unique([user.name for user in plan.users], "users")
    found.unique([str(user.uid) for user in plan.users], "users.uid")


def _options(plan: SlurmPlan, found: Findings) -> None:
    words = plan.words
    found.require(
        met=plan.topology != "block" or (words.has_blocks and all(one.position.nvlink_domain for one in plan.workers)),
        field="topology",
        code="unsupported",
        message=f"blocks need Slurm 24.11 or later and an NVLink domain of every worker; this is {words.name}",
    )
    found.require(
        met=not plan.imex or words.has_imex,
        field="imex",
        code="unsupported",
        message=f"IMEX channels need Slurm 24.11 or later; this is {words.name}",
    )
    if plan.containers:
        found.word("path", plan.containers.plugin, "containers.plugin")
        found.word("path", plan.containers.scratch_dir, "containers.scratch_dir")
    if plan.accounting:
        found.word("label", plan.accounting.account, "accounting.account")
        found.between(plan.accounting.keep_months, 1, 120, "accounting.keep_months")
        found.between(plan.accounting.buffer_pool_mib, 64, 1 << 20, "accounting.buffer_pool_mib")
        known = {"associations", "limits", "qos", "safe"}
        for enforced in plan.accounting.enforce:
            found.require(met=enforced in known, field="accounting.enforce", code="unknown", message=f"{enforced[:40]!r}")
    if plan.health:
        found.between(plan.health.interval_s, 30, 86_400, "health.interval_s")
    for setting in plan.scheduler:
        found.word("setting", setting, "scheduler")


def _numbers(plan: SlurmPlan, found: Findings) -> None:
    for name in ("slurmctld", "slurmd", "slurmdbd", "slurmrestd"):
        found.between(getattr(plan.ports, name), 1, 65_535, f"ports.{name}")
    found.unique([str(getattr(plan.ports, name)) for name in ("slurmctld", "slurmdbd", "slurmrestd")], "ports")
    for name in ("slurmd_timeout_s", "slurmctld_timeout_s", "reboot_s", "kill_wait_s", "unkillable_s", "hook_s"):
        found.between(getattr(plan.timing, name), 1, 65_533, f"timing.{name}")
    found.between(plan.timing.credential_s, 5, 3600, "timing.credential_s")
    found.between(plan.limits.max_jobs, 1, 1_000_000, "limits.max_jobs")
    found.between(plan.limits.max_array, 1, 4_000_001, "limits.max_array")
    found.between(plan.limits.remember_s, 2, 604_800, "limits.remember_s")


def _paths(plan: SlurmPlan, found: Findings) -> None:
    for name in plan.layout.__slots__:
        found.word("path", getattr(plan.layout, name), f"layout.{name}")
