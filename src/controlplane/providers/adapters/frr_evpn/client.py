"""
The way to a switch: one fixed script to the standard input of its `sh`, through ssh or a command of this machine, in bounded time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from controlplane.providers.adapters.frr_evpn.config import ExecReach, SshReach
from controlplane.providers.adapters.frr_evpn.rendering import SCRIPT
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, ProviderError, Refused, Unknown, Unsupported

MAX_OUTPUT_BYTES = 32 * 1024 * 1024
DONE = "=end"
SSH_FAILED = 255
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_NOT_CONNECTED = (
    "ssh: connect to host",
    "ssh: Could not resolve hostname",
    "during banner exchange",
    "kex_exchange_identification:",
)
_NOT_TRUSTED = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED", "host key is known for")
_NOT_LET_IN = ("Permission denied (", "Too many authentication failures", "Load key ")


class Script:
    """
    Runs the script's actions on one switch. Safe to share between threads.
    """

    def __init__(self, switch: str, reach: ExecReach | SshReach, *, key: SecretFile | None, timeout_s: float) -> None:
        self._switch = switch
        self._reach = reach
        self._key = key
        self._hosts = None
        if isinstance(reach, SshReach):
            self._hosts = SecretFile("".join(f"{switch} {one}\n" for one in reach.host_keys))
        self._timeout_s = timeout_s

    def run(self, words: Sequence[str]) -> str:
        """
        What the action printed, which is complete. The words have been checked: they mean the same to every shell.

        Raises NotSent when the switch was not reached, Unknown when what happened can only be seen on the switch, AuthFailed, and what
        the script says of itself: Busy, NotFound (no such port), Refused.
        """
        argv = [*self._door(), "sh", "-s", "--", *words]
        code, raw, complaint = self._ended(argv)
        said = " ".join(complaint[:4000].decode(errors="replace").split())[:500]
        if code:
            raise self._failure(code, said)
        if len(raw) > MAX_OUTPUT_BYTES:
            raise Unknown(f"{self._switch} printed more than {MAX_OUTPUT_BYTES} bytes")
        printed = raw.decode(errors="replace").rstrip("\n")
        if printed.rpartition("\n")[2] != DONE:
            raise Unknown(f"{self._switch} broke off: {said or 'without a word'}")
        return printed.removesuffix(DONE)

    def close(self) -> None:
        """
        Nothing of it is held any more.
        """
        if self._hosts is not None:
            self._hosts.close()

    def _door(self) -> list[str]:
        reach = self._reach
        if isinstance(reach, ExecReach):
            return reach.argv_prefix
        assert self._key is not None
        assert self._hosts is not None
        options: Mapping[str, str] = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": self._switch,
            "UserKnownHostsFile": self._hosts.path,
            "GlobalKnownHostsFile": "/dev/null",
            "UpdateHostKeys": "no",
            "IdentityFile": self._key.path,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "PreferredAuthentications": "publickey",
            "ControlMaster": "no",
            "ControlPath": "none",
            "ClearAllForwardings": "yes",
            "ConnectTimeout": str(max(1, int(self._timeout_s / 2))),
            "ServerAliveInterval": "3",
            "ServerAliveCountMax": "2",
            "LogLevel": "ERROR",
        }
        flat = [f"-o{name}={value}" for name, value in options.items()]
        become = ["sudo", "-n"] if reach.sudo else []
        return ["ssh", "-F", "none", "-T", *flat, "-p", str(reach.port), "-l", reach.user, "--", reach.host, *become]

    def _ended(self, argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        """
        The command's exit code and what it printed. Past its time it and all it started here are ended.
        """
        try:
            process = subprocess.Popen(  # noqa: S603 - an argument list, no shell here, every argument checked
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_ENV, start_new_session=True
            )
        except OSError as error:
            raise NotSent(f"{argv[0]} cannot be started: {error}") from error
        with process:
            try:
                printed, complaint = process.communicate(SCRIPT.encode(), timeout=self._timeout_s)
            except subprocess.TimeoutExpired as error:
                # What outlives its leader would hold the pipes open, and this call with them.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise Unknown(f"{self._switch} did not answer within {self._timeout_s:g} s") from error
            except OSError as error:
                process.kill()
                raise Unknown(f"{self._switch}: {error}") from error
        return process.returncode, printed, complaint

    def _failure(self, code: int, said: str) -> ProviderError:
        detail = f"{self._switch}: {said or 'failed without a word'}"
        own: Mapping[int, ProviderError] = {
            40: Busy(detail, retry_in_s=1.0, code="fabric_switch_busy"),
            41: NotFound(detail, code="fabric_port_missing"),
            42: Refused(detail, code="fabric_port_taken"),
            43: Refused(detail, code="fabric_device_foreign"),
            44: Refused(detail, code="fabric_segment_taken"),
            46: Busy(detail, retry_in_s=5.0, code="fabric_turn_over"),
        }
        if code in own and "fabric: " in said:
            return own[code]
        if code == SSH_FAILED and isinstance(self._reach, SshReach):
            return _ssh_failure(detail)
        if "File exists" in said and "ip link add" in said:
            return Refused(f"{detail} (another device has the segment)", code="fabric_segment_taken")
        if "Operation not permitted" in said or "a password is required" in said:
            return AuthFailed(f"{detail} (the account must be root there, or have sudo without a password)")
        if "Unknown device type" in said or "Operation not supported" in said:
            return Unsupported(detail, code="fabric_kernel_lacks_it")
        return Unknown(detail)


class SecretFile:
    """
    Text that a command of ours reads like a file, and that is on no disk: it is gone with the process that holds it.
    """

    def __init__(self, text: str) -> None:
        self._handle = os.memfd_create("controlplane", os.MFD_CLOEXEC)
        os.fchmod(self._handle, 0o600)
        os.write(self._handle, text.encode())

    def __repr__(self) -> str:
        return "SecretFile(...)"

    @property
    def path(self) -> str:
        """
        Where processes of the same user find it while this one lives; a forked child has its own.
        """
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def close(self) -> None:
        """
        It is gone.
        """
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _ssh_failure(detail: str) -> ProviderError:
    """
    By its words, for ssh has one number for everything of its own; what they do not settle is unknown.
    """
    if any(words in detail for words in _NOT_TRUSTED):
        return AuthFailed(detail, code="fabric_host_key_unknown")
    if any(words in detail for words in _NOT_LET_IN):
        return AuthFailed(detail)
    if any(words in detail for words in _NOT_CONNECTED):
        return NotSent(detail)
    return Unknown(detail)
