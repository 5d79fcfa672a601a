"""
Every statement on blueprints, boots and consoles.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, select, text
from sqlalchemy.orm import Session

from controlplane.boots.models import BlueprintRow, BootRow
from controlplane.kit.db import Errand
from controlplane.kit.paging import Page, PageAsk, fetch_page

KNOWN = "b.state <> 'ended' AND (b.state = 'ready' OR b.expires_at > cp_clock())"
"""A boot that its machine may still speak of; every other one is answered like one that never was."""
COLUMNS = """
b.id, b.node_id, b.tenant_id, b.purpose, b.state, b.facts, host(b.address) AS address, b.stages, b.phoned_at, b.blueprint_id,
b.console_bytes, b.console_pieces, b.applied_version, b.apply_failure, b.burn_in, cp_clock() AS now
"""


def add_blueprint(session: Session, values: Mapping[str, Any]) -> None:
    """
    The blueprint is there.
    """
    session.add(BlueprintRow(**values))
    session.flush()


def lock_blueprint(session: Session, blueprint_id: str) -> BlueprintRow | None:
    """
    The blueprint, held until the transaction ends; None when there is none.
    """
    query = select(BlueprintRow).where(BlueprintRow.id == blueprint_id).execution_options(populate_existing=True)
    return session.scalars(query.with_for_update()).one_or_none()


END_OF_NODES = text(
    "UPDATE boots SET state = 'ended', ended_at = cp_clock() WHERE node_id IN :nodes AND state <> 'ended'"
).bindparams(bindparam("nodes", expanding=True))
ADD = text(
    """
    INSERT INTO boots (id, node_id, allocation_id, tenant_id, blueprint_id, purpose, facts, address, burn_in, image_id, expires_at)
    SELECT n.id, n.node_id, n.allocation_id, n.tenant_id, n.blueprint_id, n.purpose, n.facts, CAST(n.address AS inet), n.burn_in,
      n.image_id, cp_clock() + make_interval(secs => n.within_s)
    FROM jsonb_to_recordset(CAST(:boots AS jsonb)) AS n(id text, node_id text, allocation_id text, tenant_id text, blueprint_id text,
      purpose text, facts jsonb, address text, burn_in jsonb, image_id text, within_s double precision)
    LEFT JOIN blueprints p ON p.id = n.blueprint_id
    WHERE n.blueprint_id IS NULL OR (p.id IS NOT NULL AND (p.tenant_id IS NULL OR p.tenant_id = n.tenant_id))
    RETURNING id
    """
)


def replace_boots(session: Session, node_ids: Sequence[str], boots: Sequence[Mapping[str, Any]]) -> set[str]:
    """
    These are the only open boots of the nodes; earlier ones have ended. Two statements, however many. The ids that are stored are
    returned: a boot by a blueprint of another tenant is not.
    """
    session.execute(END_OF_NODES, {"nodes": sorted(set(node_ids))})
    return set(session.execute(ADD, {"boots": json.dumps(list(boots))}).scalars())


END = text("UPDATE boots SET state = 'ended', ended_at = cp_clock() WHERE id IN :ids AND state <> 'ended'").bindparams(
    bindparam("ids", expanding=True)
)


def end(session: Session, boot_ids: Sequence[str]) -> None:
    """
    The boots have ended.
    """
    session.execute(END, {"ids": sorted(set(boot_ids))})


LAST_GOOD = text(
    """
    SELECT id FROM boots WHERE node_id = :node AND allocation_id = :allocation AND purpose = 'deploy' AND ready_at IS NOT NULL
    ORDER BY id DESC LIMIT 1
    """
)
END_OTHERS = text(
    "UPDATE boots SET state = 'ended', ended_at = cp_clock() WHERE node_id = :node AND state <> 'ended' AND id <> :id"
)
REOPEN = text("UPDATE boots SET state = 'ready', ended_at = NULL WHERE id = :id")


def reopen_last_good(session: Session, node_id: str, allocation_id: str) -> str | None:
    """
    The allocation's last deployment that reported good is the node's one open boot, ready; its id, or None where there was none.
    """
    found: str | None = session.execute(LAST_GOOD, {"node": node_id, "allocation": allocation_id}).scalar_one_or_none()
    if found is not None:
        session.execute(END_OTHERS, {"node": node_id, "id": found})
        session.execute(REOPEN, {"id": found})
    return found


VIEWS = """
SELECT b.id, b.node_id, b.purpose, b.state, b.stages, b.failure_code, b.failure, b.checks, b.created_at, b.expires_at, b.fetched_at,
  b.phoned_at, b.ready_at, b.ended_at, b.host_keys, b.applied_version, b.apply_failure, b.allocation_id, b.tenant_id,
  b.console_bytes, b.burn_in, b.image_id, i.arch, i.size_bytes, i.sha256, i.format, coalesce(p.version, 0) AS version,
  coalesce((SELECT jsonb_agg(jsonb_build_object('name', o.name, 'figures', o.figures, 'failure', o.failure, 'at', o.at) ORDER BY o.name)
    FROM boot_outputs o WHERE o.boot_id = b.id), '[]'::jsonb) AS outputs,
  b.state IN ('made', 'fetched', 'reporting') AND b.expires_at <= cp_clock() AS late
