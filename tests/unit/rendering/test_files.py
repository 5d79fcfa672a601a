"""
The traps of real Slurms, one test each: what was learnt by a cluster that did not start stays learnt.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.rendering.shell import Script
from controlplane.rendering.slurm.files import Bundle
from controlplane.rendering.slurm.layout import Layout
from controlplane.rendering.slurm.plan import Host, Partition, Position, SlurmPlan, Worker
from controlplane.rendering.slurm.releases import RELEASES, ReleaseName
from controlplane.rendering.slurm.roles import head_bundle, login_bundle, worker_bundle
from tests.factories.slurm_plans import HGX, KEYS, PLAIN, hgx_worker, lab, leaf_spine, nvl_rack, with_accounting

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
PLANS = (leaf_spine(), nvl_rack(), with_accounting())


def text(bundle: Bundle, path: str) -> str:
    """A file's content."""
    return bundle.file(path).content.decode()


def head(plan: SlurmPlan, name: str) -> list[str]:
    """Lines of a file in the head's configuration folder."""
    return text(head_bundle(plan, KEYS), f"/etc/slurm/{name}").splitlines()


def of(plan: SlurmPlan) -> Bundle:
    """The first worker's bundle."""
    return worker_bundle(plan, KEYS, plan.ordered[0].name)


def test_a_worker_starts_without_slurm_conf_and_never_gives_up() -> None:
    """The unit's condition is taken away, slurmd is started anew for as long as no head answers, and gets all it needs from there."""
    bundle = of(leaf_spine())
    unit = text(bundle, "/etc/systemd/system/slurmd.service.d/10-cluster.conf").splitlines()
    assert {"ConditionPathExists=", "StartLimitIntervalSec=0"} <= set(unit[unit.index("[Unit]") : unit.index("[Service]")])
    assert {"Restart=on-failure", "LimitMEMLOCK=infinity"} <= set(unit[unit.index("[Service]") :])
    assert text(bundle, "/etc/default/slurmd") == "SLURMD_OPTIONS='--conf-server 10.20.0.2:6817'\n"
    assert not any(file.path.startswith("/etc/slurm/") for file in bundle.files)


@pytest.mark.parametrize(
    ("release", "plain", "books"),
    [
        ("22.05", "openapi/v0.0.38", "openapi/v0.0.38,openapi/dbv0.0.38"),
        ("24.11", "openapi/slurmctld", "openapi/slurmctld,openapi/slurmdbd"),
    ],
)
def test_slurmrestd_loads_only_what_it_can(release: ReleaseName, plain: str, books: str) -> None:
    """A plug-in that needs slurmdbd ends it; it runs as a user of its own and takes tokens alone."""
    path = "/etc/systemd/system/slurmrestd.service.d/10-cluster.conf"
    for plan, plugins in ((lab(release, workers=1), plain), (replace(with_accounting(), release=release), books)):
        lines = text(head_bundle(plan, KEYS), path).splitlines()
        started = [each for each in lines if each.startswith("ExecStart=")]
        assert started[0] == "ExecStart="
        assert f"-a rest_auth/jwt -s {plugins} 10.77.150.1:6820" in started[1]
        assert {"User=slurmrestd", "Environment=SLURM_JWT=daemon"} <= set(lines)


def test_keys_are_for_their_owners_alone_and_stay_where_they_are_needed() -> None:
    """The munge key everywhere, the token key on heads; both secret, neither readable by others."""
    bundles = [head_bundle(leaf_spine(), KEYS), login_bundle(leaf_spine(), KEYS, "login-1"), of(leaf_spine())]
    secret = [{file.path: (file.mode, file.owner) for file in bundle.files if file.secret} for bundle in bundles]
    munge = {"/etc/munge/munge.key": (0o400, "munge:munge")}
    assert secret == [{**munge, "/etc/slurm/jwt_hs256.key": (0o600, "slurm:slurm")}, munge, munge]


def test_gpus_are_named_by_device_file_and_socket() -> None:
    """A count alone is dropped by 22.05 and puts the node out."""
    assert head(leaf_spine(), "gres.conf") == [
        "AutoDetect=off",
        "NodeName=gpu-[001-004] Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55",
        "NodeName=gpu-[001-004] Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=56-111",
    ]


