"""
Tools between nodes of the real Slurm, as jobs: what they print is handed over, and a session leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.providers.adapters.slurm.adapter import SlurmAdapter
from controlplane.providers.checks import ChecksView, FabricRun, RunView, SupportsFabricChecks
from controlplane.providers.errors import Busy, NotFound, Refused, Unsupported
from controlplane.providers.machines import Deployment
from tests.contract.slurm_harness import MARKS, SlurmHarness
from tests.factories.qualification import nccl, write_bw
from tests.slurm_kit import checks_config, session_kit

pytestmark = list(MARKS)
PAIR = FabricRun("0-0", "ib_write_bw", "", ("n1", "n2"), 0)
LEAF = FabricRun("1-0", "nccl-tests", "all_reduce", ("n1", "n2", "n3"))


class Bench:
    """
    A Slurm with tools of the test's own, which print what real ones did.
    """

    def __init__(self, slurm: SlurmHarness) -> None:
        self.slurm = slurm
        self.made: list[SlurmAdapter] = []
        self.peer = self.adapter()

    def adapter(self, **changes: Any) -> SlurmAdapter:
        """Another process's adapter; changes are of the tools."""
        config = checks_config(self.slurm.kit, nccl(370.0), write_bw(392.0)) | changes
        self.made.append(self.slurm.kit.adapter(lambda: datetime.now(UTC), fabric_checks=config))
        return self.made[-1]

    def runs(self, token: str, *runs: FabricRun, peer: SlurmAdapter | None = None) -> dict[str, RunView]:
        """The runs after their end, in a session of all their nodes."""
        peer = peer or self.peer
        peer.prepare_checks(token, tuple(dict.fromkeys(ref for run in runs for ref in run.refs)))
        peer.begin_checks(token, runs)
        return {one.name: one for one in self.until(token, lambda view: all(one.phase != "running" for one in view.runs)).runs}

    def until(self, token: str, good: Callable[[ChecksView], bool]) -> ChecksView:
        """The session once it is so."""
        seen: ChecksView = self.slurm.until(lambda: self.made[-1].observe_checks(token), good, what=f"checks {token}")
        return seen

    def gone(self, token: str) -> bool:
        """Whether nothing of it is there."""
        try:
            self.peer.observe_checks(token)
        except NotFound:
            return True
        return False

    def end(self, token: str) -> None:
        """It was ended and seen to be away."""
        self.peer.end_checks(token)
        self.slurm.until(lambda: self.gone(token), bool, what=f"{token} gone")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """The session's Slurm with all nodes free."""
    slurm = SlurmHarness(session_kit())
    made = Bench(slurm)
    try:
        yield made
    finally:
        slurm.kit.slurm("scancel", "--user", "root")
        for one in made.made:
            one.close()
        slurm.close()


def test_tools_run_between_the_nodes_and_print(bench: Bench) -> None:
    """Server and client on their nodes, a collective over three; a run begun twice runs once; after the end nothing is left."""
    assert isinstance(bench.peer, SupportsFabricChecks)
    assert bench.gone("fck_a")
    seen = bench.runs("fck_a", PAIR, LEAF)
    assert {name: one.phase for name, one in seen.items()} == {"0-0": "finished", "1-0": "finished"}, seen
    assert "client n1 of n2 by mlx5_0" in seen["0-0"].output
    assert write_bw(392.0) in seen["0-0"].output
    assert nccl(370.0) in seen["1-0"].output
    assert "8 GPUs each on n1 n2 n3" in seen["1-0"].output
    bench.peer.begin_checks("fck_a", (PAIR, LEAF))
    assert bench.slurm.kit.slurm("squeue", "-h", "-t", "all", "-o", "%j").count(":check:fck_a:") == 2
    with pytest.raises(Busy):
        bench.peer.deploy(Deployment("n1", "alc_1", bench.slurm.tenants[0], "clu_1", network=""))
    bench.end("fck_a")
    for call in (lambda: bench.peer.begin_checks("fck_a", (PAIR,)), lambda: bench.peer.prepare_checks("fck_a", ("n1", "n2"))):
        with pytest.raises((NotFound, Refused)):
            call()
    bench.peer.prepare_checks("fck_b", ("n1", "n2"))
    bench.end("fck_b")


def test_what_is_not_there_is_not_measured_and_what_breaks_has_failed(bench: Bench) -> None:
    """No command, no device, no such program; tools that break off on either side."""
    none = bench.adapter(all_reduce=[], ib_write_bw=["/no/such/ib_write_bw"])
    seen = bench.runs("fck_c", PAIR, LEAF, FabricRun("2-0", "ib_write_bw", "", ("n3", "n4"), 7), peer=none)
    assert {one.phase for one in seen.values()} == {"not_measured"}, seen
    assert seen["1-0"].detail == "no command is configured for nccl-tests"
    assert seen["2-0"].detail == "no device is configured for rail 7"
    bench.end("fck_c")
    broken = bench.adapter(all_reduce=["false"], ib_write_bw=["bash", "-c", "echo cannot >&2; exit 3"])
    seen = bench.runs("fck_d", PAIR, LEAF, peer=broken)
    assert {one.phase for one in seen.values()} == {"failed"}, seen
    assert seen["0-0"].detail == "the tool ended with status 3: cannot cannot"
    bench.end("fck_d")


def test_a_session_that_is_ended_ends_its_tools(bench: Bench) -> None:
    """A client that hangs is gone with its session, also for an adapter that knows nothing of it but the token."""
    hangs = bench.adapter(ib_write_bw=["sleep", "600"], all_reduce=["sleep", "600"])
    hangs.prepare_checks("fck_e", ("n1", "n2", "n3"))
    hangs.begin_checks("fck_e", (LEAF,))
    steps = ("squeue", "-h", "-t", "running", "-o", "%j")
    bench.slurm.until(lambda: bench.slurm.kit.slurm(*steps), lambda text: ":check:fck_e:1-0" in text, what="running")
    assert [one.phase for one in bench.peer.observe_checks("fck_e").runs] == ["running"]
    bench.end("fck_e")
    assert ":check:fck_e:" not in bench.slurm.kit.slurm(*steps)


def test_a_node_of_a_tenant_and_a_slurm_without_tools_are_refused(bench: Bench) -> None:
    """Neither gets a mark."""
    bench.peer.deploy(Deployment("n1", "alc_1", bench.slurm.tenants[0], "clu_1", network=""))
    with pytest.raises(Refused):
        bench.peer.prepare_checks("fck_f", ("n1", "n2"))
    with pytest.raises(Unsupported):
        bench.slurm.adapter.prepare_checks("fck_f", ("n2", "n3"))
    assert bench.gone("fck_f")
