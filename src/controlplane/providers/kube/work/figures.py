"""
Where the owner of a Kubernetes keeps figures of its GPUs: a Service that it labelled, which is asked through the API server that we speak
to anyway, with the credential that we have. No other address is ever connected to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from controlplane.providers.errors import Unsupported
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.memory import DOMAIN
from controlplane.providers.kube.work.gauging import MAX_BODY_BYTES, QUERY, measured, pods_of
from controlplane.providers.kube.work.names import Names, core
from controlplane.providers.tracking import GpuUse

Json = dict[str, Any]
KEEPS = f"{DOMAIN}/gpu-metrics"
"""Label of the Service; its value says how it is asked."""
SPEAKS = "prometheus"
"""The only such value."""
PORT = f"{DOMAIN}/gpu-metrics-port"
"""Annotation of one that has several ports: the name or the number of the one to ask."""
EVERY_S = f"{DOMAIN}/gpu-metrics-every-s"
"""Annotation: how often the source takes its figures, in seconds."""
USUAL_EVERY_S, RAREST_S = 30, 300
METRIC = "DCGM_FI_DEV_GPU_UTIL"
"""The figure that is a GPU's use in percent, as the DCGM exporter calls it."""
GPU = "UUID"
"""Its label for the GPU: one that is scraped twice is one."""
PLACES = tuple(product(("namespace", "exported_namespace"), ("pod", "exported_pod")))
"""Its labels for a pod's namespace and name: Prometheus renames what the labels of its own targets hide."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PORTS = range(1, 65_536)


@dataclass(frozen=True, slots=True)
class Figures:
    """
    A source in the cluster.
    """

    path: str
    """Where instant queries are answered, at the API server."""
    every_s: int
    """How often it takes its figures."""


def labelled(kube: Kube) -> list[Json]:
    """
    The Services, of any namespace, that say that they keep such figures. One list.
    """
    return kube.list_all("/api/v1/services", labels=f"{KEEPS}={SPEAKS}")


def told_by(services: Sequence[Json]) -> Figures | None:
    """
    The source that they name; None for none, for more than one, and for one of which it is not plain how it is asked.
    """
    if len(services) != 1:
        return None
    meta, spec = services[0]["metadata"], services[0].get("spec") or {}
    notes: Mapping[str, str] = meta.get("annotations") or {}
    every, port = str(notes.get(EVERY_S, USUAL_EVERY_S)), _port(spec.get("ports") or [], notes.get(PORT))
    plain = _NAME.fullmatch(str(meta["name"])) and _NAME.fullmatch(str(meta["namespace"]))
    if not plain or port is None or spec.get("type") == "ExternalName" or not re.fullmatch(r"[1-9][0-9]{0,2}", every):
        return None
    scheme = "https:" if port.get("appProtocol") == "https" else ""
    name = f"{scheme}{meta['name']}:{port['port']}"
    return Figures(core(meta["namespace"], "services", f"{name}/proxy{QUERY}"), int(every)) if int(every) <= RAREST_S else None


class OwnersGauges:
    """
    Whatever source the owner has labelled.
    """

    def __init__(self, kube: Kube, names: Names, lately: Callable[[], Figures | None]) -> None:
        self._kube = kube
        self._names = names
        self._lately = lately

    def close(self) -> None:
        """
        There is nothing to close.
        """

    def use(self, cluster_id: str, token: str, window_s: int) -> GpuUse:
        """
        See `SupportsGpuUse.gpu_use`. Two queries. Raises Unsupported where no source is labelled, or not exactly one.
        """
        figures = self._lately()
        if figures is None:
            raise Unsupported(f"not exactly one Service is labelled {KEEPS}: {SPEAKS}", code="job_feature_unsupported")
        namespace, pods, window = self._names.namespace(cluster_id), pods_of(token), f"[{int(window_s)}s]"
        chosen = [f'{METRIC}{{{space}="{namespace}",{pod}=~"{pods}"}}{window}' for space, pod in PLACES]

        def query(function: str) -> str:
            return f"max by ({GPU}) ({' or '.join(f'{function}({one})' for one in chosen)})"

        def ask(text: str) -> tuple[int, bytes]:
            return self._kube.relay(figures.path, {"query": text}, most_bytes=MAX_BODY_BYTES)

        return measured(ask, query, window_s=window_s, every_s=figures.every_s)


def _port(ports: Sequence[Json], named: str | None) -> Json | None:
    """
    The port to ask: the one that is named, or the only one.
    """
    chosen = [one for one in ports if named is None or named in {str(one.get("port")), one.get("name")}]
    found = chosen[0] if len(chosen) == 1 and chosen[0].get("protocol", "TCP") == "TCP" else None
    return found if found is not None and found.get("port") in _PORTS else None
