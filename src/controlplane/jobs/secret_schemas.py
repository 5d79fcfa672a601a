"""
Secrets of a project on the wire: a value comes in and never goes out.
"""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr

from controlplane.jobs.models import ProjectSecretRow
from controlplane.web.schemas import Body, Moment, Out

MAX_SECRET_BYTES = 16 * 1024


def _check_secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("a secret is text") from None
    if not 0 < size <= MAX_SECRET_BYTES:
        raise ValueError(f"a secret has 1 to {MAX_SECRET_BYTES} bytes")
    if "\x00" in text:
        raise ValueError("a secret cannot hold NUL")
    return value


class SecretPut(Body):
    """
    The value that the secret shall have.
    """

    value: Annotated[SecretStr, AfterValidator(_check_secret)] = Field(
        description="At most 16 KiB of text. It is sealed and never shown again.", examples=["correct horse battery staple"]
    )


class SecretOut(Out):
    """
    A secret, without its value.
    """

    name: str = Field(description="Unique in the project; jobs name it.", examples=["hub-token"])
    created_at: Moment = Field(description="When it was first written.", examples=["2026-03-01T09:59:00Z"])
    updated_at: Moment = Field(description="When its value was last written.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Rises with every value.", examples=[1])

    @classmethod
    def of(cls, row: ProjectSecretRow) -> Self:
        """
        The row, without what it keeps.
        """
        return cls(name=row.name, created_at=row.created_at, updated_at=row.updated_at, version=row.version)
