"""
What the contract suite cannot ask of every adapter, asked of the real Slurm: nodes as machines, walls, faults of nodes and tokens.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from controlplane.providers.clusters import ClusterSpec, OutputChunk
from controlplane.providers.errors import AuthFailed, Busy, NotFound, Permanent, ProviderError, Refused, Unknown, Unsupported
from controlplane.providers.machines import Deployment, Machines, MachineView
from tests.contract.slurm_harness import MARKS, SlurmHarness
from tests.slurm_kit import GPU_MODEL, SLOW, other_kit, session_kit

pytestmark = list(MARKS)
ACCEPTED_AT = datetime(2026, 11, 28, tzinfo=UTC)


@pytest.fixture(params=[pytest.param(session_kit, id="22.05"), pytest.param(other_kit, id="24.11", marks=SLOW)])
def slurm(request: pytest.FixtureRequest) -> Iterator[SlurmHarness]:
    """The session's Slurm with all nodes free."""
    made = SlurmHarness(request.param())
    try:
        yield made
    finally:
        made.close()


def _phase(slurm: SlurmHarness, ref: str, phase: str) -> MachineView:
    seen: MachineView = slurm.until(lambda: slurm.adapter.observe(ref), lambda view: view.phase == phase, what=f"{ref} {phase}")
    return seen


def _admin(slurm: SlurmHarness, text: str) -> None:
    slurm.kit.scontrol(*text.split())


def _running(slurm: SlurmHarness, spec: ClusterSpec, script: str = "sleep 100", **wanted: object) -> str:
    job = slurm.job(spec, script, **wanted)
    slurm.submit(job)
    slurm.until(lambda: slurm.seen(job), lambda view: view.phase == "running", what="running")
    return job.token


def _printed(slurm: SlurmHarness, spec: ClusterSpec, token: str) -> OutputChunk:
    try:
        chunk: OutputChunk = slurm.adapter.read_output(spec.cluster_id, token, offset=0, limit=1000)
    except NotFound:
        return OutputChunk(offset=0, data=b"", end=False)
    return chunk


def test_a_node_is_a_machine_with_its_inventory(slurm: SlurmHarness) -> None:
    """What slurmd registered; a listing is complete and agrees with a look at one."""
    assert isinstance(slurm.adapter, Machines)
    listed = slurm.adapter.list_machines()
    assert listed.complete
    assert [one.ref for one in listed.machines] == list(slurm.kit.nodes)
    view = slurm.adapter.observe("n1")
    assert view == listed.machines[0]
    assert view.inventory is not None
    assert (view.power, view.phase, view.inventory.gpus, view.inventory.gpu_model) == ("unknown", "idle", 8, GPU_MODEL)
    with pytest.raises(NotFound):
        slurm.adapter.observe("no-such-node")


def test_a_qualification_tells_what_slurm_knows_and_what_it_cannot(slurm: SlurmHarness) -> None:
    """Registered facts pass; what nobody measured says so."""
    slurm.adapter.inspect("n1", "isp_1")
    slurm.adapter.qualify("n1", "qua_1")
    view = slurm.adapter.observe("n1")
    results = {check.name: check.result for check in view.checks}
    assert view.qualified_token == "qua_1"
    assert results["gpu_count"] == results["memory"] == results["node_answers"] == "passed"
    assert results["gpu_burn_in"] == "not_measured"


def test_a_tenancy_is_remembered_by_slurm_itself(slurm: SlurmHarness) -> None:
    """Held against another token, ready by slurmctld's clock, over for good once released."""
    held = Deployment("n1", "alc_1", slurm.tenants[0], "clu_1", network="net-1")
    slurm.adapter.deploy(held)
    slurm.adapter.deploy(held)
    view = _phase(slurm, "n1", "deployed")
    assert (view.token, view.network) == ("alc_1", "net-1")
    assert view.ready_at is not None
    with pytest.raises(Refused):
        slurm.adapter.deploy(replace(held, token="alc_2"))
    with pytest.raises(Refused):
        slurm.adapter.wipe("n1", "wip_1")
    with pytest.raises(Permanent):
        slurm.adapter.release("n1", "alc_2", accepted_at=ACCEPTED_AT)
    with pytest.raises(Unsupported):
        slurm.adapter.power("n1", on=False, token="pwr_1")
    again = slurm.kit.adapter(lambda: datetime.now(UTC))
    assert again.observe("n1").token == "alc_1"
    again.close()
    for _ in range(2):
        slurm.adapter.release("n1", "alc_1", accepted_at=ACCEPTED_AT)
    assert slurm.adapter.observe("n1").phase == "released"
    with pytest.raises(Refused):
        slurm.adapter.deploy(held)


