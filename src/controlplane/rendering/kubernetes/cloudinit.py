"""
A bundle as user-data: for machines that are told everything with their first boot and nothing after it.

Source: cloud-init's documentation, "write_files", "runcmd"; a failing line of runcmd is not noticed, so one program is run.
"""

from __future__ import annotations

import base64
from typing import Any

from controlplane.rendering.kubernetes.files import Bundle, yaml_text
from controlplane.rendering.kubernetes.layout import PROGRAMS

STARTED = "/var/lib/controlplane/started"
"""Is there once the script has ended well: phone-home alone comes after a failure too."""


def user_data(bundle: Bundle) -> str:
    """
    `#cloud-config` that lays down the bundle's files and runs its script.
    """
    path = f"{PROGRAMS}/{bundle.script.name}"
    files: list[dict[str, Any]] = [_file(one.path, one.content, one.mode, one.owner) for one in (*bundle.files,)]
    files.append(_file(path, bundle.script.content, 0o700, "root:root"))
    command = f"{path} && install -D /dev/null {STARTED}"
    return "#cloud-config\n" + yaml_text({"write_files": files, "runcmd": [["sh", "-c", command]]})


def _file(path: str, content: str, mode: int, owner: str) -> dict[str, Any]:
    return {
        "path": path,
        "encoding": "b64",
        "content": base64.b64encode(content.encode()).decode(),
        "owner": owner,
        "permissions": f"{mode:04o}",
    }
