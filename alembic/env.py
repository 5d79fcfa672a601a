"""
Alembic's entry: runs migrations on the connection that `controlplane.migrations` hands over, or on CONTROLPLANE_OWNER_DATABASE_URL.
"""

from sqlalchemy import Connection

from alembic import context
from controlplane.kit.db import Base, make_engine
from controlplane.migrations import load_rows
from controlplane.settings import Settings

load_rows()


def run(connection: Connection) -> None:
    """
    Pending migrations have run on the connection.
    """
    context.configure(
        connection=connection, target_metadata=Base.metadata, compare_server_default=False, transaction_per_migration=True
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = make_engine(Settings().owner_database_url.get_secret_value(), pool_size=1, application="controlplane-migrate")
    with engine.begin() as fresh:
        run(fresh)
