"""
What a controller has logged.
"""

from collections.abc import Callable
from typing import Any

from controlplane.providers.errors import Unsupported
from controlplane.providers.hardware import Logs


def read_log(read: Callable[[str], dict[str, Any]], system_path: str, after: str) -> Logs:
    """
    Raises Unsupported: reading is not part of this half.
    """
    raise Unsupported(f"no log of {system_path} after {after!r} by {read}")
