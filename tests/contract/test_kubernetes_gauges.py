"""
How busy a job's GPUs are, asked of a source that speaks as Prometheus does; whatever else it says is no measurement.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.gauges import Gauges
from controlplane.providers.errors import Refused, UnknownBeyond
from controlplane.providers.kube.work.names import Names
from controlplane.providers.registry import AdapterInput, read_config
from controlplane.providers.tracking import GpuUse
from tests.service_proxy import NO_ANSWERS, MetricsSource


class Source(MetricsSource):
    """
    One that is reached by itself.
    """

    url: str = ""
    """Where it is."""


@pytest.fixture
def source() -> Iterator[Source]:
    """A source on loopback."""
    told = Source()

    class Handler(BaseHTTPRequestHandler):
        """Answers queries."""

        def do_GET(self) -> None:
            """One query."""
            status, body = told.answer(parse_qs(urlsplit(self.path).query)["query"][0])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_port}"
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def use(source: Source, token: str = "job_1-1", **config: Any) -> GpuUse:
    """
    What half an hour of samples every 30 s comes to.
    """
    given = AdapterInput("prv_1", {"metrics_url": source.url, **config}, {}, "cp", lambda: datetime.now(UTC))
    gauges = Gauges(Names("cp"), read_config(KubernetesConfig, given, "the Kubernetes provider's"))
    try:
        return gauges.use("clu_1", token, 1800)
    finally:
        gauges.close()


def test_gpus_count_that_were_measured_all_through(source: Source) -> None:
    """Sixty samples are whole, and a few may be late; the peak is over all of them, the half-measured too."""
    source.counts, source.peaks = ["60", "54", "53"], ["0", "0", "41.5"]
    assert use(source) == GpuUse(watched=2, peak_percent=41.5)
    source.counts, source.peaks = [], []
    assert use(source) == GpuUse(watched=0, peak_percent=None)


def test_only_the_jobs_own_pods_are_asked_for(source: Source) -> None:
    """Its namespace and the names of its own pods, under the labels that the operator has."""
    use(source, metrics_labels=["exported_namespace", "exported_pod"], gpu_metric="my_gpu")
    assert source.asked[0] == (
        'count_over_time(my_gpu{exported_namespace="cp-clu-1",exported_pod=~"job-1-1-([0-9]+-[a-z0-9]+|worker-[0-9]+)"}[1800s])'
    )
    with pytest.raises(Refused):
        use(source, token='a"} or up{x="')


@pytest.mark.parametrize("raw", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_is_no_measurement(source: Source, raw: tuple[int, bytes]) -> None:
    """It is unknown, and unknown is not idle."""
    source.raw = raw
    with pytest.raises(UnknownBeyond):
        use(source)


def test_a_source_that_is_away_tells_nothing() -> None:
    """Unknown, too."""
    away = Source()
    away.url = "http://127.0.0.1:9"
    with pytest.raises(UnknownBeyond):
        use(away)
