"""
The words of the room: what was held, for how long, and at what price. No state moves here.

Seconds are whole microseconds as the database keeps them, and money is a decimal; both are summed without rounding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Literal

Mode = Literal["on_demand", "reserved", "spot"]
GroupKey = Literal["tenant", "project", "cluster", "instance_type", "day", "site"]
GROUP_KEYS: tuple[GroupKey, ...] = ("tenant", "project", "cluster", "instance_type", "day", "site")
MICROSECONDS_PER_HOUR = 3_600_000_000
EXACT_DIGITS = 60


@dataclass(frozen=True, slots=True)
class Work:
    """
    A job or a service that held GPUs from one moment on.
    """

    kind: Literal["job", "service"]
    """Which."""
    work_id: str
    """Its id."""
    tenant_id: str
    """Whose."""
    project_id: str
    """Its project."""
    cluster_id: str
    """Where."""
    gpus: int
    """GPUs, or slices of GPUs, that it held; none are no work."""
    since: datetime
    """From when on."""
    until: datetime | None
    """Up to when; None: it goes on."""
    profile: str = ""
    """The MIG profile of the slices; empty: whole GPUs."""
    slices: int = 1
    """Of a GPU's `of_slices` equal parts of compute, so many are one of what it held."""
    of_slices: int = 1
    """1 for whole GPUs."""

    def document(self) -> dict[str, Any]:
        """
        As it is sent to the database.
        """
        since, until = self.since.astimezone(UTC), None if self.until is None else self.until.astimezone(UTC)
        part = str((since - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
        if self.kind == "service" and self.profile:  # replicas of two versions may hold both at once; a job's run holds one
            part += f"-{self.profile}"
        return {**asdict(self), "part": part, "since": since.isoformat(), "until": until and until.isoformat()}


@dataclass(frozen=True, slots=True)
class SliceTime:
    """
    For how long slices of one profile were held.
    """

    profile: str
    """The MIG profile."""
    held_us: int
    """How many were held, times how long, in microseconds."""


@dataclass(frozen=True, slots=True)
class WorkLine:
    """
    The GPU time of one job or service in a window, beside what was metered for its cluster.
    """

    kind: str
    """job or service."""
    work_id: str
    """Its id."""
    project_id: str
    """Its project."""
    cluster_id: str
    """Where it ran."""
    gpu_us: int
    """GPU time, in whole microseconds; of slices their share, and what is left below a microsecond is dropped."""
    cluster_gpu_us: int
    """GPU time of the nodes that its cluster held in the same window, whoever used them."""
    slices: tuple[SliceTime, ...] = ()
    """What it held of slices, by profile."""


def gpu_microseconds(held: Iterable[Mapping[str, Any]]) -> int:
    """
    The GPU time of what was held: {slices, of, us} of each profile, added up as fractions; what is left below a microsecond is dropped, so
    that parts of a GPU never come to more than the GPU.
    """
    return int(sum((Fraction(int(one["us"]) * int(one["slices"]), int(one["of"])) for one in held), Fraction(0)))


@dataclass(frozen=True, slots=True)
class Opening:
    """
    An allocation that has become usable.
    """

    allocation_id: str
    """Which allocation; it is metered once, whatever is repeated."""
    instance_id: str
    """The tenant's name of the node."""
    tenant_id: str
    """Who pays."""
    project_id: str
    """For which project."""
    cluster_id: str
    """For which cluster."""
    instance_type: str
    """What is held."""
    site: str
    """Where."""
    gpus: int
    """GPUs of the node."""
    evidence: str
    """Which operation or claim saw it usable."""
    not_before: datetime
    """The allocation's own start: nothing is billed before it."""
    usable_at: datetime | None
    """When the provider says it became usable; none: now."""
    mode: Mode = "on_demand"
    """How it is sold."""


@dataclass(frozen=True, slots=True)
class Interval:
    """
    One metered interval as a bill can be walked back to it.
    """

    id: str
    """`mtr_…`."""
    tenant_id: str
    """Who pays."""
    project_id: str
    """For which project."""
    cluster_id: str
    """For which cluster."""
    allocation_id: str
    """Which allocation."""
    instance_id: str
    """The tenant's name of the node."""
    instance_type: str
    """What was held."""
    site: str
    """Where."""
    gpus: int
    """GPUs of the node."""
    mode: str
    """How it was sold."""
    started_at: datetime
    """First billable moment."""
    ended_at: datetime | None
    """First moment that is not billable any more; none while it is held."""
    opened_by: str
    """Evidence of the start."""
    closed_by: str
    """Evidence of the end; empty while it is held."""


@dataclass(frozen=True, slots=True)
class Cost:
    """
    What some usage costs in one currency.
    """

    currency: str
    """ISO 4217."""
    gpu_us_price: Decimal
    """Sum of GPU-microseconds times price per GPU-hour: exact, so that sums of any grouping agree to the last digit."""

    @property
    def amount(self) -> Decimal:
        """
        The amount of money, to 60 digits.
        """
        return price_of(self.gpu_us_price)


def price_of(gpu_us_price: Decimal) -> Decimal:
    """
    GPU-microseconds times price per GPU-hour, as money.
    """
    with localcontext() as context:
        context.prec = EXACT_DIGITS
        return gpu_us_price / MICROSECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class UsageRow:
    """
    What was held by one group. A key that was not asked for is none.
    """

    gpu_us: int
    """GPU-microseconds."""
    node_us: int
    """Node-microseconds."""
    unpriced_gpu_us: int
    """GPU-microseconds for which no price list had a price."""
    costs: tuple[Cost, ...]
    """One per currency, in the order of their codes."""
    tenant_id: str | None = None
    """The tenant."""
    project_id: str | None = None
    """The project."""
    cluster_id: str | None = None
    """The cluster."""
    instance_type: str | None = None
    """The instance type."""
    day: date | None = None
    """The day in UTC."""
    site: str | None = None
    """The site."""


@dataclass(frozen=True, slots=True)
class Window:
    """
    A half-open stretch of time.
    """

    from_: datetime
    """Its first moment."""
    to: datetime
    """The first moment after it."""
    now: datetime
    """The database's clock when it was asked for."""


@dataclass(frozen=True, slots=True)
class Price:
    """
    One line of a price list.
    """

    instance_type: str
    """What."""
    mode: Mode
    """How it is sold."""
    per_gpu_hour: Decimal
    """In the list's currency."""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """
    One dated version of a price list.
    """

    id: str
    """`prb_…`."""
    reseller_id: str
    """Whose list."""
    is_base: bool
    """Whether it is the platform's, which every other list overlays."""
    number: int
    """1, 2, 3, … per reseller."""
    currency: str
    """ISO 4217."""
    valid_from: datetime
    """It holds from this moment until another version does."""
    created_at: datetime
    """When it was entered."""
    prices: tuple[Price, ...]
    """In the order instance type, mode."""


@dataclass(frozen=True, slots=True)
class CurrentPrice:
    """
    What a customer pays at one moment.
    """

    instance_type: str
    """For what."""
    mode: str
    """How it is sold."""
    per_gpu_hour: Decimal
    """Per GPU and hour."""
    currency: str
    """ISO 4217."""
    valid_from: datetime
    """Since when."""


@dataclass(frozen=True, slots=True)
class Amount:
    """
    A sum of money.
    """

    amount: Decimal
    """How much."""
    currency: str
    """ISO 4217."""
