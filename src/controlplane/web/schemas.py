"""
Shapes that every resource shares on the wire.
"""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)

from controlplane.kit.clock import rfc3339
from controlplane.kit.errors import FieldError, Invalid

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
WORST_FIELDS = 10
RFC3339 = re.compile(r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})$", re.ASCII)
EARLIEST_YEAR, LATEST_YEAR = 1970, 2199

Moment = Annotated[datetime, PlainSerializer(rfc3339, return_type=str, when_used="json")]


def check_text(text: str) -> str:
    """
    The text, when it can be stored and shown. Raises ValueError for control characters.
    """
    if any(ord(one) < 32 and one not in "\t\n\r" for one in text) or "\x7f" in text:  # noqa: PLR2004 - the C0 range
        raise ValueError("control characters are not allowed")
    return text


def check_moment(value: object) -> object:
    """
    The value, when it is text in the form of RFC 3339. Raises ValueError, also for numbers, which would be taken for seconds.
    """
    if not isinstance(value, datetime) and not (isinstance(value, str) and RFC3339.match(value)):
        raise ValueError("a moment is written like 2026-03-01T00:00:00Z")
    return value


def _storable(value: datetime) -> datetime:
    if not EARLIEST_YEAR <= value.year <= LATEST_YEAR:
        raise ValueError(f"must lie between {EARLIEST_YEAR} and {LATEST_YEAR}")
    return value.astimezone(UTC)


GivenMoment = Annotated[
    AwareDatetime,
    Strict(False),
    BeforeValidator(check_moment),
    AfterValidator(_storable),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment that a caller sends, in UTC from here on."""
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"),
    Field(description="Lower-case letters, digits and dashes; unique under its parent.", examples=["train-7b"]),
]
Title = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(check_text)]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9._/-]*[a-zA-Z0-9])?$")]
LabelValue = Annotated[str, StringConstraints(max_length=256), AfterValidator(check_text)]
Labels = Annotated[
    dict[LabelKey, LabelValue],
    Field(
        max_length=32,
        description="Free key-value pairs.",
        examples=[{"team": "vision"}],
        json_schema_extra={"additionalProperties": False},  # keys of another form are refused, not passed over
    ),
]


class Body(BaseModel):
    """
    What a caller sends: unknown fields are refused, types are not converted.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Out(BaseModel):
    """
    What we answer.
    """

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Issue(Out):
    """
    Something that is wrong, by a stable code.
    """

    code: str = Field(description="Stable code.", examples=["insufficient_capacity"])
    message: str = Field(description="In words.", examples=["2 more nodes of hgx-h100-8 are needed in osl1."])


class Condition(Out):
    """
    One measured fact; `not_measured` where it could not be.
    """

    name: str = Field(description="What was checked.", examples=["gpu_count"])
    result: str = Field(description="passed, failed or not_measured.", examples=["passed"])
    detail: str = Field(default="", description="What was seen.", examples=["32 of 32"])


class Status(Out):
    """
    Our side of a resource.
    """

    state: str = Field(description="Where it stands.", examples=["running"])
    reason: str = Field(description="Why, or what it waits for.", examples=["All 4 nodes answer."])
    since: Moment = Field(description="When it came to this state.", examples=["2026-03-01T10:00:00Z"])
    deadline: Moment | None = Field(description="After this it needs attention; null for settled states.", examples=[None])
    conditions: list[Condition] = Field(default=[], description="Measured facts.")
    issues: list[Issue] = Field(default=[], description="What is wrong when it is not well.")


class Money(Out):
    """
    An exact amount.
    """

    amount: str = Field(description="Decimal number as text.", pattern=r"^-?[0-9]+(\.[0-9]+)?$", examples=["12.3400"])
    currency: str = Field(description="ISO 4217.", examples=["USD"])

    @classmethod
    def of(cls, amount: Decimal, currency: str) -> "Money":
        """
        The amount to four places.
        """
        return cls(amount=f"{amount:.4f}", currency=currency)


class ListOf(Out, Generic[T]):
    """
    A page of a list.
    """

    items: list[T] = Field(description="In stable order, oldest first.")
    next_page_token: str | None = Field(description="Send it as `page_token` for the next page; null at the end.", examples=[None])


class ProblemField(Out):
    """
    One field that was refused.
    """

    field: str = Field(description="Path in the request.", examples=["body.spec.node_sets.0.count"])
    code: str = Field(description="Stable code.", examples=["greater_than"])
    message: str = Field(description="In words.", examples=["Input should be greater than 0"])


class Retry(Out):
    """
    Whether the same request can succeed later.
    """

    retryable: bool = Field(description="True when it can.", examples=[False])
    after_s: float | None = Field(description="Earliest sensible time in seconds.", examples=[None])


class Problem(Out):
    """
    What went wrong, as application/problem+json (RFC 9457). Quota and capacity problems carry more members.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = Field(description="A stable URI reference for the kind of problem.", examples=["/problems/quota_exceeded"])
    title: str = Field(description="The kind in words.", examples=["The quota does not allow this"])
    status: int = Field(description="The HTTP status.", examples=[409])
    detail: str = Field(
        description="This case in words, and what to do next.", examples=["Project quota of GPUs: 64 of 64 are held, 8 asked."]
    )
    code: str = Field(description="Stable code.", examples=["quota_exceeded"])
    request_id: str = Field(description="Name it when you ask for help.", examples=["req_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    errors: list[ProblemField] = Field(default=[], description="The fields that were refused.")
    retry: Retry = Field(description="Whether to try again.")


def plain(value: Any) -> Any:
    """
    The value with datetimes as RFC 3339 text and decimals as text, fit for JSON.
    """
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    return value


def read(model: type[M], body: bytes) -> M:
    """
    The body as the model. Raises Invalid.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[:WORST_FIELDS]
        fields = [FieldError(".".join(map(str, ("body", *one["loc"]))), one["type"], one["msg"]) for one in found]
        raise Invalid("The body does not have the agreed form.", errors=fields) from None
