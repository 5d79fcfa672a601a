"""
Limits and counters on the wire.
"""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field, StringConstraints

from controlplane.quotas.states import Limit, ScopeQuotas
from controlplane.web.schemas import Body, Out

LARGEST_LIMIT = 2**53 - 1
MOST_LIMITS = 200
PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["MjEuMQ"])
]
Selector = Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Za-z0-9._-]*$")]


class LimitIn(Body):
    """
    One limit.
    """

    resource: Literal["gpus", "clusters", "keys", "operations", "image_bytes"] = Field(
        description="What is limited.", examples=["gpus"]
    )
    gpu_model: Selector = Field(
        default="", description="Only GPUs of this model; empty: all. Only for gpus.", examples=["H100-SXM5-80GB"]
    )
    site: Selector = Field(default="", description="Only in this site; empty: everywhere.", examples=["osl1"])
    limit: int | None = Field(
        ge=0,
        le=LARGEST_LIMIT,
        description="The most that may be held; null: no limit of its own, those of the levels above still bind.",
        examples=[64],
    )


class LimitsIn(Body):
    """
    All limits of a scope.
    """

    limits: list[LimitIn] = Field(
        max_length=MOST_LIMITS,
        description="The scope's limits; what is not named has none of its own any more.",
        examples=[[{"resource": "gpus", "gpu_model": "", "site": "", "limit": 64}]],
    )

    def plain(self) -> list[Limit]:
        """
        The limits as the room knows them.
        """
        return [Limit(one.resource, one.limit, one.gpu_model, one.site) for one in self.limits]


class CounterOut(Out):
    """
    One limit and what is held under it.
    """

    resource: str = Field(description="What is counted.", examples=["gpus"])
    gpu_model: str = Field(description="Only GPUs of this model; empty: all.", examples=[""])
    site: str = Field(description="Only in this site; empty: everywhere.", examples=[""])
    limit: int | None = Field(
        description="The most that may be held; null: no limit of its own, those of the levels above still bind.", examples=[64]
    )
    used: int = Field(description="Held now, with nodes that are still being wiped.", examples=[48])


class ScopeQuotasOut(Out):
    """
    All limits of one scope with what is held under them.
    """

    scope: str = Field(description="Its level: platform, reseller, tenant or project.", examples=["project"])
    scope_id: str = Field(description="Its id.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    limits: list[CounterOut] = Field(description="In the order resource, model, site.")
    version: int = Field(description="Send it as If-Match to change the limits; it rises with every change of them.", examples=[3])

    @classmethod
    def of(cls, held: ScopeQuotas) -> "ScopeQuotasOut":
        """
        The scope's quotas on the wire.
        """
        limits = [
            CounterOut(resource=one.resource, gpu_model=one.gpu_model, site=one.site, limit=one.ceiling, used=one.used)
            for one in held.counters
        ]
        return cls(scope=held.scope.kind, scope_id=held.scope.id, limits=limits, version=held.version)
