"""
Images as resources: declared, listed, changed, shared, counted and deleted, by whom it may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.images import service as images
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.ids import new_id
from controlplane.quotas import service as quotas
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.images import content_of, declared, send_chunk, uploaded
from tests.factories.serving import Served, serving

PATH = "/v1/images"
ANY = "/v1/admin/images"
CONTENT = content_of(5000)


@pytest.fixture(scope="module")
def tree(migrated: Database) -> Tree:
    """Two resellers with a tenant each."""
    migrated.reset()
    return make_tree(migrated.engine)


@pytest.fixture(scope="module")
def served(migrated: Database, tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The application, with a store of its own."""
    del tree
    with serving(migrated, image_dir=tmp_path_factory.mktemp("images"), max_image_bytes=10**12) as one:
        yield one


@pytest.fixture
def owner(served: Served, tree: Tree) -> Iterator[httpx.Client]:
    """The left tenant's owner."""
    with served.client(tree.left.owner_key) as client:
        yield client


@pytest.fixture
def other(served: Served, tree: Tree) -> Iterator[httpx.Client]:
    """The right tenant's owner."""
    with served.client(tree.right.owner_key) as client:
        yield client


@pytest.fixture
def operator(served: Served, tree: Tree) -> Iterator[httpx.Client]:
    """An operator."""
    with served.client(tree.operator_key) as client:
        yield client


def make(client: httpx.Client, name: str, *, root: str = PATH, content: bytes = CONTENT, **more: Any) -> dict[str, Any]:
    """A declared image without its content."""
    made: dict[str, Any] = client.post(root, json=declared(content, name) | more).raise_for_status().json()
    return made


def names(client: httpx.Client, root: str = PATH, **query: Any) -> list[str]:
    """Names of the listed images."""
    return [one["name"] for one in client.get(root, params=query).raise_for_status().json()["items"]]


def used(client: httpx.Client) -> int:
    """Bytes that the tenant's counter holds."""
    limits = client.get("/v1/quotas").json()["items"][0]["limits"]
    return sum(one["used"] for one in limits if one["resource"] == "image_bytes")


def drifts(database: Database) -> list[quotas.Drift]:
    """Counters of bytes that differ from the images that are there."""
    found = in_transaction(database.engine, EVERYTHING, lambda s: quotas.recount(s, list(images.held_bytes(s))))
    return [one for one in found if one.resource == "image_bytes"]


def test_an_image_is_declared_and_shown(owner: httpx.Client) -> None:
    """The answer shows what was asked for, where the image stands, and where it is found."""
    answer = owner.post(PATH, json=declared(CONTENT, "first") | {"labels": {"team": "vision"}})
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"{PATH}/{made['id']}")
    assert made["spec"] == declared(CONTENT)["spec"]
    assert (made["status"]["state"], made["status"]["received_bytes"], made["owned"]) == ("uploading", 0, True)
    shown = owner.get(answer.headers["location"])
    assert (shown.json(), shown.headers["etag"], shown.headers["upload-offset"]) == (made, '"1"', "0")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"size_bytes": 0}, "body.spec.size_bytes"),
        ({"size_bytes": 10**12 + 1}, "body.spec.size_bytes"),
        ({"size_bytes": "5"}, "body.spec.size_bytes"),
        ({"sha256": "AB" * 32}, "body.spec.sha256"),
        ({"sha256": "ab" * 31}, "body.spec.sha256"),
        ({"arch": "riscv64"}, "body.spec.arch"),
        ({"format": "vmdk"}, "body.spec.format"),
        ({"os": {"family": "Ubuntu", "version": "1"}}, "body.spec.os.family"),
        ({"os": {"family": "ubuntu", "version": "../x"}}, "body.spec.os.version"),
        ({"path": "/etc/passwd"}, "body.spec.path"),
    ],
)
def test_what_is_no_image_is_refused(owner: httpx.Client, spec: dict[str, Any], field: str) -> None:
    """Sizes, digests and words of another form are named, and nothing is made."""
    before = names(owner)
    answer = owner.post(PATH, json=declared(CONTENT, "wrong", **spec))
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    assert names(owner) == before


def test_names_are_unique_per_owner(owner: httpx.Client, other: httpx.Client, operator: httpx.Client) -> None:
    """The same name is another's too, but not twice one's own, and free again after a delete."""
    first = make(owner, "same")
    make(other, "same")
    make(operator, "same", root=ANY)
    assert operator.post(ANY, json=declared(CONTENT, "same")).json()["code"] == "name_taken"
    assert owner.post(PATH, json=declared(CONTENT, "same")).json()["code"] == "name_taken"
    second = make(owner, "unlike")
    renamed = owner.patch(f"{PATH}/{second['id']}", json={"name": "same"}, headers={"If-Match": "*"})
    assert (renamed.status_code, renamed.json()["code"]) == (409, "name_taken")
    assert owner.delete(f"{PATH}/{first['id']}", headers={"If-Match": "*"}).status_code == 204
    make(owner, "same")


