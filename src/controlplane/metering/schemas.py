"""
Usage and prices on the wire.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Literal

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, StringConstraints

from controlplane.metering.states import CurrentPrice, Interval, Price, PriceBook, UsageRow, WorkLine
from controlplane.web.schemas import Body, Moment, Money, Out, check_moment

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
US = 1_000_000


def _check_range(value: datetime) -> datetime:
    if not EARLIEST <= value <= LATEST:
        raise ValueError("a moment lies between the years 2000 and 2200")
    return value.astimezone(UTC)


GivenMoment = Annotated[AwareDatetime, AfterValidator(_check_range), BeforeValidator(check_moment), Field(strict=False)]
From = Annotated[
    GivenMoment | None,
    Query(
        alias="from",
        description="Start of the window, RFC 3339; without it the start of this month in UTC.",
        examples=["2026-03-01T00:00:00Z"],
    ),
]
To = Annotated[
    GivenMoment | None,
    Query(description="End of the window, not in it, RFC 3339; without it now.", examples=["2026-04-01T00:00:00Z"]),
]
GroupBy = Annotated[
    str,
    Query(
        max_length=100,
        pattern=r"^((project|cluster|instance_type|day|site)(,(project|cluster|instance_type|day|site))*)?$",
        description="What to sum by, separated by commas: project, cluster, instance_type, day (UTC), site. Without it one sum.",
        examples=["project,day"],
    ),
]
SellerGroupBy = Annotated[
    str,
    Query(
        max_length=100,
        pattern=r"^((project|cluster|instance_type|day|site)(,(project|cluster|instance_type|day|site))*)?$",
        description="What to sum by besides the tenant: project, cluster, instance_type, day (UTC), site.",
        examples=["day"],
    ),
]
IdFilter = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=60,
        pattern=r"^[a-z0-9_]+$",
        description="Only of this one.",
        examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    ),
]
PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["bXRyXzAx"])
]


def seconds(us: int) -> str:
    """
    Microseconds as decimal seconds, exact.
    """
    return f"{us // US}.{us % US:06d}"


def money(amount: Decimal, currency: str) -> Money:
    """
    The amount to four places, halves to even.
    """
    return Money.of(amount, currency)


class UsageOut(Out):
    """
    What one group held.
    """

    tenant_id: str | None = Field(description="The tenant; null unless asked for.", examples=[None])
    project_id: str | None = Field(description="The project; null unless grouped by.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    cluster_id: str | None = Field(description="The cluster; null unless grouped by.", examples=[None])
    instance_type: str | None = Field(description="The instance type; null unless grouped by.", examples=["hgx-h100-8"])
    day: date | None = Field(description="The day in UTC; null unless grouped by.", examples=["2026-03-01"])
    site: str | None = Field(description="The site; null unless grouped by.", examples=[None])
    gpu_seconds: str = Field(description="GPU-seconds held, exact to the microsecond.", examples=["115200.000000"])
    node_seconds: str = Field(description="Node-seconds held, exact to the microsecond.", examples=["14400.000000"])
    cost: list[Money] = Field(
        description="What the priced part costs, one amount per currency.", examples=[[{"amount": "80.0000", "currency": "USD"}]]
    )
    unpriced_gpu_seconds: str = Field(
        description="GPU-seconds for which no price list had a price: they are in no amount.", examples=["0.000000"]
    )

    @classmethod
    def of(cls, row: UsageRow) -> "UsageOut":
        """
        The row on the wire.
        """
        return cls(
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            cluster_id=row.cluster_id,
            instance_type=row.instance_type,
            day=row.day,
            site=row.site,
            gpu_seconds=seconds(row.gpu_us),
            node_seconds=seconds(row.node_us),
            cost=[money(one.amount, one.currency) for one in row.costs],
            unpriced_gpu_seconds=seconds(row.unpriced_gpu_us),
        )


class SliceTimeOut(Out):
    """
    For how long slices of one MIG profile were held.
    """

    profile: str = Field(description="The MIG profile.", examples=["1g.10gb"])
    slice_seconds: str = Field(description="How many were held, times how long.", examples=["7200.000000"])


class WorkOut(Out):
    """
    What one job or service used.
    """

    kind: str = Field(description="job or service.", examples=["job"])
    id: str = Field(description="The job or the service.", examples=["job_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    project_id: str = Field(description="Its project.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    cluster_id: str = Field(description="Where it ran.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    gpu_seconds: str = Field(
        description="GPU-seconds that its runs or replicas held; of slices their share of a GPU's compute, cut off below a microsecond. Not"
        " billed: the cluster's nodes are.",
        examples=["7200.000000"],
    )
    mig: list[SliceTimeOut] = Field(default=[], description="What of it were slices of GPUs, by profile.", examples=[[]])
    cluster_gpu_seconds: str = Field(
        description="GPU-seconds that were metered for the whole cluster in the same window, which are what is billed.",
        examples=["115200.000000"],
    )

    @classmethod
    def of(cls, line: WorkLine) -> "WorkOut":
        """
        The line on the wire.
        """
        return cls(
            kind=line.kind,
            id=line.work_id,
            project_id=line.project_id,
            cluster_id=line.cluster_id,
            gpu_seconds=seconds(line.gpu_us),
            mig=[SliceTimeOut(profile=one.profile, slice_seconds=seconds(one.held_us)) for one in line.slices],
            cluster_gpu_seconds=seconds(line.cluster_gpu_us),
        )


class UsageReport(Out):
    """
    Usage in a window.
    """

    from_: Moment = Field(serialization_alias="from", description="Start of the window.", examples=["2026-03-01T00:00:00Z"])
    to: Moment = Field(description="End of the window, not in it.", examples=["2026-04-01T00:00:00Z"])
    group_by: list[str] = Field(description="What was summed by.", examples=[["project", "day"]])
    as_of: Moment = Field(description="What is still held is counted up to here.", examples=["2026-03-15T12:00:00Z"])
    items: list[UsageOut] = Field(description="In the order of the groups.")


class IntervalOut(Out):
    """
    One node held over `[started_at, ended_at)`: the evidence behind usage and bill.
    """

    id: str = Field(description="Its id.", examples=["mtr_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    tenant_id: str = Field(description="Who pays.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    project_id: str = Field(description="For which project.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    cluster_id: str = Field(description="For which cluster.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    instance_id: str = Field(description="Which node, by the tenant's name of it.", examples=["ins_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    instance_type: str = Field(description="What was held.", examples=["hgx-h100-8"])
    site: str = Field(description="Where.", examples=["osl1"])
    gpus: int = Field(description="GPUs of the node.", examples=[8])
    mode: str = Field(description="How it was sold: on_demand, reserved or spot.", examples=["on_demand"])
    started_at: Moment = Field(description="When it became usable.", examples=["2026-03-01T10:00:00Z"])
    ended_at: Moment | None = Field(description="When its release was accepted; null while it is held.", examples=[None])
    opened_by: str = Field(description="Evidence of the start.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    closed_by: str = Field(description="Evidence of the end; empty while it is held.", examples=[""])

    @classmethod
    def of(cls, one: Interval) -> "IntervalOut":
        """
        The interval on the wire.
        """
        return cls.model_validate(one)


class PriceIn(Body):
    """
    One line of a price list.
    """

    instance_type: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$")] = Field(
        description="What.", examples=["hgx-h100-8"]
    )
    mode: Literal["on_demand", "reserved", "spot"] = Field(
        default="on_demand", description="How it is sold.", examples=["on_demand"]
    )
    per_gpu_hour: Annotated[str, StringConstraints(max_length=19, pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$")] = Field(
        description="Price per GPU and hour as a decimal number.", examples=["2.490000"]
    )

    def plain(self) -> Price:
        """
        The line as the room knows it.
        """
        return Price(self.instance_type, self.mode, Decimal(self.per_gpu_hour))


class PriceBookCreate(Body):
    """
    One more version of a price list.
    """

    reseller_id: Annotated[str, StringConstraints(min_length=1, max_length=60, pattern=r"^[a-z0-9_]+$")] | None = Field(
        default=None, description="Whose list; null: the platform's, which all others overlay.", examples=[None]
    )
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = Field(description="ISO 4217.", examples=["USD"])
    valid_from: GivenMoment | None = Field(
        default=None, description="It holds from here on; null: now. Only a first version may start in the past.", examples=[None]
    )
    prices: list[PriceIn] = Field(
        min_length=1,
        max_length=1000,
        description="The lines; what is not named has no price in this list.",
        examples=[[{"instance_type": "hgx-h100-8", "mode": "on_demand", "per_gpu_hour": "2.49"}]],
    )


class PriceOut(Out):
    """
    One line of a price list.
    """

    instance_type: str = Field(description="What.", examples=["hgx-h100-8"])
    mode: str = Field(description="How it is sold.", examples=["on_demand"])
    per_gpu_hour: str = Field(description="Price per GPU and hour as a decimal number.", examples=["2.490000"])


class PriceBookOut(Out):
    """
    One dated version of a price list.
    """

    id: str = Field(description="Its id.", examples=["prb_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    reseller_id: str = Field(description="Whose list.", examples=["rsl_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    is_base: bool = Field(description="Whether it is the platform's, which all others overlay.", examples=[True])
    number: int = Field(description="1, 2, 3, … per reseller.", examples=[1])
    currency: str = Field(description="ISO 4217.", examples=["USD"])
    valid_from: Moment = Field(description="It holds from here until another version does.", examples=["2026-03-01T00:00:00Z"])
    created_at: Moment = Field(description="When it was entered.", examples=["2026-02-20T09:00:00Z"])
    prices: list[PriceOut] = Field(description="In the order instance type, mode.")

    @classmethod
    def of(cls, book: PriceBook) -> "PriceBookOut":
        """
        The list on the wire.
        """
        prices = [
            PriceOut(instance_type=one.instance_type, mode=one.mode, per_gpu_hour=f"{one.per_gpu_hour:f}") for one in book.prices
        ]
        return cls(
            id=book.id,
            reseller_id=book.reseller_id,
            is_base=book.is_base,
            number=book.number,
            currency=book.currency,
            valid_from=book.valid_from,
            created_at=book.created_at,
            prices=prices,
        )


class CurrentPriceOut(Out):
    """
    What is paid now.
    """

    instance_type: str = Field(description="For what.", examples=["hgx-h100-8"])
    mode: str = Field(description="How it is sold.", examples=["on_demand"])
    per_gpu_hour: Money = Field(description="Per GPU and hour.", examples=[{"amount": "2.490000", "currency": "USD"}])
    valid_from: Moment = Field(description="Since when this list holds.", examples=["2026-03-01T00:00:00Z"])

    @classmethod
    def of(cls, one: CurrentPrice) -> "CurrentPriceOut":
        """
        The price on the wire, with all its places.
        """
        price = Money(amount=f"{one.per_gpu_hour:f}", currency=one.currency)
        return cls(instance_type=one.instance_type, mode=one.mode, per_gpu_hour=price, valid_from=one.valid_from)


class CurrentPrices(Out):
    """
    All prices that hold now.
    """

    items: list[CurrentPriceOut] = Field(description="In the order instance type, mode.")
