"""
From one plan to the next on a running cluster: which files are written, and whether daemons are told to read them or are restarted.

Source: scontrol(1), reconfigure: up to 23.02 nodes and many keys need a restart, from 23.11 on only ports and authentication do;
slurm.conf(5) of 22.05 for the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.rendering.slurm.conf import CONF
from controlplane.rendering.slurm.files import COMMANDS, Bundle, Change, RenderedFile
from controlplane.rendering.slurm.plan import SlurmPlan, Worker
from controlplane.rendering.slurm.releases import Release
from controlplane.rendering.slurm.words import BadPlan

FOR_EVER = frozenset({"ClusterName", "StateSaveLocation"})
"""A change would leave the jobs of the old cluster behind."""
ALWAYS_RESTART = frozenset(
    {
        *("SlurmctldHost", "SlurmctldPort", "SlurmdPort", "SlurmUser", "CommunicationParameters"),
        *("AuthType", "AuthInfo", "AuthAltTypes", "AuthAltParameters", "CredType"),
    }
)
"""Keys that every release reads only at its start."""
OLD_RESTART = frozenset(
    {
        *("AccountingStorageEnforce", "AccountingStorageType", "AccountingStorageHost", "AccountingStorageTRES", "GresTypes"),
        *("JobAcctGatherType", "MaxJobCount", "NodeName", "PriorityType", "ProctrackType", "SchedulerParameters", "SchedulerType"),
        *("SelectType", "SelectTypeParameters", "SlurmctldParameters", "SwitchType", "TaskPlugin", "TopologyPlugin"),
    }
)
"""Keys that releases before 23.11 read only at their start."""
FOR_WORKERS = frozenset(
    {"SlurmdPort", "SlurmctldPort", "SlurmctldHost", "AuthType", "AuthInfo", "CredType", "CommunicationParameters", "SlurmUser"}
)
"""Keys after whose change each slurmd is restarted too, whatever the release."""
OLD_FOR_WORKERS = frozenset({"GresTypes", "JobAcctGatherType", "ProctrackType", "SelectType", "SwitchType", "TaskPlugin"})
"""The same, before 23.11."""
UNITS = "/etc/systemd/system/"
ORDER: tuple[Change, ...] = tuple(COMMANDS)


@dataclass(frozen=True, slots=True)
class Renewal:
    """
    What a new bundle changes on a host.
    """

    write: tuple[RenderedFile, ...]
    """New or changed, in full."""
    remove: tuple[str, ...]
    """Paths that are not part of it any more."""
    commands: tuple[str, ...]
    """To be run on the host afterwards, as root, in this order. They may be run again."""
    on_workers: tuple[str, ...]
    """To be run on every worker once the host's commands have succeeded; empty but for a head whose change slurmd cannot be told."""


@dataclass(frozen=True, slots=True)
class Movement:
    """
    How the workers of two plans differ, by name.
    """

    joining: tuple[str, ...]
    """They are given their bundle before the head names them."""
    leaving: tuple[str, ...]
    """They are drained and idle before the head stops naming them: Slurm ends what runs on a node that is gone."""
    changed: tuple[str, ...]
    """Same name, other address, shape or place: replaced hardware. Drained first, like leaving."""


def movement(before: SlurmPlan, after: SlurmPlan) -> Movement:
    """
    Who joins, leaves and is replaced, each in the order of rendering.
    """
    old = {worker.name: worker for worker in before.workers}
    new = {worker.name: worker for worker in after.workers}
    return Movement(
        joining=_named(after.ordered, new.keys() - old.keys()),
        leaving=_named(before.ordered, old.keys() - new.keys()),
        changed=_named(after.ordered, {name for name in new.keys() & old.keys() if new[name] != old[name]}),
    )


def renewal(before: Bundle, after: Bundle, release: Release) -> Renewal:
    """
    What changes on one host between two bundles of it. Raises BadPlan for a change that a cluster cannot make in its lifetime.
    """
    if (before.role, before.host) != (after.role, after.host):
        raise BadPlan(f"host: {before.role} {before.host} cannot become {after.role} {after.host}", code="slurm_change_impossible")
    old = {file.path: file for file in before.files}
    write = tuple(file for file in after.files if old.get(file.path) != file)
    removed = tuple(sorted(old.keys() - {file.path for file in after.files}))
    asked = {file.on_change for file in write} | {old[path].on_change for path in removed}
    if any(path.startswith(UNITS) for path in (*removed, *(file.path for file in write))):
        asked.add("units")
    on_workers: tuple[str, ...] = ()
    if before.role == "head":
        keys = _changed_keys(_conf(before), _conf(after))
        stuck = sorted(keys & FOR_EVER)
        if stuck:
            raise BadPlan(f"{', '.join(stuck)} of a cluster never changes", code="slurm_change_impossible")
        new_words = release.reconfigure_takes_nodes
        if keys & ALWAYS_RESTART or (not new_words and keys & OLD_RESTART):
            asked.add("slurmctld")
        if keys & FOR_WORKERS or (not new_words and keys & OLD_FOR_WORKERS):
            on_workers = COMMANDS["slurmd"]
    commands = tuple(command for change in ORDER if change in asked for command in COMMANDS[change])
    return Renewal(write, removed, commands, on_workers)


def grown(plan: SlurmPlan, workers: Iterable[Worker]) -> SlurmPlan:
    """
    The plan with these workers beside its own.
    """
    return replace(plan, workers=(*plan.workers, *workers))


def shrunk(plan: SlurmPlan, names: Iterable[str]) -> SlurmPlan:
    """
    The plan without the workers of these names. Raises BadPlan when one is not in it.
    """
    gone = set(names)
    unknown = sorted(gone - {worker.name for worker in plan.workers})
    if unknown:
        raise BadPlan(f"workers: not in this cluster: {', '.join(unknown[:20])}")
    return replace(plan, workers=tuple(worker for worker in plan.workers if worker.name not in gone))


def _named(workers: Iterable[Worker], names: set[str]) -> tuple[str, ...]:
    return tuple(worker.name for worker in workers if worker.name in names)


def _conf(bundle: Bundle) -> Mapping[str, frozenset[str]]:
    """
    slurm.conf's lines by their first key.
    """
    text = next(file.content.decode() for file in bundle.files if file.path.endswith(f"/{CONF}"))
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            found.setdefault(line.partition("=")[0], set()).add(line)
    return {key: frozenset(lines) for key, lines in found.items()}


def _changed_keys(before: Mapping[str, frozenset[str]], after: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
