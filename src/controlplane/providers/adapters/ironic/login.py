"""
How we say who we are: not at all, by HTTP Basic, or by a Keystone token that is fetched when needed and again when it is refused.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from controlplane.providers.adapters.ironic.answers import Answer, failure
from controlplane.providers.adapters.ironic.config import IronicConfig, KeystoneConfig
from controlplane.providers.errors import Permanent, Unknown

Post = Callable[[str, Mapping[str, Any]], Answer]
EARLY = timedelta(seconds=60)
_CREATED = 201


class Login(Protocol):
    """
    Gives the headers that prove who we are.
    """

    def headers(self, post: Post) -> Mapping[str, str]:
        """
        For the next request. Raises AuthFailed when the credential is refused.
        """
        ...

    def refused(self, headers: Mapping[str, str]) -> bool:
        """
        The headers were answered 401. True when new ones may do better.
        """
        ...


class Nobody:
    """
    A stand-alone Ironic with `auth_strategy = noauth`.
    """

    def headers(self, post: Post) -> Mapping[str, str]:
        """
        None.
        """
        del post
        return {}

    def refused(self, headers: Mapping[str, str]) -> bool:
        """
        There is nothing better.
        """
        del headers
        return False


class Basic:
    """
    A stand-alone Ironic with `auth_strategy = http_basic`.
    """

    def __init__(self, username: str, password: str) -> None:
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {pair}"}

    def headers(self, post: Post) -> Mapping[str, str]:
        """
        Always the same.
        """
        del post
        return self._headers

    def refused(self, headers: Mapping[str, str]) -> bool:
        """
        The same would be refused again.
        """
        del headers
        return False


class Keystone:
    """
    Tokens of Keystone's identity API. Safe to share between threads; its repr and errors never hold a credential.

    Source: docs.openstack.org/api-ref/identity/v3, "Password authentication" and "Authenticating with an Application Credential".
    """

    def __init__(self, config: KeystoneConfig, secrets: Mapping[str, str], now: Callable[[], datetime]) -> None:
        self._url = f"{config.url.rstrip('/')}/auth/tokens"
        self._content = {"auth": {"identity": _identity(config, secrets), **_scope(config, secrets)}}
        self._now = now
        self._lock = threading.Lock()
        self._token = ""
        self._ends_at = datetime.min.replace(tzinfo=UTC)

    def headers(self, post: Post) -> Mapping[str, str]:
        """
        With a token that is still good for a minute.
        """
        with self._lock:
            if not self._token or self._now() + EARLY >= self._ends_at:
                self._fetch(post)
            return {"X-Auth-Token": self._token}

    def refused(self, headers: Mapping[str, str]) -> bool:
        """
        A token that somebody has revoked is forgotten; the next one may do better.
        """
        with self._lock:
            if headers.get("X-Auth-Token") == self._token:
                self._token = ""
        return True

    def _fetch(self, post: Post) -> None:
        answer = post(self._url, self._content)
        if answer.status != _CREATED:
            raise failure(answer, "Keystone")
        token = answer.headers.get("x-subject-token", "")
        told = answer.body.get("token") if isinstance(answer.body, Mapping) else None
        try:
            ends_at = datetime.fromisoformat(str(told["expires_at"])) if isinstance(told, Mapping) else None
        except (KeyError, ValueError):
            ends_at = None
        if not token or ends_at is None:
            raise Unknown("Keystone answered without a token or without its end")
        self._token, self._ends_at = token, ends_at if ends_at.tzinfo else ends_at.replace(tzinfo=UTC)


def login_for(config: IronicConfig, secrets: Mapping[str, str], now: Callable[[], datetime]) -> Login:
    """
    The login that the config asks for. Raises Permanent when its secrets are not there.
    """
    if config.auth == "none":
        return Nobody()
    if config.keystone is not None:
        return Keystone(config.keystone, secrets, now)
    if not secrets.get("username") or not secrets.get("password"):
        raise Permanent("the secrets username and password are needed", code="provider_config_invalid")
    return Basic(secrets["username"], secrets["password"])


def _identity(config: KeystoneConfig, secrets: Mapping[str, str]) -> dict[str, Any]:
    if secrets.get("application_credential_id") and secrets.get("application_credential_secret"):
        credential = {"id": secrets["application_credential_id"], "secret": secrets["application_credential_secret"]}
        return {"methods": ["application_credential"], "application_credential": credential}
    if secrets.get("username") and secrets.get("password"):
        user = {"name": secrets["username"], "password": secrets["password"], "domain": {"name": config.user_domain}}
        return {"methods": ["password"], "password": {"user": user}}
    raise Permanent(
        "the secrets username and password, or application_credential_id and application_credential_secret, are needed",
        code="provider_config_invalid",
    )


def _scope(config: KeystoneConfig, secrets: Mapping[str, str]) -> dict[str, Any]:
    if secrets.get("application_credential_id"):
        return {}
    if config.system_scope:
        return {"scope": {"system": {"all": True}}}
    if not config.project:
        raise Permanent("keystone needs a project, or system_scope", code="provider_config_invalid")
    return {"scope": {"project": {"name": config.project, "domain": {"name": config.project_domain}}}}
