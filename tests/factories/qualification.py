"""
A fleet whose nodes are measured: outputs as the tools print them, and the requests that record them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy.orm import Session

from controlplane.nodes import checking, repository, service
from controlplane.nodes.states import ProviderCheck
from controlplane.qualification.routes import router
from tests.conftest import Database
from tests.factories.nodes import SITE, TYPE, Fleet, make_fleet, new_node

SPEED = "nccl_all_reduce_bus_bandwidth_largest"
BANDWIDTH = "rdma_write_bandwidth_average"
LEAF = "b1-l1"
START = datetime(2026, 1, 1, tzinfo=UTC)


def nccl(speed_gb_per_s: float) -> str:
    """
    An all-reduce that reached this bus bandwidth at its largest size.
    """
    return (
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)\n"
        f"  1073741824     268435456     float     sum      -1   3951.2  271.75  {speed_gb_per_s}       0   3960.0  271.15"
        f"  {speed_gb_per_s}       0\n"
        "# Out of bounds values : 0 OK\n"
        f"# Avg bus bandwidth    : {speed_gb_per_s}\n"
    )


def write_bw(gbit_per_s: float) -> str:
    """
    An RDMA write test that averaged this.
    """
    rule = "-" * 87 + "\n"
    heading = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    return rule + heading + f" 65536      5000             {gbit_per_s}             {gbit_per_s}     0.746822\n" + rule


def burn(*, faulty: bool) -> str:
    """
    A burn of two GPUs, the second of which is fine or not.
    """
    errors = "7" if faulty else "0"
    return (
        "Burning for 60 seconds.\n"
        f"\r100.0%  proc'd: 5000 (51234 Gflop/s) - 4900 (50500 Gflop/s)   errors: 0 - {errors}   temps: 63 C - 64 C \n"
        f"Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: {'FAULTY' if faulty else 'OK'}\n"
    )


@dataclass
class Ledger:
    """
    Nodes that are free, and the operator's hands on the ledger.
    """

    fleet: Fleet
    """The nodes, their people and the application."""
    node_ids: tuple[str, ...]
    """On one leaf, all available."""

    def enroll(self, *refs: str) -> None:
        """
        More machines are enrolled on the same leaf, and free.
        """
        new = [new_node(ref) for ref in refs]
        ids = self.fleet.do(lambda session: service.enroll(session, self.fleet.provider_id, SITE, new))
        self.node_ids = self.fleet.node_ids = (*self.node_ids, *ids)
        for number in range(len(self.node_ids) - len(ids), len(self.node_ids)):
            self.fleet.put("available", node=number)

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """
        The operator's request.
        """
        return self.fleet.call()(method, f"/v1/admin/{path}", body, **more)

    def post(self, tool: str, output: str, subject: dict[str, Any], **more: Any) -> httpx.Response:
        """
        The answer to an output that is to be recorded.
        """
        once = more.pop("once", None)
        body = {"tool": tool, "output": output, "subject": subject, **more}
        return self.fleet.call()("POST", "/v1/admin/measurements", body, once=once)

    def reduce(self, speed_gb_per_s: float, node: int = 0, *, day: float | None = None, **more: Any) -> dict[str, Any]:
        """
        An all-reduce inside the node is recorded, as taken that many days after the start.
        """
        taken = {} if day is None else {"taken_at": (START + timedelta(days=day)).isoformat().replace("+00:00", "Z")}
        subject = {"kind": "node", "node_id": self.node_ids[node]}
        answer = self.post("nccl-tests", nccl(speed_gb_per_s), subject, collective="all_reduce", **taken, **more)
        assert answer.status_code == 201, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def pair(self, gbit_per_s: float, one: int, other: int) -> None:
        """
        A write test between two nodes is recorded.
        """
        subject = {"kind": "pair", "node_id": self.node_ids[one], "peer_node_id": self.node_ids[other]}
        answer = self.post("ib_write_bw", write_bw(gbit_per_s), subject)
        assert answer.status_code == 201, answer.text

    def baseline(self, value: float, metric: str = SPEED, **changes: Any) -> httpx.Response:
        """
        The answer to a baseline for the fleet's instance type.
        """
        dry = "?dry_run=true" if changes.pop("dry_run", False) else ""
        body = {
            "instance_type": TYPE,
            "subject_kind": "node",
            "metric": metric,
            "comparison": "at_least",
            "value": value,
            "unit": "GB/s",
            "source": "acceptance",
            **changes,
        }
        return self("POST", f"baselines{dry}", body)

    def policy(self, required: list[str], *, sell: bool, max_age_s: int | None = None, version: int = 0) -> httpx.Response:
        """
        The answer to a policy for the fleet's instance type.
        """
        body = {"required": required, "sell_not_measured": sell, "max_age_s": max_age_s}
        return self("PUT", f"qualification-policies/{TYPE}", body, version=version)

    def standing(self, metric: str = SPEED, node: int = 0) -> dict[str, Any]:
        """
        The one standing of a figure of the node.
        """
        (found,) = self("GET", f"standings?node_id={self.node_ids[node]}&metric={metric}").json()["items"]
        answer: dict[str, Any] = found
        return answer

    def blocked(self) -> dict[str, str | None]:
        """
        Why placement leaves each node out; None where it does not.
        """

        def look(session: Session) -> dict[str, str | None]:
            rows = repository.read_fleet(session, [SITE])
            return {row.id: row.blocked_reason for row in rows if row.available is (row.blocked_reason is None)}

        seen = self.fleet.do(look)
        return {node_id: seen[node_id] for node_id in self.node_ids}

    def free(self) -> int:
        """
        How many nodes are shown as free, after both ways of counting agree.
        """
        (one,) = self.fleet.call()("GET", f"/v1/availability?site={SITE}").json()["items"]
        free = int(one["free"])
        assert self.fleet.do(lambda session: service.are_free(session, SITE, TYPE, max(free, 1))) is (free > 0)
        assert not self.fleet.do(lambda session: service.are_free(session, SITE, TYPE, free + 1))
        return free

    def events(self) -> list[str]:
        """
        The types of all that happened.
        """
        items = self.fleet.call()("GET", "/v1/events?limit=200").json()["items"]
        return [str(one["type"]) for one in items]


def make_ledger(database: Database, folder: Path, *, more: int = 0) -> Ledger:
    """
    Three nodes and as many more as are asked for, all free.
    """
    fleet = make_fleet(database, folder)
    fleet.app.include_router(router)

    fleet.do(lambda session: checking.store(session, fleet.provider_id, ProviderCheck({"products": ["slurm"], "scrub": True})))
    for number in range(len(fleet.node_ids)):
        fleet.put("available", node=number)
    ledger = Ledger(fleet, fleet.node_ids)
    ledger.enroll(*(f"more-{number}" for number in range(more)))
    return ledger
