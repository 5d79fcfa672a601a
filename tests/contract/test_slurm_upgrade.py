"""
From one release of Slurm to the next on the real daemons: the program that a head is given, a history that is converted, older workers
below a newer controller, and a job that never stops.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from controlplane.rendering.slurm.inplace import program_path
from controlplane.rendering.slurm.plan import Install
from tests import slurm_kit
from tests.contract.test_rendered_slurm import AS_USER, LONG, POWER_CUT, RealCluster, running
from tests.contract.ubuntu_root import ubuntu_root
from tests.factories import slurm_plans

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1"),
]
SHORT = b"#!/bin/sh\nsrun hostname\n"


@pytest.fixture
def books() -> Iterator[RealCluster]:
    """A head with a history, and two workers, all of 22.05."""
    slurm_kit._ensure_installed("--dbd")
    with running(slurm_plans.with_accounting()) as started:
        yield started


def in_place(root: str) -> Install:
    """What an operator would say: here the newer system lies over the older one."""
    return Install("23.11", f"test -d {root}/usr", f"mount -t overlay overlay -o lowerdir={root}/usr:/usr /usr")


def follow(cluster: RealCluster) -> None:
    """The program is run as the boot agent runs it: again and again until it ends well."""
    program = program_path(cluster.plan)
    cluster.head.run("timeout", "280", "sh", "-c", f"until {program}; do sleep 1; done", timeout_s=300)


def versions(cluster: RealCluster) -> dict[str, str]:
    """By worker, which slurmd has registered."""
    lines = cluster.head.run("scontrol", "-o", "show", "node").splitlines()
    facts = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return {one["NodeName"]: one["Version"] for one in facts}


def run_job(cluster: RealCluster, completed: int) -> None:
    """A job of all of its nodes runs to its end, and the history then tells of so many."""
    cluster.head.run(*AS_USER, "sbatch", "--wait", "-D", "/tmp", "-o", "/dev/null", "-N2", data=SHORT, timeout_s=60)
    cluster.wait(f"[ $(sacct -nPXa -S now-1hour -o state | grep -cx COMPLETED) = {completed} ]")


def reinstall(cluster: RealCluster, name: str, root: str) -> None:
    """The worker's machine has another system and the same name."""
    cluster.hosts[name].run("bash", "-c", POWER_CUT)
    cluster.hosts[name].run("ip", "link", "delete", "eth0")
    cluster.root = root
    cluster.boot(name)


def test_a_head_is_upgraded_in_place_and_workers_follow(books: RealCluster) -> None:
    """
    While a job runs, slurmdbd and slurmctld of 22.05 become those of 23.11, with what they knew, backed up before. Workers of 22.05 go on
    below them, run jobs together with one of 23.11, and all speak 23.11's words in the end. Run again, the program changes nothing.
    """
    root = ubuntu_root()
    run_job(books, 1)
    submit = ["sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", "-w", "c1", "-N1", "-c1"]
    job = books.head.run(*AS_USER, *submit, data=LONG.encode())
    state = f"squeue -h -j {job} -o %T,%S"
    books.wait(f"{state} | grep -q ^RUNNING")
    before = books.head.run("sh", "-c", state)

    books.renew_head(replace(books.plan, install=in_place(root)))
    follow(books)

    assert "23.11." in books.head.run("sh", "-c", "scontrol show config | grep SLURM_VERSION")
    assert books.head.run("sacctmgr", "-V").startswith("slurm-wlm 23.11.")
    assert versions(books) == {"c1": "22.05.8", "c2": "22.05.8"}
    books.wait(f"[ '{before}' = \"$({state})\" ]")
    run_job(books, 2)
    kept = books.head.run("sh", "-c", "cd /var/lib/slurm-cluster/before-23.11 && ls && tar -tf state.tar")
    assert {"history.sql", "state.tar", "./job_state"} <= set(kept.split())

    reinstall(books, "c2", root)
    books.wait("scontrol -o show node c2 | grep -q 'Version=23.11'")
    assert versions(books)["c1"] == "22.05.8"
    run_job(books, 3)
    books.wait(f"[ '{before}' = \"$({state})\" ]")

    books.head.run("scancel", job)
    reinstall(books, "c1", root)
    books.wait("[ $(scontrol -o show node | grep -c Version=23.11) = 2 ]")
    books.renew_head(replace(books.plan, release="23.11"))
    books.wait("scontrol show config | grep -q 'TopologyPlugin *= topology/default'")
    books.wait_idle(2)
    run_job(books, 4)
    units = books.head.run("sh", "-c", "grep . /run/units/*")
    follow(books)
    assert books.head.run("sh", "-c", "grep . /run/units/*") == units
