"""
A whole small cloud in one test process: a simulated region, people, drivers and a toolbox, stepped by hand.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from controlplane import bootstrap, seeding
from controlplane.identity import service as identity
from controlplane.kit.access import Principal
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.lifecycle import Driver, Tempo
from controlplane.kit.secrets import Sealer
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.toolbox import Toolbox
from controlplane.settings import Settings
from tests.conftest import Database

MASTER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
DUE = """
    SELECT kind, decided,
      extract(epoch FROM min(greatest(due_at, lease_until + make_interval(secs => CASE WHEN decided THEN 0 ELSE :grace END)))
        - cp_clock())::float8 AS pause_s, bool_and(endless) AS endless FROM (
      SELECT 'node' AS kind, due_at, lease_until, false AS endless, false AS decided FROM nodes WHERE due_at IS NOT NULL
      UNION ALL SELECT 'cluster', due_at, lease_until, state IN ('running', 'degraded', 'placing'),
        state IN ('pending', 'placing', 'provisioning') OR state || '/' || step = 'updating/placing'
        FROM clusters WHERE due_at IS NOT NULL
      UNION ALL SELECT 'job', due_at, lease_until, false, state = 'queued' FROM jobs WHERE due_at IS NOT NULL
      UNION ALL SELECT 'service', due_at, lease_until, state IN ('running', 'degraded'), state = 'pending'
        FROM services WHERE due_at IS NOT NULL
      UNION ALL SELECT 'fabric_check', due_at, lease_until, false, state = 'judging' FROM fabric_checks WHERE due_at IS NOT NULL) waiting
    GROUP BY kind, decided, endless
"""


@dataclass
class World:
    """
    The cloud under test.
    """

    database: Database
    """Its database."""
    settings: Settings
    """Its settings."""
    keys: seeding.DemoKeys
    """Keys of its people."""
    tenant: Principal
    """The tenant's owner."""
    drivers: dict[str, Driver]
    """By noun."""
    tools: Toolbox
    """How steps reach the simulator."""
    region: seeding.Region
    """Where the simulator keeps its world."""
    clock: Any = None
    """The virtual clock of database and simulator, if there is one."""
    people: tuple[tuple[Principal, str], ...] = field(default=())
    """Owners of two tenants, each with a project."""

    @property
    def engine(self) -> Engine:
        """
        The application role's.
        """
        return self.database.engine

    def toolbox(self, skew_s: float = 0.0) -> Toolbox:
        """
        How a freshly started process reaches the simulator, by a clock that is wrong by so much. Only with virtual time.
        """
        sealer = Sealer.from_base64(MASTER_KEY)
        return Toolbox(
            deployment="cp",
            now=lambda: self.clock() + timedelta(seconds=skew_s),
            open_secrets=lambda provider_id, sealed: bootstrap.open_secrets(sealer, provider_id, sealed),
        )

    def do(self, work: Any) -> Any:
        """
        `work(session)` in one committed transaction that sees everything.
        """
        return in_transaction(self.engine, EVERYTHING, work)

    def rows(self, sql: str, **given: Any) -> list[Any]:
        """
        The rows of a query; read by the owner, past all walls.
        """
        return self.database.ask(sql, given)

    def waiting(self) -> list[Any]:
        """
        Seconds until work of each kind can be had: (kind, decided, pause_s, endless). What somebody holds a lease on cannot.
        """
        return self.rows(DUE, grace=Tempo().grace_s)

    def tick(self) -> int:
        """
        One look of every driver that has work, one after the other; how much was done is returned.
        """
        due = {(row.kind, row.decided) for row in self.waiting() if row.pause_s <= 0}
        return self._look(due)

    def _look(self, due: Collection[tuple[str, bool]]) -> int:
        done = 0
        for name, driver in self.drivers.items():
            if (name, True) in due:
                done += driver.decide(100)
            if (name, False) in due:
                done += driver.apply([driver.step(claim, self.tools) for claim in driver.claim(100)])
        return done

    def settle(self, *, looks: int = 600) -> None:
        """
        Nothing is due any more; the clock is advanced while rows only wait.
        """
        if not self.go_on(looks):
            self._complain()

    def go_on(self, looks: int) -> bool:
        """
        So many looks have been taken, the clock was advanced while rows only waited; whether all has settled is returned.
        """
        for _ in range(looks):
            rows = self.waiting()
            done = self._look({(row.kind, row.decided) for row in rows if row.pause_s <= 0})
            if done:
                continue
            pauses = [row.pause_s for row in rows if not row.endless]
            if not pauses:
                return True
            self.clock.advance(max(0.001, min(pauses)))
        return False

    def _complain(self) -> None:
        stuck = [
            row
            for table in ("nodes", "clusters", "jobs", "services")
            for row in self.rows(f"SELECT id, state, step, reason, detail, attempts FROM {table} WHERE due_at IS NOT NULL LIMIT 3")
        ]
        raise AssertionError(f"the world does not settle: {stuck}")


