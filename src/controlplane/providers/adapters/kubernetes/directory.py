"""
Where each cluster of ours is on a Kubernetes that many share: in a namespace named by its id, or, where one was taken over, in that one.
"""

from __future__ import annotations

import threading
from typing import Any

from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.names import ADOPTED, Names

Json = dict[str, Any]


class Directory:
    """
    The names of namespaces that were taken over. What was found once is not looked for again; marks decide each time whether it is ours.
    """

    def __init__(self, kube: Kube, names: Names) -> None:
        self._kube = kube
        self._names = names
        self._lock = threading.Lock()
        self._plain: set[str] = set()
        """Clusters whose namespaces are named by their ids."""

    def locate(self, cluster_id: str) -> None:
        """
        `Names` know what the cluster's namespace is called. One request for a cluster that this process has not met, and one more for one
        that was taken over, or is not there.
        """
        with self._lock:
            if cluster_id in self._plain or self._names.kept(cluster_id):
                return
        found = self._kube.find(f"/api/v1/namespaces/{self._names.outside(cluster_id)}")
        if found is not None and self._names.marks(found, cluster_id):
            with self._lock:
                self._plain.add(cluster_id)
            return
        marked = self._kube.list_all("/api/v1/namespaces", labels=f"{self._names.selector(cluster_id)},{ADOPTED}")
        if marked:
            self._names.keep(cluster_id, str(marked[0]["metadata"]["name"]))

    def find(self, cluster_id: str) -> Json | None:
        """
        The cluster's namespace, when it is there and ours.
        """
        self.locate(cluster_id)
        found = self._kube.find(f"/api/v1/namespaces/{self._names.namespace(cluster_id)}")
        return found if found is not None and self._names.marks(found, cluster_id) else None

    def forget(self, cluster_id: str) -> None:
        """
        The next look begins anew.
        """
        with self._lock:
            self._plain.discard(cluster_id)
        self._names.forget(cluster_id)
