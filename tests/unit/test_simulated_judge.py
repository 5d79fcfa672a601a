"""
The judge finds what is wrong: ledgers with planted violations, and a clean world without any.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.simulated import judge
from controlplane.providers.adapters.simulated.adapter import SimulatedProvider, build
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.ledger import ClusterObject, JobRecord, Ledger, Membership, Tenancy, Use, Wipe
from controlplane.providers.adapters.simulated.metal import PLACES
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """An instant after the start."""
    return START + timedelta(seconds=seconds)


def tenancy(order: int, since: float, until: float | None = None, **changed: Any) -> Tenancy:
    """A tenancy that reaches its machine over [since, until)."""
    ended = None if until is None else at(until)
    made = Tenancy(
        order=order,
        ref="n1",
        token=f"alc_{order}",
        tenant_id=f"ten_{order}",
        cluster_id="clu_1",
        gpus=8,
        requested_at=at(since),
        reachable_from=at(since),
        ready_at=at(since),
        release_requested_at=ended,
        release_accepted_at=ended,
        detached_at=ended,
        powered_off_at=ended,
    )
    return replace(made, **changed)


def ledger(*tenancies: Tenancy, **parts: Any) -> Ledger:
    """A ledger of these."""
    made = Ledger(at=at(1000), tenancies=tenancies, wipes=(), clusters=(), memberships=(), jobs=())
    return replace(made, **parts)


def wipe(order: int, finished: float | None, cleared: tuple[str, ...] = PLACES) -> Wipe:
    """A wipe of the machine."""
    return Wipe(order, "n1", f"w{order}", at(0), None if finished is None else at(finished), cleared)


def test_two_tenants_that_reach_one_machine_at_once_are_found() -> None:
    """I1: overlapping spans, whoever came first and whether or not they ended."""
    assert judge.overlapping_reach(ledger(tenancy(1, 0, 100), tenancy(2, 99, 200)))
    assert judge.overlapping_reach(ledger(tenancy(1, 0), tenancy(2, 500)))
    assert judge.overlapping_reach(ledger(tenancy(1, 0, 900), tenancy(2, 10, 20), tenancy(3, 500, 600)))
    (found,) = judge.overlapping_reach(ledger(tenancy(2, 99, 200), tenancy(1, 0, 100)))
    assert (found.promise, found.subject) == ("I1", "n1")
    assert "alc_1" in found.words


def test_tenancies_that_touch_do_not_overlap() -> None:
    """I1: intervals are half-open, empty ones reach nothing, other machines are other machines."""
    assert judge.overlapping_reach(ledger(tenancy(1, 0, 100), tenancy(2, 100, 200))) == []
    assert judge.overlapping_reach(ledger(tenancy(1, 0, 100), tenancy(2, 50, 50))) == []
    assert judge.overlapping_reach(ledger(tenancy(1, 0), tenancy(2, 0, ref="n2"))) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=6))
def test_overlap_is_found_exactly_when_some_microsecond_is_shared(spans: list[tuple[int, int]]) -> None:
    """I1 as a law: compared with asking every second one by one."""
    held = [tenancy(order, since, since + length) for order, (since, length) in enumerate(spans)]
    shared = any(sum(1 for since, length in spans if since <= second < since + length) > 1 for second in range(50))
    assert bool(judge.overlapping_reach(ledger(*held))) == shared


def test_a_token_on_two_machines_and_a_cluster_that_stands_twice_are_found() -> None:
    """I2: one accepted create, at most one object."""
    twice = ClusterObject("clu_1", "ten_1", at(0), None, None)
    job = JobRecord("clu_1", "job_1-1", "ten_1", 1, 0, "running", (at(0),), None, ("n1",))
    found = judge.double_objects(
        ledger(
            tenancy(1, 0, token="alc_1"),
            tenancy(2, 0, token="alc_1", ref="n2"),
            clusters=(twice, replace(twice, created_at=at(5))),
            jobs=(job, replace(job, cluster_id="clu_2")),
        )
    )
    assert [one.subject for one in found] == ["alc_1", "clu_1", "job_1-1"]
    assert judge.double_objects(ledger(tenancy(1, 0), clusters=(replace(twice, deleted_at=at(4)), twice), jobs=(job,))) == []


def test_orphans_and_losses_are_found_both_ways() -> None:
    """I2: what stands and nobody owns; what is owned and does not stand."""
    held = ledger(
        tenancy(1, 0),
        tenancy(2, 0, 50, ref="n2", powered_off_at=None),
        tenancy(3, 0, 50, ref="n3"),
        clusters=(ClusterObject("clu_1", "ten_1", at(0), None, None), ClusterObject("clu_0", "ten_1", at(0), at(1), None)),
        jobs=(JobRecord("clu_1", "job_1-1", "ten_1", 1, 0, "pending", (), None, ()),),
    )
    assert judge.live_objects(held) == judge.Live(frozenset({"alc_1", "alc_2"}), frozenset({"clu_1"}), frozenset({"job_1-1"}))
    found = judge.unowned_or_missing(held, deployments=["alc_1", "alc_7"], clusters=[], jobs=["job_1-1"])
    assert {(one.subject, one.words) for one in found} == {
        ("alc_2", "deployment at the provider that nobody owns"),
        ("alc_7", "deployment that is owned and not at the provider"),
        ("clu_1", "cluster at the provider that nobody owns"),
    }


def test_gpus_that_two_hold_at_once_are_found() -> None:
    """I1: a GPU is another's from the very instant at which it is free, and not before; other GPUs of the machine are others."""
    first, second = Use("n1", 0, "job_1-1 run 1", at(0), at(10)), Use("n1", 0, "svc_1 replica 1", at(9), None)
    beside = Use("n1", 1, "svc_1 replica 2", at(0), None)
    found = judge.crowded_gpus(ledger(uses=(second, first, beside)))
    assert [(one.promise, one.subject) for one in found] == [("I1", "n1")]
    assert "GPU 0" in found[0].words
    assert judge.crowded_gpus(ledger(uses=(replace(second, since=at(10)), first, beside))) == []
    assert judge.crowded_gpus(ledger(uses=(replace(second, until=at(9)), first))) == []


