"""
Contents on their way in: chunk by chunk, again and again, by several at once, broken off, and never a byte that does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.images.store import LocalImageStore
from controlplane.kit.ids import new_id
from controlplane.web.transfers import TransferTempo
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.images import OCTETS, chunk_headers, content_of, declared, pieces, send_chunk, settled
from tests.factories.serving import Served, serving

PATH = "/v1/images"
LARGEST_CHUNK = 100_000
ACCIDENTS = ("again", "early", "short", "long", "written", "elsewhere")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where contents lie."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def tree(migrated: Database) -> Tree:
    """Two resellers with a tenant each."""
    migrated.reset()
    return make_tree(migrated.engine)


@pytest.fixture(scope="module")
def served(migrated: Database, tree: Tree, folder: Path) -> Iterator[Served]:
    """The application with small chunks."""
    del tree
    with serving(migrated, image_dir=folder, max_image_chunk_bytes=LARGEST_CHUNK) as one:
        one.app.state.transfer_tempo = TransferTempo(idle_s=0.1)
        yield one


@pytest.fixture(scope="module")
def owner(served: Served, tree: Tree) -> Iterator[httpx.Client]:
    """The left tenant's owner."""
    with served.client(tree.left.owner_key) as client:
        yield client


def make(client: httpx.Client, content: bytes, **more: Any) -> str:
    """The path of a new image that waits for this content."""
    made = client.post(PATH, json=declared(content, f"i-{new_id('img')[-20:]}", **more)).raise_for_status()
    return str(made.headers["location"])


def received(client: httpx.Client, path: str) -> int:
    """How much of the content counts."""
    return int(client.head(path).headers["upload-offset"])


def suffer(accident: str, client: httpx.Client, path: str, content: bytes, start: int, end: int, folder: Path) -> None:
    """Something that goes wrong before the chunk `[start, end)` is sent as it should be; none of it counts."""
    total = len(content)
    if accident == "again" and start:
        answer = send_chunk(client, path, content, 0, start)
        assert (answer.status_code, answer.json()["expected_offset"]) == (409, start)
    elif accident == "early" and end < total:
        answer = send_chunk(client, path, content, end, total)
        assert (answer.status_code, answer.json()["code"], answer.json()["expected_offset"]) == (409, "wrong_offset", start)
    elif accident == "short":
        answer = client.put(f"{path}/content", content=content[start : end - 1], headers=chunk_headers(start, end, total))
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "body_too_short")
    elif accident == "long":
        answer = client.put(f"{path}/content", content=content[start:end] + b"!", headers=chunk_headers(start, end, total))
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "body_too_long")
    elif accident == "written":  # a process that died after the bytes were written and before the row knew of them
        with closing(LocalImageStore(folder).hold(path.rpartition("/")[2], create=True)) as held:  # type: ignore[type-var]
            assert held is not None
            held.write(start, b"\xee" * (total - start))
    elif accident == "elsewhere":
        answer = client.put(f"{path}/content", content=content[start:end], headers=chunk_headers(start, end, total + 1))
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "wrong_total")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(2, 5000),
    cuts=st.lists(st.integers(1, 5000), max_size=3),
    accidents=st.lists(st.sampled_from(ACCIDENTS), max_size=6),
    seed=st.integers(0, 9),
)
def test_any_split_with_any_accidents_gives_the_same_bytes(
    owner: httpx.Client, folder: Path, size: int, cuts: list[int], accidents: list[str], seed: int
) -> None:
    """However it is cut, whatever is repeated, sent too early, broken off or lost: the content is what was declared."""
    content = content_of(size, str(seed))
    path = make(owner, content)
    waiting = list(accidents)
    for start, end in pieces(content, cuts):
        while waiting:
            suffer(waiting.pop(), owner, path, content, start, end, folder)
            if len(waiting) % 3 == 0:
                break
        answer = send_chunk(owner, path, content, start, end)
        assert (answer.status_code, answer.json()["status"]["received_bytes"], answer.headers["upload-offset"]) == (
            200,
            end,
            str(end),
        )
    assert settled(owner, path)["status"]["state"] == "ready"
    assert owner.get(f"{path}/content").content == content


