"""
Endpoints that are served alike at several levels of the tree, each under its own path and operation id.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from controlplane.web.endpoint import Audience, endpoint


@dataclass(frozen=True, slots=True)
class Shared:
    """
    One endpoint, whatever the level.
    """

    handler: Callable[..., Any]
    """Takes the call first."""
    method: Literal["GET", "POST", "PATCH", "DELETE"]
    """HTTP method."""
    name: str
    """Operation id with `{}` for the level's noun."""
    tail: str
    """Path below the level's."""
    permission: str
    """`noun:verb`."""
    summary: str
    """One line for the reader of the API."""
    answer: type[BaseModel] | None = None
    """Model of the answer."""
    status: int = 200
    """HTTP status of success."""
    problems: tuple[int, ...] = ()
    """More statuses it may answer with."""


def add_shared(router: APIRouter, path: str, audience: Audience, noun: str, routes: Iterable[Shared]) -> None:
    """
    The endpoints are served below the path, for that audience.
    """
    for one in routes:
        endpoint(
            router,
            one.method,
            path + one.tail,
            permission=one.permission,
            audience=audience,
            status=one.status,
            answer=one.answer,
            summary=one.summary,
            problems=one.problems,
        )(_named(one.handler, one.name.format(noun)))


def _named(handler: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(handler)
    def same(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    same.__name__ = name
    return same
