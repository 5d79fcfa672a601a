"""
GPUs that pods claim by what they are like: the server's devices read, claims written. Pure, but for `Devices`.

A GPU is given out either by a device plugin, which counts, or by a DRA driver, which the scheduler asks by attribute. The two do not know
of each other, so one server has one of them for its GPUs (`gpus_by`), and with DRA a plain count is a claim, too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.providers.errors import Refused, Unsupported
from controlplane.providers.gpus import GpuKind
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.names import GPUS, grouped
from controlplane.providers.kube.work.quantities import amount

Json = dict[str, Any]
GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The forms that we can write, the newest first."""
CLAIM = "gpus"
"""A pod's name for its claim, and the claim's for its request."""
KEPT_S = 10.0
"""How long devices are remembered."""
API_KEPT_S = 60.0
_GIB = 1024**3
_BARS = frozenset({"NoSchedule", "NoExecute"})


class Devices:
    """
    The GPUs that a server's DRA driver publishes.
    """

    def __init__(self, kube: Kube, config: WorkConfig) -> None:
        self._kube = kube
        self._config = config
        self._lock = threading.Lock()
        self._api: tuple[float, str] | None = None
        self._found: tuple[float, dict[str, list[Json]]] | None = None

    def api(self) -> str:
        """
        Group and version of claims, for example `resource.k8s.io/v1`; empty where the server has none that we can write.
        """
        with self._lock:
            if self._api is None or time.monotonic() - self._api[0] > API_KEPT_S:
                groups = self._kube.get("/apis").get("groups") or []
                group: Json = next((one for one in groups if one.get("name") == GROUP), {})
                there = {str(one.get("version")) for one in group.get("versions") or []}
                best = next((one for one in VERSIONS if one in there), "")
                self._api = (time.monotonic(), f"{GROUP}/{best}" if best else "")
            return self._api[1]

    def must_api(self) -> str:
        """
        As `api`. Raises Unsupported where there is none.
        """
        found = self.api()
        if not found:
            raise Unsupported(f"the server has no {GROUP}: GPUs cannot be claimed there", code="provider_no_claims")
        return found

    def on(self, ref: str) -> list[Json]:
        """
        The GPUs of one node as they were a few seconds ago.
        """
        with self._lock:
            kept = self._found
        if kept is None or time.monotonic() - kept[0] > KEPT_S:
            slices = self._kube.list_all(grouped(self.must_api(), "resourceslices"))
            kept = (time.monotonic(), by_node(slices, self._config.dra_class))
            with self._lock:
                self._found = kept
        return kept[1].get(ref, [])


def by_node(slices: Iterable[Json], driver: str) -> dict[str, list[Json]]:
    """
    The whole GPUs of a driver by the node they are in: each pool by its newest generation, for a driver replaces slices one by one.
    """
    pools: dict[tuple[str, str], tuple[int, list[Json]]] = {}
    for one in slices:
        spec = one.get("spec") or {}
        ref, pool = spec.get("nodeName"), spec.get("pool") or {}
        if spec.get("driver") != driver or not ref:
            continue
        key, generation = (ref, str(pool.get("name", ""))), int(pool.get("generation", 0))
        newest, kept = pools.get(key, (-1, []))
        if generation < newest:
            continue
        devices = [found for device in spec.get("devices") or [] if _kind(found := _plain(device)) in {"", "gpu"}]
        pools[key] = (generation, [*(kept if generation == newest else []), *devices])
    whole: dict[str, list[Json]] = {}
    for (ref, _), (_, those) in pools.items():
        whole.setdefault(ref, []).extend(those)
    return whole


def usable(device: Json) -> bool:
    """
    Whether the driver lets pods have the device.
    """
    return not any(one.get("effect") in _BARS for one in device.get("taints") or [])


def fits(device: Json, kind: GpuKind | None, gpu_model: str, config: WorkConfig) -> bool:
    """
    Whether the device is what the claim asks for: as the server's scheduler will judge it.
    """
    product = _product(kind, gpu_model, config)
    memory = amount(str((_capacity(device).get("memory") or {}).get("value", "0")))
    return (
        usable(device)
        and (not product or _value(device, "productName") == product)
        and (kind is None or memory >= kind.min_memory_gib * _GIB)
        and (kind is None or not kind.nvlink or _value(device, config.nvlink_attribute) is True)
    )


