"""
Each role's files and script: what the control plane puts on a host before it starts its part of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controlplane.rendering.shell import Script
from controlplane.rendering.slurm import containers
from controlplane.rendering.slurm.accounting import accounting_files
from controlplane.rendering.slurm.cgroups import cgroup_file
from controlplane.rendering.slurm.checking import check_plan
from controlplane.rendering.slurm.conf import conf_file
from controlplane.rendering.slurm.fabric import fabric_files
from controlplane.rendering.slurm.files import Bundle, RenderedFile, Role, text_file
from controlplane.rendering.slurm.gres import gres_file
from controlplane.rendering.slurm.hooks import hook_files
from controlplane.rendering.slurm.inplace import release_files
from controlplane.rendering.slurm.keys import ClusterKeys, jwt_file, munge_file
from controlplane.rendering.slurm.outputs import output_files
from controlplane.rendering.slurm.plan import Host, SlurmPlan, Worker
from controlplane.rendering.slurm.scripts import head_script, login_script, worker_script
from controlplane.rendering.slurm.topology import topology_file
from controlplane.rendering.slurm.units import head_units, login_units, worker_units


def head_bundle(plan: SlurmPlan, keys: ClusterKeys, name: str = "") -> Bundle:
    """
    What a head is given; the first one when no name is. Raises BadPlan, and KeyError when there is no such head.
    """
    check_plan(plan)
    head = _host(plan.heads, name or plan.heads[0].name)
    files = [*key_files(plan, keys, "head"), *_head_files(plan, head)]
    return _bundle("head", head.name, files, head_script(plan, head))


def login_bundle(plan: SlurmPlan, keys: ClusterKeys, name: str) -> Bundle:
    """
    What a login is given. Raises BadPlan, and KeyError when there is no such login.
    """
    check_plan(plan)
    login = _host(plan.logins, name)
    files = [*key_files(plan, keys, "login"), *_login_files(plan)]
    return _bundle("login", login.name, files, login_script(plan))


def worker_bundle(plan: SlurmPlan, keys: ClusterKeys, name: str) -> Bundle:
    """
    What a worker is given; slurm.conf and its kin are not among it, slurmd gets them from the head. Raises BadPlan, and KeyError when
    there is no such worker.
    """
    check_plan(plan)
    worker = plan.worker(name)
    files = [*key_files(plan, keys, "worker"), *_worker_files(plan, worker)]
    return _bundle("worker", worker.name, files, worker_script(plan))


def key_files(plan: SlurmPlan, keys: ClusterKeys, role: Role) -> tuple[RenderedFile, ...]:
    """
    The secret files of a role: they are the same on all its hosts and for as long as the cluster lives.
    """
    munge = munge_file(keys, plan.layout)
    return (munge, jwt_file(keys, plan.layout)) if role == "head" else (munge,)


def plain_files(plan: SlurmPlan, role: Role, name: str) -> tuple[RenderedFile, ...]:
    """
    The files of a host without its keys, by path: what changes when the cluster does. Raises BadPlan, and KeyError when there is no such
    host.
    """
    check_plan(plan)
    if role == "head":
        files = _head_files(plan, _host(plan.heads, name))
    elif role == "login":
        files = _login_files(plan)
    else:
        files = _worker_files(plan, plan.worker(name))
    return tuple(sorted(files, key=lambda one: one.path))


def _head_files(plan: SlurmPlan, head: Host) -> list[RenderedFile]:
    files = [*served_files(plan), *head_units(plan, head), *_names(plan)]
    if plan.install:
        files += release_files(plan, plan.install, "head", head_script(plan, head))
    return [*files, *accounting_files(plan)] if head == plan.heads[0] else files


def _login_files(plan: SlurmPlan) -> list[RenderedFile]:
    files = [*login_units(plan), *_names(plan)]
    if not plan.words.has_sackd:
        files += [conf_file(plan), *filter(None, (containers.plugstack_file(plan),))]
        # commands read the file at each call, and no daemon is there to be told
        files = [_quiet(each) for each in files]
    if plan.install and plan.install.release == plan.release:
        files += release_files(plan, plan.install, "login", login_script(plan))
    return files


def _worker_files(plan: SlurmPlan, worker: Worker) -> list[RenderedFile]:
    return [
        *worker_units(plan, worker),
        *hook_files(plan, worker),
        *fabric_files(plan, worker),
        *output_files(plan),
        *containers.worker_files(plan, plan.shape_of[worker.shape].rdma),
        *_names(plan),
    ]


def served_files(plan: SlurmPlan) -> Iterator[RenderedFile]:
    """
    What heads hold and serve to everybody else.
    """
    yield conf_file(plan)
    yield cgroup_file(plan)
    yield gres_file(plan)
    yield from filter(None, (topology_file(plan), containers.plugstack_file(plan)))


def _names(plan: SlurmPlan) -> Iterator[RenderedFile]:
    """
    /etc/hosts, the same on every host: job scripts use node names.
    """
    if not plan.hosts_file:
        return
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{host.address} {host.name}" for host in sorted((*plan.heads, *plan.logins), key=lambda one: one.name)]
    for worker in plan.ordered:
        alias = f" {worker.hostname}" if worker.hostname and worker.hostname != worker.name else ""
        lines.append(f"{worker.address} {worker.name}{alias}")
    yield text_file("/etc/hosts", lines)


def _bundle(role: Role, host: str, files: Iterable[RenderedFile], script: Script) -> Bundle:
    return Bundle(role, host, tuple(sorted(files, key=lambda one: one.path)), (script,))


def _quiet(file: RenderedFile) -> RenderedFile:
    if file.on_change != "reconfigure":
        return file
    return RenderedFile(file.path, file.content, file.mode, file.owner, secret=file.secret)


def _host(hosts: Iterable[Host], name: str) -> Host:
    return {host.name: host for host in hosts}[name]
