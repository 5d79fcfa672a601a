"""
A thousand machines boot at once: their requests against one API process, and against a bare endpoint that serves a constant.

Run from the repository root: `python benchmarks/boots/bench.py`. Prints one JSON line; exit code 1 where the goal is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.orm import Session

from benchmarks.stage import (
    MASTER_KEY,
    Stage,
    ask_all,
    circumstances,
    cpu_s,
    plain_environment,
    postgres_cpu_s,
    report,
    staged,
    started,
    wait_for,
)
from controlplane.boots import service
from controlplane.boots.states import BootLinks, Facts, NewBlueprint, NewBoot, NodeFile, Script
from controlplane.kit.db import EVERYTHING, in_transaction, make_engine
from controlplane.kit.secrets import Sealer
from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.local.commands import api_command

MACHINES = 1000
ASKED = ("meta-data", "user-data", "vendor-data")
"""What cloud-init 22.4.2 fetches; it phones home afterwards."""
ROUNDS = 3
GOAL_S = 10.0
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl root@node"
BLUEPRINT = NewBlueprint(
    ssh_keys=(KEY,),
    user_data="#cloud-config\npackages: [htop]\n",
    files=(NodeFile("/etc/hosts", "".join(f"10.0.{n // 250}.{n % 250} node{n}\n" for n in range(1000))),),
    secret_files=(NodeFile("/etc/munge/munge.key", "k" * 1024, "0400", "munge:munge"),),
    scripts=(Script("slurmd", "mkdir -p /var/lib/slurm/slurmd\nsystemctl daemon-reload\nsystemctl enable --now munge slurmd\n"),),
)


@dataclass(frozen=True, slots=True)
class Side:
    """
    One application under load.
    """

    port: int
    """Where it serves."""
    pid: int
    """Its process."""


def begin(stage: Stage, links: BootLinks) -> list[tuple[str, str]]:
    """
    A thousand machines are about to boot: (boot id, token) of each.
    """
    nodes = [row[0] for row in stage.rows("SELECT id FROM nodes ORDER BY id LIMIT :n", n=MACHINES)]
    engine = make_engine(stage.app_url, pool_size=1)

    def work(session: Session) -> list[str]:
        blueprint_id = service.make_blueprint(session, Sealer.from_base64(MASTER_KEY), BLUEPRINT)
        boots = [NewBoot(one, "deploy", Facts(f"n{number}"), 900, blueprint_id=blueprint_id) for number, one in enumerate(nodes)]
        return list(service.begin_many(session, boots).values())

    ids = in_transaction(engine, EVERYTHING, work)
    engine.dispose()
    stage.run("ANALYZE boots")
    return [(one, links.token(one)) for one in ids]


def requests_of(boots: Sequence[tuple[str, str]]) -> list[bytes]:
    """
    What the machines send, all of them at the same stage at the same time.
    """
    sent = [
        f"GET /v1/boot/{token}/{name} HTTP/1.1\r\nHost: x\r\nUser-Agent: Cloud-Init/22.4.2\r\n\r\n".encode()
        for name in ASKED
        for _, token in boots
    ]
    for boot_id, token in boots:
        form = urlencode({"pub_key_ed25519": KEY, "instance_id": boot_id, "hostname": "n", "fqdn": "n"}).encode()
        kind = "application/x-www-form-urlencoded"
        head = (
            f"POST /v1/boot/{token}/phone-home HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(form)}\r\n\r\n"
        )
        sent.append(head.encode() + form)
    return sent


@contextmanager
def serving(stage: Stage) -> Iterator[tuple[Side, Side]]:
    """
    Product and constant serve, one process each.
    """
    with ExitStack() as stack:

        def serve(name: str, command: Sequence[str], environment: dict[str, str], port: int) -> Side:
            child = stack.enter_context(started(name, command, environment, stage.folder))
            wait_for(f"http://{LOOPBACK}:{port}/healthz", child, stage.folder / f"{name}.log")
            return Side(port, child.pid)

        port, other = free_port(), free_port()
        bare = [*api_command(port=other), "--app", "benchmarks.boots.constant:app"]
        told = stage.environment(machine_url=f"http://{LOOPBACK}:{port}")
        yield serve("product", api_command(port=port), told, port), serve("constant", bare, plain_environment(), other)


def measured(stage: Stage, side: Side, sent: Sequence[bytes]) -> dict[str, float]:
    """
    Seconds of one round: processor time of the server and of the database, and time by the clock.
    """
    server_s, database_s, began = cpu_s(side.pid), postgres_cpu_s(stage.postmaster), time.monotonic()
    ask_all(side.port, sent, expected=200, connections=8)
    return {
        "server_cpu_s": cpu_s(side.pid) - server_s,
        "postgres_cpu_s": postgres_cpu_s(stage.postmaster) - database_s,
        "wall_s": time.monotonic() - began,
    }


def middle(rounds: Sequence[dict[str, float]], of: Callable[[dict[str, float]], float]) -> float:
    """
    The median over the rounds.
    """
    return round(statistics.median(of(one) for one in rounds), 2)


def run(stage: Stage) -> dict[str, Any]:
    """
    The figures.
    """
    found: dict[str, list[dict[str, float]]] = {"product": [], "constant": []}
    with serving(stage) as (product, constant):
        links = BootLinks.from_master(f"http://{LOOPBACK}:{product.port}", MASTER_KEY, "cp")
        for round_ in range(ROUNDS + 1):
            sent = requests_of(begin(stage, links))
            for name, side in (("product", product), ("constant", constant)):
                figures = measured(stage, side, sent)
                if round_:  # the first one warms up
                    found[name].append(figures)
    whole = {name: middle(some, lambda one: one["server_cpu_s"] + one["postgres_cpu_s"]) for name, some in found.items()}
    result: dict[str, Any] = {"question": f"{MACHINES} machines boot, {len(ASKED) + 1} requests each"}
    for name, some in found.items():
        result[name] = {key: middle(some, lambda one, key=key: one[key]) for key in some[0]}  # type: ignore[misc]
        result[name]["ms_each"] = round(whole[name] * 1000 / (MACHINES * (len(ASKED) + 1)), 2)
    result["ratio_to_constant"] = round(whole["product"] / whole["constant"], 2)
    result["goal"] = f"product cpu seconds, database included, < {GOAL_S:g}"
    result["within_goal"] = whole["product"] < GOAL_S
    return result


def main() -> int:
    """
    Exit code of the benchmark.
    """
    with staged() as stage:
        result = run(stage) | circumstances()
    report(result)
    return 0 if result["within_goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
