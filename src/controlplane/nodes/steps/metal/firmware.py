"""
Firmware settings that the operator wants of every machine of a provider (`settings_wanted`): put right before a wipe starts the machine,
and read back after it.
"""

from typing import cast

from controlplane.kit.outcome import Outcome
from controlplane.nodes.steps.metal.accounts import wipe_failed
from controlplane.nodes.steps.metal.sequence import Machine
from controlplane.providers.errors import Permanent, Unsupported
from controlplane.providers.hardware import SupportsSettings

CHECK = "firmware_settings"


def wanted_of(machine: Machine) -> dict[str, str]:
    """
    Settings by name, and `secure_boot`. Raises Permanent where they are not words by words.
    """
    wanted = machine.node.provider.config.get("settings_wanted", {})
    if not isinstance(wanted, dict) or not all(isinstance(value, str) for value in wanted.values()):
        raise Permanent("the provider's setting settings_wanted must be text by name", code="provider_config_invalid")
    return wanted


def adjust(machine: Machine) -> Outcome | None:
    """
    What differs from what is wanted has been changed; it comes into force with the next start, which is the wipe's own.
    """
    wanted = wanted_of(machine)
    if not wanted:
        return None
    door = _settings(machine)
    seen = door.read_settings(machine.controller)
    different = {name: value for name, value in wanted.items() if seen.get(name) != value}
    if different:
        door.change_settings(machine.controller, different)
    return None


def held(machine: Machine) -> Outcome | None:
    """
    All wanted settings were seen in force after the wipe's start; else the machine is put aside. What cannot be read is not in force.
    """
    wanted = wanted_of(machine)
    if not wanted:
        return None
    seen = _settings(machine).read_settings(machine.controller)
    wrong = sorted(
        f"{name}: {seen.get(name, 'unknown')}, wanted {value}" for name, value in wanted.items() if seen.get(name) != value
    )
    if not wrong:
        return None
    return wipe_failed(machine, {"name": CHECK, "result": "failed", "detail": "; ".join(wrong)[:500]})


def settings_checks(machine: Machine) -> tuple[dict[str, str], ...]:
    """
    The settings as a check of the wipe's record, once `held` has let the machine pass; none where nothing is wanted.
    """
    return ({"name": CHECK, "result": "passed", "detail": ""},) if wanted_of(machine) else ()


def _settings(machine: Machine) -> SupportsSettings:
    if not hasattr(machine.hardware, "read_settings"):
        raise Unsupported("this kind of controller shows no settings")
    return cast("SupportsSettings", machine.hardware)
