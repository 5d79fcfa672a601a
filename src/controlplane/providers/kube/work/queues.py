"""
Whether a Kueue is there, and an MPI operator beside it, as the server says.
"""

from __future__ import annotations

import threading
import time

from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work import mpi
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.walls import Queueing

KUEUE = "kueue.x-k8s.io"
FACTS_KEPT_S = 60.0
"""How long what the server offers is remembered."""


class Queues:
    """
    The Kueue of one server. Safe to share between threads.
    """

    def __init__(self, kube: Kube, config: WorkConfig) -> None:
        self._kube = kube
        self._config = config
        self._lock = threading.Lock()
        self._known: tuple[float, Queueing | None] | None = None
        self._launches: tuple[float, bool] | None = None

    def there(self) -> Queueing | None:
        """
        The Kueue that is there and that we may use, as it was within the last minute; None for none.
        """
        if self._config.queues == "off" or (self._config.gpus_by == "dra" and not self._config.queues_count_claims):
            return None  # a queue that does not count claims would admit gangs that find no GPUs
        with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > FACTS_KEPT_S:
                self._known = (time.monotonic(), self._discovered())
            return self._known[1]

    def launches(self) -> bool:
        """
        Whether there is an MPI operator's kind as well, as it was within the last minute.
        """
        if self.there() is None:
            return False
        with self._lock:
            if self._launches is None or time.monotonic() - self._launches[0] > FACTS_KEPT_S:
                self._launches = (time.monotonic(), self._serves_mpi())
            return self._launches[1]

    def _serves_mpi(self) -> bool:
        groups = self._kube.get("/apis").get("groups") or []
        versions = {one.get("groupVersion") for group in groups for one in group.get("versions") or []}
        if mpi.API not in versions:
            return False  # another operator has the group with an older version of the kind
        return any(one.get("name") == mpi.PLURAL for one in self._kube.get(f"/apis/{mpi.API}").get("resources") or [])

    def _discovered(self) -> Queueing | None:
        groups = self._kube.get("/apis").get("groups") or []
        group = next((one for one in groups if one.get("name") == KUEUE), None)
        if group is None:
            return None
        api = group["preferredVersion"]["groupVersion"]
        kinds = {one.get("name") for one in self._kube.get(f"/apis/{api}").get("resources") or []}
        return Queueing(api, topology="topologies" in kinds)