def test_another_content_is_never_ready(owner: httpx.Client) -> None:
    """Both digests are named; nothing is served, and nothing more is taken."""
    content, wrong = content_of(3000), content_of(3000, "wrong")
    path = make(owner, content)
    assert send_chunk(owner, path, wrong, 0, 3000).status_code == 200
    status = settled(owner, path)["status"]
    assert (status["state"], status["actual_sha256"]) == ("failed", hashlib.sha256(wrong).hexdigest())
    assert status["issues"][0]["code"] == "content_mismatch"
    for digest in (hashlib.sha256(wrong).hexdigest(), hashlib.sha256(content).hexdigest()):
        assert digest in status["reason"]
    assert owner.get(f"{path}/content").json()["code"] == "image_not_ready"
    again = send_chunk(owner, path, content, 0, 3000)
    assert (again.status_code, again.json()["code"], again.json()["state"]) == (409, "not_uploading", "failed")


def test_a_content_of_another_format_is_never_ready(owner: httpx.Client) -> None:
    """The declared bytes, but a QEMU disk and not a disk as it is: what it is, is told, and it is not for machines."""
    content = b"QFI\xfb" + content_of(3000)
    path = make(owner, content)
    assert send_chunk(owner, path, content, 0, len(content)).status_code == 200
    status = settled(owner, path)["status"]
    assert (status["state"], status["issues"][0]["code"]) == ("failed", "format_mismatch")
    assert status["reason"] == "The content is a QEMU disk (qcow2), not a disk as it is. raw was declared."
    assert owner.get(f"{path}/content").json()["code"] == "image_not_ready"


def test_what_is_ready_is_never_written_again(owner: httpx.Client) -> None:
    """A chunk for a complete image is refused, and its bytes stay."""
    content = content_of(3000)
    path = make(owner, content)
    send_chunk(owner, path, content, 0, 3000).raise_for_status()
    assert settled(owner, path)["status"]["state"] == "ready"
    for start, end in ((0, 3000), (2999, 3000)):
        assert send_chunk(owner, path, content_of(3000, "late"), start, end).json()["code"] == "not_uploading"
    assert owner.get(f"{path}/content").content == content


def test_one_sends_at_a_time(owner: httpx.Client, folder: Path) -> None:
    """While somebody else holds the content the answer is 409 and says to come again."""
    content = content_of(100)
    path = make(owner, content)
    with closing(LocalImageStore(folder).hold(path.rpartition("/")[2], create=True)):  # type: ignore[type-var]
        answer = send_chunk(owner, path, content, 0, 100)
    assert (answer.status_code, answer.json()["code"], answer.json()["retry"]["retryable"]) == (409, "content_busy", True)
    assert send_chunk(owner, path, content, 0, 100).status_code == 200


def test_of_many_who_send_the_same_place_one_counts(served: Served, owner: httpx.Client, tree: Tree) -> None:
    """Each chunk is taken once, from whoever came first, and the others are told where to go on; the bytes are of one sender."""
    contents = [content_of(8000, str(number)) for number in range(4)]

    def race(number: int) -> list[int]:
        with served.client(tree.left.owner_key) as client:
            return [send_chunk(client, path, contents[number], at, at + 4000).status_code for at in (0, 4000)]

    for _ in range(2):
        path = make(owner, contents[0])
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(race, range(4)))
        halves = [[number for number in range(4) if answers[number][half] == 200] for half in (0, 1)]
        assert [len(one) for one in halves] == [1, 1]
        assert {status for one in answers for status in one} <= {200, 409}
        mixed = contents[halves[0][0]][:4000] + contents[halves[1][0]][4000:]
        status = settled(owner, path)["status"]
        assert status["actual_sha256"] == hashlib.sha256(mixed).hexdigest()
        assert (status["state"] == "ready") is (mixed == contents[0])


