"""
How a world begins: its file, its clock and the machines of its fleet.
"""

from __future__ import annotations

import json
import sqlite3

from controlplane.providers.adapters.simulated.clock import set_file_clock
from controlplane.providers.adapters.simulated.config import SimConfig
from controlplane.providers.adapters.simulated.store import Store
from controlplane.providers.adapters.simulated.world import FleetFile, load_fleet
from controlplane.providers.errors import Permanent


def found_world(store: Store, config: SimConfig, start_us: int) -> None:
    """
    The file holds the world of the settings. Raises Permanent when it holds another one.
    """
    store.create(lambda db: _fill(db, config, load_fleet(config.fleet), start_us))
    with store.snapshot() as db:
        found = {row["key"]: row["value"] for row in db.execute("SELECT key, value FROM meta")}
    for key, wanted in (("fleet", config.fleet), ("seed", str(config.seed))):
        if found.get(key) != wanted:
            raise Permanent(
                f"{store.path} holds a world with {key} {found.get(key)!r}, not {wanted!r}; name another file or remove this one",
                code="adapter_config",
            )


def _fill(db: sqlite3.Connection, config: SimConfig, fleet: FleetFile, start_us: int) -> None:
    settings = {
        "fleet": config.fleet,
        "seed": str(config.seed),
        "profile": config.profile,
        "clock": config.clock,
        "need_deployment": str(int(config.members_need_deployment)),
        "began_at": str(start_us),
    }
    db.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", settings.items())
    set_file_clock(db, virtual_us=start_us, rate=1.0)
    db.executemany(
        "INSERT INTO machines (ref, site, instance_type, gpu_model, sold_gpus, gpus, memory_gib, cpus, serial, bmc, firmware)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                *(one.ref, one.site, one.instance_type, one.gpu_model, one.gpus, one.gpus, one.memory_gib, one.cpus),
                *(one.serial, one.bmc_address, json.dumps(dict(one.firmware))),
            )
            for one in fleet.machines()
        ),
    )
