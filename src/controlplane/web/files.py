"""
A body that is a file of text, as an endpoint is given it.
"""

from dataclasses import dataclass

from fastapi import Request


@dataclass(frozen=True, slots=True)
class SentFile:
    """
    The bytes of the body and what they are.
    """

    media_type: str
    """Lower case, without parameters."""
    data: bytes
    """As sent."""

    @classmethod
    async def of(cls, request: Request) -> "SentFile":
        """
        The request's body.
        """
        return cls(request.headers.get("content-type", "").partition(";")[0].strip().lower(), await request.body())
