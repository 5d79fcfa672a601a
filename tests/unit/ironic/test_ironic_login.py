"""
Saying who we are.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from controlplane.providers.adapters.ironic.adapter import build
from controlplane.providers.errors import AuthFailed, Permanent, Unknown
from controlplane.providers.registry import AdapterInput
from tests.unit.ironic.peer import NOW, node, peer

KEYSTONE = {"auth": "keystone", "keystone": {"url": "http://keystone.test/v3", "project": "metal"}}
USER = {"username": "cp", "password": "pa55-canary"}
APPLICATION = {"application_credential_id": "app-1", "application_credential_secret": "pa55-canary"}


class _Keystone:
    """
    Gives tokens t1, t2, ... and lets Ironic accept some.
    """

    def __init__(self, *, good: set[str], expires: str = "2026-01-31T13:00:00.000000Z", status: int = 201) -> None:
        self.asked: list[dict[str, Any]] = []
        self.used: list[str] = []
        self._good, self._expires, self._status = good, expires, status

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "keystone.test":
            self.asked.append(json.loads(request.content))
            token = {"X-Subject-Token": f"t{len(self.asked)}"}
            if self._status != 201:
                return httpx.Response(
                    self._status, json={"error": {"message": "The request you have made requires authentication."}}
                )
            return httpx.Response(201, json={"token": {"expires_at": self._expires}}, headers=token)
        self.used.append(request.headers["X-Auth-Token"])
        return httpx.Response(200, json=node()) if self.used[-1] in self._good else httpx.Response(401, text="no")


def test_a_token_is_fetched_once_and_used_for_every_call() -> None:
    """By password, scoped to the project."""
    keystone = _Keystone(good={"t1"})
    adapter = peer(keystone.answer, config=KEYSTONE, secrets=USER)
    adapter.observe("n1")
    adapter.observe("n1")
    (asked,) = keystone.asked
    assert asked["auth"]["identity"]["password"]["user"]["name"] == "cp"
    assert asked["auth"]["scope"]["project"]["name"] == "metal"
    assert set(keystone.used) == {"t1"}


def test_an_application_credential_brings_its_own_scope() -> None:
    """It is sent by id and secret, without a scope."""
    keystone = _Keystone(good={"t1"})
    peer(keystone.answer, config=KEYSTONE, secrets=APPLICATION).observe("n1")
    assert keystone.asked[0]["auth"]["identity"]["application_credential"]["id"] == "app-1"
    assert "scope" not in keystone.asked[0]["auth"]


def test_a_revoked_token_is_replaced_once() -> None:
    """After a 401 a new one is fetched, and the call goes through."""
    keystone = _Keystone(good={"t2"})
    adapter = peer(keystone.answer, config=KEYSTONE, secrets=USER)
    assert adapter.observe("n1").phase == "idle"
    assert len(keystone.asked) == 2


def test_a_credential_that_is_refused_again_is_a_failure_to_log_in() -> None:
    """Two tokens and no more for one request."""
    keystone = _Keystone(good=set())
    with pytest.raises(AuthFailed):
        peer(keystone.answer, config=KEYSTONE, secrets=USER).observe("n1")
    assert len(keystone.asked) == 2


def test_a_token_that_is_about_to_end_is_not_used() -> None:
    """Each call fetches another."""
    keystone = _Keystone(good={"t1", "t2", "t3"}, expires="2026-01-31T12:00:30Z")
    peer(keystone.answer, config=KEYSTONE, secrets=USER).observe("n1")
    assert len(keystone.asked) >= 1
    assert keystone.used == [f"t{len(keystone.asked)}"]


@pytest.mark.parametrize(("status", "kind"), [(401, AuthFailed), (502, Unknown)])
def test_what_keystone_says_is_told_apart(status: int, kind: type[Exception]) -> None:
    """A wrong password is one thing, a broken Keystone another; neither tells the password."""
    keystone = _Keystone(good=set(), status=status)
    with pytest.raises(kind) as raised:
        peer(keystone.answer, config=KEYSTONE, secrets=USER).observe("n1")
    assert "canary" not in repr(raised.value)


def test_basic_sends_name_and_password_and_does_not_try_twice() -> None:
    """One request, one refusal."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return httpx.Response(401, text="Authorization required")

    with pytest.raises(AuthFailed) as raised:
        peer(answer, config={"auth": "http_basic"}, secrets=USER).observe("n1")
    assert len(seen) == 1
    assert seen[0].startswith("Basic ")
    assert "canary" not in repr(raised.value)


@pytest.mark.parametrize(
    ("config", "secrets"),
    [
        ({"auth": "http_basic"}, {}),
        ({**KEYSTONE}, {"username": "cp"}),
        ({"auth": "keystone"}, USER),
        ({"keystone": {"url": "http://keystone.test/v3"}}, USER),
        ({"auth": "keystone", "keystone": {"url": "http://keystone.test/v3"}}, USER),
        ({"url": "ftp://ironic.test"}, {}),
        ({"url": "http://user:pa55-canary@ironic.test"}, {}),
        ({"wipe": {"kind": "manual"}}, {}),
        ({"wipe": {"kind": "manual", "steps": [{"interface": "cpu", "step": "x"}]}}, {}),
        ({"ca_file": "/nowhere/ca.pem"}, {}),
        ({"nonsense": 1}, {}),
    ],
)
def test_a_wrong_registration_is_refused_before_anything_is_asked(config: dict[str, Any], secrets: dict[str, str]) -> None:
    """In words, with the code for it, and without the secrets."""
    given = AdapterInput("prv_1", {"url": "http://ironic.test", "site": "ams1", **config}, secrets, "test", lambda: NOW)
    with pytest.raises(Permanent) as raised:
        build(given)
    assert raised.value.code == "provider_config_invalid"
    assert "canary" not in str(raised.value)
