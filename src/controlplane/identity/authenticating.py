"""
From a header to a principal: one query per key and cache period, rights computed from what is bound at that moment.
"""

import hmac
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from controlplane.identity import bearers
from controlplane.identity.bearers import Bearer
from controlplane.identity.keytext import ParsedKey, parse
from controlplane.identity.states import ROLES
from controlplane.kit.access import Principal, narrowed
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.kit.errors import Unauthenticated, Unavailable

log = logging.getLogger(__name__)
CACHED_KEYS = 10_000
LONGEST_HEADER = 256
FLIGHT_TIMEOUT_S = 30.0
WORDS = "Send a valid API key as `Authorization: Bearer …`."


@dataclass(frozen=True, slots=True)
class _Known:
    """
    What one look at the database found.
    """

    principal: Principal | None
    """None: no accepted key."""
    networks: tuple[str, ...] | None
    """Where the key may be used from."""
    looked_at_s: float
    """Before the query was sent, on the authenticator's clock."""
    expires_at_s: float | None
    """The key's end on the authenticator's clock."""


class KeyAuthenticator:
    """
    Accepts API keys. What was found is remembered for `cache_s`, so a revocation, suspension or role change holds everywhere that
    much later; unknown keys are not remembered. Safe to use from many threads; one thread at a time looks up the same key.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        cache_s: float = 2.0,
        cached_keys: int = CACHED_KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._cache_s = cache_s
        self._cached_keys = cached_keys
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._flights: dict[bytes, Future[_Known]] = {}

    def authenticate(
        self,
        authorization: str | None,
        client: IPv4Address | IPv6Address | None,
        *,
        reseller_id: str | None = None,
    ) -> Principal:
        """
        The principal of the header; with `reseller_id` only when it belongs to that reseller. Raises Unauthenticated with the same
        words for every reason.
        """
        text = _bearer(authorization)
        key = parse(text) if text else None
        if key is None:
            raise Unauthenticated(WORDS)
        known = self._find(sha256(text.encode()).digest(), key)
        principal = known.principal
        if (
            principal is None
            or (known.expires_at_s is not None and self._clock() >= known.expires_at_s)
            or not _inside(client, known.networks)
            or (reseller_id is not None and principal.reseller_id != reseller_id)
        ):
            raise Unauthenticated(WORDS)
        return principal

    def _find(self, mark: bytes, key: ParsedKey) -> _Known:
        with self._lock:
            known = self._known.get(mark)
            if known is not None and 0 <= self._clock() - known.looked_at_s < self._cache_s:
                self._known.move_to_end(mark)
                return known
            flight = self._flights.get(mark)
            leads = flight is None
            if flight is None:
                flight = self._flights[mark] = Future()
        if not leads:
            return _landed(flight)
        try:
            known = self._look(key)
        except BaseException as error:
            self._land(mark, None)
            flight.set_exception(error)
            raise
        self._land(mark, known)
        flight.set_result(known)
        return known

    def _land(self, mark: bytes, known: _Known | None) -> None:
        with self._lock:
            self._flights.pop(mark, None)
            self._known.pop(mark, None)
            if known is not None and known.principal is not None:
                self._known[mark] = known
                while len(self._known) > self._cached_keys:
                    self._known.popitem(last=False)

    def _look(self, key: ParsedKey) -> _Known:
        looked_at_s = self._clock()
        with Session(self._engine) as session:
            raise_wall(session, EVERYTHING)
            bearer = bearers.find_bearer(session, key.key_id)
            session.commit()  # a rollback would throw away the connection's prepared statements
        # The comparison is made for unknown ids too, so that its time tells nothing.
        same = hmac.compare_digest(key.secret_hash, bearer.secret_hash if bearer else bytes(32))
        if bearer is None or not same or not _alive(bearer) or bearer.scope_kind != key.scope_kind:
            return _Known(None, None, looked_at_s, None)
        if bearer.use_is_old:
            self._note_use(key.key_id)
        expires_at_s = None if bearer.remaining_s is None else looked_at_s + bearer.remaining_s
        networks = None if bearer.networks is None else tuple(bearer.networks)
        return _Known(principal_of(bearer), networks, looked_at_s, expires_at_s)

    def _note_use(self, key_id: str) -> None:
        try:
            with Session(self._engine) as session, session.begin():
                raise_wall(session, EVERYTHING)
                bearers.note_use(session, key_id)
        except DBAPIError as error:
            log.warning("last use of a key was not noted", extra={"key_id": key_id, "kind": type(error).__name__})


def _landed(flight: Future[_Known]) -> _Known:
    try:
        return flight.result(FLIGHT_TIMEOUT_S)
    except TimeoutError:
        raise Unavailable("The key could not be looked up in time; the request changed nothing. Try again soon.") from None


def principal_of(bearer: Bearer) -> Principal:
    """
    The bearer with the rights of its roles at the key's scope and above, narrowed to the key's permissions.
    """
    held = frozenset[str]().union(*(ROLES.get(role, frozenset()) for role in bearer.roles))
    return Principal(
        id=bearer.principal_id,
        key_id=bearer.key_id,
        scope_kind=bearer.scope_kind,
        scope_id=bearer.scope_id,
        permissions=narrowed(held, bearer.permissions),
        reseller_id=bearer.reseller_id or "",
        tenant_id=bearer.tenant_id or "",
        project_id=bearer.project_id or "",
        suspended="suspended" in {bearer.tenant_state, bearer.reseller_state},
    )


def _alive(bearer: Bearer) -> bool:
    return (
        not bearer.revoked
        and (bearer.remaining_s is None or bearer.remaining_s > 0)
        and bearer.principal_state == "active"
        and bearer.tenant_state in {None, "active", "suspended"}
        and bearer.reseller_state in {None, "active", "suspended"}
        and bearer.project_state in {None, "active"}
    )


def _bearer(authorization: str | None) -> str:
    if authorization is None or len(authorization) > LONGEST_HEADER or not authorization.isascii():
        return ""
    scheme, _, text = authorization.partition(" ")
    return text.strip(" ") if scheme.lower() == "bearer" else ""


def _inside(client: IPv4Address | IPv6Address | None, networks: tuple[str, ...] | None) -> bool:
    if networks is None:
        return True
    if client is None:
        return False
    mapped = client.ipv4_mapped if isinstance(client, IPv6Address) else None
    address = ip_address(str(mapped or client))
    return any(address in ip_network(one) for one in networks)
