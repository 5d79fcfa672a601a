"""
Reading while others work: nobody's reading waits for the work, and the work does not notice it.
"""

from __future__ import annotations

from sqlalchemy import text

from tests.factories.serving import serving
from tests.faults.region import Grounds


def test_reads_wait_for_nobody_and_disturb_nothing(slow: Grounds) -> None:
    """BR-023: while nodes are deployed, and even while somebody holds the rows locked, reads answer; the work is as if unread."""
    cluster_id = slow.order(count=2)
    slow.work(20, until=lambda: slow.states("nodes").count("deploying") == 2)
    keys, stamps = slow.world.keys, "SELECT id, version, fence, attempts, wakes, due_at FROM {} ORDER BY id"
    before = [slow.world.rows(stamps.format(table)) for table in ("clusters", "nodes")]
    (operation,) = slow.world.rows("SELECT id FROM operations")
    project = f"/v1/projects/{keys.project_id}"
    paths = (
        f"{project}/clusters",
        f"{project}/clusters/{cluster_id}",
        f"/v1/operations/{operation.id}",
        "/v1/events",
        "/v1/quotas",
    )
    with serving(slow.world.database) as served, slow.world.engine.begin() as holder, served.client(keys.tenant_key) as client:
        holder.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        for table in ("clusters", "node_sets", "nodes", "allocations", "operations", "quotas"):
            assert holder.execute(text(f"SELECT 1 FROM {table} FOR UPDATE")).all()
        answers = [client.get(path, timeout=10) for _ in range(20) for path in paths]
    assert {one.status_code for one in answers} == {200}
    assert [slow.world.rows(stamps.format(table)) for table in ("clusters", "nodes")] == before
