"""
Where each of our clusters is in the management cluster: under a name made of its id, or, for one that was taken over, under its own.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from controlplane.providers.adapters.clusterapi.names import ADOPTED, CAPI, SPOKEN, Names, notes_of
from controlplane.providers.errors import Unsupported
from controlplane.providers.kube.client import Kube

Json = dict[str, Any]
FACTS_KEPT_S = 60.0
"""How long the version of Cluster API that is served is remembered."""


class Directory:
    """
    Clusters by our ids. What was found once is asked for by its name; its marks decide each time whether it is still ours.
    """

    def __init__(self, kube: Kube, names: Names) -> None:
        self._kube = kube
        self._names = names
        self._lock = threading.Lock()
        self._api: tuple[float, str] | None = None
        self._known: dict[str, str] = {}

    def api(self) -> str:
        """
        The version of Cluster API that is spoken. Raises Unsupported where the server has none that we know.
        """
        with self._lock:
            if self._api is not None and time.monotonic() - self._api[0] < FACTS_KEPT_S:
                return self._api[1]
        groups = self._kube.get("/apis").get("groups") or []
        group: Json = next((one for one in groups if one.get("name") == CAPI), {})
        served = {str(one.get("version")) for one in group.get("versions") or []}
        found = next((one for one in SPOKEN if one in served), None)
        if found is None:
            raise Unsupported(f"the server has no {CAPI} in {' or '.join(SPOKEN)}", code="provider_no_cluster_api")
        with self._lock:
            self._api = (time.monotonic(), found)
        return found

    def path(self, name: str) -> str:
        """
        Where a Cluster of the name is.
        """
        return self._names.capi_path(self.api(), "clusters", name)

    def find(self, cluster_id: str) -> Json | None:
        """
        The Cluster, when it is there and ours.
        """
        with self._lock:
            known = self._known.get(cluster_id)
        for name in dict.fromkeys(filter(None, (known, self._names.cluster(cluster_id)))):
            found = self._kube.find(self.path(name))
            if found is not None and self._names.marks(found, cluster_id):
                return self._keep(cluster_id, found)
        marked = self._kube.list_all(self._names.capi_path(self.api(), "clusters"), labels=self._names.selector(cluster_id))
        adopted = [one for one in marked if ADOPTED in notes_of(one)]
        return self._keep(cluster_id, adopted[0]) if adopted else None

    def name(self, cluster_id: str) -> str:
        """
        What the Cluster is called, or was when it was found last; of one that nobody looked for, the name that is made of its id.
        """
        made = self._names.cluster(cluster_id)
        with self._lock:
            return self._known.get(cluster_id, made)

    def forget(self, cluster_id: str) -> None:
        """
        The next look begins with the name that is made of the id.
        """
        with self._lock:
            self._known.pop(cluster_id, None)

    def _keep(self, cluster_id: str, found: Json) -> Json:
        with self._lock:
            self._known[cluster_id] = str(found["metadata"]["name"])
        return found