def test_repeating_a_declaration_makes_one_image(owner: httpx.Client) -> None:
    """The same key gives the first answer; a dry run answers alike and makes none."""
    dry = owner.post(PATH, params={"dry_run": True}, json=declared(CONTENT, "once"))
    assert (dry.status_code, dry.json()["status"]["state"]) == (200, "uploading")
    before = used(owner)
    answers = [owner.post(PATH, json=declared(CONTENT, "once"), headers={"Idempotency-Key": "o"}) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert (names(owner).count("once"), used(owner) - before) == (1, len(CONTENT))


def test_changes_need_the_version(owner: httpx.Client) -> None:
    """A change without If-Match is refused, one of an older version too; each raises the version."""
    path = f"{PATH}/{make(owner, 'versions')['id']}"
    assert owner.patch(path, json={"labels": {"a": "b"}}).status_code == 428
    assert owner.delete(path).status_code == 428
    changed = owner.patch(path, json={"labels": {"a": "b"}}, headers={"If-Match": '"1"'})
    assert (changed.json()["labels"], changed.json()["name"], changed.headers["etag"]) == ({"a": "b"}, "versions", '"2"')
    assert owner.patch(path, json={"name": "late"}, headers={"If-Match": '"1"'}).status_code == 412
    assert owner.delete(path, headers={"If-Match": '"1"'}).status_code == 412
    assert owner.delete(path, headers={"If-Match": '"2"'}).status_code == 204
    assert owner.get(path).status_code == 404


def test_bytes_count_from_the_declaration_to_the_delete(
    migrated: Database, owner: httpx.Client, operator: httpx.Client, tree: Tree
) -> None:
    """A declared size is taken at every level, refused when there is no room, and given back once, whoever deletes."""
    before = used(owner)
    mine, theirs = make(owner, "counted"), make(owner, "counted-too")
    assert used(owner) == before + 2 * len(CONTENT)
    operator.post(ANY, json=declared(CONTENT, "platforms-own"))
    assert drifts(migrated) == []
    scope = f"/v1/admin/quotas/{tree.left.tenant_id}"
    room = [{"resource": "image_bytes", "limit": used(owner) + 10}]
    operator.put(scope, json={"limits": room}, headers={"If-Match": "*"}).raise_for_status()
    refused = owner.post(PATH, json=declared(CONTENT, "too-much"))
    told = refused.json()
    assert (refused.status_code, told["code"], told["resource"], told["scope"]) == (409, "quota_exceeded", "image_bytes", "tenant")
    operator.put(scope, json={"limits": []}, headers={"If-Match": "*"}).raise_for_status()
    assert owner.delete(f"{PATH}/{mine['id']}", headers={"If-Match": "*"}).status_code == 204
    assert owner.delete(f"{PATH}/{mine['id']}", headers={"If-Match": "*"}).status_code == 404
    assert operator.delete(f"{ANY}/{theirs['id']}", headers={"If-Match": "*"}).status_code == 204
    assert used(owner) == before
    assert drifts(migrated) == []


def test_lists_are_paged_and_narrowed(owner: httpx.Client) -> None:
    """Filters by state, machine, system and label; a page goes on where the one before ended."""
    arm = owner.post(PATH, json=declared(CONTENT, "arm", arch="aarch64") | {"labels": {"tier": "edge"}}).json()
    owner.post(PATH, json=declared(CONTENT, "debian", os={"family": "debian", "version": "13"}))
    assert names(owner, arch="aarch64") == ["arm"]
    assert names(owner, os_family="debian") == ["debian"]
    assert names(owner, label="tier:edge") == ["arm"]
    assert names(owner, state="failed") == []
    assert names(owner, created_after=arm["created_at"]) == ["debian"]
    assert owner.get(PATH, params={"label": "tier"}).json()["errors"][0]["code"] == "invalid_label"
    assert owner.get(PATH, params={"state": "deleted"}).status_code == 422
    pages, token = list[str](), None
    while token is not None or not pages:
        answer = owner.get(PATH, params={"limit": 2} | ({"page_token": token} if token else {})).json()
        pages += [one["name"] for one in answer["items"]]
        token = answer["next_page_token"]
    assert pages == names(owner)


def test_a_public_image_is_shown_when_it_is_ready(owner: httpx.Client, other: httpx.Client, operator: httpx.Client) -> None:
    """Before that it is not there; afterwards every tenant reads it and its content, and none can change it."""
    content = content_of(7000, "public")
    made = make(operator, "public", root=ANY, content=content)
    path, any_path = f"{PATH}/{made['id']}", f"{ANY}/{made['id']}"
    assert (owner.get(path).status_code, owner.get(f"{path}/content").status_code) == (404, 404)
    send_chunk(operator, any_path, content, 0, len(content)).raise_for_status()
    assert operator.get(any_path, params={"wait_s": 20}).json()["status"]["state"] == "ready"
    for client in (owner, other):
        shown = client.get(path).raise_for_status().json()
        assert (shown["owned"], "tenant_id" in shown) == (False, False)
        assert "public" in names(client, visibility="public")
        assert client.get(f"{path}/content").content == content
        for answer in (
            client.patch(path, json={"name": "mine"}, headers={"If-Match": "*"}),
            client.delete(path, headers={"If-Match": "*"}),
            send_chunk(client, path, content, 0, 10),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "not_owner")
    operator.patch(any_path, json={"visibility": "tenant"}, headers={"If-Match": "*"}).raise_for_status()
    assert owner.get(path).status_code == 404
    assert "public" not in names(owner)


def test_an_operator_publishes_a_tenants_image(owner: httpx.Client, other: httpx.Client, operator: httpx.Client) -> None:
    """Only by the operator's hand; its content stays the tenant's to send."""
    image = uploaded(owner, content_of(100, "shared"), "shared")
    path, any_path = f"{PATH}/{image['id']}", f"{ANY}/{image['id']}"
    assert other.get(path).status_code == 404
    answer = owner.patch(path, json={"visibility": "public"}, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body.visibility")
    published = operator.patch(any_path, json={"visibility": "public"}, headers={"If-Match": "*"}).raise_for_status().json()
    assert (published["visibility"], published["owned"]) == ("public", False)
    assert other.get(path).json()["name"] == "shared"
    assert owner.get(path).json()["owned"]
    waiting = make(owner, "not-the-operators")
    refused = send_chunk(operator, f"{ANY}/{waiting['id']}", CONTENT, 0, len(CONTENT))
    assert (refused.status_code, refused.json()["code"]) == (403, "not_owner")


def test_the_operator_sees_all_and_whose_they_are(owner: httpx.Client, operator: httpx.Client, tree: Tree) -> None:
    """The list of all names the owners and narrows to one."""
    mine = make(owner, "whose")
    listed = operator.get(ANY, params={"tenant_id": tree.left.tenant_id, "limit": 200}).json()["items"]
    assert {one["tenant_id"] for one in listed} == {tree.left.tenant_id}
    assert mine["id"] in {one["id"] for one in listed}
    assert owner.get(ANY).status_code == 403
    assert operator.get(PATH).status_code == 403


def test_a_projects_key_reads_and_does_not_write(served: Served, owner: httpx.Client, tree: Tree) -> None:
    """Images are the tenant's: a key of a project, whatever it holds, uses them and changes none."""
    image = uploaded(owner, CONTENT, "projects")
    made = owner.post("/v1/api-keys", json={"name": "p", "project_id": tree.left.project_id})
    with served.client(made.raise_for_status().json()["key"]) as project:
        assert project.get(f"{PATH}/{image['id']}/content").content == CONTENT
        assert project.post(PATH, json=declared(CONTENT, "no")).status_code == 403
        assert project.delete(f"{PATH}/{image['id']}", headers={"If-Match": "*"}).status_code == 403


def test_every_change_is_on_record(owner: httpx.Client) -> None:
    """Declaring, sending and deleting are audited with the image's id, and its owner hears of each state."""
    image = uploaded(owner, content_of(10, "record"), "record")
    owner.delete(f"{PATH}/{image['id']}", headers={"If-Match": "*"}).raise_for_status()
    audit, token = list[dict[str, Any]](), None
    while token is not None or not audit:
        page = owner.get("/v1/audit-events", params={"limit": 200} | ({"page_token": token} if token else {})).json()
        audit, token = audit + page["items"], page["next_page_token"]
    assert [one["action"] for one in audit if one["target"] == image["id"]] == ["images:create", "images:create", "images:delete"]
    events, after = list[dict[str, Any]](), ""
    while True:
        page = owner.get("/v1/events", params={"limit": 200} | ({"after": after} if after else {})).json()
        if not page["items"]:
            break
        events, after = events + page["items"], page["items"][-1]["position"]
    told = [one["type"] for one in events if one["resource_id"] == image["id"]]
    assert told == ["image.uploading", "image.verifying", "image.ready", "image.deleted"]


def test_an_installation_without_a_store_says_so(migrated: Database, tree: Tree, tmp_path: Path) -> None:
    """A store that cannot be written is a 503 that names no path, and the image goes on waiting."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with serving(migrated, image_dir=blocked / "images") as served, served.client(tree.left.owner_key) as client:
        image = make(client, f"no-store-{new_id('x')[-8:]}")
        answer = send_chunk(client, f"{PATH}/{image['id']}", CONTENT, 0, 10)
        assert (answer.status_code, answer.json()["code"]) == (503, "image_store_failed")
        assert str(blocked) not in answer.text
        assert client.get(f"{PATH}/{image['id']}").json()["status"]["received_bytes"] == 0
