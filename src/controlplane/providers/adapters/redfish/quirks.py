"""
What vendors do in their own way, as data: which machines, which facts, and who says so.

A row matches by manufacturer, model and the manager's version; later rows overrule earlier ones. How to write one:
`docs/providers/redfish.md`. `Source:` of the whole: the code of sushy 5.14 and Ironic 39.0 and the issue threads named in the rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

BootFields = Literal["target", "changed", "all"]
LATEST = (99_999,)

BUSY_MESSAGES = (
    "SYS518",  # iDRAC, not ready after a previous operation: sushy, connector.check_retry_on_exception
    "InvalidOperationForSystemState",  # iLO: same place
    "UnableToModifyDuringSystemPOST",  # iLO refuses a PATCH during POST: Ironic, redfish boot device retries
    "ServiceTemporarilyUnavailable",  # DMTF Base registry: the service asks for a retry
    "ServiceShuttingDown",  # DMTF Base registry
    "ResourceInUse",  # DMTF Base registry: the change is refused because the resource is in transition
    "ResourceInStandby",  # DMTF Base registry
    "SessionLimitExceeded",  # DMTF Base registry: all sessions are taken
)
HARMLESS_MESSAGES = frozenset(
    {
        "Success",  # DMTF Base registry; iLO puts it into an error object of a 200
        "Created",  # DMTF Base registry
        "NoOperation",  # DMTF Base registry: it was so already
        "AccountModified",  # DMTF Base registry
        "SystemResetRequired",  # iLO: accepted, in force after the next reset
        "ResetRequired",  # DMTF Base registry
        "ResetInProgress",  # iLO, after a reset was accepted
    }
)
LICENCE_MESSAGES = (
    "OemLicenseNotPassed",  # Supermicro: virtual media and Secure Boot without a licence
    "LicenseKeyRequired",  # iLO
    "LicenseNotActivated",  # Supermicro
)


@dataclass(frozen=True, slots=True)
class Switch:
    """
    One property that is part of the lock between the host and its controller.
    """

    path: str
    """Of the resource; `{manager}` is the manager's path, `{id}` its id."""
    locked: Mapping[str, Any]
    """What is sent, and read back, to lock."""
    unlocked: Mapping[str, Any]
    """The same to unlock."""


@dataclass(frozen=True, slots=True)
class Facts:
    """
    How one machine wants to be spoken to.
    """

    usb_cd_first: bool = False
    """Virtual media is a USB drive: `UsbCd` boots it, `Cd` does not."""
    boot_fields: BootFields = "target"
    """What a boot override holds: target and enabled; only what differs; or those and the mode."""
    settings_suffix: str = ""
    """Where the system's settings object is when the system does not link it, for example `/SD`."""
    media_boot_path: str = ""
    """Resource whose attributes, not the override, make it boot virtual media; with the names that `Switch.path` has."""
    media_boot_attributes: Mapping[str, str] = field(default_factory=dict)
    """What is written there."""
    media_boot_undone: Mapping[str, str] = field(default_factory=dict)
    """What is written there when it is to boot from something else before it booted so."""
    upload_slots: str = ""
    """Regular expression of the ids of virtual drives that take no address; tried last."""
    lock: tuple[Switch, ...] = ()
    """All of it together is the lock; empty: the manager's host interfaces are."""
    off_s: float = 0.0
    """How long an On may be refused after an Off, in seconds."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """
    One row: where all of its conditions hold, its facts do.
    """

    vendor: str
    """Regular expression for whole words of the manufacturer, any case."""
    source: str
    """Who says so."""
    facts: Mapping[str, Any]
    """Fields of `Facts` and their values."""
    model: str = ""
    """Regular expression found in the system's model; empty: any."""
    manager_model: str = ""
    """The same for the manager's model."""
    since: tuple[int, ...] = ()
    """Oldest version of the manager it holds for."""
    before: tuple[int, ...] = LATEST
    """First version of the manager it does not hold for."""

    @property
    def asks_manager(self) -> bool:
        """
        Whether the manager has to be read to decide.
        """
        return bool(self.manager_model or self.since or self.before != LATEST)


@dataclass(frozen=True, slots=True)
class Make:
    """
    What a machine says it is.
    """

    vendor: str
    """Manufacturer."""
    model: str
    """Of the system."""
    manager_model: str = ""
    """Of its manager."""
    manager_version: str = ""
    """The manager's firmware."""


