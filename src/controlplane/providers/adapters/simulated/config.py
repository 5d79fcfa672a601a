"""
The settings of one simulated provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from controlplane.providers.adapters.simulated.durations import PROFILES
from controlplane.providers.errors import Permanent

CLOCKS = ("input", "file")


@dataclass(frozen=True, slots=True)
class SimConfig:
    """
    What an operator may set; every key is checked, unknown ones are refused.
    """

    path: Path
    """The SQLite file that holds the simulated world; processes that name the same file share one world."""
    fleet: str = "demo"
    """A fleet that is shipped (`demo`, `cloud-10k`) or the path of a fleet file; read when the world is made."""
    site: str = ""
    """Only the machines of this site are listed, so that several providers can share one world; empty: all."""
    seed: int = 1
    """Decides every duration and every chance in this world."""
    profile: str = "instant"
    """How long things take: `instant`, `fast` or `realistic`."""
    clock: str = "input"
    """`input`: the caller's clock; `file`: the world's own clock, which can be frozen and advanced."""
    requeue: bool = True
    """Whether a job that lost a node is queued again by the peer, as Slurm's JobRequeue=1 does."""
    members_need_deployment: bool = True
    """Whether a cluster member is up only once its machine is deployed under the member's token."""
    keep_read_calls: int = 100_000
    """How many reading calls the ledger keeps; changing calls are kept for ever."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> SimConfig:
        """
        The checked settings. Raises Permanent (`adapter_config`) that names the first bad key.
        """
        known = {one.name: one for one in fields(cls)}
        for key in given:
            if key not in known:
                raise _refusal(key, f"unknown; known: {', '.join(known)}")
        if not isinstance(given.get("path"), str | Path) or not str(given["path"]):
            raise _refusal("path", "must name a file")
        checked = {key: _typed(key, value) for key, value in given.items() if key != "path"}
        made = cls(path=Path(given["path"]).expanduser(), **checked)
        _check_choices(made)
        return made


def _typed(key: str, value: object) -> Any:
    wanted: type = {"seed": int, "keep_read_calls": int, "requeue": bool, "members_need_deployment": bool}.get(key, str)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise _refusal(key, f"must be {wanted.__name__}")
    return value


def _check_choices(made: SimConfig) -> None:
    if made.profile not in PROFILES:
        raise _refusal("profile", f"must be one of {', '.join(PROFILES)}")
    if made.clock not in CLOCKS:
        raise _refusal("clock", f"must be one of {', '.join(CLOCKS)}")
    if made.keep_read_calls < 0:
        raise _refusal("keep_read_calls", "must not be negative")


def _refusal(key: str, why: str) -> Permanent:
    return Permanent(f"simulated provider, setting {key!r}: {why}", code="adapter_config")
