"""
One open watch: events as they come, a broken or silent one told as an error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import urllib3

from controlplane.providers.errors import Unknown

Json = dict[str, Any]
PIECE_BYTES = 64 * 1024
MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Larger than any object that an etcd holds."""


class Silent(Unknown):
    """
    The watch should have ended by itself and has not: what it did not tell may have happened.
    """

    code = "provider_watch_silent"


class Feed:
    """
    The events of one watch. Read by one thread; stopped by any.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, what: str, ends_at: float) -> None:
        self._response = response
        self._what = what
        self._ends_at = ends_at
        """Monotonic time by which the server has ended a watch that is in order."""

    def __iter__(self) -> Iterator[Json]:
        """
        Every event until the server ends the watch. Raises Silent, Unknown.
        """
        rest = b""
        try:
            for part in self._response.stream(PIECE_BYTES):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield self._event(line)
                if len(rest) > MAX_EVENT_BYTES:
                    raise Unknown(f"{self._what}: an event is larger than {MAX_EVENT_BYTES} bytes")
                if time.monotonic() > self._ends_at:
                    raise Silent(f"{self._what}: the watch does not end")
        except urllib3.exceptions.ReadTimeoutError as error:
            raise Silent(f"{self._what}: the watch has gone silent") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unknown(f"{self._what}: {type(error).__name__}") from error
        finally:
            self._response.close()

    def stop(self) -> None:
        """
        The thread that reads comes back soon.
        """
        with suppress(Exception):  # the reader may be closing it at this moment
            self._response.shutdown()

    def _event(self, line: bytes) -> Json:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Unknown(f"{self._what}: an event cannot be read") from error
        if not isinstance(told, dict) or not isinstance(told.get("object"), dict):
            raise Unknown(f"{self._what}: an event is not an object")
        return told
