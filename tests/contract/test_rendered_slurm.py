"""
What is rendered, on the real daemons: the bundles' own files and start scripts, each on a host of its own, driven by the Slurm adapter.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controlplane.providers.adapters.slurm import tokens
from controlplane.providers.adapters.slurm.adapter import SlurmAdapter, build
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.registry import AdapterInput
from controlplane.rendering.slurm.changes import grown, renewal, shrunk
from controlplane.rendering.slurm.files import Bundle
from controlplane.rendering.slurm.plan import SlurmPlan
from controlplane.rendering.slurm.roles import head_bundle, worker_bundle
from controlplane.rendering.slurm.settings import adapter_settings
from tests import kits, slurm_kit
from tests.contract.private_hosts import PrivateHost, can_make_hosts, private_host, private_network
from tests.factories import slurm_plans

pytestmark = pytest.mark.slurm
CLONE_NEWNET = 0x40000000
GANG = "#!/bin/sh\nsrun -l sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $UCX_NET_DEVICES'\n"
LONG = "#!/bin/sh\nexec tail -f /dev/null\n"
POWER_CUT = "for unit in /run/units/*; do kill -9 -- -$(cat $unit); done; rm -r /run/*"
"""As far as the daemons can tell: they end unasked, and /run is empty when they start again."""
AS_USER = ("timeout", "25", "setpriv", "--reuid=tn_one", "--regid=tn_one", "--clear-groups")
T = TypeVar("T")
SLOW = pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1")


@dataclass
class RealCluster:
    """
    A plan on running hosts.
    """

    plan: SlurmPlan
    """What stands now."""
    network: int
    """The switch's process."""
    root: str
    """A chroot of another release, or empty."""
    stack: ExitStack
    """Ends the hosts."""
    hosts: dict[str, PrivateHost] = field(default_factory=dict)
    """By name."""
    given: dict[str, Bundle] = field(default_factory=dict)
    """What each host was given last."""

    @property
    def head(self) -> PrivateHost:
        """
        The first head.
        """
        return self.hosts[self.plan.heads[0].name]

    def boot(self, name: str) -> None:
        """
        The host is there, has its bundle and has run its script.
        """
        heads = {head.name: head.address for head in self.plan.heads}
        address = heads.get(name) or self.plan.worker(name).address
        host = private_host(name, address, self.network, gpus=8 if self.plan.has_gpus else 0, root=self.root)
        self.hosts[name] = self.stack.enter_context(host)
        bundle = head_bundle(self.plan, slurm_plans.KEYS) if name in heads else worker_bundle(self.plan, slurm_plans.KEYS, name)
        self.hosts[name].put(bundle)
        self.hosts[name].start(bundle)
        self.given[name] = bundle

    def renew_head(self, plan: SlurmPlan) -> tuple[str, ...]:
        """
        The head follows the new plan by the commands that its renewal names.
        """
        after = head_bundle(plan, slurm_plans.KEYS)
        change = renewal(self.given["head"], after, plan.words)
        self.head.put(replace(after, files=change.write))
        self.head.run("rm", "-f", *change.remove)
        for command in change.commands:
            self.head.run("sh", "-c", command)
        self.plan, self.given["head"] = plan, after
        return change.commands

    def wait(self, condition: str, seconds: int = 20) -> None:
        """
        A shell condition on the head has become true.
        """
        self.head.run("timeout", str(seconds), "sh", "-c", f"until {condition}; do sleep 0.1; done")

    def wait_idle(self, count: int) -> None:
        """
        So many workers are idle, and none is anything else.
        """
        self.wait(f'[ "$(sinfo -h -N -o "%N %T" | sort -u | cut -d " " -f 2 | uniq -c | xargs)" = "{count} idle" ]')

    def run_gang(self, nodes: int) -> dict[str, str]:
        """
        What each worker of a gang printed, submitted as a tenant's user would at a shell.
        """
        output = "/tmp/gang.out"
        command = ["sbatch", "--wait", "-D", "/tmp", "-o", output, f"-N{nodes}", "--gres=gpu:h100:8"]
        self.head.run(*AS_USER, *command, data=GANG.encode())
        first = self.head.run("sh", "-c", "scontrol -o show job | grep -o 'BatchHost=[^ ]*' | tail -n 1").removeprefix("BatchHost=")
        lines = self.hosts[first].run("cat", output).splitlines()
        return dict(line.split(": ", 1)[1].split(" ", 1) for line in lines)