DELL_ATTRIBUTES = "{manager}/Oem/Dell/DellAttributes/{id}"
QUIRKS = (
    Quirk(
        "super ?micro",
        "sushy 5.14 system.set_system_boot_options: on X11 and X12 `Cd` fails and `UsbCd` works; "
        "Ironic redfish management: BootSourceOverrideEnabled must always be sent",
        {"usb_cd_first": True},
    ),
    Quirk(
        "super ?micro",
        "NVIDIA/libredfish supermicro: locked is SysLockdown on, KCS at Callback and the host interface off",
        {
            "lock": (
                Switch("{manager}/Oem/Supermicro/SysLockdown", {"SysLockdownEnabled": True}, {"SysLockdownEnabled": False}),
                Switch("{manager}/Oem/Supermicro/KCSInterface", {"Privilege": "Callback"}, {"Privilege": "Administrator"}),
                Switch("{manager}/HostInterfaces/1", {"InterfaceEnabled": False}, {"InterfaceEnabled": True}),
            )
        },
    ),
    Quirk(
        "dell",
        "NVIDIA/libredfish dell, dell/iDRAC-Redfish-Scripting: the pass-through and the local doors are attributes; "
        "`LocalConfig` and `PrebootConfig` name the ban, so that Enabled closes them",
        {
            "lock": (
                Switch(
                    DELL_ATTRIBUTES,
                    {
                        "Attributes": {
                            "OS-BMC.1.AdminState": "Disabled",
                            "LocalSecurity.1.LocalConfig": "Enabled",
                            "LocalSecurity.1.PrebootConfig": "Enabled",
                        }
                    },
                    {"Attributes": {"LocalSecurity.1.LocalConfig": "Disabled", "LocalSecurity.1.PrebootConfig": "Disabled"}},
                ),
            )
        },
    ),
    Quirk(
        "dell",
        "Ironic drac boot: before iDRAC9 6.00 `Cd` is the physical drive, and the virtual one is an attribute; "
        "iDRAC10 counts its versions from 1 again, so the generation decides first",
        {
            "media_boot_path": DELL_ATTRIBUTES,
            "media_boot_attributes": {"ServerBoot.1.BootOnce": "Enabled", "ServerBoot.1.FirstBootDevice": "VCD-DVD"},
            "media_boot_undone": {"ServerBoot.1.FirstBootDevice": "Normal"},
        },
        manager_model=r"^1[2-6]G",
        before=(6,),
    ),
    Quirk(
        "dell",
        "Ironic: iDRAC10 answers 409 to On for up to 60 s after Off",
        {"off_s": 15.0},
        manager_model=r"^1[7-9]G",
    ),
    Quirk(
        "lenovo",
        "recorded XCC of an SR670 V2: ten drives without actions; EXT take an address, RDOC uploads, Remote the console",
        {"upload_slots": r"RDOC|Remote"},
    ),
    Quirk(
        "ami|american megatrends.*",
        "Ironic: AMI wants mode, enabled and target together; metal-operator 188",
        {"boot_fields": "all", "settings_suffix": "/SD"},
    ),
    Quirk(
        "gigabyte|giga ?computing",
        "metal-operator 188: boot settings only through /Systems/Self/SD",
        {"boot_fields": "all", "settings_suffix": "/SD"},
    ),
    Quirk(
        "asrock(?:rack)?",
        "Ironic: ASRockRack wants mode, enabled and target together",
        {"boot_fields": "all", "settings_suffix": "/SD"},
    ),
)


def version_of(said: str) -> tuple[int, ...]:
    """
    The first dotted number of a version text, for example `(7, 0, 60)` of `7.00.60.00`'s beginning; empty where there is none.
    """
    found = re.search(r"\d+(?:\.\d+)*", said)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def asks_manager(make: Make, rows: tuple[Quirk, ...] = QUIRKS) -> bool:
    """
    Whether what is known of the machine does not settle its facts: its manager has to be read too.
    """
    return any(row.asks_manager and _is_of(row, make) for row in rows)


def facts_of(make: Make, rows: tuple[Quirk, ...] = QUIRKS) -> Facts:
    """
    All facts that hold for the machine.
    """
    facts = Facts()
    for row in rows:
        if _is_of(row, make) and _manager_fits(row, make):
            facts = replace(facts, **row.facts)
    return facts


def _is_of(row: Quirk, make: Make) -> bool:
    is_vendor = re.search(rf"\b(?:{row.vendor})\b", make.vendor, re.IGNORECASE) is not None
    return is_vendor and re.search(row.model, make.model, re.IGNORECASE) is not None


def _manager_fits(row: Quirk, make: Make) -> bool:
    if not row.asks_manager:
        return True
    if re.search(row.manager_model, make.manager_model, re.IGNORECASE) is None:
        return False
    version = version_of(make.manager_version)
    bounded = bool(row.since) or row.before != LATEST
    return not bounded or (bool(version) and row.since <= version < row.before)
