"""
The words of the room: what a machine is given, what it says, when it is ready, and how its address is made. Pure.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from controlplane.kit.ids import is_id

Purpose = Literal["deploy", "wipe", "check", "rescue", "install", "fabric"]
PURPOSES: tuple[Purpose, ...] = ("deploy", "wipe", "check", "rescue", "install", "fabric")
BootState = Literal["made", "fetched", "reporting", "ready", "failed", "ended"]
BOOT_STATES: tuple[BootState, ...] = ("made", "fetched", "reporting", "ready", "failed", "ended")
"""made: nothing was fetched yet; fetched: the machine has its user-data; reporting: it has spoken; ready and failed: it has its
outcome; ended: its token opens nothing any more."""
CLOUD_INIT_STAGES = ("init-local", "init", "modules-config", "modules-final")
"""The stages of cloud-init, in order; each must be reported without errors."""
FILES = "files"
"""Name of the outcome of laying the files down; no script has it."""
LABEL = b"controlplane boot tokens v1"
TOKEN = re.compile(r"bot_[0-7][0-9a-hjkmnp-tv-z]{25}\.[A-Za-z0-9_-]{43}", re.ASCII)
HIDDEN = "[hidden]"
SSH_KEY = re.compile(r"[a-z][a-z0-9@.-]* [A-Za-z0-9+/=]+( [^\x00-\x1f\x7f]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeFile:
    """
    A file on the machine.
    """

    path: str
    """Absolute."""
    content: str
    """Text."""
    mode: str = "0644"
    """Octal."""
    owner: str = "root:root"
    """user:group; it may be made by a package or by user-data, and is then waited for."""
    on_change: str = ""
    """Shell command that is run once after the file was changed on a running machine; none when empty."""


@dataclass(frozen=True, slots=True)
class Script:
    """
    A shell script that ends at its first failing line. What it finds it appends to the file `$BOOT_CHECKS`, as one line of JSON each:
    {"name": …, "result": "passed" | "failed" | "not_measured", "detail": …}. Whole outputs of tools it puts as files into the folder
    `$BOOT_OUTPUTS`, by their final names only once they are whole. `$BOOT_PURPOSE` says what the boot is for.
    """

    name: str
    """Lower-case letters, digits and dashes."""
    text: str
    """For bash, without `set -e` and without a first line that names the shell."""
    timeout_s: float = 1800.0
    """Then it is ended and has failed."""


@dataclass(frozen=True, slots=True)
class NewBlueprint:
    """
    What machines of one cluster, or of one of our own purposes, are to be.
    """

    tenant_id: str | None = None
    """Whose; none for the operator's own."""
    cluster_id: str | None = None
    """For which cluster."""
    image: str = ""
    """What is written to the disk or started, in the words of whoever provisions it."""
    login: str = "ops"
    """The user that the keys open."""
    ssh_keys: tuple[str, ...] = ()
    """Public keys in the form of authorized_keys."""
    user_data: str = ""
    """The tenant's; empty when there is none."""
    files: tuple[NodeFile, ...] = ()
    """Plain files, which may be rewritten while machines run."""
    secret_files: tuple[NodeFile, ...] = ()
    """Sealed ones, laid down once."""
    scripts: tuple[Script, ...] = ()
    """Run in this order, before any of the tenant's."""


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What is true of one machine only.
    """

    hostname: str
    """Short or full name."""
    instance_id: str = ""
    """The id of the boot when empty: then everything runs anew."""
    address: str | None = None
    """By which the machine is known where addresses are believed."""
    mac: str | None = None
    """Of the port it boots from."""
    network: Mapping[str, Any] | None = None
    """network-config as cloud-init takes it; none: the image's own, which is DHCP."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Labels that the machine can read of itself."""


@dataclass(frozen=True, slots=True)
class DiskImage:
    """
    What is to be written to a machine's disk, as it is.
    """

    arch: str
    """Of the machines that it is for, as `uname -m` says it."""
    size_bytes: int
    """Its size."""
    sha256: str
    """Its digest, 64 hexadecimal digits."""
    format: str = "raw"
    """`raw`, or a format that whoever writes it can read."""


@dataclass(frozen=True, slots=True)
class NewBoot:
    """
    A machine is about to be switched on.
    """

    node_id: str
    """Which."""
    purpose: Purpose
    """What for."""
    facts: Facts
    """What is true of it only."""
    within_s: float
    """Until when it must have reported."""
    allocation_id: str | None = None
    """For whom it is deployed."""
    tenant_id: str | None = None
    """Whose."""
    blueprint_id: str | None = None
    """What it is to be."""
    burn_in: tuple[Mapping[str, Any], ...] = ()
    """What a check is to run: {name, required, limit_s, amount} each."""
    image_id: str | None = None
    """What it writes to the disk, or what the machine starts from."""


