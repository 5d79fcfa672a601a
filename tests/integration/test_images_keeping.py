"""
What happens to contents when no request is under way: checked, and removed only when it is known that nobody needs them.
"""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from controlplane.identity import service as identity
from controlplane.images import service as images
from controlplane.images.errors import NotReady
from controlplane.images.keeping import Keeper, Reaped, reap, verify
from controlplane.images.states import IMAGE_STATES
from controlplane.images.store import Depot, LocalImageStore
from controlplane.kit.access import Principal
from controlplane.kit.db import EVERYTHING, in_transaction, raise_wall
from controlplane.kit.errors import NotFound
from controlplane.kit.ids import new_id
from controlplane.quotas import service as quotas
from controlplane.web.ranges import Chunk, Span
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree, principal_of, work
from tests.factories.images import content_of, filled_image, new_image

CONTENT = content_of(3_000_000)


@pytest.fixture
def store(tmp_path: Path) -> LocalImageStore:
    """An empty store."""
    return LocalImageStore(tmp_path)


@pytest.fixture
def tree(database: Database) -> Tree:
    """Two resellers with a tenant each."""
    return make_tree(database.engine)


@pytest.fixture
def owner(database: Database, tree: Tree) -> Principal:
    """The left tenant's owner."""
    return principal_of(database.engine, tree.left.owner_key)


def filled(database: Database, store: LocalImageStore, who: Principal, content: bytes = CONTENT, name: str = "one") -> str:
    """The id of an image whose content is here and waits to be checked."""
    return filled_image(database.engine, store, who, content, name)


def state_of(database: Database, image_id: str) -> str:
    """The row's state, deleted or not."""
    return str(work(database.engine, lambda s: s.execute(text("SELECT state FROM images WHERE id = :i"), {"i": image_id}).scalar()))


def delete(database: Database, who: Principal, image_id: str) -> None:
    """The image is deleted by its owner."""
    work(database.engine, lambda s: images.delete_image(s, who, image_id, lambda _: None), who.wall)


def test_a_check_says_what_the_store_holds(database: Database, store: LocalImageStore, owner: Principal, tmp_path: Path) -> None:
    """The declared bytes are ready; others, or fewer, are failed; each is judged once."""
    good, changed, cut = (filled(database, store, owner, name=name) for name in ("good", "changed", "cut"))
    (tmp_path / f"{changed}.image").write_bytes(content_of(len(CONTENT), "changed"))
    (tmp_path / f"{cut}.image").write_bytes(CONTENT[:-1])
    assert verify(database.engine, store) == 3
    assert [state_of(database, one) for one in (good, changed, cut)] == ["ready", "failed", "failed"]
    row = work(database.engine, lambda s: images.get_image(s, owner, cut))
    assert row.reason == f"The store holds {len(CONTENT) - 1} bytes; {len(CONTENT)} were declared."
    assert verify(database.engine, store) == 0


def test_what_cannot_be_read_now_waits(database: Database, store: LocalImageStore, owner: Principal, tmp_path: Path) -> None:
    """A content that somebody holds, that is not in this store, or whose check was cut short, is neither ready nor failed."""
    image_id = filled(database, store, owner)
    with closing(store.hold(image_id, create=False)):  # type: ignore[type-var]
        assert verify(database.engine, store) == 0
    assert verify(database.engine, LocalImageStore(tmp_path / "elsewhere")) == 0
    assert verify(database.engine, store, stopped=lambda: True) == 0
    assert state_of(database, image_id) == "verifying"
    assert verify(database.engine, store) == 1
    assert state_of(database, image_id) == "ready"


def test_an_image_deleted_while_it_is_checked_stays_deleted(database: Database, store: LocalImageStore, owner: Principal) -> None:
    """The verdict comes too late and changes nothing."""
    image_id = filled(database, store, owner)

    def meanwhile() -> bool:
        if state_of(database, image_id) == "verifying":
            delete(database, owner, image_id)
        return False

    assert verify(database.engine, store, stopped=meanwhile) == 0
    assert state_of(database, image_id) == "deleted"


