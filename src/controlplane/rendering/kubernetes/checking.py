"""
Whether a plan can be rendered: every word has a form that YAML, the shell and Kubernetes read as one word, and its parts fit together.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError

from controlplane.kit.errors import Invalid
from controlplane.rendering.kubernetes.charts import KNOWN
from controlplane.rendering.kubernetes.laws import upgrade_refusal
from controlplane.rendering.kubernetes.plan import KubernetesPlan, Position
from controlplane.rendering.slurm.words import Findings

OLDEST_MINOR, NEWEST_MINOR = 33, 37
"""Releases whose configuration formats were read. Source: kubernetes.io, "kubeadm Configuration (v1beta4)"; docs.k3s.io."""
QUORUMS = (1, 3, 5)
"""Sizes of etcd that make sense: an even one fails sooner and survives no more."""
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
VERSION = re.compile(r"1\.\d{1,3}\.\d{1,3}")
MOST_COMMANDS = 4000
"""Characters of the operator's commands."""
_NOT_IN_COMMANDS = frozenset(map(chr, range(32))) - {"\n", "\t"} | {"\x7f"}
_CHART_VERSION = re.compile(r"v?\d{1,4}(\.\d{1,6}){1,2}(-[0-9A-Za-z.]{1,32})?")
_SOURCE = re.compile(r"(oci://[a-z0-9.-]{1,200}(:\d{1,5})?)?(/[A-Za-z0-9_.+-]{1,100}){1,12}")
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?(:\d{1,5})?(/[a-z0-9._-]{1,100}){0,8}")
_INTERFACE = re.compile(r"[a-z][a-z0-9._-]{0,14}")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?){0,8}")


class BadPlan(Invalid):
    """
    The plan cannot be rendered: `errors` names each part that is wrong.
    """

    code = "kubernetes_plan_invalid"
    title = "The Kubernetes cluster cannot be built like this"


def check_plan(plan: KubernetesPlan) -> None:
    """
    Returns when the plan can be rendered. Raises BadPlan naming every part that is wrong.
    """
    found = Findings(BadPlan)
    _word(found, _HOST, plan.cluster, "cluster", "a DNS label")
    for version in (plan.version, *(one.version for one in plan.ahead)):
        check_version(found, version, "version")
    _check_ahead(plan, found)
    words = "a cluster has one, three or five control planes"
    sizes = {len(plan.founders), len(plan.control_planes)}  # between a control plane that is gone and the one in its place
    found.require(met=bool(sizes & set(QUORUMS)), field="control_planes", code="no_quorum", message=words)
    _check_hosts(plan, found)
    _check_shapes(plan, found)
    _check_networks(plan, found)
    _check_addons(plan, found)
    found.settle()


def check_version(found: Findings, version: str, field: str) -> None:
    """
    Notes what is wrong with a version of Kubernetes.
    """
    if _word(found, VERSION, version, field, "a version such as 1.36.2"):
        minor = int(version.split(".")[1])
        if not OLDEST_MINOR <= minor <= NEWEST_MINOR:
            found.add(field, "unknown_release", f"1.{minor} is not between 1.{OLDEST_MINOR} and 1.{NEWEST_MINOR}")


def _check_ahead(plan: KubernetesPlan, found: Findings) -> None:
    found.unique([one.name for one in plan.ahead], "ahead.name")
    for one in plan.ahead:
        _word(found, _HOST, one.name, "ahead.name", "a host name")
        known = VERSION.fullmatch(plan.version) and VERSION.fullmatch(one.version)
        if known and one.version != plan.version:
            refused = upgrade_refusal(plan.version, one.version)
            found.require(met=refused is None, field="ahead.version", code="skew", message=f"{one.name}: {refused}")
    if plan.programs is not None:
        texts = {"fetch": plan.programs.fetch, "install": plan.programs.install}
        for name, text in texts.items():
            good = not set(text) & _NOT_IN_COMMANDS and len(text) <= MOST_COMMANDS
            found.require(met=good, field=f"programs.{name}", code="bad_word", message="commands are lines of plain text")
        met = bool(plan.programs.install.strip())
        found.require(met=met, field="programs.install", code="empty", message="nothing would be installed")


