"""
Long polls: a request that waits for a change holds neither a thread nor a transaction while nothing happens.

Each look is the whole endpoint once more, in one short hop: a credential that was revoked meanwhile is refused, not waited for.
"""

import asyncio
import json
from collections.abc import Callable
from time import monotonic
from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

LONGEST_WAIT_S = 30
PAUSES_S = (0.1, 0.2, 0.4)
PAUSE_S = 0.8
OK = 200

WaitSeconds = Annotated[
    int,
    Query(ge=0, le=LONGEST_WAIT_S, description="Answer when the state has changed, or after so many seconds.", examples=[30]),
]


async def answer_when_changed(
    request: Request, look: Callable[[], Response], *, wait_s: float, unsettled: frozenset[str]
) -> Response:
    """
    The first answer whose `state` differs from the one found now; at once when that is not among the unsettled, and the last one
    seen when the time is up.
    """
    ends_at = monotonic() + wait_s
    answer = await run_in_threadpool(look)
    first = _state(answer)
    looks = 0
    while first in unsettled:
        left_s = ends_at - monotonic()
        if left_s <= 0 or await request.is_disconnected():
            break
        await asyncio.sleep(min(left_s, PAUSES_S[looks] if looks < len(PAUSES_S) else PAUSE_S))
        looks += 1
        answer = await run_in_threadpool(look)
        if _state(answer) != first:
            break
    return answer


def _state(answer: Response) -> str | None:
    """
    The state told by an answer, by itself or as a part of the resource's status; None for one that is not a resource's.
    """
    if answer.status_code != OK:
        return None
    body = json.loads(bytes(answer.body))
    state = body.get("state", (body.get("status") or {}).get("state"))
    return state if isinstance(state, str) else None
