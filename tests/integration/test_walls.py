"""
The second wall: row-level security as the application's role meets it.
"""

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.kit.db import Wall, raise_wall
from tests.conftest import Database

WALLED = (
    *("projects", "clusters", "node_sets", "allocations"),
    *(
        "jobs",
        "job_logs",
        "job_dependencies",
        "project_secrets",
        "job_templates",
        "job_template_versions",
        "job_arrays",
        "checkpoints",
        "checkpoint_policies",
    ),
    *("services", "service_versions", "service_logs", "work_intervals"),
    *("meter_intervals", "operations", "state_history", "provider_users"),
)


def test_without_a_wall_nothing_is_seen(database: Database, session: Session) -> None:
    """A transaction that names no tenant sees no customer row."""
    session.execute(text("INSERT INTO resellers (id, name, is_platform) VALUES ('rsl_1', 'p', true)"))
    session.execute(text("INSERT INTO tenants (id, reseller_id, name) VALUES ('ten_1', 'rsl_1', 'a')"))
    session.execute(text("INSERT INTO projects (id, tenant_id, name) VALUES ('prj_1', 'ten_1', 'x')"))
    raise_wall(session, Wall())
    assert [session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() for table in WALLED] == [0] * len(WALLED)
    raise_wall(session, Wall(tenant_id="ten_1"))
    assert session.execute(text("SELECT id FROM projects")).scalars().all() == ["prj_1"]
    raise_wall(session, Wall(tenant_id="ten_2"))
    assert session.execute(text("SELECT id FROM projects")).scalars().all() == []
    raise_wall(session, Wall(reseller_id="rsl_1"))
    assert session.execute(text("SELECT id FROM projects")).scalars().all() == ["prj_1"]


def test_the_wall_ends_with_the_transaction(database: Database) -> None:
    """A pooled connection carries no tenant over to the next transaction."""
    with Session(database.engine) as one:
        raise_wall(one, Wall(tenant_id="ten_1"))
        one.commit()
        assert one.execute(text("SELECT coalesce(current_setting('cp.tenant', true), '')")).scalar_one() == ""


@pytest.mark.parametrize("table", ["audit_entries", "audit_heads", "events", "state_history"])
def test_the_application_cannot_rewrite_the_record(database: Database, session: Session, table: str) -> None:
    """Audit, events and history refuse updates and deletes by the application's role."""
    for verb in (f"UPDATE {table} SET tenant_id = 'x'", f"DELETE FROM {table}"):
        with pytest.raises(Exception, match="permission denied"), session.begin_nested():
            session.execute(text(verb))
