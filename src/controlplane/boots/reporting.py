"""
What machines ask and say: seeds out, phone-homes and reports in. Whoever calls has verified the token already.

Locks are taken as the lifecycle engine takes them, node first and boot after it.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any, cast

from sqlalchemy import Row
from sqlalchemy.orm import Session

from controlplane.boots import repository
from controlplane.boots.errors import BootSettled, OutputTaken, WrongMachine
from controlplane.boots.seed import Content, Machine, own_names, own_scripts
from controlplane.boots.service import append_console, facts_of, open_content
from controlplane.boots.states import (
    SSH_KEY,
    BootLinks,
    CheckOutput,
    DiskImage,
    NodeFile,
    Outcome,
    Report,
    Stage,
    Verdict,
    hide_tokens,
    judge,
    stages_of,
)
from controlplane.kit.clock import rfc3339
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.lifecycle import wake
from controlplane.kit.secrets import Sealer
from controlplane.qualification import service as qualification
from controlplane.qualification.states import BurnName

SETTLED = frozenset({"ready", "failed"})
BRIEFLY = repository.BRIEF_ERRAND
"""The boot while its machine may ask for it: parameter `id`, one row at most."""
WHOLLY = repository.WHOLE_ERRAND
"""The boot with its blueprint's content while its machine may ask for it: parameter `id`, one row at most."""
FILES = repository.FILES_ERRAND
"""(version, files) of the boot's blueprint, files None at the version `known`: parameters `id` and `known`, one row at most."""
IMAGE = repository.IMAGE_ERRAND
"""(image_id, size_bytes, sha256) of what the boot installs, until it has its outcome: parameter `id`, one row at most."""
NOTE_FETCHED = repository.FETCHED_ERRAND
"""The machine has taken its user-data: parameter `id`; only the first time counts."""
LARGEST_OUTPUT_BYTES = 8 * 1024 * 1024
KEY_KINDS = ("pub_key_ed25519", "pub_key_ecdsa", "pub_key_rsa")


def content_for(session: Session, sealer: Sealer, links: BootLinks, boot_id: str) -> tuple[Content, Machine]:
    """
    What the boot's machine is handed, from one query: for a rescue its tenant's login and nothing else of the blueprint, which may be what
    broke the machine. Raises NotFound for a boot that its machine may not ask for.
    """
    return content_of(_known(repository.find_whole(session, boot_id)), sealer, links)


def content_of(row: Any, sealer: Sealer, links: BootLinks) -> tuple[Content, Machine]:
    """
    What the machine of the boot is handed, whose row was found by `WHOLLY`.
    """
    boot_id = row.id
    machine = Machine(boot_id, links.url(boot_id), row.purpose, facts_of(row), is_new=row.state == "made")
    if row.blueprint_id is None or row.sealed is None:
        image = None if row.sha256 is None else DiskImage(row.arch, row.size_bytes, row.sha256)
        return Content(scripts=own_scripts(machine.purpose, machine.facts, row.burn_in, image)), machine
    told, secret_files, scripts = open_content(sealer, row.blueprint_id, row.sealed)
    if machine.purpose == "rescue":
        return Content(login=told["login"], ssh_keys=tuple(told["ssh_keys"])), machine
    content = Content(
        login=told["login"],
        ssh_keys=tuple(told["ssh_keys"]),
        user_data=told["user_data"],
        user_data_kind=told["user_data_kind"],
        files=tuple(NodeFile(**one) for one in row.files),
        secret_files=secret_files,
        scripts=scripts,
        version=row.version,
    )
    return content, machine


def note_fetched(session: Session, machine: Machine) -> None:
    """
    The machine has taken its user-data; only the first time is noted.
    """
    if machine.is_new:
        repository.mark_fetched(session, machine.boot_id)


def boot_at(session: Session, address: str) -> Row[Any]:
    """
    The one boot whose machine has the address, as its row. Raises NotFound where there is none, or more than one.
    """
    found = repository.ids_at(session, address)
    if len(found) != 1:
        raise NotFound
    return _known(repository.find_known(session, found[0]))


def phone_home(session: Session, boot_id: str, told: Mapping[str, str]) -> str | None:
    """
    The machine has phoned home; the node to look at when that is new, None when it had before. Raises NotFound, WrongMachine when it
    names another instance than the token's.
    """
    row = _known(repository.find_known(session, boot_id))
    if told.get("instance_id", "") != row.facts["instance_id"]:
        raise WrongMachine("The instance_id is not that of this token's machine.")
    if row.phoned_at is not None or row.state in SETTLED:
        return None
    wake(session, "nodes", [row.node_id])
    keys = {kind: told[kind].strip() for kind in KEY_KINDS if SSH_KEY.fullmatch(told.get(kind, "").strip())}
    if not repository.mark_phoned(session, boot_id, keys):
        _known(repository.find_known(session, boot_id))  # it has ended since, or has phoned home over another line
    return str(row.node_id)