FROM boots b LEFT JOIN blueprints p ON p.id = b.blueprint_id LEFT JOIN images i ON i.id = b.image_id
"""
VIEWS_BY_ID = text(f"{VIEWS} WHERE b.id IN :ids").bindparams(bindparam("ids", expanding=True))


def read_views(session: Session, boot_ids: Sequence[str]) -> Sequence[Row[Any]]:
    """
    The boots as steps and operators see them.
    """
    return session.execute(VIEWS_BY_ID, {"ids": sorted(set(boot_ids))}).all() if boot_ids else ()


VIEWS_BY_ALLOCATION = text(f"{VIEWS} WHERE b.allocation_id = ANY(:ids) AND b.purpose = 'deploy' AND b.state <> 'ended'")


def read_views_of(session: Session, allocation_ids: Sequence[str]) -> Sequence[Row[Any]]:
    """
    The open boots by which these allocations were deployed.
    """
    return session.execute(VIEWS_BY_ALLOCATION, {"ids": sorted(set(allocation_ids))}).all() if allocation_ids else ()


PLAIN = text("SELECT id, files FROM blueprints WHERE id = ANY(:ids)")


def read_plain_files(session: Session, blueprint_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """
    The plain files of the blueprints, by id.
    """
    return {row.id: row.files for row in session.execute(PLAIN, {"ids": sorted(set(blueprint_ids))})}


def page_of_node(session: Session, node_id: str, ask: PageAsk) -> Page[str]:
    """
    A page of the ids of the node's boots, oldest first.
    """
    return fetch_page(session, select(BootRow.id).where(BootRow.node_id == node_id), BootRow.id.expression, ask)


TENANTS = ("deploy", "rescue", "install")
"""Purposes of boots that run for the tenant of an allocation."""


def page_of_allocation(session: Session, allocation_id: str, ask: PageAsk) -> Page[str]:
    """
    A page of the ids of the boots that ran for the tenant of the allocation, oldest first.
    """
    mine = select(BootRow.id).where(BootRow.allocation_id == allocation_id, BootRow.purpose.in_(TENANTS))
    return fetch_page(session, mine, BootRow.id.expression, ask)


def last_of_allocation(session: Session, allocation_id: str, boot_id: str | None) -> str | None:
    """
    The id of the boot when it ran for the tenant of the allocation, or of the last one that did; None where there is none.
    """
    mine = select(BootRow.id).where(BootRow.allocation_id == allocation_id, BootRow.purpose.in_(TENANTS))
    if boot_id is not None:
        mine = mine.where(BootRow.id == boot_id)
    return session.execute(mine.order_by(BootRow.id.desc()).limit(1)).scalar_one_or_none()


def node_exists(session: Session, node_id: str) -> bool:
    """
    Whether there is such a node.
    """
    return session.execute(text("SELECT 1 FROM nodes WHERE id = :id"), {"id": node_id}).first() is not None


BRIEF = text(
    f"SELECT {COLUMNS}, p.scripts FROM boots b LEFT JOIN blueprints p ON p.id = b.blueprint_id WHERE b.id = :id AND {KNOWN}"
)
LOCKED = text(f"{BRIEF.text} FOR UPDATE OF b")
WHOLE = text(
    f"""
    SELECT {COLUMNS}, p.sealed, p.files, p.version, i.arch, i.size_bytes, i.sha256
    FROM boots b LEFT JOIN blueprints p ON p.id = b.blueprint_id LEFT JOIN images i ON i.id = b.image_id
    WHERE b.id = :id AND {KNOWN}
    """
)
AT_ADDRESS = text(f"SELECT b.id FROM boots b WHERE b.address = CAST(:address AS inet) AND {KNOWN} LIMIT 2")
FILES = text(
    f"""
    SELECT p.version, CASE WHEN p.version IS DISTINCT FROM :known THEN p.files END AS files
    FROM boots b JOIN blueprints p ON p.id = b.blueprint_id WHERE b.id = :id AND {KNOWN}
    """
)

INSTALLS = f"""
    (b.purpose = 'install' OR b.purpose = 'deploy' AND EXISTS (SELECT 1 FROM nodes n WHERE n.id = b.node_id AND n.access = '{{}}'))
    AND b.state NOT IN ('ready', 'failed') AND {KNOWN}
