"""
Checked kinds of values and query parameters of the room's endpoints.
"""

from ipaddress import ip_network
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from controlplane.identity.states import PERMISSIONS, ROLES
from controlplane.web.schemas import GivenMoment, check_text

LONGEST_OVERLAP_S = 7 * 24 * 3600


def _network(value: str) -> str:
    return str(ip_network(value))


def _one_of(known: frozenset[str]) -> Any:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError("unknown; the description of the field lists what there is")
        return value

    return check


Instant = GivenMoment
Permission = Annotated[str, AfterValidator(_one_of(PERMISSIONS)), WithJsonSchema({"type": "string", "enum": sorted(PERMISSIONS)})]
Role = Annotated[str, AfterValidator(_one_of(frozenset(ROLES))), WithJsonSchema({"type": "string", "enum": list(ROLES)})]
Network = Annotated[
    str,
    StringConstraints(max_length=49, pattern=r"^[0-9a-fA-F.:]+(/[0-9]{1,3})?$"),
    AfterValidator(_network),
]
Email = Annotated[
    str,
    StringConstraints(max_length=254, pattern=r"^[a-zA-Z0-9._%+-]{1,64}@[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$"),
    Field(description="E-mail address; letter case does not matter.", examples=["ada@example.com"]),
]
HostName = Annotated[
    str,
    StringConstraints(max_length=253, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+$"),
]
Amount = Annotated[int, Field(ge=0, le=2**53 - 1)]

Limit = Annotated[int, Query(ge=1, le=200, description="Most items on the page.", examples=[50])]
PageToken = Annotated[str | None, Query(max_length=200, description="`next_page_token` of the page before.", examples=[None])]
CreatedAfter = Annotated[
    Instant | None, Query(description="Only what was created after this time.", examples=["2026-03-01T00:00:00Z"])
]
Label = Annotated[
    Annotated[str, AfterValidator(check_text)] | None,
    Query(max_length=320, description="`key=value`, or `key` for any value.", examples=["team=vision"]),
]
TenantState = Annotated[
    Literal["active", "suspended", "deleting", "deleted"] | None,
    Query(description="Only in this state; without it all but the deleted.", examples=["active"]),
]
ResellerState = Annotated[
    Literal["active", "suspended", "deleted"] | None,
    Query(description="Only in this state; without it all but the deleted.", examples=["active"]),
]
ResellerId = Annotated[
    Annotated[str, AfterValidator(check_text)] | None,
    Query(max_length=40, description="Only what this reseller sells to.", examples=["rsl_01k5x7p3r8w2v6t9q4n0m1c2d3"]),
]
ProjectState = Annotated[
    Literal["active", "deleted"] | None,
    Query(description="Only in this state; without it all but the deleted.", examples=["active"]),
]
MemberState = Annotated[
    Literal["active", "disabled", "deleted"] | None,
    Query(description="Only in this state; without it all but the deleted.", examples=["active"]),
]
KeyState = Annotated[Literal["active", "expired", "revoked"] | None, Query(description="Only in this state.", examples=["active"])]