@contextmanager
def long_job(cluster: RealCluster) -> Iterator[None]:
    """
    A job runs on n1 from before the block until after it, the same one all the time.
    """
    submit = ["sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", "-w", "n1", "-N1", "-c1"]
    job = cluster.head.run(*AS_USER, *submit, data=LONG.encode())
    state = f"squeue -h -j {job} -o %T,%S"
    cluster.wait(f"{state} | grep -q ^RUNNING")
    before = cluster.head.run("sh", "-c", state)
    yield
    cluster.wait(f"[ '{before}' = \"$({state})\" ]")
    cluster.head.run("scancel", job)
    cluster.wait('[ -z "$(squeue -h)" ]')


def in_network(host: PrivateHost, work: Callable[[], T]) -> T:
    """
    The work's result, done by a thread whose sockets and programs are on the host's network.
    """

    def inside() -> T:
        with Path(f"/proc/{host.pid}/ns/net").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(inside).result()


def adapter_of(cluster: RealCluster) -> SlurmAdapter:
    """
    The adapter as the control plane would register this cluster.
    """
    inside = ("nsenter", f"--target={cluster.head.pid}", "--mount", "--pid", "--uts", "--net", "--root", "--wdns=/")
    settings = adapter_settings(cluster.plan, command_prefix=inside, output_dir="/tmp")
    sealed = slurm_plans.KEYS.secrets()
    config: dict[str, Any] = {**settings.config, "cli": {"argv_prefix": list(inside)}}
    secrets = {name: sealed[name] for name in settings.secrets}
    return build(
        AdapterInput(provider_id="prv_x", config=config, secrets=secrets, deployment="test", now=lambda: datetime.now(UTC))
    )


@contextmanager
def running(plan: SlurmPlan, root: str = "") -> Iterator[RealCluster]:
    """
    The plan's cluster. Workers start first and head last: nobody may depend on who boots first.
    """
    reason = can_make_hosts()
    if reason:
        kits.unusable("Slurm", reason)
    with ExitStack() as stack:
        cluster = RealCluster(plan, stack.enter_context(private_network()), root, stack)
        for worker in plan.workers:
            cluster.boot(worker.name)
        cluster.boot(plan.heads[0].name)
        cluster.wait_idle(len(plan.workers))
        yield cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """
    Two workers and a head on the installed release.
    """
    slurm_kit._ensure_installed()
    with running(slurm_plans.lab("22.05", workers=2)) as started:
        yield started


def test_a_gang_gets_its_gpus_and_defaults_on_every_worker(cluster: RealCluster) -> None:
    """Workers without slurm.conf joined; prolog and task prolog ran; all GPUs of both nodes are the job's."""
    seen = cluster.run_gang(2)
    devices = ",".join(f"mlx5_{number}:1" for number in range(8))
    assert seen == dict.fromkeys(("n1", "n2"), f"0,1,2,3,4,5,6,7 PCI_BUS_ID {devices}")
    assert not cluster.hosts["n1"].run("find", "/etc/slurm", "-name", "slurm.conf")


def test_the_fabric_and_the_sizes_are_the_plans(cluster: RealCluster) -> None:
    """Every line was taken: sizes, GPUs by socket, features, the switch tree; slurmd confirmed them, so nothing is drained."""
    node = cluster.head.run("scontrol", "-o", "show", "node", "n1")
    for words in ("CPUTot=224", "RealMemory=1000000", "Gres=gpu:h100:8(S:0-1)", "AvailableFeatures=lab-8", "State=IDLE"):
        assert words in node
    switches = cluster.head.run("scontrol", "-o", "show", "topology")
    assert "SwitchName=block.b1" in switches
    assert "Nodes=n[1-2]" in switches
    assert " Nodes=n[1-2] " in cluster.head.run("scontrol", "-o", "show", "partition", "gpus")


def test_start_scripts_change_nothing_when_run_again(cluster: RealCluster) -> None:
    """The same daemons go on: no process is replaced on the head or a worker."""
    for name in ("head", "n1"):
        host = cluster.hosts[name]
        units = host.run("sh", "-c", "grep . /run/units/*")
        host.start(cluster.given[name])
        assert host.run("sh", "-c", "grep . /run/units/*") == units


def drive(cluster: RealCluster) -> tuple[str, int | None, tuple[str, ...]]:
    """
    How a gang ends that the adapter submits as the tenant's user, on a cluster registered with the rendered settings and its own key.
    """

    def work() -> tuple[str, int | None, tuple[str, ...]]:
        adapter = adapter_of(cluster)
        try:
            members = tuple(Member(worker.name, 8, f"alc_{worker.name}") for worker in cluster.plan.workers)
            adapter.apply_cluster(ClusterSpec("clu_lab", "tnt_1", "prj_1", "tn_one", members))
            adapter.submit(JobSpec("job_1", "clu_lab", "tnt_1", "tn_one", GANG, 2, 8, 1, 600, gpu_model="H100-SXM5-80GB"))
            cluster.wait("scontrol -o show job | grep JobName=job_1 | grep -q JobState=COMPLETED")
            view = adapter.find_job("clu_lab", "job_1")
            adapter.delete_cluster("clu_lab")
            return view.phase, view.exit_code, view.nodes
        finally:
            adapter.close()

    return in_network(cluster.head, work)


