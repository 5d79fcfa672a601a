"""
The Slurm adapter against a slurmrestd that plays faults, in both dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.providers.adapters.slurm.adapter import SlurmAdapter, build
from controlplane.providers.adapters.slurm.client import SlurmRest
from controlplane.providers.adapters.slurm.config import SlurmConfig
from controlplane.providers.adapters.slurm.names import Names
from controlplane.providers.adapters.slurm.peer import Peer
from controlplane.providers.adapters.slurm.tokens import Tokens
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, ProviderError, Refused, Unknown, Unsupported
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput
from tests.simulators.slurmrestd.server import FakeSlurmrestd, fake_slurmrestd

NOW = datetime(2026, 11, 28, tzinfo=UTC)
JOB = JobSpec(
    token="job_1-1",
    cluster_id="clu_1",
    tenant_id="ten_1",
    user="tenant1",
    script="#!/bin/bash\ntrue\n",
    nodes=2,
    gpus_per_node=8,
    tasks_per_node=1,
    time_limit_s=90,
)
SPEC = ClusterSpec("clu_1", "ten_1", "prj_1", "tenant1", (Member("n1", 8, "alc_1"), Member("n2", 8, "alc_2")))


@pytest.fixture(params=[38, 42])
def peer(request: pytest.FixtureRequest) -> Iterator[FakeSlurmrestd]:
    """A fake slurmrestd of each generation."""
    with fake_slurmrestd(request.param) as fake:
        yield fake


def _adapter(peer: FakeSlurmrestd, **config: Any) -> SlurmAdapter:
    given = {"url": peer.url, "cli": peer.cli, "timeout_s": 5.0, "max_body_mib": 1, **config}
    return build(AdapterInput("prv_1", given, {"token": "x.y.z"}, "dep", lambda: NOW))


@pytest.fixture
def adapter(peer: FakeSlurmrestd) -> Iterator[SlurmAdapter]:
    """An adapter with a cluster of two nodes."""
    made = _adapter(peer)
    made.apply_cluster(SPEC)
    peer.world.changes.clear()
    yield made
    made.close()


def _submits(peer: FakeSlurmrestd) -> int:
    return sum(change.startswith("submit") for change in peer.world.changes)


@pytest.mark.parametrize("kind", ["effect_500", "effect_reset", "truncate"])
def test_a_submit_that_took_effect_behind_a_fault_is_unknown_and_found_again(
    peer: FakeSlurmrestd, adapter: SlurmAdapter, kind: str
) -> None:
    """BR-067: 20 submits whose answers are lost make 20 jobs."""
    for number in range(20):
        job = JobSpec(**{**_fields(JOB), "token": f"job_{number}-1"})
        peer.fail("POST .*/job/submit", kind)
        with pytest.raises(Unknown):
            adapter.submit(job)
        again = adapter.submit(job)
        assert adapter.submit(job) == again
        assert adapter.find_job("clu_1", job.token).external_id == again
    assert _submits(peer) == 20


def test_a_submit_that_timed_out_after_its_effect_is_found_again(peer: FakeSlurmrestd) -> None:
    """BR-067: the answer never comes; the next try finds the job by its name."""
    quick = _adapter(peer, timeout_s=0.4)
    quick.apply_cluster(SPEC)
    peer.fail("POST .*/job/submit", "effect_hang")
    with pytest.raises(Unknown):
        quick.submit(JOB)
    assert quick.submit(JOB) == "1"
    assert _submits(peer) == 1
    quick.close()


def test_a_refused_connection_was_not_sent() -> None:
    """Nobody listens: nothing happened."""
    with fake_slurmrestd(38) as gone:
        adapter = _adapter(gone)
    with pytest.raises(NotSent):
        adapter.list_clusters()
    adapter.close()


@pytest.mark.parametrize(("pattern", "key"), [("/jobs", "jobs"), ("/nodes", "nodes"), ("/reservations", "reservations")])
def test_errors_inside_a_success_are_unknown_and_nothing_follows(
    peer: FakeSlurmrestd, adapter: SlurmAdapter, pattern: str, key: str
) -> None:
    """BR-068: 200 with errors and an empty list proves nothing; no cancel, drain or delete follows, and it is counted."""
    adapter.submit(JOB)
    peer.world.changes.clear()
    body = {key: [], "errors": [{"error": "Unspecified error", "error_number": 5}]}
    smaller = ClusterSpec("clu_1", "ten_1", "prj_1", "tenant1", SPEC.members[:1])
    calls: list[Callable[[], object]] = [
        lambda: adapter.observe_cluster("clu_1"),
        lambda: adapter.delete_cluster("clu_1"),
        lambda: adapter.apply_cluster(smaller),
        adapter.list_machines,
        lambda: adapter.drain("clu_1", ("n1",), reason="x"),
    ]
    for call in calls:
        peer.faults.clear()
        peer.fail(f"GET .*{pattern}$", "say", payload=(200, body), times=9)
        before, asked = adapter.errors_inside_success, len(peer.requests)
        try:
            call()
        except Unknown:
            assert adapter.errors_inside_success > before
        else:
            assert not any(line.endswith(pattern) for line in peer.requests[asked:])
    peer.faults.clear()
    # a shrink may drain, which takes nothing away; it may not remove, cancel or delete
    destructive = [change for change in peer.world.changes if change.startswith(("cancel", "scontrol delete", "scontrol update"))]
    assert destructive == []
    assert adapter.find_job("clu_1", JOB.token).phase == "running"


def _drop(key: str) -> Callable[[dict[str, Any]], Any]:
    def mutate(body: dict[str, Any]) -> dict[str, Any]:
        rows = next(value for name, value in body.items() if isinstance(value, list) and name not in {"errors", "warnings"})
        for row in rows:
            row.pop(key, None)
        return body

    return mutate


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def mutate(body: dict[str, Any]) -> dict[str, Any]:
        rows = next(part for name, part in body.items() if isinstance(part, list) and name not in {"errors", "warnings"})
        for row in rows:
            row[key] = value
        return body

    return mutate


@pytest.mark.parametrize(
    "mutate",
    [
        _drop("job_state"),
        _drop("job_id"),
        _set("job_state", 7),
        _set("job_id", {"set": False}),
        _set("nodes", ["n1"]),
        lambda _: {"jobs": 3},
    ],
)
def test_an_unknown_shape_marks_the_provider_unsupported(peer: FakeSlurmrestd, adapter: SlurmAdapter, mutate: Any) -> None:
    """BR-070: a drift that cannot be read is said so, and no partial list is passed off as the list."""
    adapter.submit(JOB)
    peer.fail("GET .*/jobs$", "mutate", mutate=mutate)
    with pytest.raises(Unsupported):
        adapter.list_jobs("clu_1")


@pytest.mark.parametrize(
    "mutate",
    [
        _set("start_time", None),
        _set("end_time", {"set": False, "infinite": False, "number": 0}),
        _set("end_time", {"set": False, "infinite": True, "number": 0}),
        _set("restart_cnt", None),
        _set("restart_cnt", {"set": True, "infinite": False, "number": 0}),
        _drop("exit_code"),
        _drop("state_reason"),
        _set("comment", "dep:clu_1"),
    ],
)
def test_a_drift_in_what_is_optional_is_read(peer: FakeSlurmrestd, adapter: SlurmAdapter, mutate: Any) -> None:
    """BR-070: null, unset, infinite and missing are the same as saying nothing."""
    adapter.submit(JOB)
    peer.fail("GET .*/jobs$", "mutate", mutate=mutate)
    (view,) = adapter.list_jobs("clu_1")
    assert (view.phase, view.token, view.requeues) == ("running", JOB.token, 0)


@pytest.mark.parametrize("kind", ["truncate", "huge"])
def test_an_unreadable_or_endless_answer_is_unknown(peer: FakeSlurmrestd, adapter: SlurmAdapter, kind: str) -> None:
    """Cut JSON and a body over the cap are no answers."""
    peer.fail("GET .*/jobs$", kind)
    with pytest.raises(Unknown):
        adapter.list_jobs("clu_1")


def test_a_warning_and_noise_keep_the_job_number(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """BR-074: a success with a warning, and one behind noise, is a success; there is one job."""

    def warn(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "warnings": [{"description": "something is deprecated"}]}

    peer.fail("POST .*/job/submit", "mutate", mutate=warn)
    first = adapter.submit(JOB)
    peer.fail("POST .*/job/submit", "noise")
    second = adapter.submit(JobSpec(**{**_fields(JOB), "token": "job_2-1"}))
    assert (first, second, _submits(peer)) == ("1", "2", 2)


def test_a_queued_job_with_an_error_beside_its_number_is_kept(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """22.05 names errno 2015 beside the number of a job that waits for its partition."""

    def beside(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "errors": [{"error_code": 2015, "error": "Requested partition configuration not available now"}]}

    peer.fail("POST .*/job/submit", "mutate", mutate=beside)
    assert adapter.submit(JOB) == "1"


def test_a_submit_answered_without_a_number_is_unknown(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """A success that names no job proves none."""
    peer.fail("POST .*/job/submit", "mutate", mutate=lambda _: {"errors": [], "result": {}})
    with pytest.raises(Unknown):
        adapter.submit(JOB)


def test_an_ignored_field_is_a_failure_and_the_job_is_cancelled(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """A server that drops the GPUs' field would run the job without them."""
    peer.world.known_fields = {"name", "comment", "reservation", "environment"}
    with pytest.raises(Refused):
        adapter.submit(JOB)
    assert all(job.state == "CANCELLED" for job in peer.world.jobs.values())