def take_report(session: Session, boot_id: str, named: str, report: Report) -> tuple[str, str | None]:
    """
    The state of the boot after the report, and the node to look at when anything changed. A boot that is ready or has failed stays so: a
    report that says the same is welcome, one that contradicts raises BootSettled. Raises NotFound, WrongMachine.
    """
    if named != boot_id:
        raise WrongMachine("The report names another boot than the token.")
    report = _without_tokens(report)
    row = _known(repository.find_known(session, boot_id))
    if row.state in SETTLED:
        return _settled(row, report), None
    wake(session, "nodes", [row.node_id])
    row = _known(repository.find_known(session, boot_id, lock=True))
    if row.state in SETTLED:
        return _settled(row, report), None
    verdict = judge(report, _expected(row), phoned=row.phoned_at is not None) if report.final else None
    state = "reporting" if verdict is None else "ready" if verdict.ready else "failed"
    known = tuple(Stage(**one) for one in row.stages)
    values = {
        "state": state,
        "stages": [asdict(one) for one in stages_of(report, known, rfc3339(row.now))],
        "checks": [dict(one) for one in report.checks],
        "code": verdict.code if verdict else "",
        "failure": verdict.words if verdict else "",
    }
    repository.write_report(session, boot_id, values)
    return state, str(row.node_id)


def _settled(row: Row[Any], report: Report) -> str:
    if report.final:
        verdict: Verdict = judge(report, _expected(row), phoned=row.phoned_at is not None)
        if verdict.ready != (row.state == "ready"):
            raise BootSettled(f"The boot is {row.state}; this report changes nothing.", state=row.state)
    return str(row.state)


def take_output(session: Session, boot_id: str, name: str, packed: bytes) -> CheckOutput:
    """
    What the test printed on the boot's node is in the ledger; an output that cannot be read is the test's failure and is on record.
    `name` is the test, with a dot and its part where it has several; `packed` the output, gzipped. The same output again changes nothing.

    Raises: NotFound for tests that the boot does not run, Invalid for what is not gzip or too long, OutputTaken for another output of a
    test, BootSettled after the final report.
    """
    row = _known(repository.find_known(session, boot_id))
    test, _, part = name.partition(".")
    if test not in {one["name"] for one in row.burn_in}:
        raise NotFound
    raw = _unpacked(packed)
    wake(session, "nodes", [row.node_id])
    row = _known(repository.find_known(session, boot_id, lock=True))
    digest = sha256(raw).hexdigest()
    known = repository.find_output(session, boot_id, name)
    if known is not None:
        if known.digest != digest:
            raise OutputTaken("This test of this boot has sent another output.")
        return CheckOutput(name, known.figures, known.failure, row.now)
    if row.state in SETTLED:
        raise BootSettled(f"The boot is {row.state}; what comes now changes nothing.", state=row.state)
    text = hide_tokens(raw.decode("utf-8", "replace"))
    read = qualification.record_test(session, row.node_id, boot_id, cast("BurnName", test), part, text)
    failure = hide_tokens(read.failure)[:1000]
    values = {"digest": digest, "size_bytes": len(raw), "figures": read.figures, "failure": failure}
    repository.add_output(session, boot_id, name, values)
    return CheckOutput(name, read.figures, failure, row.now)


def _unpacked(packed: bytes) -> bytes:
    """
    The one whole gzip member that these bytes are. Raises Invalid.
    """
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        raw = stream.decompress(packed, LARGEST_OUTPUT_BYTES + 1)
    except zlib.error:
        raw = b""
    if len(raw) > LARGEST_OUTPUT_BYTES:
        words = f"An output has at most {LARGEST_OUTPUT_BYTES} bytes."
        raise Invalid(words, errors=[FieldError("body", "too_long", words)])
    if not stream.eof or stream.unused_data:
        raise Invalid("The body is not gzip.", errors=[FieldError("body", "invalid_gzip", "Send one whole gzip member.")])
    return raw


def take_console(session: Session, boot_id: str, data: bytes, offset: int | None) -> int:
    """
    The output is kept; where the next piece begins is returned. Raises NotFound.
    """
    _known(repository.find_known(session, boot_id))
    return append_console(session, boot_id, data, offset=offset)


def take_applied(session: Session, boot_id: str, version: int, failure: str) -> str | None:
    """
    The machine has this version of the files, but for what could not be written; the node to look at when that is new. Raises NotFound.
    """
    row = _known(repository.find_known(session, boot_id))
    failure = hide_tokens(failure)
    if (row.applied_version, row.apply_failure) == (version, failure):
        return None
    wake(session, "nodes", [row.node_id])
    _known(repository.find_known(session, boot_id, lock=True))
    repository.write_applied(session, boot_id, version, failure)
    return str(row.node_id)


def _expected(row: Row[Any]) -> Sequence[str]:
    """
    Names of the outcomes that a machine must report.
    """
    if row.purpose == "rescue":
        return ()
    return row.scripts or (own_names(row.purpose) if row.blueprint_id is None else ())


def _known(row: Row[Any] | None) -> Row[Any]:
    if row is None:
        raise NotFound
    return row


def _without_tokens(report: Report) -> Report:
    return Report(
        report.final,
        {name: hide_tokens(errors) for name, errors in report.stages.items()},
        tuple(Outcome(one.name, one.ok, one.exit_code, one.line, hide_tokens(one.output)) for one in report.outcomes),
        tuple({key: hide_tokens(str(value)) for key, value in one.items()} for one in report.checks),
    )
