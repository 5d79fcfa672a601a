"""
The one task: somebody says that a row wants to be looked at.
"""

from __future__ import annotations

from workers import app as worker


@worker.app.task(name="look")
def look(kind: str, resource_id: str = "") -> None:
    """
    The loops of this process look at once. What is done is decided by the rows, never by the message.
    """
    del resource_id
    for engine in worker.running:
        engine.wake(str(kind))
