"""
The resources of one simulated controller, as plain JSON.
"""

from __future__ import annotations

import copy
from typing import Any

V1 = "/redfish/v1"
SYSTEM = f"{V1}/Systems/1"
BASEBOARD = f"{V1}/Systems/HGX_Baseboard_0"
MANAGER = f"{V1}/Managers/BMC"
MANAGER_RESET = f"{MANAGER}/Actions/Manager.Reset"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
SIMPLE_UPDATE = f"{V1}/UpdateService/Actions/UpdateService.SimpleUpdate"
SESSIONS = f"{V1}/SessionService/Sessions"
TASK = f"{V1}/TaskService/Tasks/42"
MONITOR = f"{V1}/TaskService/TaskMonitors/42"
UUID = "36B7A1C2-0001-4000-8000-0000000000AA"

Tree = dict[str, dict[str, Any]]


def ref(path: str) -> dict[str, str]:
    """A reference."""
    return {"@odata.id": path}


def collection(*paths: str) -> dict[str, Any]:
    """A collection with these members."""
    return {"Members": [ref(path) for path in paths], "Members@odata.count": len(paths)}


def slot(path: str, *kinds: str, action: bool = True) -> dict[str, Any]:
    """A virtual drive."""
    actions = {f"#VirtualMedia.{verb}Media": {"target": f"{path}/Actions/VirtualMedia.{verb}Media"} for verb in ("Insert", "Eject")}
    return {
        "@odata.id": path,
        "Id": path.rpartition("/")[2],
        "Name": "Virtual drive",
        "MediaTypes": list(kinds),
        "Image": None,
        "Inserted": False,
        "Actions": actions if action else {},
    }


def ordinary() -> Tree:
    """
    A machine that does all that the standard says, with an HGX baseboard beside it as GPU servers have.
    """
    return copy.deepcopy(
        {
            f"{V1}/": {
                "Systems": ref(f"{V1}/Systems"),
                "Managers": ref(f"{V1}/Managers"),
                "AccountService": ref(f"{V1}/AccountService"),
                "UpdateService": ref(f"{V1}/UpdateService"),
                "Tasks": ref(f"{V1}/TaskService"),
                "Links": {"Sessions": ref(SESSIONS)},
            },
            f"{V1}/Systems": collection(BASEBOARD, SYSTEM),
            BASEBOARD: {"@odata.id": BASEBOARD, "Id": "HGX_Baseboard_0", "SystemType": "Physical", "Actions": {}},
            SYSTEM: _system(),
            f"{V1}/Managers": collection(MANAGER),
            MANAGER: {
                "@odata.id": MANAGER,
                "Id": "BMC",
                "Model": "AST2600",
                "FirmwareVersion": "1.2.3",
                "VirtualMedia": ref(f"{MANAGER}/VirtualMedia"),
                "HostInterfaces": ref(f"{MANAGER}/HostInterfaces"),
                "Actions": {
                    "#Manager.Reset": {
                        "target": MANAGER_RESET,
                        "ResetType@Redfish.AllowableValues": ["ForceRestart", "GracefulRestart"],
                    }
                },
            },
            f"{MANAGER}/VirtualMedia": collection(f"{MANAGER}/VirtualMedia/Cd"),
            f"{MANAGER}/VirtualMedia/Cd": slot(f"{MANAGER}/VirtualMedia/Cd", "CD", "DVD"),
            f"{MANAGER}/HostInterfaces": collection(f"{MANAGER}/HostInterfaces/1"),
            f"{MANAGER}/HostInterfaces/1": {"@odata.id": f"{MANAGER}/HostInterfaces/1", "InterfaceEnabled": True},
            **_settings(),
            **_accounts(),
            f"{V1}/UpdateService": {"Actions": {"#UpdateService.SimpleUpdate": {"target": SIMPLE_UPDATE}}},
            f"{V1}/TaskService": {"Tasks": ref(f"{V1}/TaskService/Tasks")},
            f"{V1}/TaskService/Tasks": collection(),
        }
    )


def _system() -> dict[str, Any]:
    return {
        "@odata.id": SYSTEM,
        "Id": "1",
        "UUID": UUID,
        "SystemType": "Physical",
        "Manufacturer": "Ordinary",
        "Model": "Model 1",
        "PowerState": "Off",
        "Status": {"Health": "OK", "HealthRollup": "Warning"},
        "Bios": ref(f"{SYSTEM}/Bios"),
        "SecureBoot": ref(f"{SYSTEM}/SecureBoot"),
        "Boot": {
            "BootSourceOverrideEnabled": "Disabled",
            "BootSourceOverrideTarget": "None",
            "BootSourceOverrideMode": "UEFI",
            "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "Hdd", "Cd", "UefiHttp"],
        },
        "Links": {"ManagedBy": [ref(MANAGER)]},
        "Actions": {
            "#ComputerSystem.Reset": {
                "target": RESET,
                "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "GracefulShutdown", "ForceRestart"],
            }
        },
    }


def _settings() -> Tree:
    return {
        f"{SYSTEM}/Bios": {
            "@odata.id": f"{SYSTEM}/Bios",
            "Attributes": {"ProcTurbo": "Enabled", "Retries": 3, "Quiet": True},
            "@Redfish.Settings": {"SettingsObject": ref(f"{SYSTEM}/Bios/Settings"), "SupportedApplyTimes": ["OnReset"]},
        },
        f"{SYSTEM}/Bios/Settings": {"@odata.id": f"{SYSTEM}/Bios/Settings", "Attributes": {}},
        f"{SYSTEM}/SecureBoot": {
            "@odata.id": f"{SYSTEM}/SecureBoot",
            "SecureBootEnable": False,
            "SecureBootCurrentBoot": "Disabled",
        },
    }


def _accounts() -> Tree:
    places = [f"{V1}/AccountService/Accounts/{number}" for number in (1, 2, 3)]
    rows = [("", True), ("admin", True), ("guest", False)]
    return {
        f"{V1}/AccountService": {"Accounts": ref(f"{V1}/AccountService/Accounts")},
        f"{V1}/AccountService/Accounts": collection(*places),
        **{
            place: {"@odata.id": place, "UserName": name, "Enabled": enabled, "Password": None}
            for place, (name, enabled) in zip(places, rows, strict=True)
        },
    }
