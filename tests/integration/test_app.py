"""
The whole application over HTTP: probes, unknown paths, failures, brands, and what a role with too much power gets.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from controlplane import migrations
from controlplane.app import create_app
from controlplane.kit.guard import PowerfulRole
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.serving import Served, serving, settings_for

PLATFORM_WORDS = re.compile(rb"controlplane|control plane|gpu cloud|fastapi|uvicorn|starlette|swagger", re.IGNORECASE)


@pytest.fixture(scope="module")
def tree(migrated: Database) -> Tree:
    """Two resellers with a tenant each."""
    migrated.reset()
    return make_tree(migrated.engine)


@pytest.fixture(scope="module")
def served(migrated: Database, tree: Tree) -> Iterator[Served]:
    """The application."""
    del tree
    with serving(migrated) as one:
        yield one


def test_probes_need_no_key(served: Served) -> None:
    """Liveness and readiness answer without a credential; an absent broker does not matter."""
    with served.client() as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready", "parts": {"database": "up", "broker": "absent"}}


def test_a_broken_broker_is_told_and_does_not_matter(migrated: Database) -> None:
    """With a broker that does not answer the process is ready, says so, and serves."""
    with serving(migrated, broker_url="redis://127.0.0.1:1/0") as served, served.client() as client:
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["parts"]) == (200, {"database": "up", "broker": "down"})
        assert client.get("/v1/whoami").status_code == 401


def test_without_the_schema_it_is_not_ready(migrated: Database, served: Served) -> None:
    """A database at another revision makes the process unready with a problem that names the part."""
    with migrated.owner.begin() as connection:
        version = connection.execute(text("UPDATE alembic_version SET version_num = 'older' RETURNING version_num")).scalar()
        assert version == "older"
    with served.client() as client:
        answer = client.get("/readyz")
    with migrated.owner.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :head"), {"head": migrations.head()})
    assert (answer.status_code, answer.json()["code"], answer.json()["parts"]["database"]) == (503, "not_ready", "behind")
    with served.client() as client:
        assert client.get("/readyz").status_code == 200


def test_what_is_not_served_is_a_problem(served: Served) -> None:
    """Unknown paths and methods are problems like any other, with the allowed methods named."""
    with served.client() as client:
        unknown, method = client.get("/nothing/here"), client.delete("/v1/whoami")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert (method.status_code, method.json()["code"], method.headers["allow"]) == (405, "method_not_allowed", "GET")
    assert {one.headers["content-type"] for one in (unknown, method)} == {"application/problem+json"}


def test_who_may_not_call_learns_that_first(served: Served, tree: Tree) -> None:
    """A malformed body is explained to those who may send one; others get 401 or 403 as for a good one."""
    with served.client() as nobody, served.client(tree.left.reseller_key) as seller, served.client(tree.left.owner_key) as owner:
        bodies = [one.post("/v1/projects", json={"nonsense": 1}) for one in (nobody, seller, owner)]
    assert [one.status_code for one in bodies] == [401, 403, 422]
    assert {field["field"] for field in bodies[2].json()["errors"]} >= {"body.nonsense", "body.name"}


def test_unknown_fields_parameters_and_bad_tokens_are_refused(served: Served, tree: Tree) -> None:
    """Nothing a caller sends is silently ignored."""
    with served.client(tree.left.owner_key) as client:
        for path in ("/v1/projects?colour=red", "/v1/projects?limit=0", "/v1/projects?page_token=%7B%7D", "/v1/projects?limit=x"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), path


def test_every_answer_of_every_kind_names_its_request(served: Served, tree: Tree) -> None:
    """A caller's own request id comes back in header and problem; budgets are shown."""
    with served.client(tree.left.owner_key, **{"X-Request-Id": "mine-0123456789"}) as client:
        good, bad = client.get("/v1/whoami"), client.get("/v1/projects/prj_nothing")
    assert good.headers["x-request-id"] == bad.headers["x-request-id"] == bad.json()["request_id"] == "mine-0123456789"
    assert int(good.headers["ratelimit-limit"]) == 1_000_000


def test_forged_credentials_are_all_alike(served: Served, tree: Tree) -> None:
    """Whatever is wrong with a credential, the answer is the same but for its request id."""
    key = tree.left.owner_key
    forged = [
        "",
        "Bearer",
        "Bearer x",
        f"Basic {key}",
        f"Bearer {key[:-1]}",
        f"Bearer {key}x",
        f"Bearer {key} {key}",
        "Bearer \u00e9",
    ]
    answers = set()
    with served.client() as client:
        for one in forged:
            answer = client.get("/v1/whoami", headers=[(b"Authorization", one.encode("latin-1"))])
            body = answer.json()
            body.pop("request_id")
            answers.add((answer.status_code, str(body)))
        doubled = client.get("/v1/whoami", headers=[("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")])
    assert len(answers) == 1
    assert doubled.status_code == 401


def test_a_resellers_domain_shows_its_brand_only(served: Served, tree: Tree) -> None:
    """On a reseller's domain document, page, problems and headers name neither the platform nor another reseller."""
    with served.client(tree.left.owner_key, host="cloud.fjord.example") as client:
        answers = [client.get(path) for path in ("/openapi.json", "/docs", "/nothing", "/v1/whoami", "/v1/projects?x=1")]
        answers.append(client.post("/v1/projects", content=b"{", headers={"Content-Type": "application/json"}))
    assert answers[0].json()["info"]["title"] == "Fjord API"
    assert b"Fjord API" in answers[1].content
    for answer in answers:
        everything = answer.content + str(answer.headers).encode()
        assert PLATFORM_WORDS.search(everything) is None
        assert b"delta" not in everything.lower()
        assert b"/v1/admin" not in everything


def test_a_key_of_another_reseller_is_nobody_there(served: Served, tree: Tree) -> None:
    """A key works on its own reseller's domain and is refused on another's."""
    with served.client(tree.left.owner_key, host="cloud.fjord.example") as own:
        assert own.get("/v1/whoami").status_code == 200
    with served.client(tree.left.owner_key, host="cloud.delta.example") as other:
        assert other.get("/v1/whoami").status_code == 401


def test_a_powerful_role_is_refused(migrated: Database) -> None:
    """The application does not come up on a role that row-level security cannot hold."""
    with pytest.raises(PowerfulRole, match="Refusing to run"):
        create_app(settings_for(migrated, database_url=migrated.owner_url))


def test_a_busy_key_is_told_to_wait_and_may_still_delete(migrated: Database, tree: Tree) -> None:
    """Over its budget a key gets 429 with a time; its deletes are still served, and other keys are not touched."""
    with serving(migrated, rate_limit_per_s=0.01, rate_limit_burst=5) as served:
        with served.client(tree.left.owner_key) as client:
            answers = [client.get("/v1/whoami") for _ in range(6)]
            assert [one.status_code for one in answers] == [200] * 5 + [429]
            assert int(answers[5].headers["retry-after"]) > 1
            assert [one.headers["ratelimit-remaining"] for one in answers] == ["4", "3", "2", "1", "0", "0"]
            gone = client.delete("/v1/projects/prj_nothing", headers={"If-Match": "*"})
            assert gone.status_code == 404
        with served.client(tree.right.owner_key) as other:
            assert other.get("/v1/whoami").status_code == 200


def test_many_at_once_are_all_served(served: Served, tree: Tree) -> None:
    """More requests than threads and connections at once wait their turn; none fails."""
    with served.client(tree.left.owner_key) as client, ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(lambda _: client.get("/v1/projects").status_code, range(200)))
    assert statuses == [200] * 200
