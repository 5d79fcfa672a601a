"""
What objects of any Kubernetes say in the same words.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]


def instant(text: object) -> datetime | None:
    """
    The instant that an annotation or a status holds, in UTC; None for none.
    """
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC) if text else None
    except ValueError:
        return None


def ready_condition(node: Json) -> Json | None:
    """
    What the kubelet, or whoever misses it, says of the node's readiness; None before it ever spoke.
    """
    conditions = node.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == "Ready"), None)
