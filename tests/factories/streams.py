"""
Event streams as a client sees them, without a server in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.factories.jobs import JobApi


class Wire:
    """
    One open stream: what came over it so far, read event by event.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._frames: asyncio.Queue[str | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._text = ""
        self._asked = False

    async def receive(self) -> Any:
        """ASGI: the request, then, when the client goes, that."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """ASGI: a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self._text += message.get("body", b"").decode()
        *whole, self._text = self._text.split("\n\n")
        for frame in whole:
            self._frames.put_nowait(frame)
        if not message.get("more_body"):
            self._frames.put_nowait(None)

    async def next(self, within_s: float = 10.0) -> dict[str, Any] | None:
        """
        The next event as {id, event, data} or {comment}; None when the stream has ended.
        """
        frame = await asyncio.wait_for(self._frames.get(), within_s)
        if frame is None:
            return None
        fields = dict(line.split(": ", 1) for line in frame.splitlines())
        if "retry" in fields:
            return await self.next(within_s)
        return {**fields, "data": json.loads(fields["data"])} if "data" in fields else {"comment": fields[""]}

    def leave(self) -> None:
        """
        The client is gone.
        """
        self._gone.set()


@asynccontextmanager
async def opened(api: JobApi, path: str, key: str = "one", **headers: str) -> AsyncIterator[Wire]:
    """
    A stream that is being sent; the client leaves at the end.
    """
    wire = Wire()
    where, _, query = path.partition("?")
    named = {"authorization": f"Bearer {key}", **{name.replace("_", "-").lower(): value for name, value in headers.items()}}
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": where, "raw_path": where.encode(), "root_path": "",
        "query_string": query.encode(), "scheme": "http", "client": ("192.0.2.7", 1), "server": ("test", 80),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }  # fmt: skip
    task = asyncio.create_task(cast("Any", api.app(scope, wire.receive, wire.send)))
    try:
        yield wire
    finally:
        wire.leave()
        await asyncio.wait_for(task, 10)
