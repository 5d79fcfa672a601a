"""
What a machine is handed at its first boot: the four documents of cloud-init's NoCloud. Pure.

Source: cloud-init, "NoCloud", "User data formats" and "Merging user data sections"; checked against 22.4.2.

User-data is one MIME message. Its order is the precedence:

1. our boothook: lays the agent, our files and our scripts down and starts the agent. It is no cloud-config, so nothing that the tenant
   writes is merged with it, and it runs before everything else, also when what follows is broken.
2. the tenant's user-data, of whatever kind it is, unchanged.
3. our lists (the login with its keys), appended to the tenant's.
4. our settings (host name, phone-home), which replace the tenant's.

Ours come last because the later part decides how it is merged: `merge_how` in the tenant's part works on its own parts alone.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from controlplane.boots.states import DiskImage, Facts, NodeFile, Purpose, Script

POLL_S = 10.0
"""How often a running machine asks for changed files."""
PHONE_TRIES = 40
"""Three seconds apart: two minutes, longer than this API is away while it is replaced."""
LISTS = "list(append)+dict(no_replace,recurse_list)+str()"
SETTINGS = "dict(replace)+list()+str()"
EMPTY = b"#cloud-config\n{}\n"
HOOK = """#cloud-boothook
#!/bin/sh
# Lays down what this machine was given and starts the agent that reports how it came up.
set -eu
umask 077
home="${BOOT_AGENT_ROOT:-}/var/lib/boot-agent"
mkdir -p "$home"
lay() { cat > "$home/$1.new" && mv -f "$home/$1.new" "$home/$1"; }
lay boot-agent.service <<'END-OF-UNIT'
{unit}END-OF-UNIT
lay strict.sh <<'END-OF-SHELL'
{shell}END-OF-SHELL
lay agent.py <<'END-OF-AGENT'
{agent}END-OF-AGENT
lay plan.json <<'END-OF-PLAN'
{plan}
END-OF-PLAN
exec python3 "$home/agent.py" install
"""


@dataclass(frozen=True, slots=True)
class Content:
    """
    What a blueprint holds, opened.
    """

    login: str = ""
    """The user that the keys open; none when empty."""
    ssh_keys: tuple[str, ...] = ()
    """Public keys."""
    user_data: str = ""
    """The tenant's."""
    user_data_kind: str = ""
    """Its media type."""
    files: tuple[NodeFile, ...] = ()
    """Plain files as they are now."""
    secret_files: tuple[NodeFile, ...] = ()
    """Sealed ones."""
    scripts: tuple[Script, ...] = ()
    """Ours."""
    version: int = 0
    """Of the plain files."""


@dataclass(frozen=True, slots=True)
class Machine:
    """
    The machine that is booted.
    """

    boot_id: str
    """`bot_…`."""
    url: str
    """Its own address at the control plane, with its token."""
    purpose: Purpose
    """What for."""
    facts: Facts
    """What is true of it only; its instance id is set."""
    is_new: bool = True
    """Whether its user-data was not taken before."""


@dataclass(frozen=True, slots=True)
class Seed:
    """
    The documents by their names in a seed.
    """

    user_data: bytes
    """Scripts and secrets."""
    meta_data: bytes
    """Who it is."""
    vendor_data: bytes
    """Nothing: what is ours stands in user-data, which it would otherwise be overruled by."""
    network_config: bytes | None
    """None: the image's own."""

    def documents(self) -> dict[str, bytes]:
        """
        By file name, those that there are.
        """
        made = {"meta-data": self.meta_data, "user-data": self.user_data, "vendor-data": self.vendor_data}
        return made if self.network_config is None else {**made, "network-config": self.network_config}


OWN: Mapping[Purpose, float] = {"wipe": 12 * 3600.0, "check": 900.0, "fabric": 6 * 3600.0}
"""Purposes of our own, whose one script has their name and may take so many seconds, a check besides what its tests may take."""
INSTALLING: Mapping[str, float] = {"disk": 300.0, "image": 2 * 3600.0, "verify": 2 * 3600.0}
"""The scripts of an installation, in order, and how many seconds each may take."""


