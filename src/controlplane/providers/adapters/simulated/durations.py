"""
How long things take in the simulated world: a pure function of seed, machine, operation and token.

Each figure is a lognormal distribution given by its median and sigma, cut at both ends. Where the figures come from is told in
`docs/simulator.md`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MICROS = 1_000_000
"""Microseconds in a second; the world counts time in whole microseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One lognormal duration.
    """

    median_s: float
    """Half of all are shorter."""
    sigma: float = 0.25
    """Spread of the logarithm; 0.25 puts 95 % within a factor of 1.6 of the median."""
    longest_factor: float = 4.0
    """No duration is longer than this many medians, nor shorter than the median divided by it."""


Profile = Mapping[str, Figure]

_NOTHING = Figure(0.0, 0.0)
OPERATIONS = (
    "deploy",
    "detach",
    "power_off",
    "power_on",
    "wipe",
    "inspect",
    "qualify",
    "found",
    "join",
    "teardown",
    "job_run",
    "job_epilog",
    "requeue",
)
"""Everything that takes time."""


def _profile(**figures: Figure) -> Profile:
    return MappingProxyType({name: figures.get(name, _NOTHING) for name in OPERATIONS})


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "instant": _profile(),
        "fast": _profile(
            deploy=Figure(0.6),
            detach=Figure(0.03),
            power_off=Figure(0.1),
            power_on=Figure(0.1),
            wipe=Figure(0.5),
            inspect=Figure(0.15),
            qualify=Figure(0.3),
            found=Figure(0.3),
            join=Figure(0.2),
            teardown=Figure(0.1),
            job_run=Figure(0.2),
            job_epilog=Figure(0.03),
            requeue=Figure(0.3),
        ),
        "realistic": _profile(
            deploy=Figure(840.0, 0.3),
            detach=Figure(8.0, 0.3),
            power_off=Figure(35.0, 0.4),
            power_on=Figure(20.0, 0.3),
            wipe=Figure(1800.0, 0.3),
            inspect=Figure(420.0, 0.25),
            qualify=Figure(2700.0, 0.2),
            found=Figure(90.0, 0.3),
            join=Figure(45.0, 0.4),
            teardown=Figure(20.0, 0.4),
            job_run=Figure(3.0, 0.4),
            job_epilog=Figure(4.0, 0.5),
            requeue=Figure(120.0, 0.05),
        ),
    }
)
"""The latency profiles by name."""


def duration_us(profile: str, operation: str, *, seed: int, target: str, token: str) -> int:
    """
    Microseconds the operation takes on the target under the token; the same for the same arguments, always.
    """
    figure = PROFILES[profile][operation]
    if figure.median_s == 0.0:
        return 0
    first, second = uniforms(seed, operation, target, token)
    normal = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)
    factor = math.exp(figure.sigma * normal)
    factor = min(max(factor, 1.0 / figure.longest_factor), figure.longest_factor)
    return round(figure.median_s * factor * MICROS)


def uniforms(*parts: object) -> tuple[float, float]:
    """
    Two numbers in (0, 1) that are a function of the parts alone.
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=16).digest()
    scale = float(1 << 64)
    return (
        (int.from_bytes(digest[:8], "big") + 0.5) / scale,
        (int.from_bytes(digest[8:], "big") + 0.5) / scale,
    )