@dataclass(frozen=True, slots=True)
class CheckOutput:
    """
    What became of one output that a check sent.
    """

    name: str
    """The test, with its part where it has several."""
    figures: int
    """How many figures of it are in the ledger."""
    failure: str
    """Why it could not be read; empty when it was."""
    at: datetime
    """When it came."""


@dataclass(frozen=True, slots=True)
class Stage:
    """
    What one part of a boot came to.
    """

    name: str
    """A stage of cloud-init, `script:<name>` or `script:files`."""
    ok: bool
    """Whether it went well."""
    detail: str
    """What went wrong; the failing line and the last output for a script."""
    at: str
    """When it was first reported so, by the database's clock; RFC 3339."""


@dataclass(frozen=True, slots=True)
class BootView:
    """
    Where a boot stands, as steps of nodes see it.
    """

    id: str
    """`bot_…`."""
    node_id: str
    """Which node."""
    purpose: Purpose
    """What for."""
    state: BootState
    """As stored, but failed as soon as the time is up."""
    stages: tuple[Stage, ...]
    """What was reported so far."""
    failure_code: str
    """Stable code; empty while it has not failed."""
    failure: str
    """In words, without the machine's own."""
    checks: tuple[Mapping[str, Any], ...]
    """What a wipe or check found: {name, result, detail}."""
    made_at: datetime
    """When it was begun."""
    expires_at: datetime
    """When it must have reported."""
    fetched_at: datetime | None
    """When the machine took its user-data first."""
    phoned_at: datetime | None
    """When it phoned home first."""
    ready_at: datetime | None
    """When it had reported everything well."""
    host_keys: Mapping[str, str]
    """Public SSH keys of the machine by kind, as it told when it phoned home."""
    version: int
    """Of the files it was made with or has now; 0 without a blueprint."""
    applied_version: int
    """Version of the files that the machine reported; 0 before."""
    apply_failure: str
    """What of that version could not be written."""
    burn_in: tuple[Mapping[str, Any], ...] = ()
    """What a check was to run: {name, required, limit_s, amount} each."""
    outputs: tuple[CheckOutput, ...] = ()
    """What it sent of that."""
    image_id: str | None = None
    """What it writes to the disk, or what the machine starts from."""
    image: DiskImage | None = None
    """The same with what is declared of it."""
    allocation_id: str | None = None
    """For whom it is deployed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What a script, or the laying down of files, came to, in the machine's words.
    """

    name: str
    """As in the blueprint, or `files`."""
    ok: bool
    """Whether it went well."""
    exit_code: int | None
    """Of the script; none where it did not run."""
    line: int | None
    """Line that failed; none where it is not known."""
    output: str
    """The last lines it wrote."""


@dataclass(frozen=True, slots=True)
class Report:
    """
    What a machine says of itself.
    """

    final: bool
    """Whether it has nothing more to say."""
    stages: Mapping[str, str]
    """Stages of cloud-init that are over, with what went wrong; empty text where nothing did."""
    outcomes: tuple[Outcome, ...]
    """Of the scripts that have run."""
    checks: tuple[Mapping[str, Any], ...] = ()
    """What the scripts found: {name, result, detail}."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a final report makes of a boot.
    """

    ready: bool
    """Whether everything went well."""
    code: str = ""
    """Stable code of the failure."""
    words: str = ""
    """The failure in words of ours."""


def stages_of(report: Report, known: Sequence[Stage], now: str) -> tuple[Stage, ...]:
    """
    What is known after the report, in the order of events; what was known already keeps its time.
    """
    said = [(name, not report.stages[name], report.stages[name]) for name in CLOUD_INIT_STAGES if name in report.stages]
    said += [(f"script:{one.name}", one.ok, "" if one.ok else _told(one)) for one in report.outcomes]
    times = {(one.name, one.ok, one.detail): one.at for one in known}
    mentioned = {name for name, _, _ in said}
    kept = [one for one in known if one.name not in mentioned]
    return (*kept, *(Stage(*one, times.get(one, now)) for one in said))


def _told(one: Outcome) -> str:
    place = f"line {one.line}" if one.line is not None else ""
    code = f"exit code {one.exit_code}" if one.exit_code is not None else ""
    head = ", ".join(part for part in (place, code) if part)
    return f"{head}: {one.output}" if head and one.output else head or one.output or "failed"


