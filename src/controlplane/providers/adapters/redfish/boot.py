"""
Where the machine boots from next: the override that its vendor understands, sent where its vendor wants it.

Source: DMTF ComputerSystem schema, `Boot`; DSP0266 1.20, "Settings resource".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.links import inside, link, manager, path_of, text
from controlplane.providers.adapters.redfish.quirks import BootFields, Facts
from controlplane.providers.errors import NotFound, Refused, Unsupported
from controlplane.providers.hardware import BootSource

TARGET, ENABLED, MODE = "BootSourceOverrideTarget", "BootSourceOverrideEnabled", "BootSourceOverrideMode"
ALLOWABLE = "@Redfish.AllowableValues"
SOURCES: Mapping[str, BootSource] = {
    "Hdd": "disk",
    "Pxe": "network",
    "UefiHttp": "network",
    "Cd": "media",
    "UsbCd": "media",
    "RemoteDrive": "media",
}
FORMS: Mapping[BootFields, tuple[BootFields, ...]] = {
    "target": ("target", "all", "changed"),
    "changed": ("changed", "target", "all"),
    "all": ("all", "target"),
}


@dataclass(frozen=True, slots=True)
class Override:
    """
    The override as the controller shows it.
    """

    source: BootSource | None
    """None for none, or for one that is not ours."""
    once: bool | None
    """Whether it ends after one boot; None where the controller does not tell."""


def read_override(bmc: Bmc, system: Reply, facts: Facts) -> Override:
    """
    The override that the next boot obeys; one that stands in the settings object comes before the one in force.
    """
    if facts.media_boot_path and _boots_media(_oem(bmc, system, facts), facts):
        return Override("media", once=True)
    shown = [inside(system.body, "Boot")]
    settings = _settings(bmc, system, facts)
    if settings is not None:
        shown.insert(0, inside(settings.body, "Boot"))
    for boot in shown:
        source = SOURCES.get(text(boot, TARGET))
        if source is not None and text(boot, ENABLED) != "Disabled":
            return Override(source, {"Once": True, "Continuous": False}.get(text(boot, ENABLED)))
    return Override(None, None)


def set_override(bmc: Bmc, system: Reply, facts: Facts, source: BootSource, *, network: str) -> None:
    """
    The controller has accepted it. Raises Unsupported when the machine cannot boot so.
    """
    boot = inside(system.body, "Boot")
    wanted = _wanted(boot, source, facts, network)
    if facts.media_boot_path and _by_attributes(bmc, system, facts, media=source == "media"):
        return
    settings = _settings(bmc, system, facts)
    place, current = (settings, inside(settings.body, "Boot")) if settings is not None else (system, boot)
    last: Refused | None = None
    for content in _forms(wanted, current or boot, facts.boot_fields):
        if not content:
            return  # nothing differs, and this one must not be told what it knows
        reply = bmc.patch(path_of(place), {"Boot": content}, etag=place.etag)
        problem = reply.problem()
        if not isinstance(problem, Refused):
            reply.checked()
            return
        last = problem
    assert last is not None
    raise last


def _wanted(boot: Any, source: BootSource, facts: Facts, network: str) -> dict[str, str]:
    targets = _allowable(boot, TARGET)
    other = "UefiHttp" if network == "Pxe" else "Pxe"
    choices = {
        "disk": ("Hdd",),
        "network": (network, other),
        "media": ("UsbCd", "Cd") if facts.usb_cd_first else ("Cd", "UsbCd"),
    }[source]
    target = next((one for one in choices if targets is None or one in targets), "")
    if not target and source == "disk" and targets is not None and "None" in targets:
        return {TARGET: "None", ENABLED: "Disabled"}  # without an override the boot order decides, and the disk stands there
    if not target:
        raise Unsupported(f"the machine boots from none of {', '.join(choices)}: only {', '.join(targets or ())}")
    times = _allowable(boot, ENABLED)
    return {TARGET: target, ENABLED: "Once" if times is None or "Once" in times else "Continuous"}


def _allowable(boot: Any, name: str) -> tuple[str, ...] | None:
    said = inside(boot, f"{name}{ALLOWABLE}")
    return tuple(str(one) for one in said) if isinstance(said, list) and said else None


def _forms(wanted: dict[str, str], current: Any, first: BootFields) -> Iterator[dict[str, str]]:
    """
    The override in each form that a vendor may want, the likeliest first; a form that was sent already is left out.
    """
    mode = "UEFI" if wanted[TARGET] == "UefiHttp" else text(current, MODE)
    sent: list[dict[str, str]] = []
    for form in FORMS[first]:
        content = dict(wanted)
        if (form == "all" and mode) or wanted[TARGET] == "UefiHttp":
            content[MODE] = mode
        if form == "changed":
            content = {name: value for name, value in content.items() if text(current, name) != value}
        if content not in sent:
            sent.append(content)
            yield content


def _settings(bmc: Bmc, system: Reply, facts: Facts) -> Reply | None:
    """
    The system's settings object, when boot settings stand in it.
    """
    path = link(system.body, "@Redfish.Settings", "SettingsObject")
    if not path and facts.settings_suffix:
        path = f"{path_of(system).rstrip('/')}{facts.settings_suffix}"
    if not path:
        return None
    reply = bmc.look(path)
    if isinstance(reply.problem(), NotFound | Unsupported):
        return None
    return reply if isinstance(inside(reply.checked().body, "Boot"), Mapping) else None


def _oem(bmc: Bmc, system: Reply, facts: Facts) -> Reply:
    return bmc.get(fill(facts.media_boot_path, manager(bmc, system)))


def _boots_media(oem: Reply, facts: Facts) -> bool:
    return all(inside(oem.body, "Attributes", name) == value for name, value in facts.media_boot_attributes.items())


def _by_attributes(bmc: Bmc, system: Reply, facts: Facts, *, media: bool) -> bool:
    """
    Whether the attributes decide: for media they are set; for anything else they are taken back, and the override decides.
    """
    oem = _oem(bmc, system, facts)
    if _boots_media(oem, facts) is not media:
        wanted = facts.media_boot_attributes if media else facts.media_boot_undone
        bmc.patch(path_of(oem), {"Attributes": dict(wanted)}, etag=oem.etag).checked()
    return media


def fill(template: str, of: Reply) -> str:
    """
    The path that a quirk means on this manager.
    """
    path = path_of(of).rstrip("/")
    return template.format(manager=path, id=path.rpartition("/")[2])