def test_a_gpu_in_parts_is_held_by_many_and_never_beyond_itself() -> None:
    """Slices of one profile side by side are fine; one of them twice, two profiles, a whole GPU beside a part, too many parts are not."""

    def told(*gpus: int | str) -> int:
        return len(judge.crowded_gpus(ledger(uses=tuple(Use("n1", gpu, f"h{n}", at(0), None) for n, gpu in enumerate(gpus)))))

    assert told(*(f"0/1g.10gb/{slot}" for slot in range(7)), "1/3g.40gb/0", "1/3g.40gb/1") == 0
    assert told("0/3g.40gb/0", "0/3g.40gb/0") == 1
    assert told("0/3g.40gb/0", "0/1g.10gb/0") == 1
    assert told("0/3g.40gb/0", 0) == 1
    assert told(*(f"0/3g.40gb/{slot}" for slot in range(3))) == 1


def _billed(*members: tuple[int, float | None, float | None], verified: float | None) -> list[judge.Billable]:
    return judge.billable_intervals(
        ledger(
            *(tenancy(number, 0, until, ref=f"n{number}", token=f"alc_{number}") for number, _, until in members),
            clusters=(ClusterObject("clu_1", "ten_1", at(0), None, None if verified is None else at(verified)),),
            memberships=tuple(
                Membership("clu_1", f"n{number}", f"alc_{number}", 8, at(0), None if up is None else at(up), None)
                for number, up, _ in members
            ),
        )
    )


def test_first_members_cost_from_verification_and_late_ones_from_their_own_start() -> None:
    """I3: [usable, release accepted), open while held."""
    spans = [(one.token, one.since, one.until) for one in _billed((1, 10, 500), (2, 30, None), (3, 200, 300), verified=30)]
    assert spans == [("alc_1", at(30), at(500)), ("alc_2", at(30), None), ("alc_3", at(200), at(300))]


def test_what_was_never_usable_costs_nothing() -> None:
    """I3: not verified, never up, or released before it was usable."""
    assert _billed((1, 10, None), verified=None) == []
    assert _billed((1, None, None), (2, 10, 20), (3, 10, 30), verified=30) == []


def test_meters_are_compared_to_the_microsecond() -> None:
    """I3: one microsecond off, a missing interval and an interval too many are each a finding."""
    held = ledger(
        tenancy(1, 0, 500),
        clusters=(ClusterObject("clu_1", "ten_1", at(0), None, at(30)),),
        memberships=(Membership("clu_1", "n1", "alc_1", 8, at(0), at(10), None),),
    )
    good = (at(30), at(500))
    assert judge.meter_differences(held, {"alc_1": good}) == []
    assert judge.meter_differences(held, {"alc_1": (at(30) + timedelta(microseconds=1), at(500))})
    assert judge.meter_differences(held, {})
    assert [one.subject for one in judge.meter_differences(held, {"alc_1": good, "alc_9": good})] == ["alc_9"]


def test_the_peak_counts_what_is_held_at_one_instant() -> None:
    """I4: what is given back at an instant is free for what is taken at it."""
    held = [
        tenancy(1, 0, 100, tenant_id="t"),
        tenancy(2, 50, 150, tenant_id="t", ref="n2"),
        tenancy(3, 100, 200, tenant_id="t"),
        tenancy(4, 0, tenant_id="u", ref="n3"),
    ]
    assert judge.peak_gpus(ledger(*held)) == {"t": 16, "u": 8}
    assert judge.peak_gpus(ledger(*held, tenancy(5, 99, 101, tenant_id="t", ref="n4")))["t"] == 24


