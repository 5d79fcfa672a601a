"""
What our ids are called at Ironic: functions of the ids and of this installation's name, so that a repeat finds the first try.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid5

_SPACE = UUID("5f4e2d0a-6a0b-5c53-9f0e-2a6d3b1c7e84")


@dataclass(frozen=True, slots=True)
class Names:
    """
    Names of one installation.
    """

    deployment: str
    """The installation's name."""

    @property
    def key(self) -> str:
        """
        Where our marks stand in a node's `extra`.
        """
        return f"controlplane_{self.deployment}"

    def instance_uuid(self, token: str) -> str:
        """
        Ironic's `instance_uuid` of a tenancy: unique at Ironic, and therefore the tenancy's lock.
        """
        return str(uuid5(_SPACE, f"{self.deployment}/{token}"))


def escaped(name: str) -> str:
    """
    The name as one part of a JSON pointer. Source: RFC 6901, section 3.
    """
    return name.replace("~", "~0").replace("/", "~1")