def product_of(device: Json) -> str:
    """
    What the driver calls the device.
    """
    return str(_value(device, "productName") or "")


def tells_nvlink(device: Json, config: WorkConfig) -> bool:
    """
    Whether the device says of itself whether it has NVLink.
    """
    return isinstance(_value(device, config.nvlink_attribute), bool)


def refuse_kind(kind: GpuKind | None, config: WorkConfig) -> None:
    """
    Such GPUs can be asked for here. Raises Unsupported.
    """
    if kind is None:
        return
    if config.gpus_by != "dra":
        raise Unsupported("GPUs are only counted here, by a device plugin", code="job_feature_unsupported")
    if kind.nvlink and not config.nvlink_attribute:
        raise Unsupported("no attribute tells of NVLink here", code="job_feature_unsupported")


def template_body(api: str, metadata: Json, gpus: int, kind: GpuKind | None, gpu_model: str, config: WorkConfig) -> Json:
    """
    What each pod's claim is made from, in the version's own form. Raises Refused for a model that no name of the driver's stands for.
    """
    wanted: Json = {"deviceClassName": config.dra_class, "allocationMode": "ExactCount", "count": gpus}
    told = selectors(kind, gpu_model, config)
    if told:
        wanted["selectors"] = [{"cel": {"expression": one}} for one in told]
    request: Json = {"name": CLAIM, **wanted} if api.endswith("/v1beta1") else {"name": CLAIM, "exactly": wanted}
    return {
        "apiVersion": api,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"metadata": {"labels": metadata["labels"]}, "spec": {"devices": {"requests": [request]}}},
    }


def selectors(kind: GpuKind | None, gpu_model: str, config: WorkConfig) -> list[str]:
    """
    The expressions that a device must fulfil. Values are the operator's and numbers, never a tenant's text.
    """
    found = []
    product = _product(kind, gpu_model, config)
    if product:
        found.append(f"device.attributes[{_quoted(config.dra_class)}].productName == {_quoted(product)}")
    if kind is not None and kind.min_memory_gib:
        least = _quoted(f"{kind.min_memory_gib}Gi")
        found.append(f"device.capacity[{_quoted(config.dra_class)}].memory.compareTo(quantity({least})) >= 0")
    if kind is not None and kind.nvlink:
        domain, _, name = config.nvlink_attribute.partition("/")
        found.append(f"device.attributes[{_quoted(domain)}].?{name}.orValue(false)")
    return found


def marked_pod(claims: str) -> Json:
    """
    The field of a pod that leads to its claim; nothing without one.
    """
    return {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": claims}]} if claims else {}


def marked_template(gpus: int) -> dict[str, str]:
    """
    How many GPUs a pod claims, for whoever reads the pod alone.
    """
    return {GPUS: str(gpus)}


def claimed(pod: Json) -> int:
    """
    GPUs that the pod claims.
    """
    kept = str((pod["metadata"].get("annotations") or {}).get(GPUS, ""))
    return int(kept) if kept.isdecimal() and pod.get("spec", {}).get("resourceClaims") else 0


def _product(kind: GpuKind | None, gpu_model: str, config: WorkConfig) -> str:
    model = (kind.model if kind is not None else "") or gpu_model
    explicit = kind is not None and bool(kind.model)
    if not model or not (config.gpu_models or explicit):
        return ""
    if model not in config.gpu_models:
        raise Refused(f"no name of the driver's is configured for {model}", code="job_gpu_model_unknown")
    return config.gpu_models[model]


def _plain(device: Json) -> Json:
    """
    The device as newer servers tell it: v1beta1 has its facts one level deeper.
    """
    return {**device, **(device.get("basic") or {})}


def _kind(device: Json) -> str:
    return str(_value(device, "type") or "")


def _capacity(device: Json) -> Mapping[str, Any]:
    found: Mapping[str, Any] = device.get("capacity") or {}
    return found


def _value(device: Json, name: str) -> object:
    """
    The attribute's value; a name without a domain is the driver's own, and the driver may say so or not.
    """
    kept = device.get("attributes") or {}
    told = kept.get(name) or kept.get(name.rpartition("/")[2]) or {}
    return next(iter(told.values()), None) if isinstance(told, Mapping) else None


def _quoted(text: str) -> str:
    return json.dumps(text)