def test_a_node_an_administrator_drained_is_not_deployed(slurm: SlurmHarness) -> None:
    """It becomes so when the drain is lifted, and not before."""
    slurm.admin_drain("n2", "disk swap")
    slurm.adapter.deploy(Deployment("n2", "alc_1", slurm.tenants[0], "clu_1", network=""))
    view = slurm.adapter.observe("n2")
    assert (view.phase, view.ready_at) == ("deploying", None)
    assert "disk swap" in view.failure
    slurm.admin_undrain("n2")
    assert _phase(slurm, "n2", "deployed").ready_at is not None


def test_a_wipe_ends_what_the_tenant_left(slurm: SlurmHarness) -> None:
    """Processes, files and shared memory of the tenant are gone, the report says so, and others' files are not touched."""
    spec = slurm.cluster(1)
    (member,) = spec.members
    scratch = slurm.kit.base / "work" / "scratch"
    (scratch / "of-root").write_text("stays")
    left = f"mkdir -p {scratch}/d/e; echo canary > {scratch}/d/e/f; ln -s /etc {scratch}/link; ipcmk -M 64"
    job = slurm.job(spec, f"{left}\nsetsid -f tail -f /dev/null > /dev/null 2>&1 < /dev/null")
    slurm.submit(job)
    assert slurm.ended(job).phase == "succeeded"
    uid = pwd.getpwnam(spec.user).pw_uid
    assert (scratch / "d" / "e" / "f").stat().st_uid == uid
    slurm.gone(spec.cluster_id)
    slurm.insist(lambda: slurm.adapter.release(member.ref, member.token, accepted_at=ACCEPTED_AT), what="release")
    for _ in range(2):
        slurm.insist(lambda: slurm.adapter.wipe(member.ref, "wip_left"), what="wipe")
    view = _phase(slurm, member.ref, "wiped")
    assert view.wipe is not None
    assert view.wipe.token == "wip_left"
    results = {check.name: check.result for check in view.wipe.checks}
    assert results["processes"] == results["tenant_files"] == results["shared_memory"] == "passed"
    assert results["gpu_memory"] == "not_measured"
    assert sorted(path.name for path in scratch.iterdir()) == ["of-root"]
    states = subprocess.run(["ps", "-u", spec.user, "-o", "state="], check=False, capture_output=True, text=True).stdout.split()
    assert set(states) <= {"Z"}, "only what init has not buried yet"
    (scratch / "of-root").unlink()
    after = Deployment(member.ref, "alc_after", slurm.tenants[1], "clu_after", network="")
    slurm.adapter.deploy(after)
    assert _phase(slurm, member.ref, "deployed").token == "alc_after"


def test_a_first_wipe_looks_and_removes_nothing(slurm: SlurmHarness) -> None:
    """Nobody is known to have used the node: clean is clean, and what some account has there is a failure, not swept away."""
    slurm.insist(lambda: slurm.adapter.wipe("n1", "wip_first"), what="wipe")
    view = _phase(slurm, "n1", "wiped")
    assert view.wipe is not None
    assert {check.result for check in view.wipe.checks if check.name in {"processes", "tenant_files"}} == {"passed"}
    found = slurm.kit.base / "work" / "scratch" / "somebodys"
    found.write_text("data")
    os.chown(found, 2345, 2345)
    slurm.insist(lambda: slurm.adapter.wipe("n1", "wip_second"), what="wipe")
    assert "tenant_files: 1 left" in _phase(slurm, "n1", "failed").failure
    assert found.read_text() == "data"
    found.unlink()


