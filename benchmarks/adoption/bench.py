"""
What taking over a cluster of Cluster API costs, in requests: at 1, 10 and 50 workers, beside making one of the same size.

Run from the repository root: `python -m benchmarks.adoption.bench`. One JSON line per size; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.stage import circumstances, report
from controlplane.providers.adapters.clusterapi.adapter import ClusterApiAdapter
from controlplane.providers.adoption import Adoption
from controlplane.providers.clusters import ClusterView
from controlplane.providers.machines import Deployment
from tests.capi_kit import CapiKit, capi_kit, spec, until
from tests.kubernetes_kit import KIT

SIZES = tuple(int(one) for one in os.environ.get("BENCH_WORKERS", "1,10,50").split(","))
VERSION = "1.34.2"
CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Count:
    """
    Requests of the adapter, by what they were for.
    """

    def __init__(self, kit: CapiKit) -> None:
        self._kit = kit
        self.of: dict[str, dict[str, int]] = {}
        """By part: requests that read and that write."""

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        """
        What the work gave; its requests are counted.
        """
        before = len(self._kit.kit.asked())
        given = work()
        made = [method for method, path in self._kit.kit.asked()[before:] if "watch=true" not in path]
        kinds = Counter("writes" if method in CHANGES else "reads" for method in made)
        self.of[name] = {"reads": kinds["reads"], "writes": kinds["writes"]}
        return given


def taken_over(workers: int) -> dict[str, dict[str, int]]:
    """
    The requests of a whole takeover, and of letting it go.
    """
    with capi_kit(hosts=workers) as kit:
        kit.stand("theirs", workers)
        adapter, count = kit.adapter(), Count(kit)
        (found,) = count.part("list", adapter.list_standing)
        wanted = spec(*(one.ref for one in found.hosts), version=VERSION)
        adoption = Adoption(found.ref, found.uid, wanted)
        count.part("adopt", lambda: adapter.adopt_cluster(adoption))
        count.part("adopt_again", lambda: adapter.adopt_cluster(adoption))
        view: ClusterView = count.part("look", lambda: adapter.observe_cluster(wanted.cluster_id))
        assert [one.state for one in view.members] == ["up"] * workers
        assert view.verified_at is not None
        count.part("next_look", lambda: adapter.observe_cluster(wanted.cluster_id))
        count.part("let_go", lambda: adapter.let_go(wanted.cluster_id))
        assert adapter.list_clusters().cluster_ids == ()
        adapter.close()
        return count.of


def made(workers: int) -> dict[str, int]:
    """
    The requests of an order of that size, each host's among them, with one look for all that its controllers had to do meanwhile.
    """
    with capi_kit(hosts=workers) as kit:
        adapter, count = kit.adapter(), Count(kit)
        wanted = spec(*(f"metal-{number:02d}" for number in range(workers)), version=VERSION)
        count.part("make", lambda: _make(adapter, kit, [one.ref for one in wanted.members], wanted))
        adapter.close()
        return count.of["make"]


def _make(adapter: ClusterApiAdapter, kit: CapiKit, refs: list[str], wanted: Any) -> None:
    for ref in refs:
        adapter.deploy(Deployment(ref, f"alc_{ref[-2:]}", "ten_one", wanted.cluster_id, network="net"))
    for ref in refs:
        until(kit, lambda one=ref: adapter.observe(one).phase == "deployed", "deployed")  # type: ignore[misc]
    adapter.apply_cluster(replace(wanted))
    kit.settle()
    view = adapter.observe_cluster(wanted.cluster_id)
    assert [one.state for one in view.members] == ["up"] * len(refs), view


def main() -> int:
    """
    Exit code of the benchmark.
    """
    if not KIT.exists():
        report({"question": "adoption", "not_measured": f"the kit is not there: {KIT.name}"})
        return 0
    good, reads = True, set()
    for workers in SIZES:
        counts, order = taken_over(workers), made(workers)
        adopt = counts["adopt"]
        reads.add(adopt["reads"])
        whole = sum(sum(counts[name].values()) for name in ("list", "adopt", "look"))
        within = adopt["writes"] == workers + 1 and counts["adopt_again"]["writes"] == 0 and len(reads) == 1
        result = {
            "question": f"a Cluster of {workers} workers is taken over",
            "requests": counts | {"make": order},
            "from_seen_to_billed": whole,
            "a_worker": round(whole / workers, 2),
            "ratio_to_making_it": round(whole / sum(order.values()), 2),
            "goal": "writes once for the Cluster and once for each host, none when asked for again, reads as often at each size",
            "within_goal": within,
        }
        report(result | circumstances())
        good = good and within
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
