"""
How busy the GPUs of a job's pods were, by the answers of a source that speaks as Prometheus does. What it does not tell whole proves
nothing. Nothing of a tenant's gets into a query but names that we made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.providers.errors import UnknownBeyond
from controlplane.providers.kube.work.names import job_name
from controlplane.providers.tracking import GpuUse

QUERY = "/api/v1/query"
"""Where such a source answers instant queries."""
MAX_BODY_BYTES = 4 * 1024 * 1024
ENOUGH = 0.9
"""So much of the samples that a window should hold must be there: scrapes are late, and a counter of them starts in mid-way."""
_OK = 200
Ask = Callable[[str], tuple[int, bytes]]
"""Status and body of the answer to an instant query."""


def pods_of(token: str) -> str:
    """
    A regular expression for the names of the attempt's pods that may have GPUs: of a Job, or an MPI program's workers.
    """
    return f"{job_name(token)}-([0-9]+-[a-z0-9]+|worker-[0-9]+)"


def measured(ask: Ask, query: Callable[[str], str], *, window_s: int, every_s: int) -> GpuUse:
    """
    See `SupportsGpuUse.gpu_use`: two queries, made from the name of a function over time; each answers one series for each GPU, which is
    sampled so often. Raises UnknownBeyond.
    """
    counts, peaks = (_told(ask(query(function))) for function in ("count_over_time", "max_over_time"))
    least = max(1, math.floor(window_s / every_s * ENOUGH))
    return GpuUse(watched=sum(1 for number in counts if number >= least), peak_percent=max(peaks, default=None))


def no_figures(why: str) -> UnknownBeyond:
    """
    The error that nothing was measured: nothing is known, and whoever gives out the GPUs is not silent.
    """
    return UnknownBeyond(why, code="provider_no_metrics")


def _told(answer: tuple[int, bytes]) -> list[float]:
    status, body = answer
    if status != _OK or len(body) > MAX_BODY_BYTES:
        raise no_figures(f"the metrics source answers {status}")
    try:
        told: Any = json.loads(body)
        whole = told["status"] == "success" and not told.get("warnings") and told["data"]["resultType"] == "vector"
        values = [_number(one) for one in told["data"]["result"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise no_figures("the metrics source does not answer as Prometheus does") from None
    if not whole or any(math.isnan(one) for one in values):
        raise no_figures("the metrics source does not tell all")
    return values


def _number(one: Mapping[str, Any]) -> float:
    return float(one["value"][1])
