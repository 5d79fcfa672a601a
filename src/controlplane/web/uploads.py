"""
Places whose bodies are too large to be read by the edge.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Upload:
    """
    A place whose bodies are not read here: the endpoint takes the bytes as they come, once it knows who sends them.
    """

    method: str
    """HTTP method."""
    path: re.Pattern[str]
    """Fits the whole path."""
    max_body_bytes: int
    """Largest body."""
