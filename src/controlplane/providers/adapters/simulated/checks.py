"""
Checks of the network between simulated machines: sessions, runs, and the flaws that make a link slow or dead.

A figure is a function of the world's seed, the run and the flaws there were when it began. Outputs have the form of the real tools.
"""

from __future__ import annotations

import json
import sqlite3
from fnmatch import fnmatchcase

from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.durations import uniforms
from controlplane.providers.adapters.simulated.faults import CANARY_HOST
from controlplane.providers.adapters.simulated.metal import latest_tenancy
from controlplane.providers.checks import ChecksView, FabricRun, RunView
from controlplane.providers.errors import Busy, NotFound, Refused

NCCL_GB_PER_S = 370.0
"""Bus bandwidth of an all-reduce over good links."""
WRITE_GBIT_PER_S = 392.0
"""What one good rail of 400 Gbit/s carries."""
SCATTER = 0.01
"""How far a good figure lies from its mean at most, as a part of it."""
ALL_RAILS = -1


def prepare(act: Act, token: str, refs: tuple[str, ...]) -> None:
    """
    The machines are the session's and will be up; repeating it changes nothing. Raises Refused for one that is somebody's.
    """
    known = act.db.execute("SELECT ended_at FROM check_sessions WHERE token = ?", (token,)).fetchone()
    if known is not None:
        if known["ended_at"] is not None:
            raise Refused(f"checks {token} are over", code="checks_over")
        return
    for ref in refs:
        if act.db.execute("SELECT 1 FROM machines WHERE ref = ?", (ref,)).fetchone() is None:
            raise NotFound(f"no machine {ref} [{CANARY_HOST}]")
        holder = latest_tenancy(act.db, ref)
        if holder is not None and (holder["powered_off_at"] is None or holder["powered_off_at"] > act.now):
            raise Refused(f"{ref} is held by {holder['token']} [{CANARY_HOST}]", code="machine_held")
        refuse_checked(act, ref)
    takes = max(act.takes("power_on", ref, token) for ref in refs)
    act.db.execute(
        "INSERT INTO check_sessions (token, refs, begun_at, ready_at) VALUES (?, ?, ?, ?)",
        (token, json.dumps(refs), act.start, act.start + takes),
    )
    act.changed = True