class SharedClock:
    """
    One virtual time for the database and the simulator, whatever the clocks of processes show.
    """

    def __init__(self, database: Database) -> None:
        self._database = database.virtual_clock()
        self._now = self._database.now()
        self._peer: SimControl | None = None

    def __call__(self) -> datetime:
        return self._now

    def lead(self, peer: SimControl) -> None:
        """
        The simulator's own clock shows this time from now on.
        """
        self._peer = peer
        peer.freeze(self._now)

    def advance(self, seconds: float) -> None:
        """
        Time has gone on for everybody.
        """
        self._now = self._database.advance(seconds)
        if self._peer is not None:
            self._peer.freeze(self._now)

    def stop(self) -> None:
        """
        Real time again.
        """
        if self._peer is not None:
            self._peer.close()
        self._database.stop()


def make_world(database: Database, folder: Path, *, fleet: str = "demo", profile: str = "instant", virtual: bool = True) -> World:
    """
    The region is seeded and its nodes are enrolled; nothing has been driven yet.
    """
    clock = SharedClock(database) if virtual else None
    settings = Settings(
        database_url=database.app_url,  # type: ignore[arg-type]
        owner_database_url=database.owner_url,  # type: ignore[arg-type]
        data_dir=folder,
        master_key=MASTER_KEY,  # type: ignore[arg-type]
    )
    extra = {"clock": "file"} if virtual else None
    region = seeding.Region(folder / "region.sqlite", fleet=fleet, profile=profile, extra=extra)
    keys = seeding.sow(database.engine, region, "USD", {})
    if clock is not None:
        clock.lead(SimControl(region.world))
    sealer = Sealer.from_base64(MASTER_KEY)
    tools = (
        bootstrap.toolbox(settings, sealer)
        if clock is None
        else Toolbox(
            deployment="cp", now=clock, open_secrets=lambda provider_id, sealed: bootstrap.open_secrets(sealer, provider_id, sealed)
        )
    )
    owner = owner_of(database, keys)
    return World(
        database=database,
        settings=settings,
        keys=keys,
        tenant=owner,
        people=((owner, keys.project_id), second_tenant(database, keys)),
        drivers=dict(bootstrap.drivers(database.engine, settings)),
        tools=tools,
        region=region,
        clock=clock,
    )


def second_tenant(database: Database, keys: seeding.DemoKeys) -> tuple[Principal, str]:
    """
    The owner of another tenant that was just made, and its project.
    """
    operator = identity.KeyAuthenticator(database.engine).authenticate(f"Bearer {keys.operator_key}", None)

    def make(session: Session) -> tuple[Principal, str]:
        limits = {"gpus": 512, "clusters": 20, "keys": 100, "operations": 100}
        tenant = identity.create_tenant(session, operator, identity.Described("second"), limits=limits)
        row, key = identity.create_owner(session, operator, tenant.id, name="Bob", email="bob@second.example")
        owner = seeding.tenant_principal(tenant.id, tenant.reseller_id, row.id, key.view.row.id)
        return owner, identity.create_project(session, owner, identity.Described("main")).id

    made: tuple[Principal, str] = in_transaction(database.engine, EVERYTHING, make)
    return made


def owner_of(database: Database, keys: seeding.DemoKeys) -> Principal:
    """
    The owner of the tenant that was seeded.
    """

    def find(session: Session) -> Principal:
        row = session.execute(
            text(
                "SELECT k.id, k.principal_id, t.reseller_id FROM api_keys k JOIN tenants t ON t.id = k.tenant_id WHERE k.tenant_id = :t"
            ),
            {"t": keys.tenant_id},
        ).first()
        assert row is not None
        return seeding.tenant_principal(keys.tenant_id, row.reseller_id, row.principal_id, row.id)

    found: Principal = in_transaction(database.engine, EVERYTHING, find)
    return found
