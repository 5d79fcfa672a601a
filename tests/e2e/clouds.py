"""
The API and a worker on one database, for a test that brings a peer of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from controlplane import seeding
from controlplane.settings import Settings
from tests.conftest import Database
from tests.e2e.rack import LOOK_S, done
from tests.factories.serving import MASTER_KEY, Served, serving
from workers.engine import Engine

SITE = "real"


class Cloud:
    """
    Who asks, and whom.
    """

    def __init__(self, served: Served, operator: httpx.Client, tenant: httpx.Client, keys: seeding.DemoKeys) -> None:
        self.served = served
        self.operator = operator
        self.tenant = tenant
        self.keys = keys

    @property
    def project(self) -> str:
        """
        Path of the tenant's project.
        """
        return f"/v1/projects/{self.keys.project_id}"

    def until(self, path: str, *states: str, client: httpx.Client | None = None, within_s: float = 90.0) -> dict[str, Any]:
        """
        The resource once it has come to one of the states.
        """
        ask = client or self.tenant
        pause, end = threading.Event(), time.monotonic() + within_s
        while True:
            seen: dict[str, Any] = done(ask.get(path))
            state = seen["status"]["state"] if "status" in seen else seen["state"]
            if state in states:
                return seen
            assert time.monotonic() < end, f"{path} stays {state}: {seen}"
            pause.wait(LOOK_S)


@contextmanager
def running_cloud(database: Database, directory: Path) -> Iterator[Cloud]:
    """
    A cloud with people and no machines.
    """
    keys = seeding.sow_people(database.engine, "USD", site=SITE)
    settings = Settings(
        database_url=SecretStr(database.app_url),
        owner_database_url=SecretStr(database.owner_url),
        data_dir=directory,
        master_key=SecretStr(MASTER_KEY),
        sweep_interval_s=0.3,
        observe_interval_s=2.0,
    )
    engine = Engine(settings)
    engine.start()
    try:
        with (
            serving(database, data_dir=directory) as served,
            served.client(keys.operator_key) as operator,
            served.client(keys.tenant_key) as tenant,
        ):
            yield Cloud(served, operator, tenant, keys)
    finally:
        engine.stop()