def judge(report: Report, expected: Sequence[str], *, phoned: bool) -> Verdict:
    """
    Whether the machine is ready by its own report: every stage without errors, every one of our scripts well, and it phoned home.
    """
    for one in report.outcomes:
        if not one.ok and one.name in expected:
            place = f" at line {one.line}" if one.line is not None else ""
            what = "The files could not all be laid down" if one.name == FILES else f"The script {one.name} failed{place}"
            return Verdict(ready=False, code="script_failed", words=f"{what}.")
    for name in CLOUD_INIT_STAGES:
        if report.stages.get(name):
            return Verdict(ready=False, code="cloud_init_failed", words=f"The stage {name} of cloud-init ended with errors.")
    silent = [name for name in CLOUD_INIT_STAGES if name not in report.stages]
    if silent:
        return Verdict(ready=False, code="cloud_init_incomplete", words=f"The stage {silent[0]} of cloud-init was not reported.")
    missing = [name for name in expected if name not in {one.name for one in report.outcomes}]
    if missing:
        return Verdict(ready=False, code="script_not_run", words=f"The script {missing[0]} was not run.")
    if not phoned:
        return Verdict(ready=False, code="phone_home_missing", words="The machine reported but never phoned home.")
    return Verdict(ready=True)


def overdue(*, fetched: bool, phoned: bool, spoke: bool) -> str:
    """
    The words for a boot whose time is up, by the last sign of life.
    """
    if spoke:
        return "The machine reported stages, but not all of them in time."
    if phoned:
        return "The machine phoned home, but did not report in time."
    if fetched:
        return "The machine took its user-data, but did not report in time."
    return "The machine did not ask for its user-data in time."


def hide_tokens(text: str) -> str:
    """
    The text without tokens of boots.
    """
    return TOKEN.sub(HIDDEN, text)


class BootLinks:
    """
    Addresses that machines boot by. A token is `<boot id>.<HMAC-SHA256>`; nothing secret is stored for it, and it tells nothing but
    the boot's id.
    """

    __slots__ = ("_base_url", "_deployment", "_key")

    def __init__(self, base_url: str, key: bytes, deployment: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._key = key
        self._deployment = deployment.encode()

    @classmethod
    def from_master(cls, base_url: str, master_key: str, deployment: str) -> "BootLinks":
        """
        Links under a key of their own, derived from the master key (base64). Raises ValueError without repeating the key.
        """
        try:
            master = base64.b64decode(master_key, validate=True)
        except ValueError:
            raise ValueError("the master key is not base64") from None
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=LABEL).derive(master)
        return cls(base_url, key, deployment)

    def __repr__(self) -> str:
        return f"BootLinks({self._base_url!r})"

    @property
    def base_url(self) -> str:
        """
        Where machines reach the API; empty where none is to boot by it.
        """
        return self._base_url

    def token(self, boot_id: str) -> str:
        """
        The boot's token: a secret of the machine.
        """
        return f"{boot_id}.{self._mark(boot_id)}"

    def url(self, boot_id: str) -> str:
        """
        The boot's address, for `ds=nocloud-net;s=`: it holds the token. Raises ValueError where machines have no way to the API.
        """
        return self._below(self.token(boot_id))

    def image_url(self, boot_id: str) -> str:
        """
        Where the image of the boot is: this address opens the image and nothing else of the boot, for whoever writes the image shows it to
        others. Raises ValueError where machines have no way to the API.
        """
        return f"{self._below(boot_id + '.' + self._image_mark(boot_id))}image"

    def verify(self, token: str) -> str | None:
        """
        The boot's id when the token is ours, else None; in constant time for tokens of the right form.
        """
        return _owner(token, self._mark)

    def verify_image(self, token: str) -> str | None:
        """
        The boot's id when the token is the boot's, or one that `image_url` made; else None.
        """
        return _owner(token, self._mark) or _owner(token, self._image_mark)

    def session_token(self, boot_id: str, until_s: int) -> str:
        """
        A token for the metadata address that is good until this second of the epoch.
        """
        return f"{until_s}.{self._digest(f'session|{until_s}|{boot_id}')}"

    def verify_session(self, token: str, boot_id: str, now_s: int) -> bool:
        """
        Whether the token was made for the boot and is still good.
        """
        until, dot, mark = token.partition(".")
        if not dot or not (until.isascii() and until.isdigit() and len(until) <= 12 and mark.isascii()):  # noqa: PLR2004 - seconds
            return False
        return hmac.compare_digest(self._digest(f"session|{until}|{boot_id}"), mark) and now_s < int(until)

    def _below(self, token: str) -> str:
        if not self._base_url:
            raise ValueError("no address is known under which machines reach the API")
        return f"{self._base_url}/v1/boot/{token}/"

    def _mark(self, boot_id: str) -> str:
        return self._digest(f"boot|{boot_id}")

    def _image_mark(self, boot_id: str) -> str:
        return self._digest(f"image|{boot_id}")

    def _digest(self, what: str) -> str:
        made = hmac.new(self._key, self._deployment + b"|" + what.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode().rstrip("=")


def _owner(token: str, mark_of: Callable[[str], str]) -> str | None:
    """
    The boot's id when the token has this mark of it.
    """
    boot_id, dot, mark = token.partition(".")
    if not dot or not mark.isascii() or not is_id(boot_id, "bot"):
        return None
    return boot_id if hmac.compare_digest(mark_of(boot_id), mark) else None