"""
"""A boot for which its image is written now: by the boot itself, or by the provider where that owns the machine's life."""
IMAGE = text(
    f"""
    SELECT i.id AS image_id, i.size_bytes, i.sha256 FROM boots b JOIN images i ON i.id = b.image_id
    WHERE b.id = :id AND i.actual_sha256 = i.sha256 AND {INSTALLS}
    """
)
READERS = text(f"SELECT count(*) FROM boots b WHERE b.image_id = :image AND {INSTALLS}")

BRIEF_ERRAND, WHOLE_ERRAND, FILES_ERRAND = Errand.of(BRIEF), Errand.of(WHOLE), Errand.of(FILES)
IMAGE_ERRAND = Errand.of(IMAGE)


def count_readers(session: Session, image_id: str) -> int:
    """
    How many machines may still read the image's content.
    """
    return int(session.execute(READERS, {"image": image_id}).scalar_one())


def find_known(session: Session, boot_id: str, *, lock: bool = False) -> Row[Any] | None:
    """
    The boot, with the names of what it must report, while its machine may speak of it; None otherwise.
    """
    return session.execute(LOCKED if lock else BRIEF, {"id": boot_id}).one_or_none()


def find_whole(session: Session, boot_id: str) -> Row[Any] | None:
    """
    The boot with its blueprint's content, while its machine may ask for it; None otherwise.
    """
    return session.execute(WHOLE, {"id": boot_id}).one_or_none()


def ids_at(session: Session, address: str) -> list[str]:
    """
    The open boots at the address, two at most.
    """
    return list(session.execute(AT_ADDRESS, {"address": address}).scalars())


FETCHED = text("UPDATE boots SET state = 'fetched', fetched_at = cp_clock() WHERE id = :id AND state = 'made' RETURNING id")
FETCHED_ERRAND = Errand.of(FETCHED)
PHONED = text(
    f"""
    UPDATE boots b SET phoned_at = cp_clock(), host_keys = CAST(:keys AS jsonb) WHERE b.id = :id AND b.phoned_at IS NULL AND {KNOWN}
    RETURNING b.id
    """
)
REPORTED = text(
    """
    UPDATE boots SET state = :state, stages = CAST(:stages AS jsonb), checks = CAST(:checks AS jsonb), failure_code = :code,
      failure = :failure, ready_at = CASE WHEN :state = 'ready' THEN cp_clock() END
    WHERE id = :id
    """
)
APPLIED = text("UPDATE boots SET applied_version = :version, apply_failure = :failure, applied_at = cp_clock() WHERE id = :id")


def mark_fetched(session: Session, boot_id: str) -> None:
    """
    The user-data was taken; only the first time counts.
    """
    session.execute(FETCHED, {"id": boot_id})


