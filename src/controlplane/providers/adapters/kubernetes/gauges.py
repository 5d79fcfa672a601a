"""
How busy the GPUs of a job's pods were, from the figures that a metrics source of the operator keeps: those of the DCGM exporter, unless
the operator names others.
"""

from __future__ import annotations

from urllib.parse import urlencode

import urllib3

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.errors import Unsupported
from controlplane.providers.kube.work.gauging import MAX_BODY_BYTES, QUERY, measured, no_figures, pods_of
from controlplane.providers.kube.work.names import Names
from controlplane.providers.tracking import GpuUse


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
        See `SupportsGpuUse.gpu_use`. Two queries. Raises Unsupported where the operator named no source.
        """
        if not self._config.metrics_url:
            raise Unsupported("no source of metrics is configured", code="job_feature_unsupported")
        pods = f'{self._config.metrics_labels[0]}="{self._names.namespace(cluster_id)}"'
        pods += f',{self._config.metrics_labels[1]}=~"{pods_of(token)}"'
        series = f"{self._config.gpu_metric}{{{pods}}}[{int(window_s)}s]"
        return measured(
            self._ask, lambda function: f"{function}({series})", window_s=window_s, every_s=self._config.metrics_every_s
        )

    def _ask(self, query: str) -> tuple[int, bytes]:
        url = f"{self._config.metrics_url.rstrip('/')}{QUERY}?{urlencode({'query': query})}"
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
                return answer.status, answer.read(MAX_BODY_BYTES + 1)
            finally:
                answer.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise no_figures(f"the metrics source does not answer: {type(error).__name__}") from error