def test_only_contents_of_deleted_images_go(database: Database, store: LocalImageStore, owner: Principal) -> None:
    """Of ready, failed, waiting and deleted images only the last lose theirs, and once."""
    ready, gone = filled(database, store, owner, name="ready"), filled(database, store, owner, name="gone")
    verify(database.engine, store)
    waiting = filled(database, store, owner, name="waiting")
    delete(database, owner, gone)
    assert set(store.image_ids()) == {ready, gone, waiting}
    assert reap(database.engine, store, ()) == Reaped(removed=1)
    assert reap(database.engine, store, ()) == Reaped()
    assert set(store.image_ids()) == {ready, waiting}


def test_a_content_in_use_stays(database: Database, store: LocalImageStore, owner: Principal) -> None:
    """As long as any count is above zero; a count that fails keeps everything."""
    image_id = filled(database, store, owner)
    delete(database, owner, image_id)
    users = {image_id: 2}

    def count(session: Session, asked: str) -> int:
        session.execute(text("SELECT 1"))
        return users.get(asked, 0)

    def broken(session: Session, asked: str) -> int:
        raise ConnectionError(asked)

    assert reap(database.engine, store, (lambda session, asked: 0, count)) == Reaped(used=1)
    users.clear()
    with pytest.raises(ConnectionError):
        reap(database.engine, store, (count, broken))
    assert list(store.image_ids()) == [image_id]
    assert reap(database.engine, store, (count,)) == Reaped(removed=1)


def test_an_image_is_not_deleted_while_a_deployment_is_written(
    database: Database, store: LocalImageStore, owner: Principal, tree: Tree
) -> None:
    """A delete waits for the deployment that began before it, and is counted then; after a delete none begins."""
    image_id = filled(database, store, owner)
    with pytest.raises(NotReady):
        work(database.engine, lambda s: images.use_image(s, owner, image_id), owner.wall)
    verify(database.engine, store)
    work(database.engine, lambda s: s.execute(text("UPDATE images SET visibility = 'public'")))
    other = principal_of(database.engine, tree.right.owner_key)
    with Session(database.engine) as deploying:
        raise_wall(deploying, other.wall)
        used = images.use_image(deploying, other, image_id)
        with pytest.raises(OperationalError, match="lock timeout"):
            work(database.engine, partial(delete_at_once, owner, image_id), owner.wall)
    work(database.engine, partial(delete_at_once, owner, image_id), owner.wall)
    with pytest.raises(NotFound):
        work(database.engine, lambda s: images.use_image(s, other, image_id), other.wall)
    assert work(database.engine, lambda s: images.get_deployed_content(s, image_id)) == used
    with pytest.raises(NotFound):
        work(database.engine, lambda s: images.get_deployed_content(s, new_id("img")))


def delete_at_once(who: Principal, image_id: str, session: Session) -> None:
    """The image is deleted, or the lock is not waited for."""
    session.execute(text("SET LOCAL lock_timeout = '50ms'"))
    images.delete_image(session, who, image_id, lambda _: None)


def test_a_content_that_the_database_does_not_know_stays(
    database: Database, store: LocalImageStore, owner: Principal, caplog: pytest.LogCaptureFixture
) -> None:
    """After the wrong database was restored nothing is lost: it is told, and left alone; so is a content that somebody holds."""
    strange = new_id("img")
    with closing(store.hold(strange, create=True)) as held:  # type: ignore[type-var]
        assert held is not None
        held.write(0, b"x")
    gone = filled(database, store, owner)
    delete(database, owner, gone)
    with closing(store.hold(gone, create=False)), caplog.at_level(logging.ERROR):  # type: ignore[type-var]
        assert reap(database.engine, store, ()) == Reaped(strange=1)
    assert "unknown images" in caplog.text
    assert reap(database.engine, store, ()) == Reaped(removed=1, strange=1)
    assert list(store.image_ids()) == [strange]


