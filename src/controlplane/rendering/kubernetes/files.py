"""
What a host is given: files, each with the command that follows a change of it, and the script that makes the host part of the cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from controlplane.rendering.shell import Script

Role = Literal["control_plane", "worker"]


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """
    One file of one host. Its repr has no content.
    """

    path: str
    """Absolute."""
    content: str = field(repr=False)
    """All of it: whatever lays files down on machines carries text."""
    mode: int = 0o644
    """Permissions."""
    owner: str = "root:root"
    """User and group."""
    secret: bool = False
    """Whether the content is a key: it is sealed where it is kept and never shown."""
    on_change: str = ""
    """Command that a running host runs after the content changed; empty for none."""

    @property
    def digest(self) -> str:
        """
        SHA-256 of the content, in hex.
        """
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Bundle:
    """
    Everything the hosts of one role and kind are given.
    """

    role: Role
    """What they are."""
    files: tuple[RenderedFile, ...]
    """By path, each path once. They are in place before the script runs."""
    script: Script
    """Makes the host part of the cluster."""

    def file(self, path: str) -> RenderedFile:
        """
        The file at the path. Raises KeyError.
        """
        return {one.path: one for one in self.files}[path]


def text_file(path: str, lines: Iterable[str], *, mode: int = 0o644, on_change: str = "") -> RenderedFile:
    """
    A file of these lines, which holds no secret.
    """
    return RenderedFile(path, "".join(f"{line}\n" for line in lines), mode, on_change=on_change)


def yaml_text(*documents: Mapping[str, Any]) -> str:
    """
    The documents as YAML, in the order their keys were given, without anchors, text of several lines as such.
    """
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, default_flow_style=False, width=4096)


class _Plain(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc] # in C it is ten times as fast
    """
    Writes a value that occurs twice twice: kubeadm reads aliases, people read text.
    """

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)
