"""
What an answer costs by the wall when several processes accept from one socket.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.stage import Line, circumstances, plain_environment, report, request, started, wait_for
from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.local.commands import api_command

APP = "benchmarks.boots.constant:app"
ROUNDS, EACH = 5, 200
MOST = 3.0


def commands(ports: dict[str, int]) -> dict[str, list[str]]:
    """
    Who serves, by name.
    """
    plain = ["--host", LOOPBACK, "--workers", "2", "--no-access-log", "--log-level", "error"]
    return {
        "one": [*api_command(port=ports["one"]), "--app", APP],
        "two": [*api_command(port=ports["two"], processes=2), "--app", APP],
        "uvicorn_two": [sys.executable, "-m", "uvicorn", APP, "--port", str(ports["uvicorn_two"]), *plain],
    }


def asked(port: int) -> list[float]:
    """
    Seconds of each answer on one connection: who asks again on the same line at once is who delays acknowledgements.
    """
    line, sent, took = Line(port), request("GET", "/healthz"), []
    for _ in range(EACH):
        began = time.perf_counter()
        status, _ = line.ask(sent)
        took.append(time.perf_counter() - began)
        assert status == 200, status
    line.close()
    return took


def main() -> int:
    """
    Prints the figures; 1 when the goal is missed.
    """
    ports = {name: free_port() for name in ("one", "two", "uvicorn_two")}
    took: dict[str, list[float]] = {name: [] for name in ports}
    with tempfile.TemporaryDirectory(prefix="cpbench-") as folder, ExitStack() as stack:
        for name, command in commands(ports).items():
            child = stack.enter_context(started(name, command, plain_environment(), Path(folder)))
            wait_for(f"http://{LOOPBACK}:{ports[name]}/healthz", child, Path(folder) / f"{name}.log")
        for _ in range(ROUNDS):
            for name, port in ports.items():
                took[name] += asked(port)
    middle = {name: statistics.median(each) * 1000 for name, each in took.items()}
    ratio = middle["two"] / middle["one"]
    figures = {f"{name}_ms": round(each, 2) for name, each in middle.items()}
    against = round(middle["two"] / middle["uvicorn_two"], 3)
    report(
        {
            "benchmark": "listening",
            **figures,
            "ratio": round(ratio, 2),
            "ratio_to_uvicorn": against,
            "goal": MOST,
            **circumstances(),
        }
    )
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
