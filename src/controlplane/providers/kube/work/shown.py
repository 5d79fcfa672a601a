"""
What a whole Kubernetes of one tenant's shows of itself, in the place of an operator's word: who gives out its GPUs, the claims that its
owner made for jobs to mount, where its workers hang, and who tells how busy its GPUs are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.memory import DOMAIN
from controlplane.providers.kube.work.config import Access, Volume, WorkConfig
from controlplane.providers.kube.work.devices import Devices, by_node, product_of, tells_nvlink, usable
from controlplane.providers.kube.work.figures import Figures, labelled, told_by
from controlplane.providers.kube.work.names import HOSTNAME, core, grouped
from controlplane.providers.kube.work.slicing import is_partitioned
from controlplane.providers.volumes import check_volume

Json = dict[str, Any]
KEPT_S = 60.0
"""How long what was found is believed."""
OFFERED = "volume-"
"""What the name of a claim begins with that its owner offers to jobs."""
PLACES = tuple(f"{DOMAIN}/{one}" for one in ("block", "leaf", "nvlink-domain"))
"""Labels of workers whose place is known, from the widest to the narrowest."""
KUEUE_CONFIG = ("kueue-system", "kueue-manager-config", "controller_manager_config.yaml")
"""Where Kueue's charts and manifests keep its own settings: namespace, ConfigMap, key."""


@dataclass(frozen=True, slots=True)
class Shown:
    """
    What was found.
    """

    claims: bool = False
    """Whether a DRA driver gives out the GPUs, and no device plugin beside it."""
    product: str = ""
    """What the driver calls them, where it calls all of them the same."""
    nvlink: bool = False
    """Whether all of them tell by the attribute that we know whether they have NVLink."""
    counted: bool = False
    """Whether Kueue says of itself that it counts claims of them."""
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    """What jobs can mount, by name."""
    figures: Figures | None = None
    """Who tells how busy its GPUs are; None where that is not exactly one."""


class Showing:
    """
    Looks, at most once a minute. Safe to share between threads.
    """

    def __init__(
        self, kube: Kube, config: WorkConfig, devices: Devices, namespace: str, read: Callable[[], Sequence[Json]]
    ) -> None:
        self._kube = kube
        self._read = read
        """Its workers now."""
        self._config = config
        self._devices = devices
        self._namespace = namespace
        self._lock = threading.Lock()
        self._kept: tuple[float, Shown] | None = None

    def lately(self, workers: Iterable[Json] | None = None) -> Shown:
        """
        As it was within the last minute. Workers are asked for where they are needed and not given.
        """
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > KEPT_S:
                self._kept = (time.monotonic(), self._look(workers))
            return self._kept[1]

    def forget(self) -> None:
        """
        The next one looks.
        """
        with self._lock:
            self._kept = None

    def _look(self, workers: Iterable[Json] | None) -> Shown:
        plain = Shown(volumes=self._volumes(), figures=told_by(labelled(self._kube)))
        api = self._devices.api()
        if not api or self._kube.find(grouped(api, "deviceclasses", self._config.dra_class)) is None:
            return plain
        nodes = list(workers) if workers is not None else self._read()
        found = by_node(self._kube.list_all(grouped(api, "resourceslices")), self._config.dra_class)
        gpus = [one for node in nodes for one in found.get(node["metadata"]["name"], []) if usable(one)]
        if not gpus or any(plugged(one, self._config) for one in nodes):
            return plain  # one card would be given out twice
        products = {product_of(one) for one in gpus}
        return replace(
            plain,
            claims=True,
            product=products.pop() if len(products) == 1 else "",
            nvlink=bool(self._config.nvlink_attribute) and all(tells_nvlink(one, self._config) for one in gpus),
            counted=self._counted(),
        )

    def _volumes(self) -> dict[str, Volume]:
        found = {}
        for one in self._kube.list_all(core(self._namespace, "persistentvolumeclaims")):
            name, offered = str(one["metadata"]["name"]).removeprefix(OFFERED), _volume(one)
            if offered is not None and str(one["metadata"]["name"]).startswith(OFFERED) and _is_name(name):
                found[name] = offered
        return dict(sorted(found.items()))

    def _counted(self) -> bool:
        namespace, name, key = KUEUE_CONFIG
        found = self._kube.find(core(namespace, "configmaps", name))
        try:
            told = yaml.safe_load(str(((found or {}).get("data") or {}).get(key, "")))
            mapped = told["resources"]["deviceClassMappings"]
            return any(
                one["name"] == self._config.gpu_resource and self._config.dra_class in one["deviceClassNames"] for one in mapped
            )
        except (yaml.YAMLError, KeyError, TypeError):
            return False


def plugged(node: Json, config: WorkConfig) -> bool:
    """
    Whether a device plugin gives out GPUs of the node, whole or in slices.
    """
    given = str((node.get("status", {}).get("allocatable") or {}).get(config.gpu_resource, "0"))
    return given != "0" or is_partitioned(node, config)


def places(workers: Sequence[Json], levels: Sequence[str] = ()) -> list[str]:
    """
    The labels of places, of these or else of ours, that every one of the workers has, and the node itself as the last; none where no place
    is known of all.
    """
    labels = [(one["metadata"].get("labels") or {}).keys() for one in workers]
    known = [one for one in levels or PLACES if labels and all(one in those for those in labels)]
    return [*(one for one in known if one != HOSTNAME), HOSTNAME] if known else []


def _volume(claim: Json) -> Volume | None:
    """
    What the claim is to jobs; None for one that is going or has lost what it was bound to.
    """
    spec = claim.get("spec") or {}
    modes = set(spec.get("accessModes") or [])
    if claim["metadata"].get("deletionTimestamp") or claim.get("status", {}).get("phase") == "Lost" or not modes:
        return None
    only = modes == {"ReadOnlyMany"}
    access: Access = "ReadOnlyMany" if only else "ReadWriteMany" if "ReadWriteMany" in modes else "ReadWriteOnce"
    # it is there, so nobody asks what it was made of
    return Volume(storage_class="owners", size_gib=1, access=access, read_only=only)


def _is_name(name: str) -> bool:
    try:
        check_volume(name)
    except ValueError:
        return False
    return True