def own_names(purpose: Purpose) -> tuple[str, ...]:
    """
    The names of what a boot without a blueprint runs.
    """
    return tuple(INSTALLING) if purpose == "install" else (purpose,) if purpose in OWN else ()


def own_scripts(
    purpose: Purpose, facts: Facts, burn_in: Sequence[Mapping[str, Any]] = (), image: DiskImage | None = None
) -> tuple[Script, ...]:
    """
    What a boot without a blueprint runs: for a wipe or a check our own script, told what the operator knows of the machine and, for a
    check, which tests it runs: a line `name limit_s amount` for each. It may take as long as they may, and as long as it may without.
    An installation runs a script for each of its stages. A fabric check is one program, which is told by the control plane what to run.
    """
    if purpose == "install" and image is not None:
        return tuple(Script(name, _installing(name, facts, image), limit_s) for name, limit_s in INSTALLING.items())
    if purpose not in OWN:
        return ()
    if purpose == "fabric":
        program = (files("controlplane.boots") / "scripts" / "fabric.py").read_text(encoding="utf-8")
        return (Script(purpose, f"python3 - <<'END-OF-PROGRAM'\n{program}END-OF-PROGRAM\n", OWN[purpose]),)
    known = f"EXPECTED_GPUS={int(facts.tags.get('gpus', '0'))}\nDISKLESS={'yes' if facts.tags.get('diskless') == 'yes' else 'no'}\n"
    if purpose == "check":
        tests = (f"{one['name']} {int(one['limit_s'])} {int(one['amount'])}" for one in burn_in)
        known += "BURN_IN=" + shlex.quote("\n".join(tests)) + "\n"
    text = (files("controlplane.boots") / "scripts" / f"{purpose}.sh").read_text(encoding="utf-8")
    return (Script(purpose, known + text, OWN[purpose] + sum(float(one["limit_s"]) for one in burn_in)),)


def _installing(verb: str, facts: Facts, image: DiskImage) -> str:
    program = (files("controlplane.boots") / "scripts" / "image.py").read_text(encoding="utf-8")
    known = f"IMAGE_ARCH={image.arch} IMAGE_SIZE_BYTES={image.size_bytes} IMAGE_SHA256={image.sha256}"
    return (
        f"export {known} ROOT_DISK={shlex.quote(facts.tags.get('root_disk', ''))}\n"
        f"python3 - {verb} <<'END-OF-PROGRAM'\n{program}END-OF-PROGRAM\n"
    )


def render(content: Content, machine: Machine) -> Seed:
    """
    Everything that the machine is handed; the same for the same arguments.
    """
    return Seed(user_data(content, machine), meta_data(content, machine.facts), EMPTY, network_config(machine.facts))


def meta_data(content: Content, facts: Facts) -> bytes:
    """
    The machine's names, keys and tags. JSON is YAML.
    """
    told: dict[str, Any] = {"instance-id": facts.instance_id, "local-hostname": facts.hostname, "tags": dict(facts.tags)}
    if content.ssh_keys:
        told["public-keys"] = list(content.ssh_keys)
    return json.dumps(told).encode() + b"\n"


def network_config(facts: Facts) -> bytes | None:
    """
    As it was given; None where nothing was.
    """
    return None if facts.network is None else json.dumps(facts.network).encode() + b"\n"


def user_data(content: Content, machine: Machine) -> bytes:
    """
    The message in parts: ours, the tenant's, ours.
    """
    parts = [_part("text/cloud-boothook", "boot-agent", _hook(content, machine))]
    if content.user_data:
        parts.append(_tenants(content.user_data, content.user_data_kind))
    if content.login and content.ssh_keys:
        parts.append(_config("login", {"users": [_user(content)]}, LISTS))
    parts.append(_config("settings", _settings(machine), SETTINGS))
    mark = hashlib.sha256(b"".join(parts)).hexdigest()[:40]
    head = f'Content-Type: multipart/mixed; boundary="={mark}="\nMIME-Version: 1.0\n\n'.encode()
    line = f"--={mark}=".encode()
    return head + b"".join(line + b"\n" + part + b"\n" for part in parts) + line + b"--\n"


