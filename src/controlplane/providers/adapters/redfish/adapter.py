"""
The adapter's door: what the ports ask, each call with its controller's one client and under one deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from controlplane.providers.adapters.redfish import (
    accounts,
    boot,
    events,
    health,
    inventory,
    media,
    power,
    reading,
    settings,
    updates,
)
from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.config import RedfishConfig
from controlplane.providers.adapters.redfish.links import facts, inside, machine, path_of
from controlplane.providers.adapters.redfish.pool import Pool
from controlplane.providers.adapters.redfish.quirks import Facts
from controlplane.providers.clusters import Capabilities, ClusterList
from controlplane.providers.errors import NotFound, Permanent, Unknown, Unsupported
from controlplane.providers.hardware import (
    BootSource,
    Checkup,
    Controller,
    Fact,
    HardwareInventory,
    HardwareView,
    Health,
    Logs,
    UpdateView,
)
from controlplane.providers.registry import AdapterInput, read_config

HEALTH: dict[str, Health] = {"OK": "ok", "Warning": "warning", "Critical": "critical"}


def build(given: AdapterInput) -> RedfishAdapter:
    """
    An adapter for the controllers that share the config; nothing has been asked of any. Raises Permanent for a wrong config.
    """
    config = read_config(RedfishConfig, given, "the Redfish provider's")
    strangers = sorted(set(given.secrets) - {"username", "password"})
    if strangers:
        raise Permanent(f"unknown secrets: {', '.join(strangers)}; known: username, password", code="provider_config_invalid")
    pool = Pool(config, username=given.secrets.get("username", ""), password=given.secrets.get("password", ""))
    return RedfishAdapter(config, pool)


class RedfishAdapter:
    """
    Controllers as Hardware, SupportsCheckups, SupportsSettings, SupportsAccounts, SupportsReset and SupportsUpdates.

    Safe to share between threads.
    """

    def __init__(self, config: RedfishConfig, pool: Pool) -> None:
        self._config = config
        self._pool = pool

    def close(self) -> None:
        """
        Its sessions are given back and its connections closed.
        """
        self._pool.close()

    def capabilities(self) -> Capabilities:
        """
        See `Clusters.capabilities`. No controller is asked: which ones there are is the nodes' affair.
        """
        return Capabilities(
            version="redfish",
            products=("baremetal",),
            scrub=True,
            images=True,
            notes=("controllers are asked one by one when their nodes are enrolled",),
        )

    def list_clusters(self) -> ClusterList:
        """
        See `Clusters.list_clusters`. Raises Unsupported: bare machines carry no clusters of their own.
        """
        raise Unsupported("a controller knows no clusters", code="provider_no_clusters")

    def observe(self, controller: Controller) -> HardwareView:
        """
        See `Hardware.observe`.
        """
        with self._machine(controller) as (bmc, system, known):
            try:
                return _view(bmc, system, known)
            except NotFound as error:
                # The machine was found: that a part of it is missing must not read as if it were not there.
                raise Unknown(f"part of the machine's tree is missing: {error.detail}") from error

    def power(self, controller: Controller, *, on: bool, force: bool = False) -> None:
        """
        See `Hardware.power`.
        """
        with self._machine(controller) as (bmc, system, known):
            power.switch(bmc, system, known, on=on, force=force)

    def boot_from(self, controller: Controller, source: BootSource) -> None:
        """
        See `Hardware.boot_from`.
        """
        with self._machine(controller) as (bmc, system, known):
            boot.set_override(bmc, system, known, source, network=self._config.network_boot)

    def insert_media(self, controller: Controller, url: str) -> None:
        """
        See `Hardware.insert_media`.
        """
        with self._machine(controller) as (bmc, system, known):
            media.insert(bmc, system, known, url, self._config)

    def eject_media(self, controller: Controller) -> None:
        """
        See `Hardware.eject_media`.
        """
        with self._machine(controller) as (bmc, system, _):
            media.eject(bmc, system, self._config)

    def take_inventory(self, controller: Controller) -> HardwareInventory:
        """
        See `Hardware.take_inventory`.
        """
        with self._pool.lend(controller, self._config.reading_limit_s) as bmc:
            return inventory.take_inventory(*_from(bmc, machine(bmc, controller.system)))

    def read_health(self, controller: Controller) -> tuple[Fact, ...]:
        """
        See `Hardware.read_health`.
        """
        return self.check_up(controller).facts

    def check_up(self, controller: Controller) -> Checkup:
        """
        See `SupportsCheckups.check_up`: the system, which health begins with, tells its power.
        """
        with self._pool.lend(controller, self._config.reading_limit_s) as bmc:
            system = machine(bmc, controller.system)
            return Checkup(power.power_of(system), health.read_health(*_from(bmc, system)))

    def read_log(self, controller: Controller, *, after: str = "") -> Logs:
        """
        See `Hardware.read_log`.
        """
        with self._pool.lend(controller, self._config.reading_limit_s) as bmc:
            return events.read_log(*_from(bmc, machine(bmc, controller.system)), after)

    def read_settings(self, controller: Controller) -> dict[str, str]:
        """
        See `SupportsSettings.read_settings`.
        """
        with self._machine(controller) as (bmc, system, _):
            return settings.read(bmc, system)

    def change_settings(self, controller: Controller, wanted: dict[str, str]) -> None:
        """
        See `SupportsSettings.change_settings`.
        """
        with self._machine(controller) as (bmc, system, _):
            settings.change(bmc, system, wanted)

    def list_accounts(self, controller: Controller) -> tuple[str, ...]:
        """
        See `SupportsAccounts.list_accounts`.
        """
        with self._pool.lend(controller, self._config.call_limit_s) as bmc:
            return accounts.names(bmc)

    def set_password(self, controller: Controller, password: str) -> None:
        """
        See `SupportsAccounts.set_password`. Calls that still name the old password use the new one, as long as this adapter lives.
        """
        with self._pool.lend(controller, self._config.call_limit_s) as bmc:
            accounts.set_password(bmc, password)

    def lock(self, controller: Controller, *, locked: bool) -> None:
        """
        See `SupportsAccounts.lock`.
        """
        with self._machine(controller) as (bmc, system, known):
            accounts.lock(bmc, system, known, locked=locked)

    def reset_controller(self, controller: Controller) -> None:
        """
        See `SupportsReset.reset_controller`. Only the manager in charge of the host is told.
        """
        with self._machine(controller) as (bmc, system, _):
            power.restart_manager(bmc, system)

    def update_firmware(self, controller: Controller, image_url: str, *, targets: tuple[str, ...] = ()) -> UpdateView:
        """
        See `SupportsUpdates.update_firmware`.
        """
        with self._pool.lend(controller, self._config.call_limit_s) as bmc:
            return updates.start(bmc, image_url, targets)

    def observe_update(self, controller: Controller, task: str) -> UpdateView:
        """
        See `SupportsUpdates.observe_update`.
        """
        with self._pool.lend(controller, self._config.call_limit_s) as bmc:
            return updates.follow(bmc, controller.system, task)

    def find_update(self, controller: Controller) -> UpdateView | None:
        """
        See `SupportsUpdates.find_update`.
        """
        with self._pool.lend(controller, self._config.call_limit_s) as bmc:
            return updates.find(bmc)

    @contextmanager
    def _machine(self, controller: Controller) -> Iterator[tuple[Bmc, Reply, Facts]]:
        with self._pool.lend(controller, self._config.call_limit_s) as bmc:
            system = machine(bmc, controller.system)
            yield bmc, system, facts(bmc, system, self._config.vendor)


def _from(bmc: Bmc, system: Reply) -> tuple[reading.Read, str]:
    """
    How the tree is read from the system on, and its path. What was read already is not asked for again: the system a moment ago, and the
    service's root when we came, which tells what this controller offers and where.
    """
    path = path_of(system)
    just_read = {path: system.body, reading.ROOT: dict(bmc.root)}

    def read(wanted: str) -> dict[str, Any]:
        return just_read.pop(wanted, None) or bmc.read(wanted)

    return read, path


def _view(bmc: Bmc, system: Reply, known: Facts) -> HardwareView:
    override = boot.read_override(bmc, system, known)
    return HardwareView(
        power=power.power_of(system),
        boot_source=override.source,
        boot_once=override.once,
        media=media.read_media(bmc, system),
        health=_health(system),
        pending=settings.pending(bmc, system),
    )


def _health(system: Reply) -> Health:
    status = inside(system.body, "Status")
    rolled_up = isinstance(status, dict) and "HealthRollup" in status  # null there is the controller's own "unknown"
    return HEALTH.get(str(inside(status, "HealthRollup" if rolled_up else "Health")), "unknown")
