"""
Files that workers wrote, read without trusting whoever could write beside them.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Protocol

from controlplane.providers.adapters.slurm.cli import Command
from controlplane.providers.adapters.slurm.config import ReadConfig
from controlplane.providers.adapters.slurm.names import check_path
from controlplane.providers.errors import NotFound, Refused, Unknown

MAX_CHUNK_BYTES = 1024 * 1024


class Reader(Protocol):
    """
    Reads a file's bytes as its owner would.
    """

    def read(self, path: str, *, owner: str, offset: int, limit: int) -> bytes:
        """
        Up to `limit` bytes from `offset`; empty at the end. Raises NotFound when there is no such file, Refused for a foreign one.
        """
        ...


class LocalReader:
    """
    Reads from a file system mounted here. A tenant may have put a link, a pipe or another's file in the place: those are refused.
    """

    def read(self, path: str, *, owner: str, offset: int, limit: int) -> bytes:
        """
        See `Reader.read`.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            handle = os.open(check_path(path), flags)
        except FileNotFoundError as error:
            raise NotFound(f"no file {path}") from error
        except OSError as error:
            raise Refused(f"{path} cannot be opened: {error.strerror}", code="provider_output_unreadable") from error
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1 or facts.st_uid != _uid(owner):
                raise Refused(f"{path} is not a plain file of {owner}", code="provider_output_unreadable")
            return os.pread(handle, min(limit, MAX_CHUNK_BYTES), offset)
        finally:
            os.close(handle)


class CommandReader:
    """
    Reads through GNU dd behind the operator's prefix, which should become the owner (`sudo -nu {user}`).
    """

    def __init__(self, config: ReadConfig) -> None:
        self._config = config

    def read(self, path: str, *, owner: str, offset: int, limit: int) -> bytes:
        """
        See `Reader.read`.
        """
        command = Command([part.replace("{user}", owner) for part in self._config.argv_prefix], quote=self._config.quote)
        done = command.run(
            "dd",
            f"if={check_path(path)}",
            "bs=65536",
            f"skip={int(offset)}",
            f"count={min(int(limit), MAX_CHUNK_BYTES)}",
            "iflag=skip_bytes,count_bytes,nofollow,nonblock,fullblock",
            "status=none",
        )
        if done.returncode == 0:
            return done.stdout
        said = done.stderr[:500].decode(errors="replace")
        if "No such file" in said:
            raise NotFound(f"no file {path}")
        if "cannot skip" in said or "Invalid argument" in said:
            return b""
        raise Unknown(f"{path} cannot be read: {said}")


def reader(config: ReadConfig | None) -> Reader:
    """
    The reader the operator configured.
    """
    return LocalReader() if config is None else CommandReader(config)


def output_path(directory: str, user: str, cluster_id: str, token: str) -> str:
    """
    Where a job's output is: a function of our ids, so that it is found when Slurm has forgotten the job.
    """
    return str(Path(directory.replace("{user}", user)) / f"{cluster_id}.{token}.out")


def _uid(owner: str) -> int:
    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError as error:
        raise Refused(f"no account {owner} here to compare a file's owner with", code="provider_output_unreadable") from error
