"""
What a machine has, read from its controller.
"""

from collections.abc import Callable
from typing import Any

from controlplane.providers.errors import Unsupported
from controlplane.providers.hardware import HardwareInventory


def take_inventory(read: Callable[[str], dict[str, Any]], system_path: str) -> HardwareInventory:
    """
    Raises Unsupported: reading is not part of this half.
    """
    raise Unsupported(f"no inventory of {system_path} by {read}")
