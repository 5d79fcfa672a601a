"""
The same rack with the real EVPN adapter: every machine hangs on a switch of its own, reached by a command, that goes wrong as it is told.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from controlplane.providers.fabrics import NetworkSpec, PortRef, PortView
from controlplane.providers.registry import AdapterInput, build_adapter
from tests.conftest import Database
from tests.matrix.driven import Rack

SWITCH = Path(__file__).with_name("switch.sh")
PORT = "swp1"
LONGEST_S = 0.6
ANYTIME = (
    *("busy", "port_missing", "port_taken", "device_foreign", "segment_taken", "command_failed", "not_permitted"),
    *("dies_before", "dies_after", "hangs_before", "hangs_after", "cut_short"),
)
LOOKS = ("garbled", "half_made", "frr_away")
CHANGES = ("lies",)
FAULTS = (*ANYTIME, *LOOKS, *CHANGES)
OPERATIONS = ("attach", "detach", "deploy", "release", "wipe", "replace")
HANGS_AT_MOST = 2


class Reach:
    """
    The adapter, whose switches are told before each call how to go wrong; what they then carry is what the machines reach.
    """

    def __init__(self, rack: FrrRack, adapter: Any) -> None:
        self._rack, self._adapter = rack, adapter

    def attach(self, ref: PortRef, network: NetworkSpec, *, turn: int = 0) -> None:
        """See `Fabrics.attach`."""
        self._ask("attach", ref, lambda: self._adapter.attach(ref, network, turn=turn))

    def detach(self, ref: PortRef, *, only: int | None = None, turn: int = 0) -> None:
        """See `Fabrics.detach`."""
        self._ask("detach", ref, lambda: self._adapter.detach(ref, only=only, turn=turn))

    def observe_port(self, ref: PortRef) -> PortView:
        """See `Fabrics.observe_port`."""
        seen: PortView = self._ask("observe_port", ref, lambda: self._adapter.observe_port(ref))
        return seen

    def _ask(self, call: str, ref: PortRef, do: Any) -> Any:
        rack = self._rack
        folder, node_id = rack.folder_of(ref), rack.site.switch.machine_at(ref)
        part = rack.director.part(node_id)
        fault = rack.director.draw(node_id, call) if part is not None and _makes_sense(part.case.fault, call) else ""
        if fault.startswith("hangs") and part is not None and part.played > HANGS_AT_MOST:
            fault = ""
        (folder / "fault").write_text(fault, encoding="utf-8")
        try:
            return do()
        finally:
            carried = folder / "carried"
            rack.site.switch._set(ref, int(carried.read_text().split()[0]) if carried.exists() else None)


class FrrRack(Rack):
    """
    Machines on switches that are reached by a command.
    """

    adapter = "frr_evpn"

    def __init__(self, database: Database, folder: Path, count: int) -> None:
        self._folder = folder / "switches"
        switches = {}
        for number in range(1, count + 1):
            home = self._folder / self._port(number).switch
            home.mkdir(parents=True)
            reach = {"kind": "exec", "argv_prefix": ["sh", str(SWITCH), str(home)]}
            vtep = f"10.8.{number // 250}.{number % 250 + 1}"
            switches[self._port(number).switch] = {"reach": reach, "vtep": vtep, "ports": [PORT]}
        given = AdapterInput("prv_net", {"switches": switches, "timeout_s": LONGEST_S}, {}, "cp", self._now)
        self._reach = Reach(self, build_adapter("frr-evpn", given))
        super().__init__(database, folder, count)

    def _now(self) -> datetime:
        now: datetime = self.world.clock()
        return now

    def _port(self, number: int) -> PortRef:
        return PortRef(f"leaf{number}", PORT)

    def folder_of(self, ref: PortRef) -> Path:
        """What the switch keeps."""
        return self._folder / ref.switch

    def fabric(self, provider: Any) -> Any:
        """The adapter."""
        return self._reach

    def close(self) -> None:
        """Nothing is held."""
        self._reach._adapter.close()
        super().close()


def _makes_sense(fault: str, call: str) -> bool:
    return fault in ANYTIME or (fault in LOOKS) == (call == "observe_port")


def faults_here(operation: str) -> list[str]:
    """
    The faults of switches that make sense in the operation.
    """
    return list(FAULTS) if operation in OPERATIONS else []