def test_workers_without_gpus_do_not_inherit_any() -> None:
    """NodeName=DEFAULT stays in force: shapes without GPUs stand before those with them."""
    plan = replace(
        leaf_spine(), shapes=(HGX, replace(PLAIN, name="z-cpu")), workers=(hgx_worker(1), Worker("cpu1", "10.20.0.99", "z-cpu"))
    )
    lines = head(plan, "slurm.conf")
    defaults = [each for each in lines if each.startswith("NodeName=DEFAULT")]
    assert ["Gres=" in each for each in defaults] == [False, True]
    assert lines.index("NodeName=cpu1 NodeAddr=10.20.0.99") < lines.index(defaults[1])


def test_jobs_survive_what_a_cluster_goes_through() -> None:
    """A rebooted worker returns by itself, lost jobs are requeued, locked memory is not the login's, a job gets a share of memory."""
    lines = set(head(leaf_spine(), "slurm.conf"))
    assert {"ReturnToService=2", "JobRequeue=1", "PropagateResourceLimitsExcept=MEMLOCK,NOFILE", "SuspendTime=INFINITE"} <= lines
    assert {"SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory", "DefMemPerCPU=8917", "GresTypes=gpu"} <= lines
    assert {"AuthAltTypes=auth/jwt", "SlurmctldParameters=enable_configless", "ResumeTimeout=1800"} <= lines


def test_accounting_is_complete_or_absent() -> None:
    """gres/gpu as a TRES without slurmdbd is fatal; limits are enforced only with it."""
    without, with_books = head(leaf_spine(), "slurm.conf"), head(with_accounting(), "slurm.conf")
    assert [each for each in without if each.startswith("Accounting")] == ["AccountingStorageType=accounting_storage/none"]
    assert "AccountingStorageEnforce=associations,limits,qos" in with_books
    gpu_books = head(replace(leaf_spine(), accounting=with_accounting().accounting), "slurm.conf")
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:h100" in gpu_books
    assert head_bundle(with_accounting(), KEYS).file("/etc/slurm/slurmdbd.conf").mode == 0o600


@pytest.mark.parametrize("release", RELEASES)
def test_confinement_has_each_releases_word(release: ReleaseName) -> None:
    """Without control groups: `disabled` where the word exists, else a plug-in that can be loaded. With them: devices are constrained."""
    plan = lab(release, workers=1)
    none = "cgroup/v1" if release in {"22.05", "23.11"} else "disabled"
    assert head(plan, "cgroup.conf") == [f"CgroupPlugin={none}"]
    assert "ProctrackType=proctrack/linuxproc" in head(plan, "slurm.conf")
    confined = replace(plan, confinement="cgroup/v2")
    assert {"CgroupPlugin=cgroup/v2", "ConstrainDevices=yes"} <= set(head(confined, "cgroup.conf"))
    assert {"ProctrackType=proctrack/cgroup", "PrologFlags=Alloc,Contain"} <= set(head(confined, "slurm.conf"))


def test_a_tree_holds_every_worker_and_its_names_do_not_collide() -> None:
    """A worker at no known place hangs below the root too; `a-b` over `c` is not `a` over `b-c`."""
    places = [Position("a-b", "c"), Position("a", "b-c"), Position("a", "d"), Position("a"), Position()]
    workers = tuple(Worker(f"n{number}", f"10.20.0.{number}", HGX.name, place) for number, place in enumerate(places, 1))
    assert head(replace(leaf_spine(), workers=workers), "topology.conf") == [
        "SwitchName=loose Nodes=n5",
        "SwitchName=loose.a Nodes=n4",
        "SwitchName=leaf.a.b-c Nodes=n2",
        "SwitchName=leaf.a.d Nodes=n3",
        "SwitchName=leaf.a-b.c Nodes=n1",
        "SwitchName=block.a Switches=loose.a,leaf.a.b-c,leaf.a.d",
        "SwitchName=fabric Switches=loose,block.a,leaf.a-b.c",
    ]


def test_blocks_are_as_large_as_the_release_takes_them() -> None:
    """24.11 ends at a block below BlockSizes, 25.05 does not; a domain over two leaves is one block."""
    assert head(nvl_rack(), "topology.conf") == [
        "BlockName=nvl1 Nodes=r1-t[01-18]",
        "BlockName=nvl2 Nodes=r2-t[01-17]",
        "BlockSizes=17,34",
    ]
    assert head(replace(nvl_rack(), release="25.05"), "topology.conf")[-1] == "BlockSizes=18,36"
    first = nvl_rack().workers[0]
    elsewhere = replace(first, position=replace(first.position, leaf="l9"))
    spread = replace(nvl_rack(), workers=(elsewhere, *nvl_rack().workers[1:]))
    assert head(spread, "topology.conf") == head(nvl_rack(), "topology.conf")


