"""
How a machine's parts are, read from its controller.
"""

from collections.abc import Callable
from typing import Any

from controlplane.providers.errors import Unsupported
from controlplane.providers.hardware import Fact


def read_health(read: Callable[[str], dict[str, Any]], system_path: str) -> tuple[Fact, ...]:
    """
    Raises Unsupported: reading is not part of this half.
    """
    raise Unsupported(f"no health of {system_path} by {read}")
