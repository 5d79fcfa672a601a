"""
Asking providers which machines they have, and controllers what machine they are of.
"""

import logging
from dataclasses import asdict
from typing import Any

from controlplane.nodes.sightings import Answer, Listing, Sighting, Target
from controlplane.nodes.states import ProviderRef
from controlplane.nodes.steps.comparing import summarize
from controlplane.providers.errors import ProviderError
from controlplane.providers.machines import MachineView
from controlplane.providers.toolbox import Toolbox

log = logging.getLogger(__name__)
LONGEST = 500


def list_machines(provider: ProviderRef, tools: Toolbox) -> Listing | None:
    """
    The machines that the provider names; None where it has none to name, or did not answer: then nothing is learnt.
    """
    try:
        if not hasattr(tools.adapter(provider), "list_machines"):
            return None
        listed = tools.machines(provider).list_machines()
        places = _places(provider, tools)
    except ProviderError as error:
        log.info("a provider does not list its machines", extra={"provider_id": provider.id, "code": error.code})
        return None
    except Exception as error:
        log.exception("discovery failed", extra={"provider_id": provider.id, "kind": type(error).__name__})
        return None
    return Listing(tuple(_sighted(one, places.get(one.ref, {})) for one in listed.machines), listed.complete)


def ask(target: Target, tools: Toolbox) -> Answer:
    """
    The machine of the controller, or why it did not tell; never raises for anything the controller does.
    """
    access = target.access
    try:
        controller = tools.controller(
            target.ref, url=access.url, system=access.system, username=access.username, sealed=access.sealed
        )
        seen = tools.hardware(target.provider, target.ref).take_inventory(controller)
    except ProviderError as error:
        return Answer(target.id, target.provider.id, None, f"{error.code}: {error.detail}"[:LONGEST])
    except Exception as error:
        log.exception("a look at a controller failed", extra={"target_id": target.id, "kind": type(error).__name__})
        return Answer(target.id, target.provider.id, None, f"internal: {type(error).__name__}")
    whole = summarize(seen, target.provider.config.get("gpu_models", {}))
    told = {
        "vendor": seen.vendor,
        "model": seen.model,
        "uuid": seen.uuid,
        "gpu_model": whole.gpu_model,
        "gpus": whole.gpus,
        "memory_gib": whole.memory_gib,
    }
    name = f"{access.url}#{access.system}" if access.system else access.url
    sighting = Sighting(name, seen.serial, access.url, access.system, inventory=_told(told))
    return Answer(target.id, target.provider.id, sighting)


def _places(provider: ProviderRef, tools: Toolbox) -> dict[str, dict[str, Any]]:
    """
    Where machines stand, by name; nothing where the provider does not know.
    """
    adapter = tools.adapter(provider)
    if not hasattr(adapter, "list_positions"):
        return {}
    try:
        positions = adapter.list_positions()
    except ProviderError as error:
        log.info("a provider tells no positions", extra={"provider_id": provider.id, "code": error.code})
        return {}
    return {
        one.ref: {name: value for name, value in asdict(one).items() if name not in {"ref", "region"} and value is not None}
        for one in positions
    }


def _sighted(one: MachineView, place: dict[str, Any]) -> Sighting:
    seen = one.inventory
    if seen is None:
        return Sighting(one.ref, place=place, power=one.power)
    told = {"gpu_model": seen.gpu_model, "gpus": seen.gpus, "memory_gib": seen.memory_gib}
    return Sighting(one.ref, seen.serial, place=place, inventory=_told(told), power=one.power)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """
    Only what was told: no unknown looks like a value.
    """
    return {name: value for name, value in values.items() if value not in {None, "", 0}}