def test_a_scrub_that_fails_or_reports_nothing_never_counts(slurm: SlurmHarness) -> None:
    """BR-032: exit without a report, a report of failure, and a lie about another node all end in failed."""
    good = '{"result":"passed"}'
    checks = ",".join(f'"{name}":{good}' for name in ("processes", "tenant_files", "shared_memory", "gpu_memory"))
    line = 'SCRUB-REPORT {"v":1,"token":"\'$SCRUB_TOKEN\'","node":"%s","started":1,"finished":2,"checks":{%s}}'
    scripts = {
        "wip_silent": "#!/bin/bash\ntrue\n",
        "wip_exit": "#!/bin/bash\nexit 1\n",
        "wip_other": f"#!/bin/bash\necho '{line % ('n9', checks)}'\necho SCRUB-END $SCRUB_TOKEN\n",
        "wip_bad": f"#!/bin/bash\necho '{line % ('n1', checks.replace('passed', 'failed', 1))}'\necho SCRUB-END $SCRUB_TOKEN\n",
    }
    for token, script in scripts.items():
        broken = slurm.kit.adapter(lambda: datetime.now(UTC), scrub={**slurm.kit.config()["scrub"], "script": script})
        slurm.insist(partial(broken.wipe, "n1", token), what="wipe")
        slurm.until(lambda: slurm.adapter.observe("n1"), lambda view: view.phase == "failed", what=f"{token} failed")
        broken.close()


def test_a_release_ends_the_tenants_jobs_on_the_node_first(slurm: SlurmHarness) -> None:
    """Busy until they have ended; then the node is in no wall."""
    spec = slurm.cluster(2)
    first, second = spec.members
    token = _running(slurm, spec)
    with pytest.raises(Busy):
        slurm.adapter.release(first.ref, first.token, accepted_at=ACCEPTED_AT)
    slurm.insist(lambda: slurm.adapter.release(first.ref, first.token, accepted_at=ACCEPTED_AT), what="release")
    assert slurm.adapter.find_job(spec.cluster_id, token).phase == "cancelled"
    assert [one.ref for one in slurm.view(spec).members] == [second.ref]
    assert slurm.adapter.observe(first.ref).phase == "released"


def test_tenants_reach_no_node_outside_their_wall(slurm: SlurmHarness) -> None:
    """With the partitions as the guide says, a tenant's own submits to any of them are refused or never start."""
    spec = slurm.cluster(1)
    submit = (
        "source /dev/stdin; exec setpriv --reuid={user} --regid={user} --clear-groups sbatch -p {part} -o /dev/null --wrap true"
    )
    env = (slurm.kit.base / "env.sh").read_text()
    for part in ("tenants", "admin", "batch", "urgent"):
        command = submit.format(user=spec.user, part=part)
        done = subprocess.run(["bash", "-c", command], input=env, check=False, capture_output=True, text=True, cwd="/tmp")
        assert done.returncode != 0, f"{part} took a job: {done.stdout}"
    assert slurm.adapter.capabilities().walls == ("reservation", "partition")


def test_an_open_partition_is_told_to_the_operator(slurm: SlurmHarness) -> None:
    """Then `partition` is no wall."""
    _admin(slurm, "update partitionname=batch allowgroups=all")
    try:
        able = slurm.adapter.capabilities()
    finally:
        _admin(slurm, "update partitionname=batch allowgroups=root")
    assert able.walls == ("reservation",)
    assert any("batch" in note for note in able.notes)


def test_a_requeue_is_seen_under_the_same_id(slurm: SlurmHarness) -> None:
    """Slurm starts it again by itself: one attempt, one number, counted."""
    spec = slurm.cluster(1)
    token = _running(slurm, spec)
    before = slurm.adapter.find_job(spec.cluster_id, token)
    _admin(slurm, f"requeue {before.external_id}")
    after = slurm.until(
        lambda: slurm.adapter.find_job(spec.cluster_id, token),
        lambda view: view.phase == "pending" and view.requeues,
        what="requeued",
    )
    assert (after.external_id, after.requeues, after.nodes) == (before.external_id, 1, ())
    slurm.adapter.cancel(spec.cluster_id, token)