def cluster_name(cluster_id: str) -> str:
    """
    The name of one of our clusters inside of it: its id as a DNS label, so that no two share one. Raises BadPlan.
    """
    found = Findings(BadPlan)
    name = cluster_id.replace("_", "-")
    _word(found, _HOST, name, "cluster_id", "a DNS label")
    found.settle()
    return name


def _check_hosts(plan: KubernetesPlan, found: Findings) -> None:
    hosts = [("control_planes", one.name, one.address) for one in plan.control_planes]
    hosts += [("workers", one.name, one.address) for one in plan.workers]
    for part, name, address in hosts:
        _word(found, _HOST, name, f"{part}.name", "a host name of lower-case letters, digits and inner hyphens")
        found.address(address, f"{part}.address")
    for lost in plan.departed:  # another host may have such an address by now
        _word(found, _HOST, lost.name, "departed.name", "a host name of lower-case letters, digits and inner hyphens")
        if lost.address:
            found.address(lost.address, "departed.address")
    found.unique([*(name for _, name, _ in hosts), *(one.name for one in plan.departed)], "hosts.name")
    found.unique([address for _, _, address in hosts], "hosts.address")
    shapes = {one.name for one in plan.shapes}
    for one in plan.workers:
        found.require(met=one.shape in shapes, field="workers.shape", code="unknown", message=f"{one.name} is of no known shape")
        for part in Position.__dataclass_fields__:
            value = getattr(one.position, part)
            if value:
                _word(found, LABEL_VALUE, value, f"workers.position.{part}", "a label's value")


def _check_shapes(plan: KubernetesPlan, found: Findings) -> None:
    found.unique([one.name for one in plan.shapes], "shapes.name")
    for one in plan.shapes:
        _word(found, LABEL_VALUE, one.name, "shapes.name", "a label's value")
        found.between(one.gpus, 0, 64, "shapes.gpus")
        if one.gpus or one.gpu_model:
            _word(found, LABEL_VALUE, one.gpu_model, "shapes.gpu_model", "a label's value")
        for interface in one.rdma_interfaces:
            _word(found, _INTERFACE, interface, "shapes.rdma_interfaces", "a network interface")


def _check_networks(plan: KubernetesPlan, found: Findings) -> None:
    _word(found, _DOMAIN, plan.networks.domain, "networks.domain", "a domain")
    pods = _network(found, plan.networks.pods, "networks.pods", 8, 23)
    services = _network(found, plan.networks.services, "networks.services", 12, 24)
    if pods is None or services is None:
        return
    found.require(
        met=not pods.overlaps(services), field="networks.services", code="overlap", message="pods and Services share addresses"
    )
    hosts = len(plan.control_planes) + len(plan.workers)
    room = 1 << (24 - pods.prefixlen)
    found.require(met=hosts <= room, field="networks.pods", code="too_small", message=f"{hosts} nodes need a /24 each, {room} fit")
    for told in [*(one.address for one in plan.control_planes), *(one.address for one in plan.workers)]:
        try:
            address = IPv4Address(told)
        except AddressValueError:
            continue
        if address in pods or address in services:
            found.add("networks", "overlap", f"{address} of a host is among the addresses of pods or Services")


def _check_addons(plan: KubernetesPlan, found: Findings) -> None:
    if plan.registry:
        _word(found, _REGISTRY, plan.registry, "registry", "a registry such as registry.example.org/mirror")
    for name, chart in sorted(plan.addons.charts.items()):
        found.require(
            met=name in KNOWN, field="addons.charts", code="unknown", message=f"{name[:60]} is no chart that is known here"
        )
        _word(found, _CHART_VERSION, chart.version, f"addons.charts.{name[:60]}.version", "a version")
        _word(found, _SOURCE, chart.source, f"addons.charts.{name[:60]}.source", "an archive or an oci:// address")


def _network(found: Findings, text: str, field: str, least: int, most: int) -> IPv4Network | None:
    try:
        network = IPv4Network(text)
    except (AddressValueError, NetmaskValueError, ValueError):
        found.add(field, "bad_network", f"{text[:60]!r} is not an IPv4 network")
        return None
    found.between(network.prefixlen, least, most, field)
    return network


def _word(found: Findings, form: re.Pattern[str], value: str, field: str, wanted: str) -> bool:
    good = bool(form.fullmatch(value)) and ".." not in value
    found.require(met=good, field=field, code="bad_word", message=f"{value[:60]!r} is not {wanted}")
    return good