def test_a_flat_network_has_no_topology_file() -> None:
    """Its plug-in has another name in each generation."""
    names = {release: f"TopologyPlugin={words.flat_topology}" for release, words in RELEASES.items()}
    for release, wanted in names.items():
        plan = replace(with_accounting(), release=release)
        assert wanted in head(plan, "slurm.conf")
        assert not any(file.path.endswith("topology.conf") for file in head_bundle(plan, KEYS).files)
    assert names["22.05"] != names["24.11"] != names["25.05"]


def test_an_nvlink_domain_knows_its_members() -> None:
    """IMEX is told the addresses of the domain's trays, in numerical order, and of no other's."""
    lines = text(of(nvl_rack()), "/etc/nvidia-imex/nodes_config.cfg").splitlines()
    assert lines == [f"10.30.1.{tray}" for tray in range(1, 19)]
    assert "SwitchType=switch/nvidia_imex" in head(nvl_rack(), "slurm.conf")


def test_logins_hold_slurm_conf_only_where_nobody_brings_it() -> None:
    """22.05 has no sackd."""
    old, new = login_bundle(leaf_spine(), KEYS, "login-1"), login_bundle(nvl_rack(), KEYS, "login-1")
    assert old.file("/etc/slurm/slurm.conf").content == head_bundle(leaf_spine(), KEYS).file("/etc/slurm/slurm.conf").content
    assert old.file("/etc/slurm/slurm.conf").on_change == "none"
    assert not any(file.path.startswith("/etc/slurm/") for file in new.files)
    assert text(new, "/etc/default/sackd") == "SACKD_OPTIONS='--conf-server 10.30.0.2:6817'\n"


def test_messages_and_trees_follow_the_size() -> None:
    """Wider and more patient for a thousand workers."""
    workers = tuple(Worker(f"n{n}", f"10.21.{n // 256}.{n % 256}", HGX.name) for n in range(1, 2001))
    small, large = set(head(leaf_spine(), "slurm.conf")), set(head(replace(leaf_spine(), workers=workers), "slurm.conf"))
    assert {"TreeWidth=16", "MessageTimeout=30"} <= small
    assert {"TreeWidth=64", "MessageTimeout=60"} <= large


def programs() -> Iterator[tuple[str, str]]:
    """
    Every shell program of every plan, once.
    """
    seen = set()
    for plan in PLANS:
        for bundle in (head_bundle(plan, KEYS), of(plan), *(login_bundle(plan, KEYS, login.name) for login in plan.logins[:1])):
            found = [(file.path, file.content.decode()) for file in bundle.files if file.content.startswith(b"#!")]
            for name, content in [*found, *((script.name, script.content) for script in bundle.scripts)]:
                if content not in seen:
                    seen.add(content)
                    yield f"{plan.cluster}:{bundle.role}:{name}", content


def test_every_program_is_sound_shell(tmp_path: Path) -> None:
    """Shellcheck finds nothing in any script or hook."""
    paths = []
    for number, (name, content) in enumerate(programs()):
        path = tmp_path / f"{number:02d}-{name.replace('/', '_')}"
        path.write_text(content)
        paths.append(str(path))
    assert len(paths) > 12
    # sh functions a role does not use are one prelude for all
    command = [str(SHELLCHECK), "--shell=sh", "--exclude=SC2317,SC2329", *paths]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def started(script: Script, programs_dir: Path, *, tries: str = "1", **commands: str) -> subprocess.CompletedProcess[str]:
    """
    How the script ends where only these programs are.
    """
    programs_dir.mkdir()
    for name in {"install", "cat", "sha256sum", "cut", "sleep", "id", "grep"} - set(commands):
        (programs_dir / name).symlink_to(next(path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists()))
    for name, body in commands.items():
        (programs_dir / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs_dir / name).chmod(0o755)
    env = {"PATH": str(programs_dir), "TRIES": tries}
    return subprocess.run(["/bin/sh", "-s"], input=script.content, env=env, check=False, capture_output=True, text=True, timeout=20)


def beside(tmp_path: Path) -> SlurmPlan:
    """A plan whose files are all below a folder of the test."""
    below = {name: f"{tmp_path}{getattr(Layout(), name)}" for name in Layout.__slots__}
    (tmp_path / "etc/munge").mkdir(parents=True)
    (tmp_path / "etc/munge/munge.key").write_bytes(b"key")
    return replace(leaf_spine(), layout=Layout(**below), users=())


