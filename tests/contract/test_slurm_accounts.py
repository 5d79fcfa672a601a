"""
A Slurm with slurmdbd: each tenant has an account, and its jobs are booked there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.contract.slurm_harness import SlurmHarness
from tests.slurm_kit import SLOW, running_kit

pytestmark = list(SLOW)


@pytest.fixture
def slurm() -> Iterator[SlurmHarness]:
    """A Slurm that enforces associations."""
    with running_kit(accounting=True) as kit:
        yield SlurmHarness(kit)


def test_each_tenant_has_an_account_and_its_jobs_are_booked_there(slurm: SlurmHarness) -> None:
    """Made by the apply, which may be repeated; a job of the tenant's user runs under it."""
    able = slurm.adapter.capabilities()
    assert able.accounts
    assert "account" in able.walls
    one, other = slurm.cluster(2), slurm.cluster(1, slurm.tenants[1])
    slurm.adapter.apply_cluster(one)
    pairs = set(slurm.kit.slurm("sacctmgr", "-nP", "show", "assoc", "format=account,user").split())
    assert {f"test_ten_one|{one.user}", f"test_ten_two|{other.user}"} <= pairs
    job = slurm.job(one, "true")
    number = slurm.submit(job)
    assert slurm.ended(job).phase == "succeeded"
    assert "Account=test_ten_one " in slurm.kit.scontrol("show", "job", number)
    slurm.adapter.close()


def test_without_accounts_the_operators_own_bookkeeping_is_left_alone(slurm: SlurmHarness) -> None:
    """`accounts = off` makes none."""
    quiet = slurm.kit.adapter(lambda: datetime.now(UTC), mint=True, accounts="off")
    slurm.adapter.close()
    slurm.adapter = quiet
    assert not quiet.capabilities().accounts
    slurm.cluster(1)
    assert "test_ten_one" not in slurm.kit.slurm("sacctmgr", "-nP", "show", "account", "format=account")
    quiet.close()
