"""
The way to a switch: what each ending of the command is, and that a script cut short does nothing.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.adapters.frr_evpn.client import Script, SecretFile
from controlplane.providers.adapters.frr_evpn.config import ExecReach, SshReach
from controlplane.providers.adapters.frr_evpn.rendering import SCRIPT
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, ProviderError, Refused, Unknown, Unsupported
from tests.unit.fabrics.test_frr_config import HOST_KEY


def script(*prefix: str, timeout_s: float = 5.0) -> Script:
    """A switch behind a command."""
    return Script("leaf1", ExecReach(kind="exec", argv_prefix=list(prefix)), key=None, timeout_s=timeout_s)


def ending(code: int, words: str, printed: str = "") -> Script:
    """A switch whose every action ends so."""
    return script("sh", "-c", f"cat >/dev/null; printf '%s' '{printed}'; echo '{words}' >&2; exit {code}")


@pytest.mark.parametrize(
    ("code", "words", "error", "name"),
    [
        (40, "fabric: another change is under way", Busy, "fabric_switch_busy"),
        (41, "fabric: there is no port p1", NotFound, "fabric_port_missing"),
        (42, "fabric: p1 carries x", Refused, "fabric_port_taken"),
        (43, "fabric: not ours", Refused, "fabric_device_foreign"),
        (44, "fabric: in use", Refused, "fabric_segment_taken"),
        (45, "fabric: failed: ip link add", Unknown, "provider_outcome_unknown"),
        (45, "RTNETLINK answers: Operation not permitted fabric: failed: ip", AuthFailed, "provider_auth_failed"),
        (45, "Error: Unknown device type. fabric: failed: ip", Unsupported, "fabric_kernel_lacks_it"),
        (45, "RTNETLINK answers: File exists fabric: failed: ip link add name cpx1", Refused, "fabric_segment_taken"),
        (41, "sh: something else", Unknown, "provider_outcome_unknown"),
        (1, "sudo: a password is required", AuthFailed, "provider_auth_failed"),
        (255, "whatever", Unknown, "provider_outcome_unknown"),
        (127, "sh: not found", Unknown, "provider_outcome_unknown"),
        (137, "", Unknown, "provider_outcome_unknown"),
    ],
)
def test_an_ending_is_one_of_the_ports_errors(code: int, words: str, error: type[ProviderError], name: str) -> None:
    """What the script says of itself is believed; what is not known to have done nothing is unknown."""
    with pytest.raises(ProviderError) as told:
        ending(code, words).run(["x"])
    assert (type(told.value), told.value.code) == (error, name)


@pytest.mark.parametrize("printed", ["", "=links", "=end and more", "=end\nmore"])
def test_success_that_breaks_off_is_unknown(printed: str) -> None:
    """Only a last line that says so is an end."""
    with pytest.raises(Unknown):
        ending(0, "", printed).run(["x"])


def test_success_is_what_was_printed_before_the_end() -> None:
    """Without the mark of the end."""
    assert ending(0, "", "=links\n[]\n=end").run(["x"]) == "=links\n[]\n"


def test_a_command_that_cannot_start_was_not_sent() -> None:
    """Nothing happened."""
    with pytest.raises(NotSent):
        script("/no/such/program").run(["x"])


def test_a_command_that_hangs_is_ended_with_all_it_started() -> None:
    """Not even a grandchild that holds the pipes makes the call longer."""
    began = time.monotonic()
    with pytest.raises(Unknown):
        script("sh", "-c", "sleep 50 & sleep 50", timeout_s=0.2).run(["x"])
    assert time.monotonic() - began < 5


def test_a_switch_that_does_not_read_is_no_crash() -> None:
    """It may end before it has read the script."""
    with pytest.raises(ProviderError):
        script("true").run(["x"])


def test_a_script_that_arrives_cut_short_does_nothing(tmp_path: Path) -> None:
    """Wherever the line breaks, no command that could change anything has run."""
    for name in ("ip", "bridge", "flock"):
        fake = tmp_path / name
        fake.write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/ran\n", encoding="utf-8")
        fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = [str(tmp_path / "lock"), "attach", "controlplane:t:", "lo", "7", "controlplane:t:n", "100", "10.0.0.1", "4789", "-"]
    ends = sorted({*range(0, len(SCRIPT) - 1, 97), *(index + 1 for index, letter in enumerate(SCRIPT) if letter == "\n")})
    ends = [end for end in ends[::2] if end < SCRIPT.rindex("main")] + [SCRIPT.rindex("main"), SCRIPT.rindex('"$@"') - 1]
    for end in ends:
        subprocess.run(
            ["sh", "-s", "--", *words], input=SCRIPT[:end].encode(), env=env, check=False, capture_output=True, timeout=20
        )
        assert not (tmp_path / "ran").exists(), f"something ran when the script ended after {end} of {len(SCRIPT)} characters"
        assert not (tmp_path / "lock").exists()
    subprocess.run(["sh", "-s", "--", *words], input=SCRIPT.encode(), env=env, check=False, capture_output=True, timeout=20)
    assert (tmp_path / "ran").exists()


def test_the_script_is_clean() -> None:
    """Shellcheck has nothing to say, read as plain POSIX sh."""
    program = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([program, "-s", "sh", "-"], input=SCRIPT, text=True, check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@contextmanager
def door(answer: bytes) -> Iterator[int]:
    """A port of this machine where somebody answers so and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def through_ssh(port: int) -> Any:
    """A switch behind an ssh that is none."""
    reach = SshReach(kind="ssh", host="127.0.0.1", port=port, host_keys=[HOST_KEY])
    return Script("leaf1", reach, key=SecretFile("no key\n"), timeout_s=5.0)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_ssh_server_that_is_none_was_sent_nothing(answer: bytes) -> None:
    """Before the keys are exchanged nothing can have happened."""
    with door(answer) as port, pytest.raises(NotSent):
        through_ssh(port).run(["x"])


def test_a_secret_file_is_on_no_disk_and_for_its_owner_only() -> None:
    """It can be read by its path while it is open, and not afterwards."""
    secret = SecretFile("words\n")
    path = secret.path
    assert Path(path).read_text(encoding="utf-8") == "words\n"
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert "(deleted)" in str(Path(path).readlink())
    assert "words" not in repr(secret)
    secret.close()
    secret.close()
    assert not Path(path).exists()
