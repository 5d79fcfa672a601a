"""
What happens to contents when no request is under way: they are checked, and those of deleted images are removed.

Whoever holds a content works on it; a process that dies lets go of it, and another one goes on. The store is on the machines that serve
the API, so this runs there, in a thread of its own: reading a terabyte never keeps a request waiting.
"""

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Event as Flag
from threading import Thread

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from controlplane.images import repository, service
from controlplane.images.errors import ContentHeld, StoreFailed
from controlplane.images.forms import HEAD_BYTES, objection
from controlplane.images.models import ImageRow
from controlplane.images.store import PIECE_BYTES, Held, ImageStore
from controlplane.kit.db import EVERYTHING, in_transaction

log = logging.getLogger(__name__)
BATCH = 100
LOOK_EVERY_S = 5.0
REAP_EVERY_S = 60.0
STOP_GRACE_S = 10.0

CountUses = Callable[[Session, str], int]
"""How many deployments of one kind read, or may yet read, the content of an image. Runs in a transaction that sees everything."""


def never() -> bool:
    """
    Nobody asks for an early end.
    """
    return False


def verify(engine: Engine, store: ImageStore, *, stopped: Callable[[], bool] = never) -> int:
    """
    Contents that waited have been checked, and their images are ready or failed; their number is returned. What somebody else holds,
    and what the store does not give now, waits on. May take as long as the store needs to be read.
    """
    done = 0
    for row in in_transaction(engine, EVERYTHING, lambda session: repository.verifying(session, BATCH)):
        try:
            held = store.hold(row.id, create=False)
            if held is None:
                log.error("the content of an image is not in this store", extra={"image_id": row.id})
                continue
            with contextlib.closing(held):
                done += _judge(engine, row, held, stopped)
        except ContentHeld:
            continue
        except StoreFailed as error:
            log.warning("a content cannot be checked now", extra={"image_id": row.id, "code": error.code})
    return done


def _judge(engine: Engine, row: ImageRow, held: Held, stopped: Callable[[], bool]) -> int:
    found = _digest(held, stopped)
    if found is None:
        return 0
    actual_bytes, actual = found
    wrong_form = objection(row.format, held.read(0, HEAD_BYTES))
    if actual_bytes != row.size_bytes:
        after, reason = "failed", f"The store holds {actual_bytes} bytes; {row.size_bytes} were declared."
    elif actual != row.sha256:
        after, reason = "failed", f"The content's SHA-256 is {actual}; {row.sha256} was declared."
    elif wrong_form:
        after, reason = "failed", f"{wrong_form} {row.format} was declared."
    else:
        after, reason = "ready", "The content's SHA-256 is the declared one."
    return in_transaction(engine, EVERYTHING, lambda session: _settle(session, row.id, after, reason, actual))


def _settle(session: Session, image_id: str, after: str, reason: str, actual: str) -> int:
    row = repository.move(session, image_id, ("verifying",), after, reason, actual_sha256=actual)
    if row is None:
        return 0
    service.tell(session, row, "verifying")
    return 1


def _digest(held: Held, stopped: Callable[[], bool]) -> tuple[int, str] | None:
    """
    Size and digest of what the store really holds, read from it anew; None when told to stop.
    """
    digest, at = hashlib.sha256(), 0
    while piece := held.read(at, PIECE_BYTES):
        if stopped():
            return None
        digest.update(piece)
        at += len(piece)
    return at, digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Reaped:
    """
    What a look for contents that nobody needs has found.
    """

    removed: int = 0
    """Contents that are gone now."""
    used: int = 0
    """Contents of deleted images that something still reads."""
    strange: int = 0
    """Contents of images that the database does not know: left alone."""


def reap(engine: Engine, store: ImageStore, uses: Sequence[CountUses]) -> Reaped:
    """
    Images of deleted tenants are deleted, and contents of deleted images are gone, but for those that something reads. A content
    goes only when the database says that its image is deleted and every count says zero: a content without a row (a restored
    database, a store of another installation) stays, and so does one whose count fails.
    """
    in_transaction(engine, EVERYTHING, _bury_orphans)
    removed = used = strange = 0
    waiting = store.image_ids()
    while image_ids := tuple(islice(waiting, BATCH)):
        states, needed = in_transaction(engine, EVERYTHING, lambda session, ids=image_ids: _look(session, ids, uses))  # type: ignore[misc]
        for image_id in image_ids:
            if image_id not in states:
                strange += 1
            elif image_id in needed:
                used += 1
            elif states[image_id] == "deleted":
                removed += _removed(store, image_id)
    if strange:
        log.error("contents of unknown images lie in the store; they are left alone", extra={"count": strange})
    return Reaped(removed, used, strange)


def _bury_orphans(session: Session) -> None:
    for image_id in repository.of_deleted_tenants(session, BATCH):
        service.bury(session, image_id, "Its tenant was deleted.")


def _look(session: Session, image_ids: Iterable[str], uses: Sequence[CountUses]) -> tuple[dict[str, str], set[str]]:
    states = repository.states_of(session, tuple(image_ids))
    deleted = [image_id for image_id, state in states.items() if state == "deleted"]
    return states, {image_id for image_id in deleted if in_use(session, image_id, uses)}


def in_use(session: Session, image_id: str, uses: Sequence[CountUses]) -> bool:
    """
    Whether anything reads the image's content, or may yet. Without counts nothing does.
    """
    return any(count(session, image_id) > 0 for count in uses)


def _removed(store: ImageStore, image_id: str) -> bool:
    try:
        return store.remove(image_id)
    except ContentHeld:
        return False
    except StoreFailed as error:
        log.warning("a content cannot be removed now", extra={"image_id": image_id, "code": error.code})
        return False


class Keeper:
    """
    The thread that checks and removes contents for one API process.
    """

    def __init__(self, engine: Engine, store: ImageStore, uses: Sequence[CountUses]) -> None:
        self._engine = engine
        self._store = store
        self._uses = tuple(uses)
        self._told = Flag()
        self._stopping = Flag()
        self._thread = Thread(target=self._run, name="images", daemon=True)

    def start(self) -> None:
        """
        The thread runs until `stop`.
        """
        self._thread.start()

    def wake(self) -> None:
        """
        It looks at once, or as soon as what it does is done.
        """
        self._told.set()

    def stop(self) -> None:
        """
        The thread has ended; a check under way is begun anew by whoever comes next.
        """
        self._stopping.set()
        self._told.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_GRACE_S)

    def _run(self) -> None:
        reap_at = time.monotonic()
        while not self._stopping.is_set():
            try:
                verify(self._engine, self._store, stopped=self._stopping.is_set)
                if time.monotonic() >= reap_at:
                    reap(self._engine, self._store, self._uses)
                    reap_at = time.monotonic() + REAP_EVERY_S
            except (DBAPIError, PoolTimeout) as error:
                log.warning("images wait for the database", extra={"kind": type(error).__name__})
            except Exception:
                log.exception("images could not be looked after")
            self._told.wait(LOOK_EVERY_S)
            self._told.clear()