@pytest.mark.parametrize(
    ("wipes", "left"),
    [
        ((), len(PLACES)),
        ((wipe(2, 60),), 0),
        ((wipe(2, None),), len(PLACES)),
        ((wipe(2, 101),), len(PLACES)),
        ((wipe(4, 60),), len(PLACES)),
        ((wipe(2, 60, PLACES[1:]),), 1),
        ((wipe(2, 60, ()),), len(PLACES)),
    ],
    ids=["none", "good", "hangs", "too-late", "after", "one-place-left", "lies"],
)
def test_a_machine_given_on_with_traces_is_found(wipes: tuple[Wipe, ...], left: int) -> None:
    """I7: only a real wipe of every place, finished between the two tenancies, lets the next one in."""
    found = judge.unwiped_reuse(ledger(tenancy(1, 0, 50), tenancy(3, 100), wipes=wipes))
    assert bool(found) == bool(left)
    if found:
        assert found[0].words.count(",") == left - 1


def test_power_before_network_is_found() -> None:
    """R22: networks first, then power."""
    assert judge.early_power(ledger(tenancy(1, 0, 50, powered_off_at=at(49))))
    assert judge.early_power(ledger(tenancy(1, 0, 50))) == []


class Rehearsal:
    """A real world, driven through the port."""

    def __init__(self, path: Path, profile: str) -> None:
        self.moment = START
        self.sim: SimulatedProvider = build(
            AdapterInput("prv_1", {"path": str(path), "profile": profile}, {}, "test", lambda: self.moment)
        )
        self.control = SimControl(path, now=lambda: self.moment)

    def later(self, seconds: float) -> None:
        """Time has passed."""
        self.moment += timedelta(seconds=seconds)


@pytest.mark.parametrize("profile", ["instant", "fast", "realistic"])
def test_a_world_that_was_driven_well_has_no_findings_and_exact_meters(tmp_path: Path, profile: str) -> None:
    """The whole life of a cluster with a late member, told by the port's evidence alone, agrees with the ledger."""
    world = Rehearsal(tmp_path / "world.sqlite", profile)
    refs = [one.ref for one in world.sim.list_machines().machines[:3]]
    members = tuple(Member(ref, 8, f"alc_{ref}") for ref in refs)
    metered: dict[str, tuple[datetime, datetime | None]] = {}
    for number, size in enumerate((2, 3)):
        for one in members[number * 2 : size]:
            world.sim.deploy(Deployment(one.ref, one.token, "ten_1", "clu_1", "net"))
        world.sim.apply_cluster(ClusterSpec("clu_1", "ten_1", "prj_1", "u1", members[:size]))
        world.later(7200)
        view = world.sim.observe_cluster("clu_1")
        for seen in view.members:
            assert view.verified_at is not None
            assert seen.up_since is not None
            metered.setdefault(f"alc_{seen.ref}", (max(view.verified_at, seen.up_since), None))
    assert judge.meter_differences(world.control.ledger(), metered) == []
    world.sim.delete_cluster("clu_1")
    for one in members:
        world.sim.release(one.ref, one.token, accepted_at=world.moment)
        metered[one.token] = (metered[one.token][0], world.moment)
    world.later(7200)
    for one in members:
        world.sim.wipe(one.ref, f"wipe-{one.ref}")
    world.later(20000)
    world.sim.deploy(Deployment(refs[0], "alc_next", "ten_2", "clu_2", "net"))
    world.later(7200)
    after = world.control.ledger()
    assert judge.all_findings(after) == []
    assert judge.meter_differences(after, metered) == []
    assert judge.unowned_or_missing(after, deployments=["alc_next"], clusters=[], jobs=[]) == []
    assert judge.peak_gpus(after) == {"ten_1": 24, "ten_2": 8}


def test_a_world_that_was_driven_badly_is_found_out(tmp_path: Path) -> None:
    """A machine is given on after a wipe that lied: the ledger knows, though every answer was good."""
    world = Rehearsal(tmp_path / "world.sqlite", "instant")
    ref = world.sim.list_machines().machines[0].ref
    world.control.play("wipe_lies")
    world.sim.deploy(Deployment(ref, "alc_1", "ten_1", "clu_1", "net"))
    world.later(1)
    world.sim.release(ref, "alc_1", accepted_at=world.moment)
    world.sim.wipe(ref, "w1")
    world.sim.deploy(Deployment(ref, "alc_2", "ten_2", "clu_2", "net"))
    assert [one.promise for one in judge.all_findings(world.control.ledger())] == ["I7"]
