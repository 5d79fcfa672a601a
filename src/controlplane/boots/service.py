"""
Boots: what machines are to be, the one boot that each has open, and where it stands. What machines say is in `reporting`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Row
from sqlalchemy.orm import Session

from controlplane.boots import repository
from controlplane.boots.states import (
    FILES,
    PURPOSES,
    SSH_KEY,
    BootView,
    CheckOutput,
    DiskImage,
    Facts,
    NewBlueprint,
    NewBoot,
    NodeFile,
    Purpose,
    Script,
    Stage,
    hide_tokens,
    overdue,
)
from controlplane.boots.userdata import kind_of
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk
from controlplane.kit.secrets import Sealer

__all__ = [
    "BootView",
    "Console",
    "Facts",
    "NewBlueprint",
    "NewBoot",
    "NodeFile",
    "Purpose",
    "Script",
    "append_console",
    "begin",
    "begin_many",
    "boots_of_allocation",
    "console_of",
    "console_of_allocation",
    "count_readers",
    "end",
    "kind_of",
    "list_boots",
    "make_blueprint",
    "plain_files",
    "reopen",
    "reseal",
    "rewrite_files",
    "views",
    "views_of",
]
TABLE, COLUMN = "blueprints", "sealed"
MOST_CONSOLE_BYTES = 1024 * 1024
MOST_CONSOLE_PIECES = 2000
count_readers = repository.count_readers
LARGEST_PIECE_BYTES = 64 * 1024
READ_PIECES = 64
PATH = re.compile(r"/[^\x00-\x1f\x7f]{1,1000}", re.ASCII)
MODE = re.compile(r"0?[0-7]{3,4}", re.ASCII)
OWNER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}(:[a-z_][a-z0-9_.-]{0,31})?", re.ASCII)
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
LOGIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Console:
    """
    Some of what a machine wrote.
    """

    offset: int
    """Where it begins in all that was written; later than asked where older output was dropped."""
    data: bytes
    """As written."""
    size: int
    """Bytes written in all."""


def make_blueprint(session: Session, sealer: Sealer, new: NewBlueprint) -> str:
    """
    The blueprint is there, its keys, user-data, secret files and scripts sealed; its id is returned. Raises Invalid.
    """
    _check_blueprint(new)
    kind = kind_of(new.user_data) if new.user_data else ""
    blueprint_id = new_id("bpr")
    secret = {
        "login": new.login,
        "ssh_keys": list(new.ssh_keys),
        "user_data": new.user_data,
        "user_data_kind": kind,
        "secret_files": [asdict(one) for one in new.secret_files],
        "scripts": [asdict(one) for one in new.scripts],
    }
    sealed = sealer.seal(json.dumps(secret).encode(), table=TABLE, column=COLUMN, row=blueprint_id)
    values = {
        "id": blueprint_id,
        "tenant_id": new.tenant_id,
        "cluster_id": new.cluster_id,
        "image": new.image,
        "sealed": sealed,
        "scripts": [*([FILES] if new.files or new.secret_files else []), *(one.name for one in new.scripts)],
        "files": [asdict(one) for one in new.files],
    }
    repository.add_blueprint(session, values)
    return blueprint_id


def rewrite_files(session: Session, blueprint_id: str, files: Sequence[NodeFile]) -> int:
    """
    The plain files are these, and running machines will fetch them; the version is returned, and has risen only if anything changed.
    Raises NotFound, Invalid.
    """
    _check_files(files)
    row = repository.lock_blueprint(session, blueprint_id)
    if row is None:
        raise NotFound
    wanted = [asdict(one) for one in files]
    if wanted != row.files:
        row.files = wanted
        row.version += 1
        session.flush()
    return row.version


def reseal(
    session: Session, sealer: Sealer, blueprint_id: str, secret_files: Sequence[NodeFile], scripts: Sequence[Script]
) -> None:
    """
    Machines that boot from now on get these secret files and scripts; running ones keep what they have. Raises NotFound, Invalid,
    NotOpened.
    """
    row = repository.lock_blueprint(session, blueprint_id)
    if row is None or row.sealed is None:
        raise NotFound
    told, _, _ = open_content(sealer, blueprint_id, row.sealed)
    _check_blueprint(NewBlueprint(secret_files=tuple(secret_files), scripts=tuple(scripts)))
    secret = {**told, "secret_files": [asdict(one) for one in secret_files], "scripts": [asdict(one) for one in scripts]}
    row.sealed = sealer.seal(json.dumps(secret).encode(), table=TABLE, column=COLUMN, row=blueprint_id)
    row.scripts = [FILES, *(one.name for one in scripts)]
    session.flush()


def begin(session: Session, new: NewBoot) -> str:
    """
    The node has this boot and no other open one; its id is returned. Raises Invalid.
    """
    return begin_many(session, [new])[new.node_id]


def begin_many(session: Session, boots: Sequence[NewBoot]) -> dict[str, str]:
    """
    Each node has its boot and no other open one; the boots' ids by node. Two statements, however many. Raises Invalid.
    """
    ids: dict[str, str] = {}
    rows = []
    for one in boots:
        _check_boot(one)
        if one.node_id in ids:
            raise _invalid("node_id", "A node is booted once at a time.")
        ids[one.node_id] = boot_id = new_id("bot")
        facts = {**asdict(one.facts), "instance_id": one.facts.instance_id or boot_id}
        address = facts.pop("address")
        columns = asdict(one) | {"id": boot_id, "facts": facts, "address": address}
        rows.append(columns)
    if rows and repository.replace_boots(session, list(ids), rows) != set(ids.values()):
        raise _invalid("blueprint_id", "A machine boots by a blueprint of its own tenant, or by one of the operator's.")
    return ids


def end(session: Session, boot_ids: Sequence[str]) -> None:
    """
    The boots' tokens open nothing any more. Ending twice changes nothing.
    """
    if boot_ids:
        repository.end(session, boot_ids)


def reopen(session: Session, node_id: str, allocation_id: str) -> str | None:
    """
    The last boot that deployed the node for the allocation and reported good is open again, and no other of the node; its id is returned,
    None when there was none. What it installed is what the machine starts next, and it knows no other token.
    """
    return repository.reopen_last_good(session, node_id, allocation_id)


def views(session: Session, boot_ids: Sequence[str]) -> dict[str, BootView]:
    """
    Where the boots stand, by id, in one query; unknown ids are left out.
    """
    return {row.id: _view(row) for row in repository.read_views(session, boot_ids)}


def views_of(session: Session, allocation_ids: Sequence[str]) -> dict[str, BootView]:
    """
    Where the deployments of these allocations stand, by allocation, in one query; those without an open boot are left out.
    """
    return {row.allocation_id: _view(row) for row in repository.read_views_of(session, allocation_ids)}


def plain_files(session: Session, blueprint_ids: Sequence[str]) -> dict[str, tuple[NodeFile, ...]]:
    """
    The plain files of the blueprints as they are now, by id, in one query; unknown ids are left out.
    """
    found = repository.read_plain_files(session, blueprint_ids)
    return {one: tuple(NodeFile(**file) for file in told) for one, told in found.items()}


def list_boots(session: Session, node_id: str, ask: PageAsk) -> Page[BootView]:
    """
    A page of the node's boots, oldest first. Raises NotFound for an unknown node.
    """
    if not repository.node_exists(session, node_id):
        raise NotFound
    page = repository.page_of_node(session, node_id, ask)
    found = views(session, page.items)
    return page.map(found.__getitem__)


def boots_of_allocation(session: Session, allocation_id: str, ask: PageAsk) -> Page[BootView]:
    """
    A page of the boots that ran for the tenant of the allocation, oldest first: none of an earlier tenant's and none of our own.
    """
    page = repository.page_of_allocation(session, allocation_id, ask)
    found = views(session, page.items)
    return page.map(found.__getitem__)


def console_of_allocation(session: Session, allocation_id: str, boot_id: str | None, after: int) -> tuple[str, Console]:
    """
    The console of one of those boots, or of the last, from the offset on, with the boot's id. Raises NotFound for every other boot.
    """
    found = repository.last_of_allocation(session, allocation_id, boot_id)
    if found is None:
        raise NotFound
    return found, console_of(session, found, after)


def append_console(session: Session, boot_id: str, data: bytes, *, offset: int | None = None) -> int:
    """
    The data stands at the end of the boot's console, tokens taken out; the number of bytes written in all is returned. With an `offset`
    only what lies beyond what is known already is taken, so a repeat changes nothing. Raises NotFound.
    """
    row = repository.lock_console(session, boot_id)
    if row is None:
        raise NotFound
    if offset is not None:
        data = data[max(0, row.console_bytes - offset) :]
    data = hide_tokens(data[:LARGEST_PIECE_BYTES].decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if not data:
        return int(row.console_bytes)
    return repository.add_piece(session, boot_id, row, data, most_bytes=MOST_CONSOLE_BYTES, most_pieces=MOST_CONSOLE_PIECES)


def console_of(session: Session, boot_id: str, after: int) -> Console:
    """
    What the machine wrote during the boot from the offset on, as much as is read at once. Raises NotFound.
    """
    found = repository.read_views(session, [boot_id])
    if not found:
        raise NotFound
    pieces = repository.read_pieces(session, boot_id, after, READ_PIECES)
    if not pieces:
        return Console(min(after, found[0].console_bytes), b"", found[0].console_bytes)
    offset = max(after, pieces[0].byte_offset)
    data = b"".join(bytes(one.data) for one in pieces)
    return Console(offset, data[offset - pieces[0].byte_offset :], found[0].console_bytes)


def _view(row: Row[Any]) -> BootView:
    words = row.failure
    if row.late:
        words = overdue(fetched=row.fetched_at is not None, phoned=row.phoned_at is not None, spoke=bool(row.stages))
    return BootView(
        id=row.id,
        node_id=row.node_id,
        purpose=row.purpose,
        state="failed" if row.late else row.state,
        stages=tuple(Stage(**one) for one in row.stages),
        failure_code="boot_overdue" if row.late else row.failure_code,
        failure=words,
        checks=tuple(row.checks),
        made_at=row.created_at,
        expires_at=row.expires_at,
        fetched_at=row.fetched_at,
        phoned_at=row.phoned_at,
        ready_at=row.ready_at,
        host_keys=row.host_keys,
        version=row.version,
        applied_version=row.applied_version,
        apply_failure=row.apply_failure,
        burn_in=tuple(row.burn_in),
        image_id=row.image_id,
        image=None if row.sha256 is None else DiskImage(row.arch, row.size_bytes, row.sha256, row.format),
        allocation_id=row.allocation_id,
        outputs=tuple(CheckOutput(**one | {"at": datetime.fromisoformat(one["at"])}) for one in row.outputs),
    )


def _check_blueprint(new: NewBlueprint) -> None:
    _check_files([*new.files, *new.secret_files])
    if not LOGIN.fullmatch(new.login):
        raise _invalid("login", "A login is a lower-case user name of up to 32 characters.")
    for number, key in enumerate(new.ssh_keys):
        if not SSH_KEY.fullmatch(key):
            raise _invalid(f"ssh_keys.{number}", "A key is one line as in authorized_keys, without options.")
    names = [one.name for one in new.scripts]
    for number, script in enumerate(new.scripts):
        if not NAME.fullmatch(script.name) or script.name == FILES or names.count(script.name) > 1:
            raise _invalid(f"scripts.{number}", "A script's name is lower-case letters, digits and dashes, unique and not `files`.")
        if not script.timeout_s > 0 or "\0" in script.text:
            raise _invalid(f"scripts.{number}", "A script is text without NUL characters and has a time limit.")


def _check_files(files: Sequence[NodeFile]) -> None:
    paths = [one.path for one in files]
    for number, file in enumerate(files):
        parts = file.path.split("/")[1:]
        if not PATH.fullmatch(file.path) or any(part in {"", ".", ".."} for part in parts) or paths.count(file.path) > 1:
            raise _invalid(f"files.{number}", "A file's path is absolute, plain and unique.")
        if not MODE.fullmatch(file.mode) or not OWNER.fullmatch(file.owner):
            raise _invalid(f"files.{number}", "A file has an octal mode and an owner user:group.")
        if "\0" in file.content or "\0" in file.on_change:
            raise _invalid(f"files.{number}", "A file is text without NUL characters.")


def _check_boot(new: NewBoot) -> None:
    if new.purpose not in PURPOSES:
        raise _invalid("purpose", f"A boot is for one of {', '.join(PURPOSES)}.")
    if not new.within_s > 0:
        raise _invalid("within_s", "A boot has a deadline in the future.")
    if not HOSTNAME.fullmatch(new.facts.hostname):
        raise _invalid("facts.hostname", "A host name is letters, digits, dashes and dots.")


def facts_of(row: Row[Any]) -> Facts:
    """
    The facts of a boot's row.
    """
    told = cast("Mapping[str, Any]", row.facts)
    return Facts(told["hostname"], told["instance_id"], row.address, told["mac"], told["network"], told["tags"])


def open_content(
    sealer: Sealer, blueprint_id: str, sealed: bytes
) -> tuple[dict[str, Any], tuple[NodeFile, ...], tuple[Script, ...]]:
    """
    The plain values, secret files and scripts of a sealed blueprint. Raises NotOpened.
    """
    told: dict[str, Any] = json.loads(sealer.open(bytes(sealed), table=TABLE, column=COLUMN, row=blueprint_id))
    files = tuple(NodeFile(**one) for one in told.pop("secret_files"))
    return told, files, tuple(Script(**one) for one in told.pop("scripts"))


def _invalid(field: str, words: str) -> Invalid:
    return Invalid(words, errors=[FieldError(field, "invalid_value", words)])
