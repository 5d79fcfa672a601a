"""
Each role's files and script. Control planes all get the same, and so do workers of a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controlplane.rendering.kubernetes import k3s, kubeadm, layout
from controlplane.rendering.kubernetes.addons import addon_files
from controlplane.rendering.kubernetes.checking import check_plan
from controlplane.rendering.kubernetes.files import Bundle, RenderedFile, Role, text_file
from controlplane.rendering.kubernetes.inplace import version_files
from controlplane.rendering.kubernetes.keys import ClusterKeys
from controlplane.rendering.kubernetes.members import member_files
from controlplane.rendering.kubernetes.plan import KubernetesPlan
from controlplane.rendering.kubernetes.scripts import control_plane_script, worker_script


def control_plane_bundle(plan: KubernetesPlan, keys: ClusterKeys) -> Bundle:
    """
    What every control plane is given. Raises BadPlan.
    """
    check_plan(plan)
    files = (*control_plane_secrets(plan, keys), *control_plane_files(plan))
    return Bundle("control_plane", _by_path(files), control_plane_script(plan))


def worker_bundle(plan: KubernetesPlan, keys: ClusterKeys, shape: str) -> Bundle:
    """
    What every worker of this shape is given. Raises BadPlan, and KeyError when there is no such shape.
    """
    check_plan(plan)
    files = (*worker_secrets(plan, keys, shape), *worker_files(plan, shape))
    return Bundle("worker", _by_path(files), worker_script(plan))


def control_plane_secrets(plan: KubernetesPlan, keys: ClusterKeys) -> tuple[RenderedFile, ...]:
    """
    Secret files of control planes: the same for as long as the cluster lives, whoever its members are.
    """
    if plan.distribution == "k3s":
        return _by_path(k3s.key_files(keys))
    documents = (kubeadm.init_file(plan, keys), kubeadm.join_control_plane_file(plan, keys))
    return _by_path((*kubeadm.key_files(keys), *documents))


def worker_secrets(plan: KubernetesPlan, keys: ClusterKeys, shape: str) -> tuple[RenderedFile, ...]:
    """
    Secret files of workers of this shape: the same for as long as the cluster lives. Raises KeyError.
    """
    return k3s.agent_key_files(keys) if plan.distribution == "k3s" else (kubeadm.join_file(plan, keys, shape),)


def control_plane_files(plan: KubernetesPlan) -> tuple[RenderedFile, ...]:
    """
    Files of control planes without keys, by path: what changes when the cluster does. Raises BadPlan.
    """
    check_plan(plan)
    files: list[RenderedFile] = [*member_files(plan), *addon_files(plan), *_common(plan, "control_plane")]
    files.append(text_file(layout.CONTROL_PLANES, [f"{one.name} {one.address}" for one in plan.founders]))
    files.append(text_file(layout.FOUNDER, [plan.founder]))
    if plan.distribution == "k3s":
        files += [k3s.server_config(plan), k3s.unit_file("control_plane")]
    else:
        files.append(kubeadm.cluster_file(plan))
    return _by_path(files)


def worker_files(plan: KubernetesPlan, shape: str) -> tuple[RenderedFile, ...]:
    """
    Files of workers of this shape without keys, by path. Raises BadPlan, KeyError.
    """
    check_plan(plan)
    files = [*_common(plan, "worker")]
    if plan.distribution == "k3s":
        files += [k3s.agent_config(plan, shape), k3s.unit_file("worker")]
    return _by_path(files)


def _common(plan: KubernetesPlan, role: Role) -> Iterator[RenderedFile]:
    """
    What every host has: the API's name with all its addresses, and what a host of any cluster has.
    """
    yield from host_files(plan, role)
    names = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    names += [f"{one.address} {plan.api_name} {one.name}" for one in plan.founders]
    yield text_file(layout.HOSTS, names)


def host_files(plan: KubernetesPlan, role: Role) -> Iterator[RenderedFile]:
    """
    Its version, and what pods' networks ask of a kernel.
    """
    yield from version_files(plan, role)
    yield text_file("/etc/modules-load.d/90-kubernetes.conf", ["overlay", "br_netfilter"])
    settings = ["net.bridge.bridge-nf-call-iptables = 1", "net.bridge.bridge-nf-call-ip6tables = 1", "net.ipv4.ip_forward = 1"]
    settings += ["fs.inotify.max_user_instances = 8192", "fs.inotify.max_user_watches = 1048576"]
    yield text_file("/etc/sysctl.d/90-kubernetes.conf", settings, on_change="sysctl --quiet --system || true")


def _by_path(files: Iterable[RenderedFile]) -> tuple[RenderedFile, ...]:
    return tuple(sorted(files, key=lambda one: one.path))
