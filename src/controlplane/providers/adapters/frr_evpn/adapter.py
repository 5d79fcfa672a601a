"""
The adapter's door: what the port asks, each call within its time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from controlplane.providers.adapters.frr_evpn.client import Script, SecretFile
from controlplane.providers.adapters.frr_evpn.config import FabricConfig, SshReach, SwitchConfig
from controlplane.providers.adapters.frr_evpn.rendering import Names, attach_words, detach_words, observe_words
from controlplane.providers.adapters.frr_evpn.switch import SwitchState, port_view, read_state
from controlplane.providers.clusters import Capabilities
from controlplane.providers.errors import NotFound, Permanent, ProviderError, Refused, Unknown
from controlplane.providers.fabrics import FabricView, NetworkSpec, PortRef, PortView
from controlplane.providers.registry import AdapterInput, read_config

log = logging.getLogger(__name__)

CALL_LIMIT_S = 24.0
"""The port allows well under 30 s a call; switches that have not been read by then are silent."""
VISITS_AT_ONCE = 16


def build(given: AdapterInput) -> FrrEvpnAdapter:
    """
    An adapter for the fabric that the config names; no switch has been asked yet. Raises Permanent for a config that is wrong.
    """
    config = read_config(FabricConfig, given, "the fabric's")
    try:
        names = Names(given.deployment)
    except ValueError as error:
        raise Permanent(f"the installation's name: {error}", code="provider_config_invalid") from error
    wanted = {one.reach.key for one in config.switches.values() if isinstance(one.reach, SshReach)}
    missing = sorted(name for name in wanted if not given.secrets.get(name))
    if missing:
        raise Permanent(f"the fabric's secrets lack {', '.join(missing)}", code="provider_config_invalid")
    return FrrEvpnAdapter(config, names, {name: SecretFile(given.secrets[name].rstrip("\n") + "\n") for name in wanted})


class FrrEvpnAdapter:
    """
    Fabrics, on switches that keep all of the state. Safe to share between threads.
    """

    def __init__(self, config: FabricConfig, names: Names, keys: Mapping[str, SecretFile]) -> None:
        self._config = config
        self._names = names
        self._keys = keys
        self._scripts = {
            name: Script(
                name,
                switch.reach,
                key=keys[switch.reach.key] if isinstance(switch.reach, SshReach) else None,
                timeout_s=config.timeout_s,
            )
            for name, switch in config.switches.items()
        }

    def close(self) -> None:
        """
        No key is held any more; the adapter is of no more use.
        """
        for script in self._scripts.values():
            script.close()
        for key in self._keys.values():
            key.close()

    def capabilities(self) -> Capabilities:
        """
        What the fabric is: it makes no product. Raises Unknown when no switch answers.
        """
        silent = self.observe_fabric().silent
        count = len(self._config.switches)
        if len(silent) == count:
            raise Unknown("no switch of the fabric answers")
        notes = tuple(f"{name} does not answer" for name in silent)
        return Capabilities(version=f"frr-evpn, {count} switches", products=(), walls=("vxlan",), notes=notes)

    def observe_fabric(self) -> FabricView:
        """
        All ports as the switches have them now; a switch that cannot be read, for whatever reason, is silent.
        """
        ends_at = time.monotonic() + CALL_LIMIT_S
        pool = ThreadPoolExecutor(VISITS_AT_ONCE, thread_name_prefix="fabric")
        try:
            visits = {name: pool.submit(self._read, name) for name in sorted(self._config.switches)}
            wait(visits.values(), timeout=max(0.0, ends_at - time.monotonic()))
            states = {name: _result(name, visit) for name, visit in visits.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        ports = [
            self._view(name, port, state)
            for name, state in states.items()
            if state is not None
            for port in sorted(self._config.switches[name].ports)
        ]
        silent = tuple(name for name, state in states.items() if state is None)
        return FabricView(tuple(ports), complete=not silent, silent=silent)

    def observe_port(self, ref: PortRef) -> PortView:
        """
        One port as its switch has it now. Raises NotFound when the list has no such port.
        """
        switch = self._config.switches.get(ref.switch)
        if switch is None or ref.port not in switch.ports:
            raise NotFound(f"the fabric's list has no port {ref.port} of {ref.switch}", code="fabric_port_unlisted")
        return self._view(ref.switch, ref.port, self._read(ref.switch))

    def observe_ports(self, switch: str) -> tuple[PortView, ...]:
        """
        The listed ports of the switch, by one visit. Raises NotFound when the list has no such switch.
        """
        config = self._config.switches.get(switch)
        if config is None:
            raise NotFound(f"the fabric's list has no switch {switch}", code="fabric_port_unlisted")
        state = self._read(switch)
        return tuple(self._view(switch, port, state) for port in sorted(config.ports))

    def attach(self, ref: PortRef, network: NetworkSpec, *, turn: int = 0) -> None:
        """
        The port is in the network's bridge on its switch; the bridge and its tunnel are there. A running one is not disturbed.
        """
        switch = self._listed(ref)
        self._scripts[ref.switch].run(attach_words(self._names, self._config, switch, ref.port, network, turn))

    def detach(self, ref: PortRef, *, only: int | None = None, turn: int = 0) -> None:
        """
        The port is in no bridge, or not in that of `only`, and switched off; bridges of ours that no port uses are gone from its switch.
        """
        switch = self._listed(ref)
        self._scripts[ref.switch].run(detach_words(self._names, switch, ref.port, only, turn))

    def _listed(self, ref: PortRef) -> SwitchConfig:
        switch = self._config.switches.get(ref.switch)
        if switch is None:
            raise Refused(f"the fabric has no switch {ref.switch}", code="fabric_port_unlisted")
        if ref.port in switch.reserved or ref.port in switch.uplinks:
            raise Refused(f"{ref.port} of {ref.switch} is reserved by the operator", code="fabric_port_reserved")
        if ref.port not in switch.ports:
            raise Refused(f"the fabric's list has no port {ref.port} of {ref.switch}", code="fabric_port_unlisted")
        return switch

    def _read(self, name: str) -> SwitchState:
        return read_state(self._scripts[name].run(observe_words(self._names, self._config.switches[name])))

    def _view(self, name: str, port: str, state: SwitchState) -> PortView:
        return port_view(name, port, self._config.switches[name], self._names, self._config.vxlan_port, state)


def _result(name: str, visit: Future[SwitchState]) -> SwitchState | None:
    if not visit.done():
        log.warning("switch not read in time", extra={"switch": name})
        return None
    try:
        return visit.result()
    except ProviderError as error:
        log.warning("switch not read", extra={"switch": name, "error": type(error).__name__, "detail": error.detail})
        return None
