"""
One controller under one account: a session, one deadline a call, redirects and links that stay at home, and every answer judged.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

from controlplane.providers.adapters.redfish.answers import Reply, understand
from controlplane.providers.adapters.redfish.config import RedfishConfig
from controlplane.providers.adapters.redfish.line import TimedOut
from controlplane.providers.adapters.redfish.wire import Wire
from controlplane.providers.errors import AuthFailed, NotSent, Permanent, ProviderError, Unknown, Unsupported

ROOT = "/redfish/v1/"
FAREWELL_S = 3.0
HOPS = 3
MOVED = frozenset(
    {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT},
)
MOVED_AS_IT_IS = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
NO_SESSIONS = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
LET_IN = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})  # whoever is told this has been let in
PRECONDITION = frozenset({HTTPStatus.PRECONDITION_FAILED, HTTPStatus.PRECONDITION_REQUIRED})
URL = re.compile(r"https?://[^\s/?#@]+(?:/redfish(?:/v1)?)?/?", re.IGNORECASE)
SHORTEST_SECRET = 4
log = logging.getLogger(__name__)


class Bmc:
    """
    One controller under one account. Not safe to share: `Pool` lends it to one call at a time.
    """

    def __init__(self, url: str, username: str, password: str, config: RedfishConfig, tls: ssl.SSLContext) -> None:
        if not URL.fullmatch(url):
            raise Permanent("a controller's url must be http(s)://host[:port]", code="provider_config_invalid")
        split = urlsplit(url)
        self._origin = f"{split.scheme}://{split.netloc}"
        self._username = username
        self._password = password
        self._given = (url, username, password)
        self._config = config
        self._wire = Wire(self._origin, config, tls)
        self._logged_in = False
        self._session_path: str | None = None
        self._refused_until = 0.0
        self._secrets = {password}
        self.silent = False
        self.root: dict[str, Any] = {}
        self.known: dict[str, Any] = {}

    def serves(self, url: str, username: str, password: str) -> bool:
        """
        Whether it is the client for that account: also under the password that it has set since.
        """
        return (url, username) == self._given[:2] and password in {self._given[2], self._password}

    @property
    def username(self) -> str:
        """
        The account it logs in with.
        """
        return self._username

    @property
    def left_s(self) -> float:
        """
        What is left of the call's time, in seconds.
        """
        return self._wire.ends_at - time.monotonic()

    def begin(self, limit_s: float) -> None:
        """
        A call has begun and has so long.
        """
        self._wire.ends_at = time.monotonic() + limit_s

    def cut(self) -> None:
        """
        The request that is under way, if any, ends as unknown. From any thread: for a controller that trickles its answer's head.
        """
        self._wire.cut()

    def rest(self) -> None:
        """
        The call is over: its session stays, no connection does.
        """
        self._wire.rest()

    def pause(self, seconds: float) -> bool:
        """
        Whether that time has passed; False, at once, when it would be the last of the call.
        """
        if seconds >= self.left_s:
            return False
        time.sleep(seconds)
        return True

    def get(self, path: str) -> Reply:
        """
        The resource. Raises NotFound, AuthFailed, Busy, NotSent, Unknown.
        """
        return self.look(path).checked()

    def read(self, path: str) -> dict[str, Any]:
        """
        The resource's JSON object; raises as `get`.
        """
        body = self.get(path).body
        if body is None:
            raise Unknown(f"GET {path}: an empty answer")
        return body

    def look(self, path: str) -> Reply:
        """
        What a GET was answered, good or bad. A reset connection and a 5xx are tried again, a timeout is not.
        """
        for left in range(self._config.read_retries, -1, -1):
            try:
                reply = self._ask("GET", path, None, {})
            except TimedOut:
                raise
            except Unknown:
                if not left or not self.pause(self._config.retry_delay_s):
                    raise
                continue
            if not reply.server_fault or not left or not self.pause(self._config.retry_delay_s):
                return reply
        raise AssertionError("the last try returns or raises")

    def send(self, path: str, body: Mapping[str, Any] | None) -> Reply:
        """
        What a POST was answered, good or bad; None sends no body at all.
        """
        return self._ask("POST", path, body, {})

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """
        The POST was accepted.
        """
        return self.send(path, body).checked()

    def patch(self, path: str, body: Mapping[str, Any], *, etag: str) -> Reply:
        """
        What a PATCH was answered, good or bad: with the ETag just read, its strong form, none, and any, until one is not refused for it.
        """
        ladder = dict.fromkeys([etag, etag.removeprefix("W/"), "", "*"] if etag else ["", "*"])
        reply: Reply | None = None
        for match in ladder:
            reply = self._ask("PATCH", path, body, {"If-Match": match} if match else {})
            if not (reply.status in PRECONDITION or (reply.status == HTTPStatus.BAD_REQUEST and reply.names("If-Match"))):
                break
        assert reply is not None
        return reply

    def hide(self, *secrets: str) -> None:
        """
        These words stand in no error from now on.
        """
        self._secrets.update(secrets)

    def lets_in(self, password: str) -> bool:
        """
        Whether the account can log in with the password; if so, it is the one in use from now on.
        """
        self.hide(password)
        before, left_alone_until = self._password, self._refused_until
        self._password = password
        self._leave()
        self._refused_until = 0.0
        try:
            reply = self._ask("GET", self.account_service, None, {})
        except AuthFailed:
            self._back_to(before, left_alone_until)
            return False
        except ProviderError:
            self._back_to(before, left_alone_until)
            raise
        if not reply.good and reply.status not in LET_IN:
            self._back_to(before, left_alone_until)
            reply.checked()
        return True

    def _back_to(self, password: str, left_alone_until: float) -> None:
        """
        The password before is in use again; a pause that it had earned goes on, or wrong ones would be tried at any pace.
        """
        self._password = password
        self._leave()
        self._refused_until = left_alone_until

    @property
    def account_service(self) -> str:
        """
        Something that only those who are logged in may read.
        """
        linked = self.root.get("AccountService")
        path = linked.get("@odata.id") if isinstance(linked, dict) else None
        return path if isinstance(path, str) else f"{ROOT}AccountService"

    def close(self, *, politely: bool = True) -> None:
        """
        Its session is given back, if that takes no longer than a moment, and its connections are closed.
        """
        if politely and not self.silent:
            self.begin(FAREWELL_S)
            self._leave()
        self._wire.close()

    def _ask(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Reply:
        self._enter()
        reply = self._follow(method, path, body, headers)
        if reply.status == HTTPStatus.UNAUTHORIZED and self._session_path is not None:
            # It was not carried out: the session has expired, or the controller has restarted. Or it has not expired and is not
            # honoured here: given back, so that repeats do not take all the sessions the controller has.
            self._leave()
            self._enter()
            reply = self._follow(method, path, body, headers)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            self._refuse(reply)
        return reply

    def _refuse(self, reply: Reply) -> None:
        self._leave()
        self._refused_until = time.monotonic() + self._config.refused_login_s
        raise AuthFailed(reply.detail)

    def _enter(self) -> None:
        """
        Logged in, by a session where one is offered. Source: DSP0266 1.20, "Session-based authentication".
        """
        if self._logged_in or not (self._username or self._password):
            return
        if time.monotonic() < self._refused_until:
            raise AuthFailed("our password was refused a moment ago; the account is not tried again yet")
        self._wire.forget()
        path = self._sessions_path() if self._config.auth == "session" else ""
        if not path or not self._open_session(path):
            self._wire.set_http_basic_auth(self._username.encode(), self._password.encode())
        self._logged_in = True

    def _sessions_path(self) -> str:
        reply = self._follow("GET", ROOT, None, {})
        if reply.status == HTTPStatus.UNAUTHORIZED:
            return ""
        self.root = reply.checked().body or {}
        links, service = self.root.get("Links"), self.root.get("SessionService")
        linked = links.get("Sessions") if isinstance(links, dict) else None
        if isinstance(linked, dict) and isinstance(linked.get("@odata.id"), str):
            return str(linked["@odata.id"])
        if isinstance(service, dict) and isinstance(service.get("@odata.id"), str):
            return f"{service['@odata.id'].rstrip('/')}/Sessions"
        return ""

    def _open_session(self, path: str) -> bool:
        reply = self._follow("POST", path, {"UserName": self._username, "Password": self._password}, {})
        token = reply.headers.get("x-auth-token", "")
        if token and reply.status < HTTPStatus.MULTIPLE_CHOICES:
            self.hide(token)
            self._wire.set_http_session_auth(token)
            said = reply.headers.get("location") or (reply.body or {}).get("@odata.id")
            # By the name that it has for itself, often not the one that we reach it by; the path is what counts.
            self._session_path = urlsplit(said).path if isinstance(said, str) else ""
            return True
        if reply.status in NO_SESSIONS or reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return False
        if reply.status == HTTPStatus.UNAUTHORIZED and "basic" in reply.headers.get("www-authenticate", "").lower():
            return False
        if reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} or reply.names("unauthorized"):
            self._refuse(reply)
        reply.checked()
        raise Unknown(f"no session came about: {reply.detail}")

    def _leave(self) -> None:
        """
        Logged out; a session that cannot be given back ends by its own time.
        """
        path = self._session_path
        if path:
            try:
                self._follow("DELETE", path, None, {})
            except ProviderError as error:
                log.info("a session was not given back: %s", type(error).__name__)
        self._forget()

    def _forget(self) -> None:
        self._wire.forget()
        self._logged_in = False
        self._session_path = None

    def _follow(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Reply:
        """
        The answer at the end of redirects, all of them on this controller.
        """
        where = self._local(path)
        for _ in range(HOPS):
            reply = self._exchange(method, where, body, headers)
            to = reply.headers.get("location", "")
            if reply.status not in (MOVED if method == "GET" else MOVED_AS_IT_IS) or not to:
                return reply
            where = self._local(urljoin(where, to))
        raise Unknown(f"{method} {path}: redirected in a circle")

    def _exchange(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Reply:
        try:
            response = self._wire.exchange(method, path, body, headers)
        except (NotSent, Unknown):
            self.silent = True
            self.root = {}  # it may be on its way to another version of itself
            raise
        self.silent = False
        return understand(method, path, response.status_code, response.headers, response.content, self._cleaned)

    def _local(self, link: str) -> str:
        """
        The path on this controller that a link of its means. Raises Unsupported for one that leads elsewhere: our token would follow it.
        """
        split = urlsplit(link)
        if split.netloc and _address(link) != _address(self._origin):
            raise Unsupported(f"the controller points to another address: {link[:200]}", code="provider_link_elsewhere")
        path = f"{split.path}?{split.query}" if split.query else split.path
        if not path.startswith("/") or path.startswith("//"):
            raise Unsupported(f"the controller gave a link that is none: {link[:200]}", code="provider_link_elsewhere")
        return path

    def _cleaned(self, text: str) -> str:
        for secret in self._secrets:
            if len(secret) >= SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


def _address(url: str) -> tuple[str, str, int | None]:
    """
    Scheme, host and port, with the port that the scheme means where none is named.
    """
    split = urlsplit(url)
    try:
        port = split.port
    except ValueError:
        port = -1  # no port, so the same as nobody's
    return split.scheme, split.hostname or "", port or {"http": 80, "https": 443}.get(split.scheme)
