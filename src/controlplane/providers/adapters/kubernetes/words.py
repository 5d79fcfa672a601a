"""
Objects of a Kubernetes in words for operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MOST_NAMED = 5


def few(names: Iterable[str]) -> str:
    """
    The first few, and how many more there are.
    """
    kept = list(names)
    shown = ", ".join(kept[:MOST_NAMED])
    return shown if len(kept) <= MOST_NAMED else f"{shown} and {len(kept) - MOST_NAMED} more"


def named(thing: dict[str, Any]) -> str:
    """
    Its name in its namespace.
    """
    return str(thing["metadata"]["name"])


def placed(thing: dict[str, Any]) -> str:
    """
    Its namespace and name.
    """
    return f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"
