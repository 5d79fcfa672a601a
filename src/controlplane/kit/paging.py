"""
Pages: ordered by id, which is ordered by age, so that inserts only ever appear after what was already read.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Integer
from sqlalchemy.orm import Session

from controlplane.kit.errors import FieldError, Invalid

T = TypeVar("T")
U = TypeVar("U")
LONGEST_TOKEN = 200
LONGEST_NUMBER = 18


@dataclass(frozen=True, slots=True)
class PageAsk:
    """
    Which page is wanted.
    """

    limit: int = 50
    """1 to 200 items."""
    token: str | None = None
    """`next_page_token` of the page before."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """
    Some items and where to go on.
    """

    items: tuple[T, ...]
    """In stable order."""
    next_page_token: str | None
    """None at the end."""

    def map(self, change: Callable[[T], U]) -> "Page[U]":
        """
        The same page of other things.
        """
        return Page(tuple(change(item) for item in self.items), self.next_page_token)


def encode_token(position: str) -> str:
    """
    An opaque token for a position.
    """
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def decode_token(token: str, *, field: str = "query.page_token") -> str:
    """
    The position in a token. Raises Invalid for what was never handed out.
    """
    try:
        position = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (ValueError, binascii.Error, UnicodeError):
        position = ""
    if not position or not position.isprintable() or len(token) > LONGEST_TOKEN:
        raise Invalid("The page token is not one of ours.", errors=[FieldError(field, "invalid_token", "Use a next_page_token.")])
    return position


def fetch_page(session: Session, query: Any, by: Any, ask: PageAsk) -> Page[Any]:
    """
    The asked page of the query's rows, ordered by the id column `by`; rows are entities when the query selects one entity.
    """
    if ask.token is not None:
        query = query.where(by > _position(decode_token(ask.token), number=isinstance(by.type, Integer)))
    result = session.execute(query.order_by(by).limit(ask.limit + 1))
    rows: Sequence[Any] = result.scalars().all() if len(query.column_descriptions) == 1 else result.all()
    if len(rows) <= ask.limit:
        return Page(tuple(rows), None)
    kept = rows[: ask.limit]
    return Page(tuple(kept), encode_token(str(getattr(kept[-1], by.key or "id"))))


def _position(text: str, *, number: bool) -> str | int:
    if not number:
        return text
    if not (text.isascii() and text.isdigit()) or len(text) > LONGEST_NUMBER:
        raise Invalid(
            "The page token is not one of ours.", errors=[FieldError("query.page_token", "invalid_token", "Use a next_page_token.")]
        )
    return int(text)
