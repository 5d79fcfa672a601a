"""
What real processes write: no key, password or token, whatever goes wrong.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import Database
from tests.factories.processes import MASTER_KEY, Processes, processes, until
from tests.races.arena import Arena, make_arena

BROKER_PASSWORD = "broker-secret-5b1e"
PROVIDER_TOKEN = "provider-token-93ac1f"
SLURM = {"url": "http://127.0.0.1:9", "partition": "gpu", "users": ["tenant1"]}


@pytest.fixture
def own(postgres_url: str) -> Iterator[Database]:
    """
    A database that no other processes look at.
    """
    made = Database(postgres_url, f"t{secrets.token_hex(5)}")
    yield made
    made.close()


def test_no_secret_is_ever_written(own: Database, tmp_path: Path) -> None:
    """At the most talkative level, through success, refusals, a provider that cannot be reached and a broker that dies."""
    with processes(own, tmp_path, apis=1, workers=1, broker=True, log_level="DEBUG") as running:
        here = make_arena(running, own, tmp_path, 2)
        texts = _everything_that_has_a_secret(here)
        assert here.order(here.tenant, "one").status_code == 202
        here.settled()
        running.kill_broker()
        assert here.order(here.tenant, "two").status_code == 202
        here.settled()
        _wrong_credentials(running, texts)
        until(lambda: "hints are not sent" in running.apis[0].log() or "broker" in running.workers[0].log(), "the loss is noticed")
        written = running.logs()
        here.close()
    assert len(written) > 5_000
    assert "request" in written
    found = [secret[:12] for secret in (*texts, BROKER_PASSWORD, PROVIDER_TOKEN, MASTER_KEY, _password(own)) if secret in written]
    assert not found


def _everything_that_has_a_secret(here: Arena) -> list[str]:
    """Keys, whole and their secret parts, after each was used and a provider with a secret was registered."""
    keys = here.world.keys
    _, seller = here.new_reseller("fjord")
    texts = [keys.operator_key, keys.reseller_key, keys.tenant_key, seller, here.new_tenant("customer", seller_key=seller).key]
    for key in texts:
        assert here.ask(key, "GET", "/v1/whoami").status_code == 200
    body = {"name": "far", "adapter": "slurm", "site": "one", "config": SLURM, "secrets": {"token": PROVIDER_TOKEN}}
    made = here.ask(keys.operator_key, "POST", "/v1/admin/providers", body)
    assert made.status_code in {201, 422}, made.text
    assert PROVIDER_TOKEN not in made.text
    return texts + [text.split("_")[3] for text in texts]


def _wrong_credentials(running: Processes, texts: list[str]) -> None:
    """Keys in every place where they do not belong."""
    key = texts[0]
    with httpx.Client(base_url=running.apis[0].url) as client:
        client.get("/v1/whoami", headers={"Authorization": f"Basic {key}"})
        client.get("/v1/whoami", headers={"Authorization": f"Bearer {key}x"})
        client.get("/v1/whoami", headers={"X-Api-Key": key, "Cookie": f"key={key}"})
        client.get(f"/v1/projects/{key}")
        client.get("/v1/projects", params={"key": key, "page_token": key})
        client.post("/v1/projects", json={"name": key}, headers={"Authorization": f"Bearer {key}"})


def _password(database: Database) -> str:
    return database.app_url.split(":")[2].split("@")[0]