def test_a_script_says_what_is_not_installed(tmp_path: Path) -> None:
    """At once, and before anything is started."""
    script = login_bundle(beside(tmp_path), KEYS, "login-1").scripts[0]
    done = started(script, tmp_path / "bin", systemctl=f"echo $* >> {tmp_path}/calls")
    assert done.returncode == 1
    assert "munged is not installed" in done.stderr
    assert not (tmp_path / "calls").exists()


def test_a_script_ends_when_the_head_never_answers(tmp_path: Path) -> None:
    """The wait is bounded, and says for what; munge was started with the new key meanwhile."""
    script = login_bundle(beside(tmp_path), KEYS, "login-1").scripts[0]
    there = dict.fromkeys(("munged", "srun", "sbatch"), "exit 0")
    done = started(script, tmp_path / "bin", systemctl=f"echo $* >> {tmp_path}/calls", scontrol="exit 1", **there)
    assert done.returncode == 1
    assert "slurmctld is not ready" in done.stderr
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "restart munge.service"


def test_a_login_waits_for_a_head_that_has_no_power_yet(tmp_path: Path) -> None:
    """It does not fail while another host takes minutes, for then it would be given back as a host that cannot boot."""
    script = login_bundle(beside(tmp_path), KEYS, "login-1").scripts[0]
    counted = f"read -r seen < {tmp_path}/looks; echo $((seen + 1)) > {tmp_path}/looks; [ $seen -gt 200 ]"
    (tmp_path / "looks").write_text("0\n")
    there = dict.fromkeys(("munged", "srun", "sbatch", "systemctl", "sleep"), "exit 0")
    done = started(script, tmp_path / "bin", tries="", scontrol=counted, **there)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_second_start_restarts_nothing(tmp_path: Path) -> None:
    """A unit whose files are as they were is started, which does nothing to one that runs."""
    script = login_bundle(beside(tmp_path), KEYS, "login-1").scripts[0]
    there = dict.fromkeys(("munged", "srun", "sbatch", "scontrol"), "exit 0")
    for number in range(2):
        done = started(script, tmp_path / f"bin{number}", systemctl=f"echo $* >> {tmp_path}/calls{number}", **there)
        assert done.returncode == 0, done.stderr
    assert "restart munge.service" in (tmp_path / "calls0").read_text()
    assert "restart" not in (tmp_path / "calls1").read_text()


def test_a_second_head_takes_over_and_keeps_no_books() -> None:
    """Both are named in order, workers ask both, each serves the API at its own address; the database stays on the first."""
    second = Host("head-2", "10.77.150.2")
    plan = replace(with_accounting(), heads=(*with_accounting().heads, second), shared_state=True)
    hosts = [each for each in head(plan, "slurm.conf") if each.startswith("SlurmctldHost=")]
    assert hosts == ["SlurmctldHost=head(10.77.150.1)", "SlurmctldHost=head-2(10.77.150.2)"]
    assert text(of(plan), "/etc/default/slurmd") == "SLURMD_OPTIONS='--conf-server 10.77.150.1:6817,10.77.150.2:6817'\n"
    bundle = head_bundle(plan, KEYS, second.name)
    assert "10.77.150.2:6820" in text(bundle, "/etc/systemd/system/slurmrestd.service.d/10-cluster.conf")
    assert not any("slurmdbd" in file.path or "mysql" in file.path for file in bundle.files)
    assert "mariadb" not in bundle.scripts[0].content.partition("STAMPS=")[2]


def test_partitions_say_who_may_use_them_and_how() -> None:
    """By shape through a NodeSet of its feature, for groups, for reservations alone; of two tiers the lower is requeued."""
    closed = Partition("closed", (HGX.name,), default=True, groups=("tn_b", "tn_a"), only_reservations=True)
    plan = replace(leaf_spine(), partitions=(closed, Partition("urgent", priority_tier=2)), listen_named=True)
    lines = head(plan, "slurm.conf")
    limits = "MaxTime=INFINITE DefaultTime=60"
    use = "AllowGroups=tn_a,tn_b ReqResv=YES State=UP PreemptMode=REQUEUE"
    assert lines[-3:] == [
        "NodeSet=shape.hgx-h100-8 Feature=hgx-h100-8",
        f"PartitionName=closed Nodes=shape.hgx-h100-8 Default=YES {limits} PriorityTier=1 OverSubscribe=NO {use}",
        f"PartitionName=urgent Nodes=ALL Default=NO {limits} PriorityTier=2 OverSubscribe=NO State=UP PreemptMode=OFF",
    ]
    assert {"PreemptType=preempt/partition_prio", "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"} <= set(lines)
