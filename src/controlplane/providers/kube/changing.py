"""
Changing what others change as well: a patch that holds for one version only, repeated on the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controlplane.providers.kube.client import Conflict, Kube

Json = dict[str, Any]
Edit = Callable[[Json], Json | None]
"""What an object becomes: a merge patch, or None where it is so already."""
MAX_CHANGES = 5


def change(kube: Kube, path: str, thing: Json, edit: Edit) -> Json:
    """
    The object with the edit's patch on its latest version, or as it was where there was nothing to change. Raises Conflict when others were
    faster again and again.
    """
    seen = thing
    for _ in range(MAX_CHANGES):
        patch = edit(seen)
        if patch is None:
            return seen
        patch["metadata"] = {**patch.get("metadata", {}), "resourceVersion": seen["metadata"]["resourceVersion"]}
        try:
            return kube.patch(path, patch)
        except Conflict:
            seen = kube.get(path)
    raise Conflict(f"{thing['metadata']['name']} was changed by others {MAX_CHANGES} times in a row", retry_in_s=2.0)
