"""
How busy a job's GPUs are in a Kubernetes of its owner's own: told by the one Service that its owner labelled, through the API server, and
by nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter
from controlplane.providers.circuits import OPEN_AFTER, Circuit
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import Busy, UnknownBeyond, Unsupported
from controlplane.providers.toolbox import Guarded
from controlplane.providers.tracking import GpuUse
from tests.contract.managed_work import managed_harness
from tests.contract.own_kubernetes import OwnHarness, own_adapter, own_harness
from tests.kubernetes_kit import UNTIDY
from tests.service_proxy import NO_ANSWERS, MetricsSource, ServiceProxy, keep_figures

pytestmark = UNTIDY
ASKED = "/api/v1/namespaces/default/services/prometheus:9090/proxy/api/v1/query"
PODS = "job-1-1-([0-9]+-[a-z0-9]+|worker-[0-9]+)"
WINDOW_S = 1800


@pytest.fixture
def own() -> Iterator[OwnHarness]:
    """No cluster yet."""
    with own_harness(kueue=False) as made:
        yield made


@contextmanager
def later(own: OwnHarness, spec: ClusterSpec, **config: Any) -> Iterator[KubernetesAdapter]:
    """A process that remembers nothing; what is remembered is believed for a minute."""
    made = own_adapter(own.kit, spec.cluster_id, spec.tenant_id, **config)
    yield made
    made.close()


def is_offered(own: OwnHarness, spec: ClusterSpec) -> bool:
    """Whether whoever looks first now is told that jobs may be stopped when idle."""
    with later(own, spec) as other:
        features = other.observe_cluster(spec.cluster_id).job_features or ()
        assert other.capabilities().job_features == features
        return "idle_stop" in features


def test_one_labelled_service_makes_the_offer(own: OwnHarness) -> None:
    """None, two, and one with another value make none; without the offer nothing is measured."""
    spec = own.cluster(1)
    keep_figures(own.kit, "others", label="graphite")
    assert not is_offered(own, spec)
    with later(own, spec) as other, pytest.raises(Unsupported):
        other.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S)
    keep_figures(own.kit)
    assert is_offered(own, spec)
    keep_figures(own.kit, "thanos")
    assert not is_offered(own, spec)
    with later(own, spec) as other, pytest.raises(Unsupported):
        other.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S)


def test_the_service_is_asked_through_the_api_server(own: OwnHarness) -> None:
    """About the job's own pods, whatever Prometheus made of their labels, each GPU once; Services are looked for once a minute."""
    spec = own.cluster(1)
    source, proxy = MetricsSource(counts=["27", "30", "26"], peaks=["0", "0.5", "97"]), ServiceProxy(own.kit)
    proxy.behind["prometheus"] = source
    keep_figures(own.kit, annotations={"controlplane.internal/gpu-metrics-every-s": "60"})
    with later(own, spec) as other:
        assert other.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S) == GpuUse(watched=2, peak_percent=97)
        source.counts, source.peaks = [], []
        before = len(own.kit.asked())
        assert other.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S) == GpuUse(watched=0, peak_percent=None)
        assert [path.partition("?")[0] for _, path in own.kit.asked()[before:]] == [ASKED] * 2
    assert proxy.paths == [ASKED] * 4
    labels = [(space, pod) for space in ("namespace", "exported_namespace") for pod in ("pod", "exported_pod")]
    chosen = [f'{{{space}="contract-{spec.cluster_id.replace("_", "-")}",{pod}=~"{PODS}"}}[1800s])' for space, pod in labels]
    for function, query in zip(("count_over_time", "max_over_time"), source.asked, strict=False):
        one_of = " or ".join(f"{function}(DCGM_FI_DEV_GPU_UTIL{one}" for one in chosen)
        assert query == f"max by (UUID) ({one_of})"


def test_what_is_no_answer_is_no_measurement(own: OwnHarness) -> None:
    """Whatever the source says, or its proxy in its place; it is unknown, and an API server that passes it on is not silent."""
    spec = own.cluster(1)
    source, proxy = MetricsSource(), ServiceProxy(own.kit)
    keep_figures(own.kit)
    with later(own, spec, timeout_s=0.3) as other:
        guarded = Guarded(other, Circuit())

        def nothing() -> None:
            with pytest.raises(UnknownBeyond) as caught:
                guarded.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S)
            assert caught.value.code in {"provider_no_metrics", "provider_outcome_unknown"}

        nothing()  # no endpoints
        proxy.behind["prometheus"] = source
        for raw in NO_ANSWERS.values():
            source.raw = raw
            nothing()
        source.raw, source.hangs_s = None, 1.0
        nothing()
        source.hangs_s = 0.0
        own.kit.ask("DELETE", "/api/v1/namespaces/default/services/prometheus")
        nothing()
        assert guarded.observe_cluster(spec.cluster_id).members


def test_a_redirect_leads_nowhere(own: OwnHarness) -> None:
    """Nobody at the address that it names is asked, and nothing was measured."""
    visits: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        """Answers well."""

        def do_GET(self) -> None:
            """Is not to be called."""
            visits.append(self.path)
            self.send_error(404)

        def log_message(self, *_args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    spec = own.cluster(1)
    proxy = ServiceProxy(own.kit)
    keep_figures(own.kit)
    for status in (301, 302, 303, 307, 308):
        url = f"http://127.0.0.1:{server.server_port}/api/v1/query"
        proxy.behind["prometheus"] = MetricsSource(raw=(status, b""), location=url)
        with later(own, spec) as other, pytest.raises(UnknownBeyond):
            other.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S)
    server.shutdown()
    thread.join()
    server.server_close()
    assert visits == []


def test_each_managed_cluster_tells_for_itself() -> None:
    """By its own Service, through its own API; a source that is silent opens no circuit, and a cluster that is away is told as such."""
    with managed_harness(kueue=False) as managed:
        spec, other = managed.cluster(1), managed.cluster(1, managed.tenants[1])
        theirs = managed.theirs(spec)
        source, proxy = MetricsSource(counts=["60"], peaks=["0"]), ServiceProxy(theirs)
        proxy.behind["prometheus"] = source
        keep_figures(theirs)
        adapter = managed.another_process(cluster_timeout_s=0.3)
        told = [adapter.observe_cluster(one.cluster_id).job_features or () for one in (spec, other)]
        assert ["idle_stop" in one for one in told] == [True, False]
        assert adapter.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S) == GpuUse(watched=1, peak_percent=0)
        with pytest.raises(Unsupported):
            adapter.gpu_use(other.cluster_id, "job_1-1", window_s=WINDOW_S)
        source.hangs_s = 0.5
        for _ in range(OPEN_AFTER):
            with pytest.raises(UnknownBeyond):
                adapter.gpu_use(spec.cluster_id, "job_1-1", window_s=WINDOW_S)
        assert adapter.list_jobs(spec.cluster_id) == ()
        theirs.handle.post("/_emu/faults", [{"path": "/api", "times": 100_000, "cut": True}])
        with pytest.raises(Busy):
            adapter.list_jobs(spec.cluster_id)
