"""
Commands of the server's own Slurm version, for what its REST lacks. No shell of ours, checked arguments, bounded time and output.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from controlplane.providers.adapters.slurm.config import CliConfig
from controlplane.providers.deadline import time_left_s
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, ProviderError, Refused, Unknown

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
SSH_FAILED = 255
NOT_FOUND_SHELL = 127
_ARGUMENT = re.compile(r"[A-Za-z0-9 _.,:;=@%+/()\[\]-]*")
_AS_OF = re.compile(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class Command:
    """
    Runs programs behind the operator's prefix.
    """

    def __init__(
        self, argv_prefix: Sequence[str], *, quote: bool, env: Mapping[str, str] | None = None, timeout_s: float = 10.0
    ) -> None:
        self._prefix = list(argv_prefix)
        self._quote = quote
        self._env = {**_ENV, **(env or {})}
        self._timeout_s = timeout_s

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
        """
        The program has ended by itself; its exit code is not judged. Raises NotSent when it cannot start, Unknown past its time.
        """
        for argument in arguments:
            if not _ARGUMENT.fullmatch(argument):
                raise Refused(f"an argument with forbidden characters: {argument[:80]!r}", code="provider_bad_name")
        tail = [shlex.quote(argument) for argument in arguments] if self._quote else list(arguments)
        limit_s = time_left_s(self._timeout_s)
        try:
            done = subprocess.run(  # noqa: S603 - an argument list, no shell, every argument checked above
                [*self._prefix, *tail],
                input=stdin.encode(),
                capture_output=True,
                env=self._env,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unknown(f"{arguments[0]} did not end within {limit_s:.0f} s") from error
        except OSError as error:
            raise NotSent(f"{(self._prefix or list(arguments))[0]} cannot be started: {error}") from error
        if len(done.stdout) > MAX_OUTPUT_BYTES:
            raise Unknown(f"{arguments[0]} printed more than {MAX_OUTPUT_BYTES} bytes")
        if self._prefix and done.returncode in {SSH_FAILED, NOT_FOUND_SHELL}:
            raise Unknown(f"{self._prefix[0]} failed: {_words(done.stderr)}")
        return done


class Cli:
    """
    scontrol and sacctmgr.
    """

    def __init__(self, config: CliConfig) -> None:
        self._command = Command(config.argv_prefix, quote=config.quote, env=config.env, timeout_s=config.timeout_s)

    def scontrol(self, *arguments: str) -> str:
        """
        What scontrol printed. Raises for every exit code but 0, by its words.
        """
        done = self._command.run("scontrol", *arguments)
        said = _words(done.stderr) or _words(done.stdout)
        if done.returncode:
            raise _failed("scontrol " + " ".join(arguments[:2]), said)
        return done.stdout.decode(errors="replace")

    def scontrol_lines(self, lines: Sequence[str]) -> None:
        """
        One scontrol has carried out all lines, however many nodes they are about. Raises for the first that failed.
        """
        for line in lines:
            if not _ARGUMENT.fullmatch(line.replace('"', "")):
                raise Refused(f"a line with forbidden characters: {line[:80]!r}", code="provider_bad_name")
        done = self._command.run("scontrol", "-Q", stdin="\n".join([*lines, "quit"]) + "\n")
        said = _words(done.stderr)
        if done.returncode or "error" in said.lower():
            raise _failed("scontrol", said or _words(done.stdout))

    def sacctmgr(self, *arguments: str) -> str:
        """
        What sacctmgr printed; "nothing new" is success.
        """
        done = self._command.run("sacctmgr", "-i", "-n", "-P", *arguments)
        said = _words(done.stderr) + " " + _words(done.stdout)
        if done.returncode and "Nothing new added" not in said and "already exists" not in said.lower():
            raise _failed("sacctmgr " + " ".join(arguments[:2]), said)
        return done.stdout.decode(errors="replace")

    def controller_time(self) -> datetime:
        """
        What slurmctld's own clock shows, to the second.
        """
        done = self._command.run("env", "TZ=UTC", "scontrol", "show", "config")
        found = _AS_OF.match(done.stdout[:200].decode(errors="replace"))
        if done.returncode or found is None:
            raise Unknown(f"scontrol does not tell slurmctld's time: {_words(done.stderr)}")
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)

    def controller_is_up(self) -> bool:
        """
        Whether a slurmctld answers scontrol, which needs no token.
        """
        try:
            return " is UP" in self.scontrol("ping")
        except ProviderError:
            return False


def _words(raw: bytes) -> str:
    return " ".join(raw[:4000].decode(errors="replace").split())[:500]


def _failed(what: str, said: str) -> ProviderError:
    """
    It has no numbers, so its words decide; those it has used for decades.
    """
    low = said.lower()
    detail = f"{what}: {said or 'failed without a word'}"
    if "in use" in low or "overlaps" in low or "try again" in low or "busy" in low:
        return Busy(detail, retry_in_s=3.0)
    if "access/permission denied" in low or "authentication" in low or "invalid user id" in low:
        return AuthFailed(detail)
    if "unable to contact" in low or "communication" in low or "timed out" in low or "zero bytes" in low:
        return Unknown(detail)
    if "not found" in low or "invalid node name" in low or "reservation is invalid" in low:
        return NotFound(detail)
    return Refused(detail) if said else Unknown(detail)