def _hook(content: Content, machine: Machine) -> bytes:
    plan = {
        "boot_id": machine.boot_id,
        "url": machine.url,
        "purpose": machine.purpose,
        "version": content.version,
        "poll_s": POLL_S if machine.purpose == "deploy" and content.version else 0,
        "files": [_plain(one) for one in (*content.files, *content.secret_files)],
        "scripts": [_plain(one) for one in content.scripts],
    }
    before, after = _hook_ends()
    return before + json.dumps(plan).encode() + after  # ASCII on one line: it cannot end the document it stands in


def _plain(one: NodeFile | Script) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


@cache
def _hook_ends() -> tuple[bytes, bytes]:
    hook, room = HOOK, files("controlplane.boots")
    for mark, name in (("unit", "scripts/boot-agent.service"), ("shell", "scripts/strict.sh"), ("agent", "agent.py")):
        hook = hook.replace(f"{{{mark}}}", room.joinpath(name).read_text("utf-8"))
    before, after = hook.split("{plan}")
    return before.encode("ascii"), after.encode("ascii")


def _user(content: Content) -> dict[str, Any]:
    return {
        "name": content.login,
        "shell": "/bin/bash",
        "lock_passwd": True,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": list(content.ssh_keys),
    }


def _settings(machine: Machine) -> dict[str, Any]:
    home = {"url": f"{machine.url}phone-home", "post": ["pub_key_ed25519", "instance_id", "hostname", "fqdn"], "tries": PHONE_TRIES}
    name: dict[str, Any] = {"hostname": machine.facts.hostname.partition(".")[0], "preserve_hostname": False}
    if "." in machine.facts.hostname:
        name["fqdn"] = machine.facts.hostname
    return {**name, "phone_home": home}


def _config(name: str, settings: Mapping[str, Any], merge: str) -> bytes:
    body = b"#cloud-config\n" + json.dumps(settings).encode() + b"\n"
    return _part("text/cloud-config", name, body, f"Merge-Type: {merge}")


def _part(kind: str, name: str, body: bytes, *headers: str) -> bytes:
    lines = [
        f"Content-Type: {kind}; charset=utf-8",
        "MIME-Version: 1.0",
        f'Content-Disposition: attachment; filename="{name}"',
        *headers,
    ]
    return "\n".join(lines).encode() + b"\n\n" + body


def _tenants(text: str, kind: str) -> bytes:
    if kind == "multipart/mixed":
        return text.encode()
    encoded = base64.encodebytes(text.encode())
    return _part(kind, "user-data", encoded, "Content-Transfer-Encoding: base64")


def address_lines(names: Sequence[str]) -> bytes:
    """
    A listing in the shape of 169.254.169.254: one name a line, no line after the last.
    """
    return "\n".join(names).encode()


def by_path(content: Content, facts: Facts) -> dict[str, str]:
    """
    The same facts by their paths below meta-data at 169.254.169.254.

    Source: Amazon EC2, "Instance metadata categories".
    """
    found = {
        "instance-id": facts.instance_id,
        "hostname": facts.hostname,
        "local-hostname": facts.hostname,
        "local-ipv4": facts.address if facts.address and ":" not in facts.address else "",
        "mac": facts.mac or "",
        **{f"public-keys/{number}/openssh-key": key for number, key in enumerate(content.ssh_keys)},
        **{f"tags/instance/{name}": value for name, value in facts.tags.items()},
    }
    return {path: value for path, value in found.items() if value}


def look_up(paths: Mapping[str, str], wanted: str) -> bytes | None:
    """
    The value at the path, or the names below it, those with more below them ending in a slash; None where there is nothing.
    """
    if wanted in paths:
        return paths[wanted].encode()
    start = f"{wanted.rstrip('/')}/" if wanted else ""
    below = [path.removeprefix(start) for path in paths if path.startswith(start)]
    names = dict.fromkeys(name if not rest else f"{name}/" for name, _, rest in (path.partition("/") for path in below))
    return address_lines(list(names)) if names else None
