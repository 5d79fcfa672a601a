"""
Reads and durable creates per processor second: the product against a bare FastAPI and ORM application on the same rows.

Run from the repository root: `python benchmarks/api/bench.py`. Prints one JSON line per question; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.stage import (
    Line,
    Stage,
    analyze,
    ask_all,
    circumstances,
    cpu_s,
    free_nodes,
    plain_environment,
    postgres_cpu_s,
    report,
    request,
    resident_mib,
    staged,
    started,
    wait_for,
)
from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.local.commands import api_command

READ_CLUSTERS = 60
NODES_EACH = 4
PAGE = 20
ROUNDS = 3
READS = 300
CREATES = 150
NEAR = 1.0
TOLD_S = 11.0
"""Until an idle backend has told its counts."""

FILL = """
INSERT INTO clusters (id, tenant_id, reseller_id, project_id, name, labels, kind, site, spec, placement, state, reason, running_at,
  checks)
SELECT 'clu_read' || lpad(i::text, 4, '0'), t.id, t.reseller_id, CAST(:project AS text), 'read-' || i, '{"team": "vision"}', 'slurm',
  CAST(:site AS text),
  jsonb_build_object('kind', 'slurm', 'site', CAST(:site AS text), 'wait', false, 'node_sets', jsonb_build_array(
    jsonb_build_object('name', 'workers', 'instance_type', CAST(:type AS text), 'count', CAST(:each AS bigint)))),
  '{"domain_kind": "leaf", "explanation": "4 nodes in one leaf, the smallest kind of fabric domain that fits."}',
  'running', 'All 4 nodes answer.', cp_clock(),
  '[{"name": "nodes_answer", "result": "passed", "detail": "4 of 4"}, {"name": "gpu_count", "result": "passed", "detail": "32 of 32"}]'
FROM generate_series(1, :clusters) i, tenants t WHERE t.id = :tenant
"""
FILL_SETS = """
INSERT INTO node_sets (id, cluster_id, tenant_id, name, instance_type, count, gpus, gpu_model, unplaced)
SELECT 'nds_' || c.id, c.id, c.tenant_id, 'workers', CAST(:type AS text), CAST(:each AS bigint), 8, 'H100-SXM5-80GB', 0
FROM clusters c WHERE c.project_id = :project
"""
FILL_MEMBERS = """
WITH chosen AS (
  SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM nodes WHERE site = :site AND instance_type = :type
), wanted AS (
  SELECT c.*, (row_number() OVER (ORDER BY c.id) - 1) * :each AS first FROM clusters c WHERE c.project_id = :project
)
INSERT INTO allocations (id, instance_id, node_id, tenant_id, reseller_id, project_id, cluster_id, node_set_id, instance_type, site, gpus,
  state, network, during)
SELECT 'alc_' || n.id, 'ins_' || n.id, n.id, w.tenant_id, w.reseller_id, w.project_id, w.id, 'nds_' || w.id, CAST(:type AS text),
  CAST(:site AS text), 8, 'active',
  'net-' || w.tenant_id, tstzrange(cp_clock(), NULL)
