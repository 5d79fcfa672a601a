"""
How busy the GPUs of a job's pods were, from the figures that a metrics source of the operator keeps: those of the DCGM exporter, unless
the operator names others. Nothing of a tenant's gets into a query but names that we made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.errors import Unknown
from controlplane.providers.kube.work.names import Names, job_name
from controlplane.providers.tracking import GpuUse

MAX_BODY_BYTES = 4 * 1024 * 1024
ENOUGH = 0.9
"""So much of the samples that a window should hold must be there: scrapes are late, and a counter of them starts in mid-way."""
_OK = 200


class Gauges:
    """
    A source that answers as Prometheus does.
    """

    def __init__(self, names: Names, config: KubernetesConfig) -> None:
        self._names = names
        self._config = config
        self._http = urllib3.PoolManager(maxsize=2, retries=False)

    def close(self) -> None:
        """
        Its connections are closed.
        """
        self._http.clear()

    def use(self, cluster_id: str, token: str, window_s: int) -> GpuUse:
        """
        See `SupportsGpuUse.gpu_use`. Two queries.
        """
        pods = f'{self._config.metrics_labels[0]}="{self._names.namespace(cluster_id)}"'
        pods += f',{self._config.metrics_labels[1]}=~"{job_name(token)}-[0-9]+-[a-z0-9]+"'
        series = f"{self._config.gpu_metric}{{{pods}}}[{int(window_s)}s]"
        counts, peaks = (self._ask(f"{function}({series})") for function in ("count_over_time", "max_over_time"))
        least = math.floor(window_s / self._config.metrics_every_s * ENOUGH)
        watched = sum(1 for number in counts if number >= max(1, least))
        return GpuUse(watched=watched, peak_percent=max(peaks, default=None))

    def _ask(self, query: str) -> list[float]:
        """
        The values of an instant query, one for each series. Raises Unknown for whatever else is answered: it proves nothing.
        """
        url = f"{self._config.metrics_url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
        try:
            answer = self._http.request(
                "GET",
                url,
                timeout=self._config.timeout_s,
                redirect=False,
                preload_content=False,
                headers={"Accept": "application/json"},
            )
            try:
                body = answer.read(MAX_BODY_BYTES + 1)
            finally:
                answer.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise Unknown(f"the metrics source does not answer: {type(error).__name__}", code="provider_no_metrics") from error
        if answer.status != _OK or len(body) > MAX_BODY_BYTES:
            raise Unknown(f"the metrics source answers {answer.status}", code="provider_no_metrics")
        return _values(body)


def _values(body: bytes) -> list[float]:
    try:
        told: Any = json.loads(body)
        whole = told["status"] == "success" and not told.get("warnings") and told["data"]["resultType"] == "vector"
        values = [_number(one) for one in told["data"]["result"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise Unknown("the metrics source does not answer as Prometheus does", code="provider_no_metrics") from None
    if not whole or any(math.isnan(one) for one in values):
        raise Unknown("the metrics source does not tell all", code="provider_no_metrics")
    return values


def _number(one: Mapping[str, Any]) -> float:
    return float(one["value"][1])