def test_a_delete_ends_an_upload(owner: httpx.Client, folder: Path) -> None:
    """The next chunk finds no image."""
    content = content_of(100)
    path = make(owner, content)
    send_chunk(owner, path, content, 0, 50).raise_for_status()
    owner.delete(path, headers={"If-Match": "*"}).raise_for_status()
    assert send_chunk(owner, path, content, 50, 100).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        (OCTETS, 422, "missing"),
        ({**OCTETS, "Content-Range": "bytes 0-9"}, 422, "invalid_range"),
        ({**OCTETS, "Content-Range": "bytes 0-9/10"}, 422, "wrong_total"),
        ({**OCTETS, "Content-Range": f"bytes 0-{LARGEST_CHUNK}/200000"}, 413, "too_large"),
    ],
)
def test_a_place_that_cannot_be_is_refused(owner: httpx.Client, headers: dict[str, str], status: int, code: str) -> None:
    """Without a place, with another total, or larger than a chunk may be: named, and nothing counts."""
    path = make(owner, content_of(200_000))
    answer = owner.put(f"{path}/content", content=b"0123456789", headers=headers)
    told = answer.json()
    assert (answer.status_code, told["errors"][0]["code"] if told["errors"] else told["code"]) == (status, code)
    assert received(owner, path) == 0


def heard(send: Callable[[], httpx.Response]) -> httpx.Response:
    """
    The answer. A body that is refused unread ends the line, and who is still sending may see that first: such a client asks again.
    """
    for _ in range(20):
        try:
            return send()
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            continue
    raise AssertionError("the answer never came")


def test_other_bodies_are_refused(owner: httpx.Client) -> None:
    """Only bytes as they are, and not more than a chunk may hold."""
    content = content_of(200_000)
    path = make(owner, content)
    json_ = {"Content-Type": "application/json", "Content-Range": "bytes 0-1/200000"}
    assert heard(lambda: owner.put(f"{path}/content", content=b"{}", headers=json_)).status_code == 415
    assert heard(lambda: send_chunk(owner, path, content, 0, 200_000)).status_code == 413
    range_ = chunk_headers(0, 100_000, 200_000)
    unsized = heard(lambda: owner.put(f"{path}/content", content=iter([content[:50_000]] * 3), headers=range_))
    assert (unsized.status_code, unsized.json()["errors"][0]["code"]) == (422, "body_too_long")
    assert received(owner, path) == 0
    sized = owner.put(
        f"{path}/content", content=iter([content[:50_000], content[50_000:100_000]]), headers=chunk_headers(0, 100_000, 200_000)
    )
    assert (sized.status_code, received(owner, path)) == (200, 100_000)


@pytest.mark.parametrize("key", ["", "cpk_tn_nothing"])
def test_nobody_sends_unknown(served: Served, owner: httpx.Client, key: str) -> None:
    """Without an accepted credential no byte is written."""
    path = make(owner, content_of(100))
    with served.client(key) as stranger:
        assert send_chunk(stranger, path, content_of(100), 0, 100).status_code == 401
    assert received(owner, path) == 0


def raw(path: str, key: str, body: bytes, length: int) -> bytes:
    """A request that promises so many bytes and sends these."""
    lines = [f"PUT {path}/content HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {length}"]
    lines += ["Content-Type: application/octet-stream", f"Content-Range: bytes 0-{length - 1}/{length}", "", ""]
    return "\r\n".join(lines).encode() + body


def test_who_is_too_slow_is_cut_off(served: Served, owner: httpx.Client, tree: Tree) -> None:
    """A body that stops coming is answered with 408, counts for nothing, and lets go of the content."""
    content = content_of(100)
    path = make(owner, content)
    answer = served.raw(raw(path, tree.left.owner_key, content[:50], 100))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in answer
    assert received(owner, path) == 0
    assert send_chunk(owner, path, content, 0, 100).status_code == 200


def test_who_hangs_up_leaves_nothing(served: Served, owner: httpx.Client, tree: Tree) -> None:
    """A connection that breaks in the middle counts for nothing and soon lets go of the content."""
    content = content_of(100)
    path = make(owner, content)

    def broken() -> Iterator[bytes]:
        yield content[:50]
        raise ConnectionAbortedError

    with served.client(tree.left.owner_key) as client, pytest.raises(ConnectionAbortedError):
        client.put(f"{path}/content", content=broken(), headers={**chunk_headers(0, 100, 100), "Content-Length": "100"})
    assert received(owner, path) == 0
    assert until(lambda: send_chunk(owner, path, content, 0, 100), lambda answer: answer.status_code != 409).status_code == 200


def until(ask: Callable[[], httpx.Response], good: Callable[[httpx.Response], bool]) -> httpx.Response:
    """The first good answer of many."""
    for _ in range(200):
        answer = ask()
        if good(answer):
            return answer
    raise AssertionError(answer.text)
