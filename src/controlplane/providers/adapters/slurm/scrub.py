"""
Wiping a node by a job: the script, and the reading of its report. What is missing, short or odd in a report is a failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from controlplane.providers.adapters.slurm.config import ScrubConfig
from controlplane.providers.machines import Check, CheckResult, WipeReport

BEGIN = "SCRUB-REPORT "
END = "SCRUB-END "
MAX_REPORT_BYTES = 64 * 1024
REQUIRED = ("processes", "tenant_files", "shared_memory", "gpu_memory")
"""Every report must have these; a shorter one proves nothing."""
BEYOND_SLURM = (
    Check("disk_blocks", "not_measured", "Slurm cannot overwrite free blocks"),
    Check("firmware_baseline", "not_measured", "Slurm cannot read firmware"),
    Check("bmc_baseline", "not_measured", "Slurm cannot read the BMC"),
)
_RESULTS: dict[str, CheckResult] = {"passed": "passed", "failed": "failed", "not_measured": "not_measured"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a report proves.
    """

    report: WipeReport | None
    """None when nothing could be read from it."""
    failure: str
    """Why it does not prove a wipe; empty when it does."""


def script(config: ScrubConfig) -> str:
    """
    The scrub's batch script: the operator's, or ours.
    """
    if config.script is not None:
        return config.script
    return files("controlplane.providers.adapters.slurm").joinpath("scrub.sh").read_text(encoding="utf-8")


def environment(config: ScrubConfig, *, token: str, node: str, users: tuple[str, ...]) -> dict[str, str]:
    """
    What the script is told.
    """
    return {
        "SCRUB_TOKEN": token,
        "SCRUB_NODE": node,
        "SCRUB_USERS": " ".join(users),
        "SCRUB_PATHS": " ".join(config.paths),
    }


def report_path(config: ScrubConfig, token: str) -> str:
    """
    Where the report of a wipe is.
    """
    return f"{config.report_dir.rstrip('/')}/{token}.scrub"


def verify(raw: bytes, *, token: str, node: str) -> Verdict:
    """
    What the report's bytes prove about this wipe of this node.
    """
    lines = raw[:MAX_REPORT_BYTES].decode(errors="replace").splitlines()
    begun = [line for line in lines if line.startswith(BEGIN)]
    if len(begun) != 1 or not lines or lines[-1] != f"{END}{token}":
        return Verdict(None, "the scrub's report is missing or cut short")
    try:
        said = json.loads(begun[0].removeprefix(BEGIN))
        report = _report(said, token, node)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        return Verdict(None, f"the scrub's report cannot be read: {type(error).__name__}: {error}")
    failed = [f"{check.name}: {check.detail}" for check in report.checks if check.result == "failed"]
    unmeasured = [check.name for check in report.checks if check.name in REQUIRED[:3] and check.result != "passed"]
    if failed:
        return Verdict(report, "; ".join(failed)[:500])
    if unmeasured:
        return Verdict(report, f"not scrubbed: {', '.join(unmeasured)}")
    return Verdict(report, "")


def _report(said: Mapping[str, Any], token: str, node: str) -> WipeReport:
    if said["v"] != 1 or said["token"] != token or said["node"] != node:
        raise ValueError("it is of another wipe or another node")
    rows = said["checks"]
    checks = tuple(Check(str(name), _RESULTS[row["result"]], str(row.get("detail", ""))[:300]) for name, row in rows.items())
    missing = [name for name in REQUIRED if name not in rows]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    finished_at = datetime.fromtimestamp(int(said["finished"]), UTC)
    if int(said["finished"]) < int(said["started"]):
        raise ValueError("it ended before it began")
    return WipeReport(token=token, finished_at=finished_at, checks=(*checks, *BEYOND_SLURM))
