"""
Adapters are found by entry point (`controlplane.providers`) and built from plain values; nobody imports one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from controlplane.providers.errors import Permanent

GROUP = "controlplane.providers"


@dataclass(frozen=True, slots=True)
class AdapterInput:
    """
    Everything an adapter gets: plain values and a clock.
    """

    provider_id: str
    """Our id of the provider."""
    config: Mapping[str, Any]
    """The operator's settings for it, validated by the adapter's own config class."""
    secrets: Mapping[str, str]
    """Opened secrets by name; never logged."""
    deployment: str
    """This installation's name: the first part of every tag and object name at the peer."""
    now: Callable[[], datetime]
    """UTC clock."""


Config = TypeVar("Config", bound=BaseModel)


def read_config(model: type[Config], given: AdapterInput, whose: str) -> Config:
    """
    The operator's settings as the adapter's own config class; `whose` says whose they are. Raises Permanent naming every field that is
    wrong, without repeating what was given.
    """
    try:
        return model.model_validate(dict(given.config))
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False))
        raise Permanent(f"{whose} config is wrong: {told}", code="provider_config_invalid") from None


Build = Callable[[AdapterInput], object]


@cache
def _installed() -> Mapping[str, EntryPoint]:
    # a look reads the metadata of every installed package: 15 ms, and what is installed stays while a process lives
    return {point.name: point for point in entry_points(group=GROUP)}


def adapter_names() -> tuple[str, ...]:
    """
    The names of all installed adapters, sorted.
    """
    return tuple(sorted(_installed()))


def build_adapter(name: str, given: AdapterInput) -> object:
    """
    A new adapter of the named kind. Raises Permanent for an unknown name and whatever its config refuses.
    """
    point = _installed().get(name)
    if point is None:
        known = ", ".join(adapter_names()) or "none"
        raise Permanent(f"no adapter named {name!r} is installed; known: {known}", code="adapter_unknown")
    return cast("Build", point.load())(given)
