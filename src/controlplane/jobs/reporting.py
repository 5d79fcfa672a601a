"""
What machines send of the output of jobs that run on them. Whoever calls has verified the machine's token already.
"""

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from controlplane.jobs import repository
from controlplane.jobs.states import ENDS, OUTPUT_CAP_BYTES, TRUNCATED
from controlplane.kit.errors import NotFound
from controlplane.kit.lifecycle import wake

TOKEN = re.compile(r"(job_[0-9a-z]{26})-([1-9][0-9]{0,5})", re.ASCII)
CUT_OFF = {"code": "output_truncated", "message": "It printed more than is kept."}


@dataclass(frozen=True, slots=True)
class Piece:
    """
    Output of an attempt, as the machine that it runs on has it.
    """

    token: str
    """`<job id>-<attempt>`."""
    offset: int
    """Where the data begins in what this machine has of the attempt, in bytes."""
    data: bytes
    """May be empty, to ask how things stand."""
    begin: bool = False
    """Whether the scheduler has begun the attempt anew on this machine, so that bytes are counted from here on; brings no data."""
    end: bool = False
    """Whether the machine has nothing behind the data; believed of attempts that are over."""


@dataclass(frozen=True, slots=True)
class Taken:
    """
    What became of a piece.
    """

    next: int
    """Offset, on that machine, of the byte to send next."""
    over: bool
    """Whether the attempt has ended, so that what is there now is all there will be."""
    closed: bool
    """Whether nothing more is wanted of this attempt."""
    job_id: str | None = None
    """The job to look at again; none where nothing follows for it."""


def take_output(session: Session, boot_id: str, piece: Piece) -> Taken:
    """
    The piece stands behind what was kept of the attempt, unless it does not follow it: then the offset that does is returned. A piece that
    comes twice is kept once. An attempt that its scheduler starts again elsewhere goes on behind what it printed before.

    Raises NotFound unless the machine is in use in the job's own cluster.
    """
    found = TOKEN.fullmatch(piece.token)
    row = repository.find_sent(session, boot_id, found[1]) if found else None
    if found is None or row is None or int(found[2]) > row.attempt:
        raise NotFound
    if int(found[2]) < row.attempt or row.state in ENDS or row.log_closed:
        return Taken(piece.offset, over=True, closed=True)
    over = bool(row.verdict)
    if row.instance_id not in row.placement:  # not seen there yet, or not any more
        return Taken(piece.offset, over=over, closed=False)
    base = row.log_base if row.log_source == row.instance_id and not piece.begin else row.log_bytes
    known = row.log_bytes - base
    if piece.offset != known:
        return Taken(known, over=over, closed=False)
    return _keep(session, row, piece, base, over=over)


def _keep(session: Session, row: Any, piece: Piece, base: int, *, over: bool) -> Taken:
    data = piece.data[: OUTPUT_CAP_BYTES - row.log_bytes]
    cut = len(data) < len(piece.data)
    stored = data + TRUNCATED if cut else data
    closed = cut or (piece.end and over)
    if stored:
        new = {"job_id": row.id, "attempt": row.attempt, "byte_offset": row.log_bytes, "tenant_id": row.tenant_id, "data": stored}
        repository.add_pieces(session, [new])
    values = {"log_bytes": row.log_bytes + len(stored), "log_source": row.instance_id, "log_base": base, "log_closed": closed}
    if values != {name: getattr(row, name) for name in values}:
        repository.note_sent(session, row.id, values, CUT_OFF if cut else None)
    if closed and over:
        wake(session, "jobs", [row.id])
    return Taken(piece.offset + len(data), over=over, closed=closed, job_id=row.id if closed and over else None)
