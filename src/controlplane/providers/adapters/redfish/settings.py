"""
Firmware settings: BIOS attributes and Secure Boot, in force and waiting for a reboot.

Source: DMTF Bios and SecureBoot schemas; DSP0266 1.20, "Settings resource" and "Settings apply time".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.links import inside, link, path_of, text
from controlplane.providers.errors import AuthFailed, NotFound, NotSent, ProviderError, Refused, Unsupported

SECURE_BOOT = "secure_boot"
SWITCH = {"on": True, "off": False}
UNREADABLE = "unreadable"
"""Stands among the pending settings when the controller did not show them: then nobody knows."""


def read(bmc: Bmc, system: Reply) -> dict[str, str]:
    """
    Settings in force, as text, without passwords; `secure_boot` is `unknown` where the controller does not tell.
    """
    bios = _resource(bmc, link(system.body, "Bios"))
    attributes = _attributes(bios)
    shown = {name: _text(value) for name, value in attributes.items() if value is not None and "password" not in name.lower()}
    return shown | {SECURE_BOOT: _secure_boot(bmc, system)}


def pending(bmc: Bmc, system: Reply) -> tuple[str, ...]:
    """
    Names of the settings that were accepted and are not in force, sorted.
    """
    try:
        return tuple(sorted(_pending(bmc, system)))
    except (AuthFailed, NotSent):
        raise
    except ProviderError:
        return (UNREADABLE,)


def change(bmc: Bmc, system: Reply, wanted: Mapping[str, str]) -> None:
    """
    All of them are accepted, or in force, or were. Raises Refused for one that the machine does not have or cannot be so.
    """
    switch = wanted.get(SECURE_BOOT)
    if switch is not None and switch not in SWITCH:
        raise Refused(f"secure_boot can be on or off, not {switch!r}", code="provider_setting_invalid")
    values = {name: value for name, value in wanted.items() if name != SECURE_BOOT}
    if values:
        _change_bios(bmc, system, values)
    if switch is not None:
        _change_secure_boot(bmc, system, on=SWITCH[switch])


def _resource(bmc: Bmc, path: str) -> Reply | None:
    """
    The resource, or None where the controller has none, or a licence hides it.
    """
    if not path:
        return None
    reply = bmc.look(path)
    return None if isinstance(reply.problem(), NotFound | Unsupported) else reply.checked()


def _attributes(bios: Reply | None) -> Mapping[str, Any]:
    said = inside(bios.body, "Attributes") if bios is not None else None
    return said if isinstance(said, Mapping) else {}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _secure(bmc: Bmc, system: Reply) -> Reply | None:
    return _resource(bmc, link(system.body, "SecureBoot"))


def _secure_boot(bmc: Bmc, system: Reply) -> str:
    """
    In force; a controller that breaks down over the question alone does not tell.
    """
    path = link(system.body, "SecureBoot")
    reply = bmc.look(path) if path else None
    if reply is None or reply.server_fault or isinstance(reply.problem(), NotFound | Unsupported):
        return "unknown"
    return _in_force(reply.checked())


def _in_force(secure: Reply | None) -> str:
    body = secure.body if secure is not None else None
    current = text(body, "SecureBootCurrentBoot")
    if current:
        return {"Enabled": "on", "Disabled": "off"}.get(current, "unknown")
    return {True: "on", False: "off"}.get(inside(body, "SecureBootEnable"), "unknown")


def _pending(bmc: Bmc, system: Reply) -> Iterator[str]:
    bios = _resource(bmc, link(system.body, "Bios"))
    if bios is not None:
        now = _attributes(bios)
        for name, value in _attributes(_settings_of(bmc, bios)).items():
            if value is not None and now.get(name) != value:
                yield name
    secure = _secure(bmc, system)
    asked = inside(secure.body, "SecureBootEnable") if secure is not None else None
    if isinstance(asked, bool) and _in_force(secure) not in {"on" if asked else "off", "unknown"}:
        yield SECURE_BOOT


def _settings_of(bmc: Bmc, bios: Reply) -> Reply | None:
    path = link(bios.body, "@Redfish.Settings", "SettingsObject")
    return _resource(bmc, path) if path and path != path_of(bios) else None


def _change_bios(bmc: Bmc, system: Reply, wanted: Mapping[str, str]) -> None:
    bios = _resource(bmc, link(system.body, "Bios"))
    if bios is None:
        raise Unsupported("the controller shows no firmware settings", code="provider_no_settings")
    now = _attributes(bios)
    unknown = sorted(set(wanted) - set(now))
    if unknown:
        raise Refused(f"the machine has no settings {', '.join(unknown)}"[:300], code="provider_setting_unknown")
    future = _settings_of(bmc, bios)
    waiting = _attributes(future)
    changes = {
        name: _like(now[name], value, name) for name, value in wanted.items() if _text(waiting.get(name, now[name])) != value
    }
    if not changes:
        return
    place = future or bios
    content: dict[str, Any] = {"Attributes": changes}
    times = inside(bios.body, "@Redfish.Settings", "SupportedApplyTimes")
    if isinstance(times, list) and "OnReset" in times:
        # Without it an iDRAC stores the values and never makes the job that applies them.
        content["@Redfish.SettingsApplyTime"] = {"ApplyTime": "OnReset"}
    bmc.patch(path_of(place), content, etag=place.etag).checked()


def _like(now: Any, wanted: str, name: str) -> Any:
    """
    The wanted value in the type that the attribute has. Raises Refused when it cannot be.
    """
    if isinstance(now, bool):
        if wanted not in {"true", "false"}:
            raise Refused(f"{name} can be true or false, not {wanted!r}"[:300], code="provider_setting_invalid")
        return wanted == "true"
    if isinstance(now, int):
        if re.fullmatch(r"-?[0-9]{1,18}", wanted) is None:
            raise Refused(f"{name} is a number, not {wanted!r}"[:300], code="provider_setting_invalid")
        return int(wanted)
    return wanted


def _change_secure_boot(bmc: Bmc, system: Reply, *, on: bool) -> None:
    path = link(system.body, "SecureBoot")
    if not path:
        raise Unsupported("the controller has no Secure Boot switch", code="provider_no_secure_boot")
    secure = bmc.get(path)
    if inside(secure.body, "SecureBootEnable") is on:
        return
    bmc.patch(path_of(secure), {"SecureBootEnable": on}, etag=secure.etag).checked()