def test_a_second_run_appends_to_the_output(slurm: SlurmHarness) -> None:
    """What was read by offset before a requeue stays where it was."""
    spec = slurm.cluster(1)
    token = _running(slurm, spec, 'echo "run ${SLURM_RESTART_COUNT:-0}"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 100')
    before = slurm.until(lambda: _printed(slurm, spec, token), lambda chunk: chunk.data, what="output").data
    assert before == b"run 0\n"
    _admin(slurm, f"requeue {slurm.adapter.find_job(spec.cluster_id, token).external_id}")
    slurm.until(lambda: slurm.adapter.find_job(spec.cluster_id, token), lambda view: view.requeues, what="requeued")
    after = slurm.until(lambda: _printed(slurm, spec, token), lambda chunk: chunk.end, what="the second end").data
    assert after.startswith(before)
    assert after.endswith(b"run 1\n")


def test_a_lost_node_is_seen_and_told_apart(slurm: SlurmHarness) -> None:
    """Its member is down, the job goes back to the queue or fails as a node fault, and both come back."""
    spec = slurm.cluster(2)
    dead, alive = (one.ref for one in spec.members)
    verified = slurm.view(spec).verified_at
    token = _running(slurm, spec, nodes=2)
    slurm.node_dies(dead)
    lost = slurm.until(
        lambda: slurm.adapter.find_job(spec.cluster_id, token), lambda view: view.requeues or view.failure, what="lost"
    )
    assert lost.requeues == 1 or lost.failure == "node_fault"
    members = {one.ref: one.state for one in slurm.view(spec).members}
    assert (members[dead], members[alive]) == ("down", "up")
    slurm.node_returns(dead)
    slurm.until(lambda: slurm.view(spec), lambda view: {one.state for one in view.members} == {"up"}, what="both up")
    assert slurm.view(spec).verified_at == verified
    slurm.adapter.cancel(spec.cluster_id, token)


def test_a_job_that_must_not_run_twice_ends_with_its_node(slurm: SlurmHarness) -> None:
    """Each dialect hands the wish on."""
    spec = slurm.cluster(1)
    token = _running(slurm, spec, requeue=False)
    slurm.node_dies(spec.members[0].ref)
    lost = slurm.until(lambda: slurm.adapter.find_job(spec.cluster_id, token), lambda view: view.phase == "failed", what="lost")
    assert (lost.failure, lost.requeues) == ("node_fault", 0)
    slurm.node_returns(spec.members[0].ref)


def test_an_output_that_cannot_be_written_is_no_user_error(slurm: SlurmHarness) -> None:
    """Exit 0:53 is the provider's fault."""
    spec = slurm.cluster(1)
    folder = slurm.kit.base / "work" / "out" / spec.user
    os.chown(folder, 0, 0)
    try:
        job = slurm.job(spec, "true")
        slurm.submit(job)
        view = slurm.ended(job)
    finally:
        os.chown(folder, pwd.getpwnam(spec.user).pw_uid, 0)
    assert (view.phase, view.failure) == ("failed", "provider_fault")


@pytest.mark.parametrize("trick", ["symlink", "hardlink", "fifo"])
def test_a_file_that_a_tenant_swapped_is_not_read(slurm: SlurmHarness, trick: str) -> None:
    """A link, another's file or a pipe in the output's place is refused, and nothing hangs."""
    spec = slurm.cluster(1)
    job = slurm.job(spec, "true")
    slurm.submit(job)
    slurm.ended(job)
    output = slurm.kit.base / "work" / "out" / spec.user / f"{spec.cluster_id}.{job.token}.out"
    output.unlink(missing_ok=True)
    secret = slurm.kit.base / "work" / "secret"
    secret.write_text("not the tenant's")
    if trick == "fifo":
        os.mkfifo(output)
    elif trick == "symlink":
        output.symlink_to(secret)
    else:
        output.hardlink_to(secret)
    try:
        with pytest.raises(Refused):
            slurm.adapter.read_output(spec.cluster_id, job.token, offset=0, limit=100)
    finally:
        output.unlink()
        secret.unlink()


