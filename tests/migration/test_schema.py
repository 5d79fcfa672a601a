"""
The migrations against an empty database: up, the same as the models, down to nothing, up again, and by several at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from alembic import command
from controlplane import migrations
from controlplane.kit.db import make_engine
from controlplane.local.postgres import throwaway_postgres

LEFT = """
SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
WHERE n.nspname = 'public' AND relkind IN ('r', 'p', 'v', 'm', 'S') AND relname <> 'alembic_version'
UNION ALL SELECT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace
WHERE n.nspname = 'public' AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = pg_proc.oid AND d.deptype = 'e')
"""


@pytest.fixture
def owner_url() -> Iterator[str]:
    """The owner's way into an empty database."""
    with throwaway_postgres() as url:
        yield url


def run(owner_url: str, verb: str, *arguments: str) -> None:
    """Run one of alembic's commands on the database."""
    engine = make_engine(owner_url, pool_size=1)
    with engine.begin() as connection:
        settings = migrations.configuration()
        settings.attributes["connection"] = connection
        getattr(command, verb)(settings, *arguments)
    engine.dispose()


def test_models_and_migrations_say_the_same(owner_url: str) -> None:
    """After all migrations alembic finds nothing in the models that the database lacks, nor the other way round."""
    migrations.upgrade(owner_url)
    run(owner_url, "check")


def test_every_migration_goes_down_and_up_again(owner_url: str) -> None:
    """Going down leaves no table, sequence or function behind, and going up from there works."""
    migrations.upgrade(owner_url)
    run(owner_url, "downgrade", "base")
    with psycopg.connect(owner_url) as connection:
        assert connection.execute(LEFT).fetchall() == []
    migrations.upgrade(owner_url)


def test_several_migrate_at_once(owner_url: str) -> None:
    """Of many starts at the same time one migrates, the others wait, and none fails."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrations.upgrade, [owner_url] * 4))
    with psycopg.connect(owner_url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(migrations.head(),)]
