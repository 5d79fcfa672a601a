"""
topology.conf: the fabric as Slurm's scheduler sees it.

A tree is block over leaf over nodes. Blocks are NVLink domains, whose sizes are what the smallest domain holds, doubled up.
Source: topology.conf(5); block_record.c of 24.11 ends slurmctld at a block smaller than BlockSizes' first number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from controlplane.rendering.slurm.conf import line
from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.hostlist import compress
from controlplane.rendering.slurm.plan import SlurmPlan, Worker

LEVELS = 5
"""Sizes enforced above the smallest block, each twice the last: 1, 2, 4, 8 and 16 blocks."""
ROOT = "fabric"
LOOSE = "loose"


def topology_file(plan: SlurmPlan) -> RenderedFile | None:
    """
    The head's topology.conf; None for a flat network, which has none.
    """
    kind = plan.topology_kind
    if kind == "flat" or not plan.workers:
        return None
    lines = _blocks(plan) if kind == "block" else _tree(plan.workers)
    return text_file(f"{plan.layout.conf_dir}/topology.conf", lines, on_change="reconfigure")


def _tree(workers: Iterable[Worker]) -> Iterator[str]:
    """
    Every node is below some switch, or Slurm never gives it to a job together with others; all switches meet in one root. Names are
    joined by dots, which no part of them has.
    """
    leaves: dict[tuple[str, str], list[str]] = defaultdict(list)
    for worker in workers:
        leaves[worker.position.block, worker.position.leaf].append(worker.name)
    tops: dict[str, list[str]] = defaultdict(list)
    for (block, leaf), names in sorted(leaves.items()):
        switch = f"leaf.{block}.{leaf}" if leaf else f"{LOOSE}.{block}" if block else LOOSE
        yield line(("SwitchName", switch), ("Nodes", compress(names)))
        tops[block].append(switch)
    roots = []
    for block, switches in sorted(tops.items()):
        if not block or len(switches) == 1:
            roots += switches
            continue
        yield line(("SwitchName", f"block.{block}"), ("Switches", ",".join(switches)))
        roots.append(f"block.{block}")
    if len(roots) > 1:
        yield line(("SwitchName", ROOT), ("Switches", ",".join(roots)))


def _blocks(plan: SlurmPlan) -> Iterator[str]:
    domains: dict[str, list[Worker]] = defaultdict(list)
    for worker in plan.workers:
        domains[worker.position.nvlink_domain].append(worker)
    # neighbours are paired by their order in the file, so that it follows the fabric
    for domain, members in sorted(
        domains.items(), key=lambda one: (min((w.position.block, w.position.leaf) for w in one[1]), one[0])
    ):
        yield line(("BlockName", domain), ("Nodes", compress(worker.name for worker in members)))
    held = [len(members) for members in domains.values()]
    size = max(held) if plan.words.short_blocks else min(held)
    levels = [size << level for level in range(LEVELS) if level == 0 or 1 << level <= len(held)]
    yield line(("BlockSizes", ",".join(map(str, levels))))
