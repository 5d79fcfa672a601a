"""
Places whose bodies are not the JSON that all others take.
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


@dataclass(frozen=True, slots=True)
class Written:
    """
    A place whose bodies are files of text: the edge reads them whole, and the endpoint is given the bytes.
    """

    method: str
    """HTTP method."""
    path: re.Pattern[str]
    """Fits the whole path."""
    media_types: frozenset[str]
    """Kinds of text that are taken there."""
    max_body_bytes: int
    """Largest body."""
