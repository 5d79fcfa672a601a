"""
One request to one controller: capped bodies, no repetition, and every silence an error of the port.

Changes go through sushy's connector, each over a connection of its own; nothing of sushy or requests leaves this module. Reads go over a
`Line`, which costs a seventh of the processor: a look has dozens. Both say what years of field reports taught sushy: no compression (it
makes ETags weak). A controller that insists on it, or on cookies, is read through sushy's connector, which has an answer to those.
sushy's own waiting and repeating are off: the caller's steps do that.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from sushy import connector as sushy_connector  # type: ignore[import-untyped]
from sushy import exceptions as sushy_errors
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from controlplane.providers.adapters.redfish.config import RedfishConfig
from controlplane.providers.adapters.redfish.line import MIB, PART_BYTES, Line, TimedOut
from controlplane.providers.errors import NotSent, Permanent, ProviderError, Transient, Unknown
from controlplane.providers.tls import trusted, trusting_all

UNUSUAL = ("set-cookie", "content-encoding")
"""Headers of controllers that want more than plain reads."""
READING = {"OData-Version": "4.0", "Accept": "*/*"}
"""What goes with every read, as sushy has it; plain text, without compression, is what http.client asks for by itself."""

# Its lines quote requests and answers, passwords that a controller echoes among them; what matters stands in our errors.
logging.getLogger("sushy").setLevel(logging.CRITICAL + 1)


def trust(config: RedfishConfig) -> ssl.SSLContext:
    """
    Whom connections trust, read once for all of them. Raises Permanent when the file of authorities cannot be read.
    """
    try:
        return trusted(config.verify if isinstance(config.verify, str) else None) if config.verify else trusting_all()
    except OSError as error:
        raise Permanent(f"verify cannot be read: {error}", code="provider_config_invalid") from error


class _Bounded(sushy_connector.HTTPAdapter):  # type: ignore[misc]
    """
    Reads each answer whole, up to a size and a moment, whatever the peer trickles.
    """

    def __init__(self, max_body_bytes: int, ends_at: Callable[[], float], tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._max_body_bytes = max_body_bytes
        self._ends_at = ends_at
        self._live: Any = None
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **how: Any) -> Any:
        return super().init_poolmanager(*args, **(how | {"ssl_context": self._tls}))

    def cert_verify(self, *_: Any) -> None:
        pass  # our context knows whom to trust; requests would read all authorities anew for every connection

    def get_connection_with_tls_context(self, *args: Any, **how: Any) -> Any:
        pool = super().get_connection_with_tls_context(*args, **how)
        kept = self

        class Noted(pool.ConnectionCls):  # type: ignore[name-defined,misc]
            """
            A connection that can be cut from another thread.
            """

            def connect(self) -> None:
                kept._live = self
                super().connect()

        pool.ConnectionCls = Noted
        return pool

    def cut(self) -> None:
        """
        Whoever reads from the connection, if anybody does, reads its end now. From any thread.
        """
        live = getattr(self._live, "sock", None)
        if live is not None:
            with suppress(OSError):
                live.shutdown(socket.SHUT_RDWR)

    def send(self, request: Any, **how: Any) -> Any:
        try:
            response = super().send(request, **(how | {"stream": True}))
            try:
                response._content = b"".join(self._parts(response.raw))  # noqa: SLF001 - what requests itself does with a body
                response._content_consumed = True  # noqa: SLF001
            finally:
                response.raw.close()
        except HTTPError as error:
            raise sushy_connector.req_exc.ChunkedEncodingError(f"{type(error).__name__}: {error}") from error
        finally:
            # We said `Connection: close`. Who closes without saying so in turn would have the next request run into a dead connection.
            self.poolmanager.clear()
        return response

    def _parts(self, raw: Any) -> Iterator[bytes]:
        size = 0
        while part := raw.read1(PART_BYTES, decode_content=True):
            size += len(part)
            if size > self._max_body_bytes:
                raise sushy_connector.req_exc.RequestException(f"the answer is larger than {self._max_body_bytes} bytes")
            if time.monotonic() > self._ends_at():
                raise sushy_connector.req_exc.ReadTimeout("the answer trickled past the deadline")
            yield part


class Wire(sushy_connector.Connector):  # type: ignore[misc]
    """
    sushy's connector without its patience.
    """

    def __init__(self, url: str, config: RedfishConfig, tls: ssl.SSLContext) -> None:
        self.ends_at = 0.0
        self.last: Any = None
        self._config = config
        super().__init__(
            url,
            verify=config.verify is not False,
            response_callback=self._keep,
            server_side_retries=1,
            default_request_timeout=config.timeout_s,
        )
        self._session.trust_env = False  # no proxy and no .netrc of this machine between us and a controller
        self._bounded = _Bounded(config.max_body_mib * MIB, lambda: self.ends_at, tls)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, self._bounded)
        self._line = Line(url, config, tls)
        self._reads_plainly = True

    def _keep(self, response: Any) -> None:
        self.last = response

    def exchange(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        """
        One request and its raw answer. Raises Transient when no time is left, NotSent, Unknown.
        """
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise Transient("the call's time is used up before all its requests were sent", retry_in_s=2.0)
        if method == "GET" and self._reads_plainly:
            answer = self._line.get(path, READING | self._credentials(), self.ends_at)
            if answer.status_code != HTTPStatus.NOT_ACCEPTABLE and not any(name in answer.headers for name in UNUSUAL):
                return answer
            self._reads_plainly = False
            self._line.close()
        return self._through_sushy(method, path, body, headers, left_s)

    def _through_sushy(self, method: str, path: str, body: Any, headers: Mapping[str, str], left_s: float) -> Any:
        times = (min(self._config.connect_timeout_s, left_s), min(self._config.timeout_s, left_s))
        self.last = None
        try:
            self._op(
                method,
                path,
                data=body,
                headers=dict(headers),
                timeout=times,
                server_side_retries_left=0,
                allow_reauth=False,
                allow_redirects=False,
            )
        except sushy_errors.ConnectionError as error:
            raise _not_answered(f"{method} {path}", error) from error
        except sushy_errors.SushyError as error:
            if self.last is None:
                raise Unknown(f"{method} {path}: {type(error).__name__}") from error
        except (ValueError, AttributeError, TypeError) as error:
            # sushy reads the error object of a 4xx as if it always had its form.
            if self.last is None:
                raise Unknown(f"{method} {path}: {type(error).__name__}") from error
        return self.last

    def _credentials(self) -> dict[str, str]:
        token, account = self._session.headers.get("X-Auth-Token"), self._session.auth
        if token:
            return {"X-Auth-Token": token}
        return {"Authorization": f"Basic {b64encode(b':'.join(account)).decode()}"} if account else {}

    def rest(self) -> None:
        """
        The call is over: no connection is open.
        """
        self._line.close()

    def cut(self) -> None:
        """
        The request that is under way, if any, ends.
        """
        self._line.cut()
        self._bounded.cut()

    def forget(self) -> None:
        """
        No credential goes with the next request.
        """
        self._session.auth = None
        self._session.headers.pop("X-Auth-Token", None)
        self._session.cookies.clear()


def _not_answered(what: str, error: BaseException) -> ProviderError:
    chain = list(_causes(error))
    words = f"{what}: {type(chain[-1]).__name__}: {chain[-1]}"[:300]
    if any(isinstance(one, ConnectTimeoutError | NewConnectionError) for one in chain):
        return NotSent(words)
    if any("CERTIFICATE_VERIFY_FAILED" in str(one) for one in chain):
        return NotSent(words, retry_in_s=60.0, code="provider_certificate_untrusted")
    if any(isinstance(one, sushy_connector.req_exc.Timeout) for one in chain):
        return TimedOut(words)
    return Unknown(words)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """
    The error and what it was made of: requests puts urllib3's into its arguments.
    """
    seen: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        one = queue.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        queue += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
