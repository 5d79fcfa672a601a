"""
The same rack with the real Redfish adapter, over HTTP, to controllers that go wrong as they are told.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from controlplane.nodes.states import NodeSnapshot
from tests.conftest import Database
from tests.matrix.cases import Case
from tests.matrix.driven import PASSWORD, Rack
from tests.matrix.flashing import ENDS, IMAGE
from tests.matrix.metal import Machine
from tests.simulators.redfish.server import Answer, FakeBmc, Fault, no, serving
from tests.simulators.redfish.tree import MANAGER, MONITOR, RESET, SIMPLE_UPDATE, SYSTEM, TASK, V1, collection, ref

SLOT = f"{MANAGER}/VirtualMedia/Cd"
QUICK = {
    "timeout_s": 0.4,
    "call_limit_s": 8.0,
    "retry_delay_s": 0.0,
    "poll_s": 0.01,
    "media_wait_s": 0.05,
    "silence_s": 0.0,
    "refused_login_s": 0.0,
}
REQUESTS = {
    "observe": f"GET {SYSTEM}$",
    "power": f"POST {RESET}",
    "boot_from": f"PATCH {SYSTEM}$",
    "insert_media": "POST .*InsertMedia",
    "eject_media": "POST .*EjectMedia|GET .*VirtualMedia/Cd$",
    "update_firmware": f"POST {SIMPLE_UPDATE}",
    "observe_update": f"GET {MONITOR}",
    "take_inventory": "GET /redfish/v1/(Systems|Chassis|Managers)",
}
"""The request by which each call is done."""
SAID: dict[str, Answer] = {
    "says_400": no(400, "Base.1.8.PropertyValueNotInList", "not acceptable"),
    "says_401": no(401, "Base.1.8.NoValidSession", "log in first"),
    "says_403": no(403, "Base.1.8.InsufficientPrivilege", "no"),
    "says_404": no(404, "Base.1.8.ResourceMissingAtURI", "no such thing"),
    "says_409": no(409, "Base.1.8.ResourceInUse", "in use"),
    "says_429": no(429, "Base.1.8.GeneralError", "slowly", retry_after="7"),
    "says_500": no(500, "Base.1.8.InternalError", "it broke"),
    "says_503": no(503, "Base.1.8.ServiceTemporarilyUnavailable", "restarting", retry_after="60"),
}
BROKEN = ("hang", "effect_hang", "reset", "effect_reset", "truncate", "cut", "html", "error_inside")
OWN = (
    "session_lost",
    "stale_power",
    "power_lies",
    "boot_order_pending",
    "slow_eject",
    "refuses_on",
    "power_lost",
    "password_changed",
)
FAULTS = (*SAID, *BROKEN, *OWN, *ENDS)
PLACES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(ENDS, ("firmware",)),
    "power_lies": ("qualify", "wipe", "deploy", "release", "replace", "power"),
    "refuses_on": ("qualify", "wipe", "deploy", "replace", "power"),
    "boot_order_pending": ("qualify", "wipe", "deploy", "replace"),
    "slow_eject": ("qualify", "wipe", "deploy", "release", "replace"),
    "stale_power": ("qualify", "wipe", "deploy", "release", "replace", "power"),
    "power_lost": ("qualify", "wipe", "deploy", "release", "replace", "power"),
}
"""Where a fault makes sense, where not everywhere."""
OFTEN = 1000
MOST_HANGS = 2


class BmcMachine(Machine):
    """
    A machine whose power and media are its controller's.
    """

    bmc: FakeBmc
    ending: str = ""
    """One of ENDS for its updates; empty: they go well."""
    endings: int = 0
    """How many of them."""

    def connect(self, bmc: FakeBmc) -> None:
        """
        It is behind that controller, whose firmware is the machine's.
        """
        self.bmc = bmc
        self.flash.version = bmc.tree[MANAGER]["FirmwareVersion"]
        bmc.rules.append(self._update)

    def _update(self, method: str, path: str, content: dict[str, Any]) -> Answer | None:
        """
        What the controller answers where firmware is concerned; None: what it answers otherwise.
        """
        flash = self.flash
        if (method, path) == ("POST", SIMPLE_UPDATE):
            self.meddle()
            flash.begin(content["ImageURI"])
            return 202, None, {"Location": MONITOR}
        if (method, path) == ("POST", RESET) and content.get("ResetType") == "ForceOff":
            flash.cut()
        if method == "GET" and path in {TASK, MONITOR}:
            return self._task()
        if (method, path) == ("GET", MANAGER):
            self.bmc.tree[MANAGER]["FirmwareVersion"] = flash.look()
        if (method, path) == ("GET", f"{V1}/TaskService/Tasks"):
            flash.look()
            return 200, collection(*([TASK] if flash.writing and not flash.forgotten else [])), {}
        return None

    def _task(self) -> Answer:
        flash = self.flash
        if self.endings and flash.writing and not flash.forgotten and not flash.way:
            self.endings -= 1
            flash.befall(self.ending)
            if flash.silent:
                self.bmc.expire_sessions()
                self.bmc.fail("", "reset", times=flash.silent)
                flash.silent = 0
        seen = flash.follow(str(flash.task))
        if seen.state == "unknown":
            return no(404, "Base.1.8.ResourceMissingAtURI", "no such task")
        said = {"running": "Running", "succeeded": "Completed", "failed": "Exception"}[seen.state]
        payload = {"TargetUri": SIMPLE_UPDATE, "JsonBody": json.dumps({"ImageURI": IMAGE.url})}
        body = {**ref(TASK), "TaskState": said, "Messages": [{"Message": seen.message}], "Payload": payload}
        return 202 if seen.state == "running" else 200, body, {}

    def follow(self) -> None:
        """
        The machine does what its controller was told since the last look.
        """
        slot, boot = self.bmc.tree[SLOT], self.bmc.system["Boot"]
        self.media = slot["Image"] if slot["Inserted"] else None
        on = self.bmc.system["PowerState"] == "On"
        if on == self.is_on:
            return
        self.aimed = boot["BootSourceOverrideEnabled"] != "Disabled"
        if on:
            boot["BootSourceOverrideEnabled"] = "Disabled"
        super().switch(on=on)

    def switch(self, *, on: bool) -> None:
        """See `Machine.switch`."""
        self.bmc.system["PowerState"] = "On" if on else "Off"
        self.follow()


class RedfishRack(Rack):
    """
    Machines behind real HTTP.
    """

    adapter = "redfish"

    def __init__(self, database: Database, folder: Path, count: int) -> None:
        self._bmcs = [FakeBmc(passwords={"admin": PASSWORD}) for _ in range(count)]
        self._armed: dict[str, Fault | None] = {}
        self._true: dict[str, str] = {}
        self._open = ExitStack()
        self._open.enter_context(serving(*self._bmcs))
        super().__init__(database, folder, count)

    def _config(self, adapter: str) -> dict[str, Any]:
        return {**super()._config(adapter), **QUICK, "boot": "media"} if adapter == "redfish" else {}

    def _url(self, number: int) -> str:
        return self._bmcs[number - 1].url

    def _stand_up(self) -> None:
        for number, node_id in enumerate(self.ids, start=1):
            machine = BmcMachine(node_id, self._port(number), self.site)
            machine.connect(self._bmcs[number - 1])
            self.site.machines[node_id] = machine

    def hardware(self, provider: Any, ref: str) -> Any:
        """The adapter itself."""
        return None

    def before_step(self, node: NodeSnapshot) -> None:
        """The fault of the machine is in force while it is in the state that was chosen for it."""
        machine = self._machine(node.id)
        part = self.director.part(node.id)
        fits = part is not None and part.plan.state == node.state
        if part is None or not fits or (part.plan.after_tenancy and node.id not in self.director.tenanted):
            if node.id in self._armed:
                del self._armed[node.id]
                machine.bmc.faults.clear()
                machine.endings = 0
            return
        if node.id not in self._armed:
            self._armed[node.id] = self._arm(machine, part.case, part.plan.calls[0], part.plan.count)
            part.played += 1

    def _arm(self, machine: BmcMachine, case: Case, call: str, count: int | None) -> Fault | None:
        bmc, times = machine.bmc, OFTEN if count is None else count
        pattern = REQUESTS.get(call, REQUESTS["observe"])
        if case.fault in SAID:
            bmc.fail(pattern, "say", times=times, payload=SAID[case.fault])
        elif case.fault in BROKEN:
            hangs = "hang" in case.fault
            bmc.fail(pattern, case.fault, times=min(times, MOST_HANGS) if hangs else times)
        else:
            self._lie(machine, case.fault, times)
        return bmc.faults[-1] if bmc.faults else None

    def _lie(self, machine: BmcMachine, fault: str, times: int) -> None:
        bmc = machine.bmc
        if fault in ENDS:
            machine.ending, machine.endings = fault, times
        elif fault == "session_lost":
            bmc.expire_sessions()
        elif fault == "stale_power":
            bmc.stale_reads = times
        elif fault == "power_lies":
            bmc.fail(f"POST {RESET}", "say", times=times, payload=(204, None, {}))
        elif fault == "boot_order_pending":
            bmc.fail(f"PATCH {SYSTEM}$", "say", times=times, payload=(200, {}, {}))
        elif fault == "slow_eject":
            bmc.slow_eject = min(times, 20)
        elif fault == "refuses_on":
            bmc.refuses_on = times
        elif fault == "power_lost":
            machine.switch(on=False)
        elif fault == "password_changed":
            self._true.setdefault(machine.node_id, bmc.passwords["admin"])
            bmc.passwords = {"admin": "somebody changed it"}
            bmc.expire_sessions()

    def after_step(self, node: NodeSnapshot) -> None:
        """What the controller was told is done."""
        self._machine(node.id).follow()

    def _machine(self, node_id: str) -> BmcMachine:
        machine = self.site.machines[node_id]
        assert isinstance(machine, BmcMachine)
        return machine

    def heal(self) -> None:
        """Controllers are well again."""
        for bmc in self._bmcs:
            bmc.faults.clear()
            bmc.stale_reads = bmc.slow_eject = bmc.refuses_on = 0
        for node_id in self.ids:
            self._machine(node_id).endings = 0
        for node_id, password in self._true.items():
            self._machine(node_id).bmc.passwords = {"admin": password}
        self._true.clear()
        self._armed.clear()
        super().heal()

    def close(self) -> None:
        """Nothing is held."""
        super().close()
        self._open.close()


def faults_here(operation: str) -> list[str]:
    """
    The faults of controllers that make sense in the operation.
    """
    return [one for one in FAULTS if operation not in {"attach", "detach"} and operation in PLACES.get(one, (operation,))]
