"""
What a small Slurm would know: nodes, jobs, reservations. Answers are made as the two generations of slurmrestd make them.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EPOCH_S = 1_790_000_000


@dataclass
class FakeJob:
    """
    One job.
    """

    job_id: int
    name: str
    user: str
    comment: str
    reservation: str
    body: dict[str, Any]
    state: str = "RUNNING"
    reason: str = "None"
    exit_code: int = 0
    nodes: str = "n1"
    restarts: int = 0


@dataclass
class FakeNode:
    """
    One node.
    """

    name: str
    state: str = "IDLE"
    flags: set[str] = field(default_factory=set)
    reason: str = ""
    extra: str = ""


class World:
    """
    A Slurm without time: a job runs from the moment it is sent until a test says otherwise.
    """

    def __init__(self, *, generation: int, nodes: int = 4) -> None:
        self.generation = generation
        self.lock = threading.RLock()
        self.nodes = {f"n{number}": FakeNode(f"n{number}") for number in range(1, nodes + 1)}
        self.jobs: dict[int, FakeJob] = {}
        self.reservations: dict[str, dict[str, str]] = {}
        self.changes: list[str] = []
        self.now_s: Callable[[], float] = time.time
        self.clock_s = EPOCH_S
        self.known_fields: set[str] | None = None

    @property
    def modern(self) -> bool:
        """
        Whether it speaks the second dialect.
        """
        return self.generation >= 40

    # changes over REST

    def submit(self, body: dict[str, Any], user: str) -> tuple[int, dict[str, Any]]:
        """
        A new job, or a refusal in the generation's manner.
        """
        job = body["job"]
        unknown = sorted(set(job) - self.known_fields) if self.known_fields else []
        if unknown and not self.modern:
            return 400, {"errors": [{"error": f'Unknown key "{unknown[0]}"', "errno": -1}]}
        with self.lock:
            job_id = len(self.jobs) + 1
            made = FakeJob(job_id, job["name"], user, job.get("comment", ""), job.get("reservation", ""), job)
            self.jobs[job_id] = made
            if "gpu:9" in str(job.get("gres") or job.get("tres_per_node")):
                # what was refused uses up a number and leaves this trace
                made.state, made.reason, made.exit_code, made.nodes = "FAILED", "BadConstraints", 1, ""
                return 500, {"errors": [{self.errno_key("submit"): 2014, "error": "Requested node configuration is not available"}]}
            self.changes.append(f"submit {job['name']}")
            self.clock_s = int(self.now_s())
        warnings = [{"description": f'Ignoring unknown field "{name}" of type string'} for name in unknown]
        return 200, {"job_id": job_id, "step_id": "batch", "errors": [], **({"warnings": warnings} if self.modern else {})}

    def cancel(self, job_id: int) -> tuple[int, dict[str, Any]]:
        """
        The job is cancelled; how its absence is told depends on the generation.
        """
        with self.lock:
            self.changes.append(f"cancel {job_id}")
            self.clock_s = int(self.now_s())
            job = self.jobs.get(job_id)
            if job is None:
                said = {"code": 2017, "message": "Invalid job id specified"}
                if self.modern:
                    return 200, {"status": [{"error": said}], "errors": []}
                return 500, {"errors": [{"errno": 2017, "error": said["message"]}]}
            if job.state in {"RUNNING", "PENDING"}:
                job.state = "CANCELLED"
            return 200, {"errors": []}

    # changes by scontrol

    def scontrol(self, argv: list[str], stdin: str) -> tuple[int, str, str]:
        """
        Exit code, output and errors of one scontrol.
        """
        with self.lock:
            if argv == ["-Q"]:
                for line in stdin.splitlines():
                    if line and line != "quit":
                        self._update_node(dict(re.findall(r'(\w+)=("[^"]*"|\S*)', line)))
                return 0, "", ""
            settings = dict(word.split("=", 1) for word in argv if "=" in word)
            if argv[:2] == ["show", "config"]:
                return 0, "Configuration data as of 2026-11-28T01:00:00\nAccountingStorageType = accounting_storage/none\n", ""
            if argv == ["ping"]:
                return 0, "Slurmctld(primary) at head is UP\n", ""
            if "partition" in argv:
                return 0, "PartitionName=batch AllowGroups=ALL AllowAccounts=ALL RootOnly=NO ReqResv=NO\n", ""
            self.changes.append("scontrol " + " ".join(argv))
            return self._change_reservation(argv[0], settings)

    def _change_reservation(self, verb: str, settings: dict[str, str]) -> tuple[int, str, str]:
        if verb == "create":
            self.reservations[settings["reservationname"]] = {"nodes": settings["nodes"], "users": settings["users"]}
        elif verb == "delete":
            name = settings["reservationname"]
            if any(job.reservation == name and job.state in {"RUNNING", "PENDING"} for job in self.jobs.values()):
                return 1, "", f"delete_reservation reservationname={name}: Requested reservation is in use\n"
            del self.reservations[name]
        elif "reservation" in settings:
            wanted: dict[str, str] = {key: settings[key] for key in ("nodes", "users") if key in settings}
            self.reservations[settings["reservation"]].update(wanted)
        return 0, "", ""

    def _update_node(self, settings: dict[str, str]) -> None:
        node = self.nodes[settings["nodename"]]
        if "extra" in settings:
            node.extra = settings["extra"]
        if "reason" in settings:
            node.reason = settings["reason"].strip('"')
        if settings.get("state") == "drain":
            node.flags.add("DRAIN")
            self.changes.append(f"drain {node.name}")
        if settings.get("state") == "undrain":
            node.flags.discard("DRAIN")
            self.changes.append(f"undrain {node.name}")

    # answers

    def listing(self, what: str) -> dict[str, Any]:
        """
        The body of a list, as the generation writes it.
        """
        makers = {"nodes": self._nodes, "jobs": self._jobs, "reservations": self._reservations, "ping": self._ping}
        with self.lock:
            return {**makers[what](), "errors": [], "meta": self._meta()}

    def errno_key(self, where: str) -> str:
        """
        22.05 has three names for it.
        """
        if self.modern:
            return "error_number"
        return {"submit": "error_code", "nodes": "errno"}.get(where, "error_number")

    def number(self, value: int) -> Any:
        """
        A number in the generation's form.
        """
        return {"set": True, "infinite": False, "number": value} if self.modern else value

    def _ping(self) -> dict[str, Any]:
        return {"pings": [{"hostname": "head", "pinged" if self.modern else "ping": "UP", "mode": "primary"}]}

    def _meta(self) -> dict[str, Any]:
        return {"slurm": {"release": "24.11.5"}} if self.modern else {"Slurm": {"release": "22.05.8"}}

    def _nodes(self) -> dict[str, Any]:
        rows = []
        for node in self.nodes.values():
            states = [node.state, *sorted(node.flags)]
            shape = {"state": states} if self.modern else {"state": node.state.lower(), "state_flags": sorted(node.flags)}
            rows.append(
                {
                    "name": node.name,
                    **shape,
                    "gres": "gpu:h100:8",
                    "real_memory": 1_000_000,
                    "cpus": 64,
                    "reason": node.reason,
                    "extra": node.extra,
                    "comment": "",
                    "slurmd_start_time": self.number(EPOCH_S),
                    "partitions": ["batch"],
                }
            )
        return {"nodes": rows}

    def _jobs(self) -> dict[str, Any]:
        rows = []
        for job in self.jobs.values():
            code = {"return_code": self.number(job.exit_code >> 8), "signal": {"id": self.number(job.exit_code & 127)}}
            rows.append(
                {
                    "job_id": job.job_id,
                    "name": job.name,
                    "user_name": job.user,
                    "comment": job.comment,
                    "resv_name": job.reservation,
                    "job_state": [job.state] if self.modern else job.state,
                    "state_reason": job.reason,
                    "exit_code": code if self.modern else job.exit_code,
                    "nodes": job.nodes,
                    "start_time": self.number(EPOCH_S),
                    "end_time": self.number(EPOCH_S + (0 if job.reason == "BadConstraints" else 60)),
                    "restart_cnt": job.restarts,
                }
            )
        return {"jobs": rows, **({"last_update": self.number(self.clock_s)} if self.modern else {})}

    def _reservations(self) -> dict[str, Any]:
        rows = [
            {
                "name": name,
                "node_list": one["nodes"],
                "users": one["users"],
                "start_time": self.number(EPOCH_S),
                "end_time": self.number(EPOCH_S + 10**9),
            }
            for name, one in self.reservations.items()
        ]
        return {"reservations": rows}