def test_output_is_read_through_a_command_as_well(slurm: SlurmHarness) -> None:
    """As the job's user, by GNU dd behind a prefix that hands its arguments to a shell."""
    prefix = ["setpriv", "--reuid={user}", "--regid={user}", "--clear-groups", "sh", "-c", 'eval "$*"', "sh"]
    remote = slurm.kit.adapter(lambda: datetime.now(UTC), read={"argv_prefix": prefix, "quote": True})
    spec = slurm.cluster(1)
    job = slurm.job(spec, "echo 0123456789")
    slurm.submit(job)
    slurm.ended(job)
    chunk = slurm.until(
        lambda: remote.read_output(spec.cluster_id, job.token, offset=4, limit=3), lambda seen: seen.data, what="output"
    )
    assert (chunk.data, chunk.end) == (b"456", False)
    assert remote.read_output(spec.cluster_id, job.token, offset=99, limit=3).end
    with pytest.raises(NotFound):
        remote.read_output(spec.cluster_id, "job_0-1", offset=0, limit=3)
    remote.close()


def test_an_administrators_token_acts_for_tenants(slurm: SlurmHarness) -> None:
    """With one token instead of the key, jobs still run as the tenant's user."""
    given = slurm.kit.adapter(lambda: datetime.now(UTC), mint=False)
    spec = slurm.cluster(1)
    job = slurm.job(spec, "id -un")
    given.submit(job)
    slurm.ended(job)
    chunk = slurm.until(
        lambda: given.read_output(spec.cluster_id, job.token, offset=0, limit=99), lambda seen: seen.data, what="output"
    )
    assert chunk.data.decode().strip() == spec.user
    given.close()


def test_every_version_of_the_api_runs_a_gang_with_its_gpus(slurm: SlurmHarness) -> None:
    """Each dialect that this server offers: asked, placed, run on all nodes with all GPUs, read, and seen by the others."""
    spec = slurm.cluster(2)
    script = "srun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    versions = (40, 41, 42) if slurm.kit.root else (38,)
    for version in versions:
        one = slurm.kit.adapter(lambda: datetime.now(UTC), mint=True, api_versions=[version])
        assert one.capabilities().version.endswith(f"v0.0.{version}")
        job = slurm.job(spec, script, gpu_model=GPU_MODEL)
        one.submit(job)
        view = slurm.until(partial(one.find_job, spec.cluster_id, job.token), lambda seen: seen.ended_at, what="ended")
        assert (view.phase, view.exit_code) == ("succeeded", 0)
        assert slurm.seen(job) == view
        output = one.read_output(spec.cluster_id, job.token, offset=0, limit=1000).data.decode()
        assert sorted(output.split("\n")[:-1]) == [f"{ref} 0,1,2,3,4,5,6,7" for ref in sorted(view.nodes)]
        one.close()


def test_a_token_that_slurm_does_not_take_is_auth_failed(slurm: SlurmHarness) -> None:
    """22.05 answers a wordless 500 after a while; scontrol tells that slurmctld is not to blame."""
    wrong = slurm.kit.adapter(lambda: datetime(2020, 1, 1, tzinfo=UTC), mint=True)
    with pytest.raises((AuthFailed, Unknown)) as caught:
        wrong.capabilities()
    assert isinstance(caught.value, AuthFailed)
    wrong.close()


def test_a_wall_outlives_the_controllers_restart(slurm: SlurmHarness) -> None:
    """Reservation, marks, running job and instants are Slurm's own state."""
    spec = slurm.cluster(1)
    token = _running(slurm, spec)
    before = slurm.view(spec)
    slurm.kit.run("restart-ctld")
    after = slurm.until(lambda: slurm.view(spec), lambda view: view.members[0].state == "up", what="up")
    assert (after.verified_at, after.members[0].up_since) == (before.verified_at, before.members[0].up_since)
    assert slurm.adapter.find_job(spec.cluster_id, token).phase == "running"
    slurm.adapter.cancel(spec.cluster_id, token)


def test_odd_names_reach_no_command(slurm: SlurmHarness) -> None:
    """Refused before anything is sent."""
    for bad in ("n1;reboot", "n1 state=down", "-n1", "n[1-4]"):
        with pytest.raises(ProviderError):
            slurm.adapter.observe(bad)
        with pytest.raises(ProviderError):
            slurm.adapter.deploy(Deployment(bad, "alc_1", "ten_1", "clu_1", network=""))
