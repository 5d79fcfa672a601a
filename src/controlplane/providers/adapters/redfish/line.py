"""
Reads over one kept connection: the many GETs of one call go over it one after the other, and it is closed when the call ends.

Field reports say that controllers choke on connections that stay open for long (sushy's connector therefore keeps none), and they have
room for few: none outlives the call it was opened for. Changes never use it: one that meets a dead connection may have been carried out.
Source: RFC 9112, section 9.3, "Persistence".
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import quote, urlsplit

from controlplane.providers.adapters.redfish.config import RedfishConfig
from controlplane.providers.errors import NotSent, Unknown

PART_BYTES = 65_536
MIB = 1024 * 1024
PORTS = {"http": 80, "https": 443}
PLAIN = "%/:=&?~#+!$,;'@()*[]"
"""What may stand in a path as it is: as requests has it."""


class TimedOut(Unknown):
    """
    The controller was silent, or too slow, until the request's time was up.
    """


class Ended(OSError):
    """
    The connection ended before an answer began.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """
    One whole answer to a GET.
    """

    status_code: int
    """HTTP status."""
    headers: Mapping[str, str]
    """As they came."""
    content: bytes
    """The body."""


class Line:
    """
    At most one connection to one controller. Not safe to share, but for `cut`.
    """

    def __init__(self, origin: str, config: RedfishConfig, tls: ssl.SSLContext) -> None:
        split = urlsplit(origin)
        self._scheme = split.scheme
        self._host = split.hostname or ""
        self._port = split.port or PORTS[split.scheme]
        self._config = config
        self._tls = tls
        self._open: HTTPConnection | None = None
        self._keeps = True

    def get(self, path: str, headers: Mapping[str, str], ends_at: float) -> Answer:
        """
        The answer, good or bad; `ends_at` is monotonic. Raises NotSent, TimedOut, Unknown.
        """
        what = f"GET {path}"
        try:
            if kept := self._usable():
                try:
                    return self._asked(kept, path, headers, ends_at)
                except Ended:
                    # RFC 9112, 9.3.1: a read may be repeated. Who ends connections so is not trusted with a kept one again.
                    self._keeps = False
            return self._asked(self._connected(what, ends_at), path, headers, ends_at)
        except (OSError, HTTPException, ValueError) as error:
            raise _broken(what, error) from error
        finally:
            if not self._keeps:
                self.close()

    def close(self) -> None:
        """
        No connection is open.
        """
        if self._open is not None:
            self._open.close()
            self._open = None

    def cut(self) -> None:
        """
        Whoever reads from the connection, if anybody does, reads its end now. From any thread.
        """
        live = getattr(self._open, "sock", None)
        if live is not None:
            with suppress(OSError):
                live.shutdown(socket.SHUT_RDWR)

    def _usable(self) -> HTTPConnection | None:
        """
        The open connection, unless the controller has closed it since: then there is something to read where nothing was asked.
        """
        if self._open is None:
            return None
        waiting = select.poll()
        waiting.register(self._open.sock, select.POLLIN)
        if not waiting.poll(0):
            return self._open
        self.close()
        return None

    def _connected(self, what: str, ends_at: float) -> HTTPConnection:
        line = HTTPConnection(self._host, self._port)
        line.default_port = PORTS[self._scheme]  # what it leaves out of the Host header
        line.auto_open = 0
        try:
            raw = socket.create_connection((self._host, self._port), min(self._config.connect_timeout_s, _left_s(ends_at)))
        except (OSError, UnicodeError) as error:
            raise NotSent(_words(what, error)) from error
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sock = raw
        self._open = line
        if self._scheme == "https":
            try:
                line.sock = self._tls.wrap_socket(raw, server_hostname=self._host)
            except OSError as error:
                self.close()
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise NotSent(_words(what, error), retry_in_s=60.0, code="provider_certificate_untrusted") from error
                raise _broken(what, error) from error
        return line

    def _asked(self, line: HTTPConnection, path: str, headers: Mapping[str, str], ends_at: float) -> Answer:
        whole = False
        try:
            line.sock.settimeout(min(self._config.timeout_s, _left_s(ends_at)))
            response = _sent(line, path, headers)
            try:
                content = b"".join(self._parts(response, ends_at))
                whole = not response.will_close
            finally:
                response.close()
        finally:
            if not whole:
                self.close()
        return Answer(response.status, response.headers, content)  # type: ignore[arg-type]

    def _parts(self, response: HTTPResponse, ends_at: float) -> Iterator[bytes]:
        size = 0
        while response.length != 0 and (part := response.read1(PART_BYTES)):
            size += len(part)
            if size > self._config.max_body_mib * MIB:
                raise Unknown(f"the answer is larger than {self._config.max_body_mib * MIB} bytes")
            if time.monotonic() > ends_at:
                raise TimedOut("the answer trickled past the deadline")
            yield part
        if response.length:
            raise HTTPException(f"the answer ended {response.length} bytes early")


def _sent(line: HTTPConnection, path: str, headers: Mapping[str, str]) -> HTTPResponse:
    try:
        line.request("GET", quote(path, safe=PLAIN), headers=dict(headers))
        return line.getresponse()
    except ConnectionError as error:  # RemoteDisconnected among them
        raise Ended(f"{type(error).__name__}: {error}") from error


def _left_s(ends_at: float) -> float:
    return max(ends_at - time.monotonic(), 0.001)


def _broken(what: str, error: BaseException) -> Unknown:
    return (TimedOut if isinstance(error, TimeoutError) else Unknown)(_words(what, error))


def _words(what: str, error: BaseException) -> str:
    return f"{what}: {type(error).__name__}: {error}"[:300]