def test_a_refused_submit_is_final_and_its_trace_is_no_job(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """The FAILED/BadConstraints record that it leaves is not counted, and the token can be sent again."""
    impossible = JobSpec(**{**_fields(JOB), "gpus_per_node": 9})
    with pytest.raises(Refused):
        adapter.submit(impossible)
    assert adapter.list_jobs("clu_1") == ()
    with pytest.raises(NotFound):
        adapter.find_job("clu_1", JOB.token)
    assert adapter.submit(JOB) == "2"


@pytest.mark.parametrize("status", [401, 511])
def test_a_credential_that_is_not_accepted_is_told_apart(peer: FakeSlurmrestd, adapter: SlurmAdapter, status: int) -> None:
    """Plain-text 401 of both generations, and 511 of the later one."""
    peer.fail("GET .*/jobs$", "status", payload=status)
    with pytest.raises(AuthFailed):
        adapter.list_jobs("clu_1")


def test_the_wordless_500_is_a_bad_token_when_slurmctld_is_up(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """22.05 says the same when slurmctld is away; scontrol tells which it is."""
    wordless = (500, {"errors": [{"error": "Unspecified error", "error_number": -1}], "jobs": []})
    peer.fail("GET .*/jobs$", "say", payload=wordless)
    with pytest.raises(AuthFailed):
        adapter.list_jobs("clu_1")
    blind = _adapter(peer, cli=None)
    peer.fail("GET .*/reservations$", "say", payload=wordless)
    with pytest.raises(Unknown):
        blind.list_clusters()
    blind.close()


def test_a_busy_peer_is_given_its_time(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """429 is Busy."""
    peer.fail("GET .*/jobs$", "status", payload=429)
    with pytest.raises(Busy):
        adapter.list_jobs("clu_1")


def test_a_peer_without_a_known_version_is_unsupported(peer: FakeSlurmrestd) -> None:
    """Neither guessed nor tried."""
    adapter = _adapter(peer)
    peer.fail("GET /openapi/v3", "say", payload=(200, {"paths": {"/slurm/v0.0.99/jobs": {}}}))
    with pytest.raises(Unsupported):
        adapter.capabilities()
    assert adapter.capabilities().version.startswith("slurm 2")
    adapter.close()


def test_an_upgraded_peer_is_discovered_again(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """After the old version's paths are gone, the next call speaks the new one."""
    peer.world.generation = 41
    with pytest.raises(ProviderError):
        adapter.list_clusters()
    assert adapter.list_clusters().cluster_ids == ("clu_1",)


def test_without_scontrol_jobs_are_read_and_clusters_refused(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """What needs the command path says so."""
    blind = _adapter(peer, cli=None)
    assert blind.capabilities().products == ()
    with pytest.raises(Unsupported):
        blind.apply_cluster(ClusterSpec("clu_2", "ten_2", "prj_2", "tenant2", (Member("n3", 8, "alc_3"),)))
    assert blind.list_clusters().cluster_ids == ("clu_1",)
    blind.close()


def test_a_broken_off_removal_leaves_no_drain_behind(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """The wall was made smaller and the drain not yet lifted: the next apply lifts it."""
    smaller = ClusterSpec("clu_1", "ten_1", "prj_1", "tenant1", SPEC.members[:1])
    peer.world.nodes["n2"].flags.add("DRAIN")
    peer.world.nodes["n2"].reason = "controlplane(dep): leaves clu_1"
    peer.world.reservations["dep:clu_1"]["nodes"] = "n1"
    adapter.apply_cluster(smaller)
    assert "DRAIN" not in peer.world.nodes["n2"].flags


def test_a_foreign_mark_is_never_overwritten(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """Another installation's node, or a person's note, stays as it is."""
    peer.world.nodes["n3"].extra = "cp1:other;alloc=alc_9;phase=deployed"
    with pytest.raises(Refused):
        adapter.deploy(Deployment("n3", "alc_3", "ten_1", "clu_1", ""))
    with pytest.raises(Refused):
        adapter.apply_cluster(ClusterSpec("clu_3", "ten_1", "prj_1", "tenant1", (Member("n3", 8, "alc_3"),)))
    assert peer.world.nodes["n3"].extra == "cp1:other;alloc=alc_9;phase=deployed"
    assert adapter.observe("n3").phase == "unknown"


def test_another_deployments_walls_are_not_ours(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """Names begin with the installation's; a longer one that starts alike is another's."""
    peer.world.reservations["dep.b:clu_9"] = {"nodes": "n4", "users": "x"}
    peer.world.reservations["dep2:clu_8"] = {"nodes": "n4", "users": "x"}
    peer.world.reservations["maintenance"] = {"nodes": "n4", "users": "root"}
    assert adapter.list_clusters().cluster_ids == ("clu_1",)


def test_another_tenants_job_of_the_same_name_is_not_taken_for_ours(peer: FakeSlurmrestd, adapter: SlurmAdapter) -> None:
    """Name and mark can be imitated; the wall and its user cannot."""
    adapter.submit(JOB)
    forged = peer.world.jobs[1]
    forged.user, forged.reservation = "tenant2", "dep:clu_2"
    assert adapter.list_jobs("clu_1") == ()
    assert adapter.submit(JOB) == "2"


def test_a_list_is_kept_only_once_its_stamp_is_sealed() -> None:
    """The stamp has seconds: changes within its second would be missed. A sealed list is kept until the peer says otherwise."""
    now = [100.0]
    with fake_slurmrestd(42) as fake:
        tokens = Tokens({"token": "x.y.z"}, lambda: NOW)
        rest = SlurmRest(fake.url, tokens, admin="root", timeout_s=5.0, max_body_bytes=1 << 20, ca_file=None)
        peer = Peer(rest, None, SlurmConfig(url=fake.url), Names("dep", "controlplane"), elapsed_s=lambda: now[0])
        fake.world.now_s = lambda: fake.world.clock_s
        assert peer.jobs() == ()
        fake.world.submit({"job": {"name": "same-second"}}, "tenant1")
        assert [job.name for job in peer.jobs()] == ["same-second"]
        for now[0] in (101.0, 102.0, 103.0):
            assert [job.name for job in peer.jobs()] == ["same-second"]
        fake.world.jobs.clear()  # unseen while the stamp stands still: that is the proof that the kept list is used
        assert [job.name for job in peer.jobs()] == ["same-second"]
        fake.world.clock_s += 1
        assert peer.jobs() == ()
        rest.close()


def _fields(job: JobSpec) -> dict[str, Any]:
    return {name: getattr(job, name) for name in JobSpec.__slots__}