def test_the_adapter_drives_the_cluster(cluster: RealCluster) -> None:
    """Jobs run through the same adapter as on a shared Slurm: a gang of both workers, to its end."""
    assert drive(cluster) == ("succeeded", 0, ("n1", "n2"))


def test_a_whole_slurm_is_driven_without_walls(cluster: RealCluster) -> None:
    """As a tenant's own: without commands on the head, its members are all its nodes, and a gang runs that nothing else could see."""

    def work() -> Any:
        settings = adapter_settings(cluster.plan, dedicated=True)
        secrets = {name: slurm_plans.KEYS.secrets()[name] for name in settings.secrets}
        adapter = build(AdapterInput("prv_own", dict(settings.config), secrets, "test", lambda: datetime.now(UTC)))
        try:
            members = {one.ref: one.state for one in adapter.observe_cluster("clu_own").members}
            adapter.submit(JobSpec("job_own", "clu_own", "tnt_1", "tn_one", GANG, 2, 8, 1, 600, gpu_model="H100-SXM5-80GB"))
            cluster.wait("scontrol -o show job | grep JobName=job_own | grep -q JobState=COMPLETED")
            return members, adapter.find_job("clu_own", "job_own").phase, ",".join(adapter.capabilities().products)
        finally:
            adapter.close()

    assert in_network(cluster.head, work) == ({"n1": "up", "n2": "up"}, "succeeded", "slurm")


def test_slurmrestd_knows_only_this_clusters_key(cluster: RealCluster) -> None:
    """No token and a token of another key get nothing; the daemon is neither root nor Slurm's user."""
    ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://10.77.150.1:6820/slurm/v0.0.38/ping"]
    other = tokens.mint(b"another cluster's key, 32 bytes..", user="root", issued_at_s=1_700_000_000, lifetime_s=2_000_000_000)
    assert cluster.head.run(*ask) == "401"
    assert cluster.head.run(*ask, "-H", "X-SLURM-USER-NAME: root", "-H", f"X-SLURM-USER-TOKEN: {other}") != "200"
    assert cluster.head.run("ps", "-o", "user=", "-C", "slurmrestd") == "slurmrestd"


def test_keys_can_be_read_by_their_owners_alone(cluster: RealCluster) -> None:
    """The munge key is munge's, the token key is Slurm's and on the head only."""
    stat = ("stat", "-c", "%U %a", "/etc/munge/munge.key")
    assert cluster.head.run(*stat) == cluster.hosts["n1"].run(*stat) == "munge 400"
    assert cluster.head.run("stat", "-c", "%U %a", "/etc/slurm/jwt_hs256.key") == "slurm 600"
    assert cluster.hosts["n1"].tried("stat", "/etc/slurm/jwt_hs256.key").returncode != 0


def test_growing_and_shrinking_leave_a_running_job_alone(cluster: RealCluster) -> None:
    """A third worker joins while a job runs, a gang runs over all three, the worker leaves again, and the job has never stopped."""
    before, bigger = cluster.plan, grown(cluster.plan, [slurm_plans.lab_worker(3)])
    with long_job(cluster):
        cluster.plan = bigger
        cluster.boot("n3")
        commands = cluster.renew_head(bigger)
        cluster.wait("sinfo -h -N -n n3 -o %T | grep -qx idle")
        assert commands[-1] == "scontrol reconfigure"
        assert sorted(cluster.run_gang(3)) == ["n1", "n2", "n3"]
        cluster.head.run("scontrol", "update", "nodename=n3", "state=drain", "reason=leaves")
        cluster.renew_head(shrunk(bigger, ["n3"]))
        cluster.wait('[ "$(sinfo -h -N -o %N | sort -u | xargs)" = "n1 n2" ]')
    assert cluster.plan.workers == before.workers


def test_a_head_that_comes_back_has_its_jobs(cluster: RealCluster) -> None:
    """All of the head's daemons end at once; its script starts them again, and the job that ran goes on."""
    with long_job(cluster):
        # slurmctld writes its jobs down within five seconds; what is younger is lost with the power
        cluster.head.run("touch", "/tmp/seen")
        cluster.wait("[ /var/lib/slurm/slurmctld/job_state -nt /tmp/seen ]")
        cluster.head.run("bash", "-c", POWER_CUT)
        cluster.head.start(cluster.given["head"])


