"""
Machines behind controllers that every process of the benchmark shares, kept in one file: who is on, since when, and what is in its drive.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Any, cast

from controlplane.providers.hardware import BootSource, Controller, Hardware, HardwareView
from controlplane.providers.toolbox import Circuit, Guarded, Reachable, Toolbox

RECORD = struct.Struct("<d?")
"""When it was switched on (0: it is off), and whether a seed is in its drive."""


class Rack:
    """
    So many machines; each call of a controller takes `call_s`. The number of a machine is what its address ends with.
    """

    def __init__(self, path: Path, *, call_s: float) -> None:
        self._call_s = call_s
        with path.open("r+b") as file:
            self._kept = mmap.mmap(file.fileno(), 0)

    @staticmethod
    def make(path: Path, count: int) -> None:
        """
        The file is there, and every machine is off.
        """
        path.write_bytes(bytes(RECORD.size * count))

    def boot_from(self, controller: Controller, source: BootSource) -> None:
        """
        See `Hardware.boot_from`.
        """
        del controller, source
        time.sleep(self._call_s)

    def observe(self, controller: Controller) -> HardwareView:
        """
        See `Hardware.observe`.
        """
        time.sleep(self._call_s)
        return HardwareView(power="on" if self.on_since(_number(controller)) else "off")

    def power(self, controller: Controller, *, on: bool, force: bool = False) -> None:
        """
        See `Hardware.power`.
        """
        del force
        time.sleep(self._call_s)
        since, seeded = self._read(_number(controller))
        self._write(_number(controller), (since or time.time()) if on else 0.0, seeded=seeded)

    def insert_media(self, controller: Controller, url: str) -> None:
        """
        See `Hardware.insert_media`.
        """
        del url
        time.sleep(self._call_s)
        self._write(_number(controller), self._read(_number(controller))[0], seeded=True)

    def eject_media(self, controller: Controller) -> None:
        """
        See `Hardware.eject_media`.
        """
        time.sleep(self._call_s)
        self._write(_number(controller), self._read(_number(controller))[0], seeded=False)

    def on_since(self, number: int) -> float:
        """
        Seconds of the epoch when the machine was switched on; 0 while it is off.
        """
        return self._read(number)[0]

    def boots_since(self, number: int) -> float:
        """
        The same, and 0 too while no seed is in its drive.
        """
        since, seeded = self._read(number)
        return since if seeded else 0.0

    def _read(self, number: int) -> tuple[float, bool]:
        since, seeded = RECORD.unpack_from(self._kept, number * RECORD.size)
        return float(since), bool(seeded)

    def _write(self, number: int, since: float, *, seeded: bool) -> None:
        RECORD.pack_into(self._kept, number * RECORD.size, since, seeded)


class RackTools(Toolbox):
    """
    A toolbox whose controllers are the rack's, each behind a circuit of its own as the real ones are.
    """

    rack: Rack

    def hardware(self, provider: Reachable, ref: str) -> Hardware:
        """
        See `Toolbox.hardware`.
        """
        del provider, ref
        return cast("Hardware", Guarded(self.rack, Circuit()))


def rack_tools(rack: Rack, **given: Any) -> RackTools:
    """
    A toolbox on the rack.
    """
    made = RackTools(
        deployment="cp", open_secrets=lambda _provider, _sealed: {}, seed_url=lambda boot_id: f"http://machine/{boot_id}", **given
    )
    made.rack = rack
    return made


def url_of(number: int) -> str:
    """
    The address of a machine's controller.
    """
    return f"http://127.0.{number // 250}.{number % 250 + 1}"


def _number(controller: Controller) -> int:
    high, low = controller.url.rsplit(".", 2)[1:]
    return int(high) * 250 + int(low) - 1