def mark_phoned(session: Session, boot_id: str, host_keys: Mapping[str, str]) -> bool:
    """
    Whether the machine, which may speak of the boot still, has phoned home for the first time.
    """
    return session.execute(PHONED, {"id": boot_id, "keys": json.dumps(dict(host_keys))}).one_or_none() is not None


def write_report(session: Session, boot_id: str, values: Mapping[str, Any]) -> None:
    """
    State, stages, checks and failure are these.
    """
    told = {**values, "stages": json.dumps(values["stages"]), "checks": json.dumps(values["checks"])}
    session.execute(REPORTED, {"id": boot_id, **told})


def write_applied(session: Session, boot_id: str, version: int, failure: str) -> None:
    """
    The machine has this version of the files.
    """
    session.execute(APPLIED, {"id": boot_id, "version": version, "failure": failure})


OUTPUT = text("SELECT digest, figures, failure FROM boot_outputs WHERE boot_id = :id AND name = :name")
ADD_OUTPUT = text(
    """
    INSERT INTO boot_outputs (boot_id, name, digest, size_bytes, figures, failure)
    VALUES (:id, :name, :digest, :size_bytes, :figures, :failure)
    """
)


def find_output(session: Session, boot_id: str, name: str) -> Row[Any] | None:
    """
    (digest, figures, failure) of the boot's output by this name; None when none came.
    """
    return session.execute(OUTPUT, {"id": boot_id, "name": name}).one_or_none()


def add_output(session: Session, boot_id: str, name: str, values: Mapping[str, Any]) -> None:
    """
    What became of the output is on record.
    """
    session.execute(ADD_OUTPUT, {"id": boot_id, "name": name, **values})


ADD_PIECE = text(
    """
    INSERT INTO boot_console (boot_id, piece, byte_offset, tenant_id, data) VALUES (:boot_id, :piece, :offset, :tenant_id, :data)
    """
)
COUNT_PIECE = text("UPDATE boots SET console_bytes = :bytes, console_pieces = :piece WHERE id = :boot_id")
DROP_PIECES = text(
    """
    DELETE FROM boot_console
    WHERE boot_id = :boot_id AND (piece <= :piece - :pieces OR byte_offset + octet_length(data) <= :bytes - :kept)
    """
)
READ_PIECES = text(
    """
    SELECT byte_offset, data FROM boot_console WHERE boot_id = :boot_id AND byte_offset + octet_length(data) > :after
    ORDER BY piece LIMIT :pieces
    """
)
LOCK_CONSOLE = text("SELECT console_bytes, console_pieces, tenant_id FROM boots WHERE id = :boot_id FOR UPDATE")


def lock_console(session: Session, boot_id: str) -> Row[Any] | None:
    """
    (console_bytes, console_pieces, tenant_id) of the boot, held until the transaction ends; None when there is none.
    """
    return session.execute(LOCK_CONSOLE, {"boot_id": boot_id}).one_or_none()


def add_piece(session: Session, boot_id: str, row: Row[Any], data: bytes, *, most_bytes: int, most_pieces: int) -> int:
    """
    The piece stands behind all others, and the oldest beyond the limits are gone; the number of bytes in all is returned.
    """
    total, piece = int(row.console_bytes) + len(data), int(row.console_pieces) + 1
    added = {"boot_id": boot_id, "piece": piece, "offset": row.console_bytes, "tenant_id": row.tenant_id, "data": data}
    session.execute(ADD_PIECE, added)
    session.execute(COUNT_PIECE, {"boot_id": boot_id, "piece": piece, "bytes": total})
    session.execute(DROP_PIECES, {"boot_id": boot_id, "piece": piece, "pieces": most_pieces, "bytes": total, "kept": most_bytes})
    return total


def read_pieces(session: Session, boot_id: str, after: int, pieces: int) -> Sequence[Row[Any]]:
    """
    (byte_offset, data) of pieces that reach beyond the offset, in order.
    """
    return session.execute(READ_PIECES, {"boot_id": boot_id, "after": after, "pieces": pieces}).all()