FROM wanted w JOIN chosen n ON n.place >= w.first AND n.place < w.first + :each
"""


@dataclass(frozen=True, slots=True)
class Served:
    """
    One application under load.
    """

    name: str
    """For the report."""
    port: int
    """Where it serves."""
    pid: int
    """Its process."""


@dataclass(frozen=True, slots=True)
class Cost:
    """
    Processor seconds of one round.
    """

    server_s: float
    """Of the server process."""
    postgres_s: float
    """Of the database server with its backends."""


def fill(stage: Stage, project_id: str) -> None:
    """
    The project has running clusters with nodes.
    """
    told = {
        "project": project_id,
        "tenant": stage.keys.tenant_id,
        "site": stage.keys.site,
        "type": stage.keys.instance_type,
        "each": NODES_EACH,
        "clusters": READ_CLUSTERS,
    }
    for statement in (FILL, FILL_SETS, FILL_MEMBERS):
        stage.run(statement, **told)
    stage.run(
        "UPDATE nodes n SET state = 'active', allocation_id = a.id FROM allocations a WHERE a.node_id = n.id AND a.state = 'active'"
    )
    analyze(stage)


@contextmanager
def serving(stage: Stage) -> Iterator[tuple[Served, Served]]:
    """
    Product and baseline serve.
    """
    with ExitStack() as stack:

        def serve(name: str, command: Sequence[str], environment: Mapping[str, str], port: int) -> Served:
            child = stack.enter_context(started(name, command, environment, stage.folder))
            wait_for(f"http://{LOOPBACK}:{port}/healthz", child, stage.folder / f"{name}.log")
            return Served(name, port, child.pid)

        port, other = free_port(), free_port()
        bare = [*api_command(port=other), "--app", "benchmarks.api.baseline:app"]
        reseller = stage.rows("SELECT reseller_id FROM tenants WHERE id = :id", id=stage.keys.tenant_id)[0][0]
        told = {
            "BASELINE_DATABASE_URL": stage.owner_url,
            "BASELINE_RESELLER": reseller,
            "BASELINE_MODEL": "H100-SXM5-80GB",
        }
        yield (
            serve("product", api_command(port=port), stage.environment(), port),
            serve("baseline", bare, plain_environment() | told, other),
        )


def cost(stage: Stage, served: Served, sent: Sequence[bytes], expected: int) -> Cost:
    """
    What these requests cost.
    """
    server, database = cpu_s(served.pid), postgres_cpu_s(stage.postmaster)
    ask_all(served.port, sent, expected=expected)
    return Cost(cpu_s(served.pid) - server, postgres_cpu_s(stage.postmaster) - database)


def compare(
    stage: Stage, question: str, sides: Mapping[str, tuple[Served, Callable[[int], Sequence[bytes]], int]], goal: str | None
) -> dict[str, Any]:
    """
    The sides in turn, several rounds; per side the requests per processor second, and their ratios to the product.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    counts: dict[str, int] = {}
    for round_ in range(ROUNDS + 1):
        for name, (served, sent, expected) in sides.items():
            requests = sent(round_)
            found = cost(stage, served, requests, expected)
            counts[name] = len(requests)
            if round_:  # the first one warms up
                costs[name].append(found)
    result: dict[str, Any] = {"question": question}
    for name, some in costs.items():
        result[name] = {
            "per_cpu_s": round(statistics.median(counts[name] / (one.server_s + one.postgres_s) for one in some), 1),
            "per_server_cpu_s": round(statistics.median(counts[name] / one.server_s for one in some), 1),
            "postgres_ms_each": round(statistics.median(one.postgres_s * 1000 / counts[name] for one in some), 2),
            "server_ms_each": round(statistics.median(one.server_s * 1000 / counts[name] for one in some), 2),
        }
    for name in sides:
        if name != "product":
            result[f"ratio_to_{name}"] = round(result["product"]["per_cpu_s"] / result[name]["per_cpu_s"], 2)
            result[f"server_ratio_to_{name}"] = round(result["product"]["per_server_cpu_s"] / result[name]["per_server_cpu_s"], 2)
    if goal:
        result["goal"] = f"ratio_to_{goal} >= {NEAR}"
        result["within_goal"] = result[f"ratio_to_{goal}"] >= NEAR
    return result


def same_answer(product: bytes, baseline: bytes) -> None:
    """
    Returns when both lists tell the same. Raises AssertionError.
    """
    mine, theirs = ([_plain(one) for one in json.loads(body)["items"]] for body in (product, baseline))
    assert len(mine) == PAGE
    assert mine == theirs, (mine[0], theirs[0])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if not name.endswith("_at") and name != "since"}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def orders(stage: Stage, path: str, count: int, mark: str, *, key: str = "") -> list[bytes]:
    """
    Orders for small clusters with names of their own.
    """
    sets = [{"name": "workers", "instance_type": stage.keys.instance_type, "count": 1}]

    def one(number: int) -> bytes:
        body = {"name": f"{mark}-{number}", "spec": {"kind": "slurm", "site": stage.keys.site, "node_sets": sets}}
        return request("POST", path, key=key, body=body, Idempotency_Key=f"{mark}-{number}")

    return [one(number) for number in range(count)]


