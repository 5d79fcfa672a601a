"""
What operators offer, and the list by which a head drains nodes that leave.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.rendering.slurm.layout import Layout
from controlplane.rendering.slurm.leaving import REASON, leaving_files
from controlplane.rendering.slurm.offer import plan_of, read_offer
from controlplane.rendering.slurm.plan import Host, SlurmPlan, Worker
from controlplane.rendering.slurm.roles import plain_files
from controlplane.rendering.slurm.words import BadPlan

SHAPE: dict[str, Any] = {
    "sockets": 2,
    "cores_per_socket": 56,
    "threads_per_core": 2,
    "memory_mib": 2_063_000,
    "gpus": {"model": "H100-SXM5-80GB", "gres_type": "h100", "groups": [{"first": 0, "count": 8}]},
}
OFFER: dict[str, Any] = {"release": "24.11", "shapes": {"hgx-h100-8": SHAPE}}
SCONTROL = """#!/bin/sh
# knows the nodes of a file: NAME STATE REASON...; slurmctld answers from the second question on
if [ "$1" = ping ]; then
  echo ping >> "$CALLS"
  [ "$(grep -c ping "$CALLS")" -gt 1 ]
elif [ "$1" = -o ] && [ $# = 3 ]; then
  while read -r name state reason; do echo "NodeName=$name State=$state Reason=$reason"; done < "$NODES"
elif [ "$1" = -o ]; then
  grep "^$4 " "$NODES" | while read -r name state reason; do echo "NodeName=$name State=$state Reason=$reason"; done
else
  echo "$@" >> "$CALLS"
fi
"""


def plan(offer: dict[str, Any] = OFFER, **parts: bool) -> SlurmPlan:
    """A cluster of the offer."""
    read = read_offer({"slurm": offer})
    assert read is not None
    workers = (Worker("w1", "10.0.0.2", "hgx-h100-8"), Worker("w2", "10.0.0.3", "hgx-h100-8"))
    return plan_of(
        read,
        "clu_1",
        ["hgx-h100-8"],
        (Host("h1", "10.0.0.1"),),
        workers,
        accounting=parts.get("accounting", False),
        containers=parts.get("containers", False),
    )


def test_an_offer_renders_with_the_parts_that_it_has() -> None:
    """Sizes and GPUs are the offer's; parts that are asked for and not offered are left out."""
    conf = next(one for one in plain_files(plan(accounting=True, containers=True), "head", "h1") if one.path.endswith("slurm.conf"))
    assert b"Gres=gpu:h100:8" in conf.content
    assert plan(accounting=True).accounting is None
    whole = {**OFFER, "accounting": True, "containers": {"plugin": "/usr/lib/spank_pyxis.so"}}
    assert plan(whole, accounting=True, containers=True).accounting is not None
    assert plan(whole).containers is None
    assert read_offer({"url": "http://bmc"}) is None


def test_workers_of_a_shape_get_the_same_bytes() -> None:
    """One blueprint serves them all: no file of a worker names the worker."""
    assert plain_files(plan(), "worker", "w1") == plain_files(plan(), "worker", "w2")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"release": "19.05"}, "slurm.release"),
        ({"shapes": {}}, "slurm.shapes"),
        ({"shape": {}}, "slurm.shape"),
        ({"shapes": {"x": {**SHAPE, "memory_mib": 0}}}, "shapes.x.memory_mib"),
        ({"shapes": {"x": {**SHAPE, "gpu": 8}}}, "slurm.shapes.x.gpu"),
        ({"scheduler": ["bf interval"]}, "scheduler"),
    ],
)
def test_what_could_never_be_built_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    """Unknown words, missing parts and numbers out of range are named."""
    with pytest.raises(BadPlan) as refused:
        read_offer({"slurm": {**OFFER, **changes}})
    assert field in {one.field for one in refused.value.errors}


def test_the_list_drains_what_leaves_and_lifts_only_our_drains(tmp_path: Path) -> None:
    """Once slurmctld answers, listed nodes are drained once; a drain of ours is lifted from nodes that stay, nobody else's is."""
    layout = Layout(conf_dir=str(tmp_path), hooks_dir=str(tmp_path))
    given = plan()
    listed, program = leaving_files(
        SlurmPlan(given.cluster, given.release, given.heads, given.workers, given.shapes, layout=layout), ["a", "b"]
    )
    for file in (listed, program):
        Path(file.path).write_bytes(file.content)
    (tmp_path / "scontrol").write_text(SCONTROL, encoding="utf-8")
    (tmp_path / "scontrol").chmod(0o755)
    states = ("a IDLE none", f"b IDLE+DRAIN {REASON}", f"c IDLE+DRAIN {REASON}", "d IDLE+DRAIN bad disk", "e IDLE none")
    (tmp_path / "nodes").write_text("".join(f"{line}\n" for line in states), encoding="utf-8")
    told = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODES": str(tmp_path / "nodes"), "CALLS": str(tmp_path / "calls")}
    subprocess.run(["/bin/sh", program.path], check=True, env=told)
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert calls == ["ping", "ping", f"update nodename=a state=drain reason={REASON}", "update nodename=c state=undrain"]
