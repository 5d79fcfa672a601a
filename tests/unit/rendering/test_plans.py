"""
Plans that cannot be rendered are refused with everything that is wrong, by field and code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from controlplane.providers.adapters.slurm.config import SlurmConfig
from controlplane.providers.adapters.slurm.tokens import Tokens
from controlplane.rendering.slurm.changes import shrunk
from controlplane.rendering.slurm.checking import MAX_WORKERS, check_plan
from controlplane.rendering.slurm.plan import GpuGroup, Gpus, Host, Partition, Position, Shape, SlurmPlan, User, Worker
from controlplane.rendering.slurm.roles import head_bundle, login_bundle, worker_bundle
from controlplane.rendering.slurm.settings import adapter_settings
from controlplane.rendering.slurm.upgrades import upgrade_path, upgrade_waves
from controlplane.rendering.slurm.words import BadPlan, cluster_name
from tests.factories.slurm_plans import HGX, KEYS, leaf_spine, nvl_rack, with_accounting

Change = Callable[[SlurmPlan], SlurmPlan]


def first(plan: SlurmPlan, **change: object) -> SlurmPlan:
    """The plan with another first worker."""
    return replace(plan, workers=(replace(plan.workers[0], **change), *plan.workers[1:]))  # type: ignore[arg-type]


def gpus(*groups: GpuGroup) -> tuple[Shape, ...]:
    """The HGX shape with other GPUs."""
    return (replace(HGX, gpus=Gpus("H100-SXM5-80GB", "h100", groups)),)


BAD: dict[str, tuple[Change, str, str]] = {
    "no head": (lambda plan: replace(plan, heads=()), "heads", "missing"),
    "no worker": (lambda plan: replace(plan, workers=()), "workers", "missing"),
    "two heads, two disks": (
        lambda plan: replace(plan, heads=(*plan.heads, Host("h2", "10.20.0.9"))),
        "heads",
        "needs_shared_state",
    ),
    "a name twice": (lambda plan: replace(plan, workers=(*plan.workers, plan.workers[0])), "names", "duplicate"),
    "a worker called as the head": (lambda plan: first(plan, name="head-1"), "names", "duplicate"),
    "an address twice": (lambda plan: first(plan, address=plan.workers[1].address), "addresses", "duplicate"),
    "an address of nobody": (lambda plan: first(plan, address="0.0.0.0"), "workers.gpu-001.address", "bad_address"),
    "IPv6": (lambda plan: first(plan, address="fd00::1"), "workers.gpu-001.address", "bad_address"),
    "an unknown shape": (lambda plan: first(plan, shape="other"), "workers.gpu-001.shape", "unknown"),
    "a leaf without a block": (lambda plan: first(plan, position=Position(leaf="l1")), "workers.gpu-001.position", "incomplete"),
    "a reserved name": (lambda plan: first(plan, name="default"), "workers.default.name", "bad_word"),
    "a capital": (lambda plan: first(plan, name="N1"), "workers.N1.name", "bad_word"),
    "no default partition": (lambda plan: replace(plan, partitions=(Partition("p"),)), "partitions", "one_default"),
    "a partition of nothing": (
        lambda plan: replace(plan, partitions=(Partition("p", ("other",), default=True),)),
        "partitions.p.shapes",
        "unknown",
    ),
    "a default over the limit": (
        lambda plan: replace(plan, partitions=(Partition("p", default=True, max_time_min=5),)),
        "partitions.p.max_time_min",
        "out_of_range",
    ),
    "a system account": (lambda plan: replace(plan, users=(User("root", 0),)), "users.root.uid", "out_of_range"),
    "a GPU twice": (
        lambda plan: replace(plan, shapes=gpus(GpuGroup(0, 4), GpuGroup(3, 4))),
        "shapes.hgx-h100-8.gpus.groups",
        "duplicate",
    ),
    "no GPU": (lambda plan: replace(plan, shapes=gpus()), "shapes.hgx-h100-8.gpus.count", "out_of_range"),
    "a model of two types": (
        lambda plan: replace(plan, shapes=(HGX, replace(HGX, name="b", gpus=Gpus("H100-SXM5-80GB", "hopper", (GpuGroup(0, 8),))))),
        "shapes.gpus.model",
        "duplicate",
    ),
    "all memory kept": (
        lambda plan: replace(plan, shapes=(replace(HGX, system_memory_mib=HGX.memory_mib),)),
        "shapes.hgx-h100-8.system_memory_mib",
        "out_of_range",
    ),
    "blocks before their time": (lambda plan: replace(plan, topology="block"), "topology", "unsupported"),
    "IMEX before its time": (lambda plan: replace(plan, imex=True), "imex", "unsupported"),
    "one port twice": (lambda plan: replace(plan, ports=replace(plan.ports, slurmrestd=6817)), "ports", "duplicate"),
    "too many": (
        lambda plan: replace(
            plan,
            workers=tuple(
                Worker(f"n{n}", f"10.{n // 65536}.{n // 256 % 256}.{n % 256}", HGX.name) for n in range(1, MAX_WORKERS + 2)
            ),
        ),
        "workers",
        "too_many",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused(case: str) -> None:
    """The error names the part and a stable code."""
    change, field, code = BAD[case]
    with pytest.raises(BadPlan) as caught:
        check_plan(change(leaf_spine()))
    assert (field, code) in {(each.field, each.code) for each in caught.value.errors}


def test_all_that_is_wrong_is_told_at_once() -> None:
    """Two mistakes, two errors."""
    with pytest.raises(BadPlan) as caught:
        check_plan(replace(leaf_spine(), cluster="Bad Name", partitions=()))
    assert {"cluster", "partitions"} <= {each.field for each in caught.value.errors}


def test_unknown_hosts_are_no_hosts() -> None:
    """A bundle is for a host of the plan."""
    plan = leaf_spine()
    for make in (head_bundle, login_bundle, worker_bundle):
        with pytest.raises(KeyError):
            make(plan, KEYS, "stranger")


def test_a_cluster_is_named_by_its_id() -> None:
    """The id itself, or a refusal: slurmdbd folds case, and two clusters must never share a name."""
    assert cluster_name("clu_01k5x7p3r8w2v6t9q4n0m1c2d3") == "clu_01k5x7p3r8w2v6t9q4n0m1c2d3"
    for bad in ("CLU_1", "clu-1", "", "1clu", "c" * 41):
        with pytest.raises(BadPlan):
            cluster_name(bad)


@pytest.mark.parametrize("plan", [leaf_spine(), nvl_rack(), with_accounting()], ids=lambda plan: plan.cluster)
def test_settings_are_what_the_adapter_takes(plan: SlurmPlan) -> None:
    """Its own config class and token maker accept them, with a command prefix and without."""
    for prefix in ((), ("ssh", "-oBatchMode=yes", "head")):
        settings = adapter_settings(plan, command_prefix=prefix, output_dir="/home/{user}")
        config = SlurmConfig.model_validate(dict(settings.config))
        assert config.url == f"http://{plan.heads[0].address}:6820"
        assert config.partition in settings.partitions
        assert (config.cli is not None) == bool(prefix)
        assert config.accounts == ("auto" if plan.accounting else "off")
    sealed = KEYS.secrets()
    assert Tokens({name: sealed[name] for name in settings.secrets}, lambda: datetime.now(UTC)).mints


def test_a_stranger_cannot_leave() -> None:
    """Shrinking by a name that is not there is a mistake, not a success."""
    with pytest.raises(BadPlan, match="stranger"):
        shrunk(leaf_spine(), ["gpu-001", "stranger"])


def test_an_upgrade_goes_by_hops_that_each_side_understands() -> None:
    """The fewest hops; never back."""
    assert upgrade_path("22.05", "25.11") == ("23.11", "24.11", "25.11")
    assert upgrade_path("23.11", "25.05") == ("25.05",)
    assert upgrade_path("24.11", "24.11") == ()
    with pytest.raises(BadPlan):
        upgrade_path("24.11", "23.11")


def test_waves_take_idle_workers_first_and_everybody_once() -> None:
    """At most so many at once, busy ones last."""
    waves = upgrade_waves(leaf_spine(), at_once=3, busy=["gpu-001"])
    assert waves == (("gpu-002", "gpu-003", "gpu-004"), ("gpu-001",))
    with pytest.raises(BadPlan):
        upgrade_waves(leaf_spine(), at_once=0)