def written(stage: Stage, served: Served, sent: bytes) -> dict[str, int]:
    """
    Rows that one request inserts or updates, by table.
    """
    query = "SELECT relname, n_tup_ins + n_tup_upd FROM pg_stat_user_tables"

    def look() -> dict[str, int]:
        return {row[0]: row[1] for row in stage.rows(query)}

    time.sleep(TOLD_S)
    before = look()
    ask_all(served.port, [sent], expected=202, connections=1)
    time.sleep(TOLD_S)
    after = look()
    return {name: after[name] - before.get(name, 0) for name in sorted(after) if after[name] > before.get(name, 0)}


def main() -> int:
    """
    All questions answered; 1 where a goal is missed.
    """
    with staged() as stage:
        free_nodes(stage)
        base = f"/projects/{stage.keys.project_id}/clusters"
        other = "prj_creates"
        stage.run(
            "INSERT INTO projects (id, tenant_id, name) VALUES (:id, :tenant, 'creates')", id=other, tenant=stage.keys.tenant_id
        )
        stage.run(
            "INSERT INTO quotas (id, scope_kind, scope_id, depth, reseller_id, tenant_id, resource) "
            "SELECT 'quo_' || r, 'project', :id, 3, t.reseller_id, t.id, r "
            "FROM tenants t, unnest(ARRAY['gpus', 'clusters', 'keys', 'operations']) r WHERE t.id = :tenant",
            id=other,
            tenant=stage.keys.tenant_id,
        )
        fill(stage, stage.keys.project_id)
        with serving(stage) as (product, baseline):
            return measure(stage, product, baseline, base, f"/projects/{other}/clusters")


def measure(stage: Stage, product: Served, baseline: Served, reads: str, creates: str) -> int:
    """
    The three questions; 1 where a goal is missed.
    """
    key = stage.keys.tenant_key
    mine, theirs = request("GET", f"/v1{reads}?limit={PAGE}", key=key), request("GET", f"/v1{reads}?limit={PAGE}")
    lean = request("GET", f"/lean{reads}?limit={PAGE}")
    bodies = [Line(one.port).ask(sent)[1] for one, sent in ((product, mine), (baseline, theirs))]
    same_answer(bodies[0], bodies[1])
    read = compare(
        stage,
        f"pages of {PAGE} clusters read",
        {
            "product": (product, lambda _: [mine] * READS, 200),
            "baseline": (baseline, lambda _: [theirs] * READS, 200),
            "two_query_baseline": (baseline, lambda _: [lean] * READS, 200),
        },
        "baseline",
    )
    report(read | circumstances())
    created = compare(
        stage,
        "clusters ordered, durably",
        {
            "product": (product, lambda n: orders(stage, f"/v1{creates}", CREATES, f"p{n}", key=key), 202),
            "bare_baseline": (baseline, lambda n: orders(stage, f"/bare{creates}", CREATES, f"e{n}"), 202),
            "one_row_baseline": (baseline, lambda n: orders(stage, f"/v1{creates}", CREATES, f"b{n}"), 202),
            "same_rows_baseline": (baseline, lambda n: orders(stage, f"/same{creates}", CREATES, f"s{n}"), 202),
        },
        "bare_baseline",
    )
    created["rows_written_each"] = {
        "product": written(stage, product, orders(stage, f"/v1{creates}", 1, "one-row", key=key)[0]),
        "bare_baseline": written(stage, baseline, orders(stage, f"/bare{creates}", 1, "one-row-e")[0]),
        "same_rows_baseline": written(stage, baseline, orders(stage, f"/same{creates}", 1, "one-row-b")[0]),
    }
    report(created | circumstances())
    memory = {"product_mib": resident_mib(product.pid), "baseline_mib": resident_mib(baseline.pid)}
    report({"question": "resident memory after the load"} | memory | circumstances())
    return 0 if read["within_goal"] and created["within_goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
