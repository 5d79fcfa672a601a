"""
A tenant's API server for whoever speaks to one: each request goes by the way that leads there at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from controlplane.providers.adapters.clusterapi.tenants import MOST_OBJECTS, NoWay, T, Tenants, as_theirs
from controlplane.providers.errors import Busy, NotFound
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.feed import Feed

Json = dict[str, Any]


class Door(Kube):
    """
    One cluster's. It holds no connection and no credential itself: those are `Tenants`', which renews and bounds them.

    A cluster that is away is Busy, or UnknownBeyond after a change. That there is no way in is NotFound only where the cluster itself is
    gone: then it holds nothing any more.
    """

    def __init__(self, tenants: Tenants, cluster_id: str, is_there: Callable[[], bool], *, page_size: int) -> None:
        self._tenants = tenants
        self._cluster_id = cluster_id
        self._is_there = is_there
        self._page_size = page_size
        self._most = MOST_OBJECTS
        self.seen_at = None

    def close(self) -> None:
        """
        There is nothing to close.
        """

    def exchange(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None = None, kind: str | None = None
    ) -> bytes:
        """
        See `Kube.exchange`.
        """

        def question(kube: Kube) -> bytes:
            raw = kube.exchange(method, path, query, body, kind)
            self.seen_at = kube.seen_at
            return raw

        return self._ask(question, changes=method != "GET")

    def list_at(self, path: str, *, labels: str = "", fields: str = "") -> tuple[list[Json], str]:
        """
        See `Kube.list_at`. Whoever answers for a kind in a tenant's cluster may be the tenant's, and answer anything.
        """
        self._reach()
        with as_theirs(self._cluster_id):
            return super().list_at(path, labels=labels, fields=fields)

    def follow(self, path: str, *, labels: str, version: str, lasts_s: float, late_s: float) -> Feed:
        """
        See `Kube.follow`.
        """
        return self._ask(lambda kube: kube.follow(path, labels=labels, version=version, lasts_s=lasts_s, late_s=late_s))

    def relay(self, path: str, query: Mapping[str, str], *, most_bytes: int) -> tuple[int, bytes]:
        """
        See `Kube.relay`.
        """
        return self._ask(lambda kube: kube.relay(path, query, most_bytes=most_bytes))

    def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None, kind: str | None = None
    ) -> Json:
        self._reach()  # before: what the management cluster does not answer is no silence of this one
        with as_theirs(self._cluster_id, changes=method != "GET"):
            return super()._json(method, path, query, body, kind)

    def _ask(self, question: Callable[[Kube], T], *, changes: bool = False) -> T:
        with self._told_apart():
            return self._tenants.ask(self._cluster_id, question, changes=changes)

    def _reach(self) -> None:
        with self._told_apart():
            self._tenants.reach(self._cluster_id)

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """
        A cluster to which there is no way is not a cluster that is gone.
        """
        try:
            yield
        except NoWay as error:
            if not self._is_there():
                raise NotFound(f"there is no {self._cluster_id}") from error
            raise Busy(f"{self._cluster_id} cannot be reached: {error.detail}", retry_in_s=10.0) from error
