"""
From plan to plan: what is written, and whether daemons are told or restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controlplane.rendering.slurm.changes import Renewal, grown, movement, renewal, shrunk
from controlplane.rendering.slurm.files import COMMANDS
from controlplane.rendering.slurm.keys import ClusterKeys
from controlplane.rendering.slurm.plan import Partition, SlurmPlan
from controlplane.rendering.slurm.releases import RELEASES, ReleaseName
from controlplane.rendering.slurm.roles import head_bundle, worker_bundle
from controlplane.rendering.slurm.words import BadPlan
from tests.factories.slurm_plans import KEYS, hgx_worker, leaf_spine

Change = Callable[[SlurmPlan], SlurmPlan]
RESTART = COMMANDS["slurmctld"]
RECONFIGURE = COMMANDS["reconfigure"]
OLD_AND_NEW: tuple[ReleaseName, ReleaseName] = ("22.05", "24.11")


def head_renewal(change: Change, release: ReleaseName) -> Renewal:
    """What the change asks of the head."""
    before = replace(leaf_spine(), release=release)
    return renewal(head_bundle(before, KEYS), head_bundle(change(before), KEYS), RELEASES[release])


@pytest.mark.parametrize("release", OLD_AND_NEW)
def test_nothing_new_asks_for_nothing(release: ReleaseName) -> None:
    """The same plan, told again in another order."""
    assert head_renewal(lambda plan: replace(plan, workers=plan.workers[::-1]), release) == Renewal((), (), (), ())


@pytest.mark.parametrize(("release", "commands"), [("22.05", RESTART + RECONFIGURE), ("24.11", RECONFIGURE)])
def test_a_worker_joins_by_what_the_release_needs(release: ReleaseName, commands: tuple[str, ...]) -> None:
    """Up to 23.02 slurmctld starts anew; slurmd is told by reconfigure. Only files that name workers are written."""
    change = head_renewal(lambda plan: grown(plan, [hgx_worker(5)]), release)
    assert change.commands == commands
    assert {file.path for file in change.write} == {
        "/etc/hosts",
        *(f"/etc/slurm/{name}.conf" for name in ("slurm", "gres", "topology")),
    }
    assert change.on_workers == ()


@pytest.mark.parametrize("release", OLD_AND_NEW)
def test_a_limit_is_told_without_a_restart(release: ReleaseName) -> None:
    """A partition's longest time."""
    partitions = (Partition("main", default=True, max_time_min=600), Partition("urgent", priority_tier=10, max_time_min=240))
    assert head_renewal(lambda plan: replace(plan, partitions=partitions), release).commands == RECONFIGURE


@pytest.mark.parametrize("release", OLD_AND_NEW)
def test_a_port_needs_every_daemon_anew(release: ReleaseName) -> None:
    """No release takes another port while it runs; slurmd cannot be told either."""
    change = head_renewal(lambda plan: replace(plan, ports=replace(plan.ports, slurmd=7000)), release)
    assert change.commands == RESTART + RECONFIGURE
    assert change.on_workers == COMMANDS["slurmd"]


@pytest.mark.parametrize(("release", "commands"), [("22.05", RESTART + RECONFIGURE), ("24.11", RECONFIGURE)])
def test_old_releases_restart_for_keys_that_new_ones_take(release: ReleaseName, commands: tuple[str, ...]) -> None:
    """The scheduler's parameters."""
    assert head_renewal(lambda plan: replace(plan, scheduler=("bf_continue",)), release).commands == commands


def test_units_are_loaded_before_daemons_start() -> None:
    """The REST API gets another port: its drop-in is read first."""
    change = head_renewal(lambda plan: replace(plan, ports=replace(plan.ports, slurmrestd=7001)), "24.11")
    assert change.commands == ("systemctl daemon-reload", "systemctl try-restart slurmrestd.service")


def test_what_is_not_wanted_any_more_is_removed() -> None:
    """Containers switched off: their files go, on the head and on workers."""
    without = replace(leaf_spine(), containers=None)
    assert head_renewal(lambda _: without, "22.05").remove == ("/etc/slurm/plugstack.conf",)
    before, after = worker_bundle(leaf_spine(), KEYS, "gpu-001"), worker_bundle(without, KEYS, "gpu-001")
    assert "/etc/enroot/enroot.conf" in renewal(before, after, RELEASES["22.05"]).remove


def test_a_new_key_restarts_munge_everywhere() -> None:
    """Sign with another key, and everybody else is a stranger."""
    other = ClusterKeys(bytes(1024), bytes(64))
    before, after = worker_bundle(leaf_spine(), KEYS, "gpu-001"), worker_bundle(leaf_spine(), other, "gpu-001")
    change = renewal(before, after, RELEASES["22.05"])
    assert change.commands == COMMANDS["munge"]
    assert [file.path for file in change.write] == ["/etc/munge/munge.key"]


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: replace(plan, cluster="clu_other"),
        lambda plan: replace(plan, layout=replace(plan.layout, state_dir="/srv/state")),
    ],
    ids=["name", "state"],
)
def test_some_things_never_change(change: Change) -> None:
    """They would leave the jobs of the cluster behind."""
    with pytest.raises(BadPlan) as caught:
        head_renewal(change, "24.11")
    assert caught.value.code == "slurm_change_impossible"


def test_a_host_cannot_become_another() -> None:
    """Bundles of two hosts are not two states of one."""
    plan = leaf_spine()
    with pytest.raises(BadPlan):
        renewal(worker_bundle(plan, KEYS, "gpu-001"), worker_bundle(plan, KEYS, "gpu-002"), plan.words)


def test_who_moves_is_told_by_name() -> None:
    """One joins, one leaves, one has new hardware under its old name."""
    before = leaf_spine()
    replaced = replace(before.workers[0], address="10.20.0.77")
    after = shrunk(grown(before, [hgx_worker(5)]), ["gpu-004"])
    after = replace(after, workers=tuple(replaced if worker.name == replaced.name else worker for worker in after.workers))
    moved = movement(before, after)
    assert (moved.joining, moved.leaving, moved.changed) == (("gpu-005",), ("gpu-004",), ("gpu-001",))