def test_images_of_a_deleted_tenant_go(database: Database, store: LocalImageStore, tree: Tree, owner: Principal) -> None:
    """Their bytes are given back and their contents removed, without anybody asking."""
    image_id = filled(database, store, owner)
    seller = principal_of(database.engine, tree.left.reseller_key)
    work(database.engine, lambda s: identity.delete_tenant(s, seller, tree.left.tenant_id, lambda _: None), seller.wall)
    assert reap(database.engine, store, ()) == Reaped(removed=1)
    assert state_of(database, image_id) == "deleted"
    found = in_transaction(database.engine, EVERYTHING, lambda s: quotas.recount(s, list(images.held_bytes(s))))
    assert [one for one in found if one.resource == "image_bytes"] == []


def test_a_writer_that_comes_late_changes_nothing(database: Database, store: LocalImageStore, owner: Principal) -> None:
    """Whoever began a chunk before the image was deleted finds it gone when the chunk shall count."""
    depot, chunk = Depot(store, 10**9, 10**9), Chunk(Span(0, 10), 10)
    row = work(database.engine, lambda s: images.create_image(s, owner, new_image(b"x" * 10, "late"), max_image_bytes=100))
    with closing(work(database.engine, lambda s: images.begin_chunk(s, owner, row.id, chunk, depot), owner.wall)) as sink:
        delete(database, owner, row.id)
        assert reap(database.engine, store, ()) == Reaped()
        sink.write(b"x" * 10)
        sink.settle()
        with pytest.raises(NotFound):
            work(database.engine, lambda s: images.store_chunk(s, owner, row.id, chunk), owner.wall)
    assert reap(database.engine, store, ()) == Reaped(removed=1)


def test_the_keeper_works_by_itself(database: Database, store: LocalImageStore, owner: Principal) -> None:
    """Started, it finds what waits; woken, it looks at once; stopped, its thread has ended."""
    image_id = filled(database, store, owner)
    keeper = Keeper(database.engine, store, ())
    keeper.start()
    try:
        for _ in range(2000):
            keeper.wake()
            if state_of(database, image_id) == "ready":
                break
    finally:
        keeper.stop()
    assert state_of(database, image_id) == "ready"
    Keeper(database.engine, store, ()).stop()


def spoil(change: str, image_id: str, session: Session) -> None:
    """The row is changed past the code."""
    session.execute(text(f"UPDATE images SET {change} WHERE id = :i"), {"i": image_id})


def test_the_database_refuses_what_the_code_must_not_do(database: Database, store: LocalImageStore, owner: Principal) -> None:
    """No image is ready without its digest, no state is skipped, and another tenant's session changes no public image."""
    image_id = filled(database, store, owner)
    for change in ("state = 'ready'", "state = 'uploading'", "received_bytes = size_bytes + 1", "actual_sha256 = 'x'"):
        with pytest.raises(Exception, match=r"ck_images_|legal_move|may not move"):
            work(database.engine, partial(spoil, change, image_id))
    verify(database.engine, store)
    work(database.engine, lambda s: s.execute(text("UPDATE images SET visibility = 'public'")))
    stranger = Principal("prn_x", "key_x", "tenant", "ten_x", frozenset(), "rsl_x", "ten_x")
    count = text("UPDATE images SET name = 'mine' RETURNING id")
    seen = text("SELECT id FROM images")
    assert work(database.engine, lambda s: s.execute(seen).scalars().all(), stranger.wall) == [image_id]
    assert work(database.engine, lambda s: s.execute(count).scalars().all(), stranger.wall) == []
    assert set(IMAGE_STATES.names()) == {"uploading", "verifying", "ready", "failed", "deleted"}
