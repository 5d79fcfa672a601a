"""
Tools between a Slurm's nodes, as jobs: a session is a mark on its nodes, a run is a job that is found by its name, its output a report.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

from controlplane.providers.adapters.slurm import marks
from controlplane.providers.adapters.slurm.answers import JobRecord, NodeRecord
from controlplane.providers.adapters.slurm.config import ChecksConfig, SlurmConfig
from controlplane.providers.adapters.slurm.marks import Mark
from controlplane.providers.adapters.slurm.names import plain
from controlplane.providers.adapters.slurm.output import MAX_CHUNK_BYTES, Reader
from controlplane.providers.adapters.slurm.peer import Peer
from controlplane.providers.adapters.slurm.requests import Submit, minutes
from controlplane.providers.adapters.slurm.walls import mark_line, mark_text
from controlplane.providers.checks import ChecksView, FabricRun, RunView
from controlplane.providers.errors import Busy, NotFound, Refused, Unsupported

REPORTS_PER_LOOK = 32
"""Reports one look reads anew; the other runs are told as running until a later one."""
REPORTS_KEPT = 10_000
ABSENT = 127
"""What the script ends with where the tool is not there."""
_SLACK_S = 120
"""What a job may take beside its tool."""
_REPORT = re.compile(
    r"CHECK-BEGIN (?P<token>\S+) (?P<run>\S+)\n(?P<output>.*)CHECK-SAYS (?P<says>[^\n]*)\n"
    r"CHECK-END (?P=token) (?P=run) (?P<status>\d+)\n",
    re.DOTALL,
)


class Checks:
    """
    The SupportsFabricChecks port.
    """

    def __init__(self, peer: Peer, config: SlurmConfig, reader: Reader) -> None:
        self._peer = peer
        self._config = config
        self._reader = reader
        self._names = peer.names
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, str], RunView] = {}

    def prepare(self, token: str, refs: tuple[str, ...]) -> None:
        """
        See `SupportsFabricChecks.prepare_checks`. Raises Unsupported where the operator configured no tools.
        """
        self._tools()
        token = plain(token, "token")
        lines = []
        for node in self._named(refs):
            mark = self._mark(node)
            if mark is None or mark.phase in {"deployed", "releasing"} or mark.check not in {"", token}:
                raise Refused(f"{node.name} is held by somebody else", code="provider_held_by_other")
            if mark.checked == token:
                raise Refused(f"checks {token} are over", code="checks_over")
            if not mark.check:
                lines.append(self._line(node, replace(mark, check=token, runs="")))
        self._peer.write_nodes(lines)

    def begin(self, token: str, runs: tuple[FabricRun, ...]) -> None:
        """
        See `SupportsFabricChecks.begin_checks`. The nodes keep which runs they are in, for when Slurm has forgotten the jobs.
        """
        held = self._held(token)
        away = [node.name for node, _ in held.values() if not _ready(node)]
        if away:
            raise Busy(f"{len(away)} nodes do not answer or are drained", retry_in_s=5.0)
        for run in runs:
            if not set(run.refs) <= set(held):
                raise Refused(f"checks {token}: {run.name} is on a node of somebody else", code="provider_held_by_other")
        lines = []
        for ref, (node, mark) in held.items():
            known = [one for one in mark.runs.split("+") if one]
            new = [plain(run.name, "run") for run in runs if ref in run.refs and run.name not in known]
            if new:
                lines.append(self._line(node, replace(mark, runs="+".join([*known, *new]))))
        self._peer.write_nodes(lines)
        there = self._jobs(token)
        for run in runs:
            if run.name not in there and self._report(token, run.name) is None:
                self._peer.submit(self._request(token, run, [held[ref][0] for ref in run.refs]), self._config.user)

    def observe(self, token: str) -> ChecksView:
        """
        See `SupportsFabricChecks.observe_checks`. Jobs that still run keep a session in sight after its nodes were given up.
        """
        self._tools()
        jobs = self._jobs(token)
        try:
            held = self._held(token)
        except NotFound:
            if all(job.ended for job in jobs.values()):
                raise
            held = {}
        names = sorted({*jobs, *(one for _, mark in held.values() for one in mark.runs.split("+") if one)})
        budget, views = REPORTS_PER_LOOK, []
        for name in names:
            job = jobs.get(name)
            fresh = (token, name) not in self._ended
            if (job is not None and not job.ended) or (fresh and budget <= 0):
                views.append(RunView(name, "running"))
                continue
            budget -= fresh
            told = self._report(token, name) or (_without_report(name, job) if job is not None else None)
            views += [] if told is None else [told]
        return ChecksView(bool(held) and all(_ready(node) for node, _ in held.values()), tuple(views))

    def end(self, token: str) -> None:
        """
        See `SupportsFabricChecks.end_checks`. A node keeps the last token that was ended on it, and is not given to it again.
        """
        self._tools()
        for job in self._jobs(token).values():
            if not job.ended:
                self._peer.cancel(job.job_id)
        try:
            held = self._held(token)
        except NotFound:
            return
        self._peer.write_nodes([self._line(node, replace(mark, check="", checked=token, runs="")) for node, mark in held.values()])

    def _tools(self) -> ChecksConfig:
        if self._config.fabric_checks is None:
            raise Unsupported("no tools between nodes are configured for this Slurm", code="provider_no_checks")
        return self._config.fabric_checks

    def _named(self, refs: Sequence[str]) -> list[NodeRecord]:
        known = {node.name: node for node in self._peer.nodes()}
        missing = [ref for ref in refs if ref not in known]
        if missing:
            raise NotFound(f"no node {missing[0]}")
        return [known[ref] for ref in refs]

    def _held(self, token: str) -> dict[str, tuple[NodeRecord, Mark]]:
        marked = [(node, self._mark(node)) for node in self._peer.nodes()]
        held = {node.name: (node, mark) for node, mark in marked if mark is not None and mark.check == token}
        if not held:
            raise NotFound(f"no checks {token}")
        return held

    def _jobs(self, token: str) -> dict[str, JobRecord]:
        """
        By run; of several under one name the last.
        """
        prefix = self._names.check_job(token, "")
        found = [job for job in self._peer.jobs() if job.name.startswith(prefix) and job.user == self._config.user]
        return {job.name.removeprefix(prefix): job for job in sorted(found, key=lambda one: one.order)}

    def _request(self, token: str, run: FabricRun, nodes: Sequence[NodeRecord]) -> Submit:
        tools = self._tools()
        gpus = min(node.gpus for node in nodes) if run.tool == "nccl-tests" else 0
        name = self._names.check_job(token, run.name)
        script, missing = _script(tools, run, gpus)
        return Submit(
            name=name,
            comment=name,
            script=script,
            output=self._path(token, run.name),
            nodes=len(nodes),
            tasks_per_node=1,
            minutes=minutes(tools.timeout_s + _SLACK_S),
            gpus=gpus,
            partition=self._config.admin_partition or self._config.partition,
            env={
                "CHECK_TOKEN": token,
                "CHECK_RUN": run.name,
                "CHECK_KIND": "pair" if run.tool == "ib_write_bw" else "together",
                "CHECK_FROM": run.refs[0],
                "CHECK_TO": run.refs[1],
                "CHECK_LIMIT": str(tools.timeout_s),
                "CHECK_MISSING": missing,
            },
            only=run.refs,
            exclusive=True,
            requeue=False,
        )

    def _path(self, token: str, run: str) -> str:
        return f"{self._tools().report_dir.rstrip('/')}/{plain(token, 'token')}.{plain(run, 'run')}.check"

    def _report(self, token: str, run: str) -> RunView | None:
        with self._lock:
            known = self._ended.get((token, run))
        if known is not None:
            return known
        try:
            raw = self._reader.read(self._path(token, run), owner=self._config.user, offset=0, limit=MAX_CHUNK_BYTES)
        except NotFound:
            return None
        except Refused as error:
            return RunView(run, "failed", detail=f"the report is not trusted: {error.detail}")
        told = read_report(raw, token=token, run=run)
        if told is not None:
            with self._lock:
                if len(self._ended) >= REPORTS_KEPT:
                    self._ended.clear()
                self._ended[token, run] = told
        return told

    def _mark(self, node: NodeRecord) -> Mark | None:
        try:
            return marks.read(mark_text(node, self._config), self._names.deployment)
        except marks.ForeignMark:
            return None

    def _line(self, node: NodeRecord, mark: Mark) -> str:
        return mark_line(node.name, mark, self._config, self._names.deployment)


def read_report(raw: bytes, *, token: str, run: str) -> RunView | None:
    """
    What the report says of this run; None where it is cut short, of another run, or more than one.
    """
    found = _REPORT.fullmatch(raw.decode(errors="replace"))
    if found is None or (found["token"], found["run"]) != (token, run):
        return None
    status = int(found["status"])
    if status == 0:
        return RunView(run, "finished", found["output"], found["says"])
    if status == ABSENT:
        return RunView(run, "not_measured", detail=found["says"] or "the tool is not there")
    return RunView(run, "failed", detail=f"the tool ended with status {status}: {found['says']}")


def _script(tools: ChecksConfig, run: FabricRun, gpus: int) -> tuple[str, str]:
    """
    The batch script, and why it can run nothing; empty when it can.
    """
    command = tools.ib_write_bw if run.tool == "ib_write_bw" else tools.all_reduce if run.collective == "all_reduce" else []
    device = tools.rails[run.rail] if run.rail is not None and run.rail < len(tools.rails) else ""
    missing = "" if command else f"no command is configured for {run.tool}"
    if run.rail is not None and not device:
        missing = f"no device is configured for rail {run.rail}"
    words = [part.replace("{gpus}", str(gpus)).replace("{device}", device) for part in command]
    lines = [f"COMMAND=({shlex.join(words)})"]
    if run.tool == "nccl-tests" and device:
        lines.append(f"export NCCL_IB_HCA={shlex.quote('=' + device)}")
    text = files("controlplane.providers.adapters.slurm").joinpath("check.sh").read_text(encoding="utf-8")
    return text.replace("@COMMAND@", "\n".join(lines)), missing


def _without_report(name: str, job: JobRecord) -> RunView:
    return RunView(name, "failed", detail=f"the job ended {'+'.join(sorted(job.states))} without a whole report")


def _ready(node: NodeRecord) -> bool:
    return node.answers and not node.drained