def test_a_worker_that_reboots_comes_back_by_itself(cluster: RealCluster) -> None:
    """All of a worker's processes end and it boots anew: it is idle again without a word of an administrator, and runs a gang."""
    worker = cluster.hosts["n2"]
    worker.run("bash", "-c", POWER_CUT)
    cluster.head.run("scontrol", "update", "nodename=n2", "state=down", "reason=not responding")
    worker.start(cluster.given["n2"])
    cluster.wait_idle(2)
    assert sorted(cluster.run_gang(2)) == ["n1", "n2"]


def test_a_lost_gpu_takes_its_node_out_before_a_job_starts_there(cluster: RealCluster) -> None:
    """The prolog looks for each device file the job was given: the node drains, the job waits instead of failing."""
    worker = cluster.hosts["n2"]
    worker.run("sh", "-c", "umount /dev/nvidia3; rm /dev/nvidia3")
    submit = ["sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", "-w", "n2", "--gres=gpu:h100:8"]
    job = cluster.head.run(*AS_USER, *submit, data=GANG.encode())
    cluster.wait("sinfo -h -n n2 -o %E | grep -qi prolog")
    cluster.wait(f'[ "$(squeue -h -j {job} -o %T)" = PENDING ]')
    cluster.head.run("scancel", job)
    worker.run("sh", "-c", "touch /dev/nvidia3; mount --bind /dev/null /dev/nvidia3")
    cluster.head.run("scontrol", "update", "nodename=n2", "state=resume")
    cluster.wait_idle(2)


@pytest.mark.slow
@SLOW
def test_accounting_counts_the_jobs_of_known_users() -> None:
    """The head's script makes the database, the cluster, the account and its users; a job of one of them is in the history."""
    slurm_kit._ensure_installed("--dbd")
    with running(slurm_plans.with_accounting()) as books:
        books.head.run(*AS_USER, "sbatch", "--wait", "-D", "/tmp", "-o", "/dev/null", "-N2", data=b"#!/bin/sh\nsrun true\n")
        books.wait("sacct -nPXo state,user,nnodes | grep -qx 'COMPLETED|tn_one|2'")
        assert "tn_two" in books.head.run("sacctmgr", "-nP", "show", "user", "format=user")
        assert books.head.run("stat", "-c", "%U %a", "/etc/slurm/slurmdbd.conf") == "slurm 600"


@pytest.mark.slow
@SLOW
def test_another_release_takes_its_own_words(other_root: str) -> None:
    """24.11 runs a gang, grows and shrinks by reconfigure alone, without a restart."""
    with running(slurm_plans.lab("24.11", workers=2), other_root) as newer:
        assert drive(newer) == ("succeeded", 0, ("n1", "n2"))
        bigger = grown(newer.plan, [slurm_plans.lab_worker(3)])
        newer.plan = bigger
        newer.boot("n3")
        assert not any("restart" in command for command in newer.renew_head(bigger))
        newer.wait_idle(3)
        assert sorted(newer.run_gang(3)) == ["n1", "n2", "n3"]
        assert not any("restart" in command for command in newer.renew_head(shrunk(bigger, ["n3"])))
        newer.wait_idle(2)


@pytest.mark.slow
@SLOW
def test_nvlink_blocks_of_uneven_size_are_accepted(other_root: str) -> None:
    """24.11 ends at a block smaller than BlockSizes; ours are what the smallest domain holds."""
    places = {"n1": "nvl1", "n2": "nvl1", "n3": "nvl2"}
    plan = slurm_plans.lab("24.11", workers=3)
    workers = tuple(replace(one, position=replace(one.position, nvlink_domain=places[one.name])) for one in plan.workers)
    with running(replace(plan, workers=workers), other_root) as racks:
        shown = racks.head.run("scontrol", "-o", "show", "topology")
        assert "BlockName=nvl1" in shown
        assert sorted(racks.run_gang(3)) == ["n1", "n2", "n3"]


@pytest.fixture(scope="module")
def other_root() -> str:
    """
    A chroot with Slurm 24.11, made once and kept.
    """
    root = os.environ.get("CONTROLPLANE_SLURM_ROOT", "/var/tmp/controlplane-slurm-trixie")
    command = [str(slurm_kit.KIT), "install-root", root, "trixie"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=290)
    if done.returncode:
        kits.unusable("Slurm", f"another release cannot be installed: {done.stderr[-300:]}")
    return root