def begin(act: Act, token: str, runs: tuple[FabricRun, ...]) -> None:
    """
    The runs are under way. Raises NotFound for no such session, Busy for one that is not ready, Refused for a machine not of it.
    """
    session = _session(act.db, token)
    if session["ready_at"] > act.now:
        raise Busy(f"checks {token}: machines are being started", retry_in_s=1.0)
    for run in runs:
        if not set(run.refs) <= set(json.loads(session["refs"])):
            raise Refused(f"checks {token}: {run.name} is on a machine of somebody else", code="machine_held")
        if act.db.execute("SELECT 1 FROM check_runs WHERE token = ? AND name = ?", (token, run.name)).fetchone() is not None:
            continue
        phase, output, detail = _play(act, token, run)
        act.db.execute(
            "INSERT INTO check_runs (token, name, phase, output, detail, finished_at) VALUES (?, ?, ?, ?, ?, ?)",
            (token, run.name, phase, output, detail, act.start + act.takes("qualify", run.refs[0], f"{token}/{run.name}") // 10),
        )
        act.changed = True


def view(db: sqlite3.Connection, token: str, at: int) -> ChecksView:
    """
    The session at the instant. Raises NotFound where nothing of it is on any machine.
    """
    session = _session(db, token)
    if session["begun_at"] > at:
        raise NotFound(f"no checks {token} [{CANARY_HOST}]")
    rows = db.execute("SELECT * FROM check_runs WHERE token = ? ORDER BY rowid", (token,)).fetchall()
    return ChecksView(
        ready=session["ready_at"] <= at,
        runs=tuple(
            RunView(row["name"], row["phase"], row["output"], row["detail"])
            if row["finished_at"] <= at
            else RunView(row["name"], "running")
            for row in rows
        ),
    )


def end(act: Act, token: str) -> None:
    """
    Nothing of the session is on any machine, and nothing that comes late begins it.
    """
    act.db.execute(
        "INSERT INTO check_sessions (token, refs, begun_at, ready_at, ended_at) VALUES (?, '[]', ?, ?, ?)"
        " ON CONFLICT (token) DO UPDATE SET ended_at = coalesce(check_sessions.ended_at, excluded.ended_at)",
        (token, act.now, act.now, act.now),
    )
    act.changed = True


def refuse_checked(act: Act, ref: str) -> None:
    """
    Returns when no session has the machine. Raises Busy.
    """
    held = "SELECT s.token FROM check_sessions s, json_each(s.refs) r WHERE r.value = ? AND s.ended_at IS NULL"
    row = act.db.execute(held, (ref,)).fetchone()
    if row is not None:
        raise Busy(f"{ref} is being checked by {row['token']} [{CANARY_HOST}]")


def add_flaw(db: sqlite3.Connection, machines: str, rail: int | None, factor: float | None) -> None:
    """
    Runs that begin from now on reach this part of their speed on these machines and the rail: 0 for a dead one, None: no tool there.
    """
    if factor is not None and not 0.0 <= factor <= 1.0:
        raise ValueError("a flaw leaves a part of the speed from 0 to 1")
    db.execute(
        "INSERT INTO flaws (machines, rail, factor) VALUES (?, ?, ?)", (machines, ALL_RAILS if rail is None else rail, factor)
    )


def _session(db: sqlite3.Connection, token: str) -> sqlite3.Row:
    row: sqlite3.Row | None = db.execute("SELECT * FROM check_sessions WHERE token = ?", (token,)).fetchone()
    if row is None or row["ended_at"] is not None:
        raise NotFound(f"no checks {token} [{CANARY_HOST}]")
    return row


def _play(act: Act, token: str, run: FabricRun) -> tuple[str, str, str]:
    """
    (phase, output, detail) that the run will come to.
    """
    flaws = [
        row["factor"]
        for row in act.db.execute("SELECT * FROM flaws ORDER BY rowid").fetchall()
        if any(fnmatchcase(ref, row["machines"]) for ref in run.refs)
        and (row["rail"] == ALL_RAILS or run.rail is None or row["rail"] == run.rail)
    ]
    if act.fault == "check_tool_missing" or None in flaws:
        return "not_measured", "", f"{run.tool} is not there"
    part = min(flaws, default=1.0)
    if act.fault == "check_run_breaks" or part == 0.0:
        return "failed", "", f"{run.tool} ended with status 1: no route between {' and '.join(run.refs[:2])}"
    part *= 1.0 + SCATTER * (2.0 * uniforms(act.seed, "link", token, run.name)[0] - 1.0)
    output = nccl_output(NCCL_GB_PER_S * part) if run.tool == "nccl-tests" else write_output(WRITE_GBIT_PER_S * part)
    return "finished", output[: len(output) // 2] if act.fault == "check_output_cut" else output, ""


def nccl_output(bus_gb_per_s: float) -> str:
    """
    What all_reduce_perf of nccl-tests prints that reached this bus bandwidth.
    """
    size, time_us = 1 << 33, (1 << 33) / bus_gb_per_s / 1e3
    half = f"{time_us:10.1f} {bus_gb_per_s / 1.875:8.2f} {bus_gb_per_s:8.2f}       0"
    return (
        "# nThread 1 nGpus 1 minBytes 8589934592 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)\n"
        f"  {size}    {size // 4}     float     sum      -1 {half} {half}\n"
        "# Out of bounds values : 0 OK\n"
        f"# Avg bus bandwidth    : {bus_gb_per_s:.4f}\n#\n"
    )


def write_output(gbit_per_s: float) -> str:
    """
    What ib_write_bw with --report_gbits prints that averaged this.
    """
    rule = "-" * 87 + "\n"
    return (
        f"{rule}                    RDMA_Write BW Test\n{rule}"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        f" 65536      5000             {gbit_per_s * 1.001:.2f}             {gbit_per_s:.2f}             {gbit_per_s / 0.524288:.6f}\n"
        f"{rule}"
    )
