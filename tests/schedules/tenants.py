"""
What tenants do with services in a schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.services import service as services
from controlplane.services.schemas import Rollout, Template

OPEN = "SELECT id, project_id FROM services WHERE state NOT IN ('deleting', 'deleted') ORDER BY id"
HOMES = "SELECT id, project_id FROM clusters WHERE kind = 'kubernetes' AND state NOT IN ('deleting', 'deleted') ORDER BY id"
TIMEOUT_S = 60


@dataclass
class Tenants:
    """
    Callers that start, change and end services, by the schedule's own chance.
    """

    random: random.Random
    """Decides everything."""
    ask: Callable[[str, Callable[[Any], Any]], None]
    """Sends a request, which may be refused or die."""
    owner: Callable[[str], Any]
    """Of a project."""
    some: Callable[[str], Any]
    """One row of a query, or None."""

    def act(self) -> None:
        """
        Somebody starts a service, or asks for something about one that is there.
        """
        row = self.some(OPEN)
        if row is None or self.random.random() < 0.2:
            self.start()
            return
        verbs = (self._scale, self._renew, self._renew, self._follow_a_metric, self._roll_back, self._rest, self._delete)
        self.random.choice(verbs)(row.id, row.project_id, self.owner(row.project_id))

    def start(self) -> None:
        """
        A service is asked for on some Kubernetes cluster, where there is one.
        """
        home = self.some(HOMES)
        if home is None:
            return
        template, owner = self._template(), self.owner(home.project_id)
        order = services.ServiceOrder(
            name=f"s{self.random.randint(0, 3)}",
            labels={},
            cluster_id=home.id,
            replicas=self.random.randint(0, 3),
            scaling=None,
            rollout=Rollout(timeout_s=TIMEOUT_S, surge=self.random.choice((None, 1))).settled(template),
            template=template,
        )
        self.ask(f"serve {order.name} on {home.id}", lambda s: services.create_service(s, owner, home.project_id, order))

    def _template(self) -> dict[str, Any]:
        image = f"example.org/echo:{self.random.choice(('1', '2', '3', 'missing'))}"
        nodes = self.random.choice((1, 1, 1, 2))
        return Template(image=image, gpus_per_node=self.random.choice((0, 1, 4, 8)), nodes_per_replica=nodes).document()

    def _renew(self, one: str, project: str, owner: Any) -> None:
        change = services.Change(template=self._template())
        self.ask(f"renew {one}", lambda s: services.change_service(s, owner, project, one, lambda _: None, change))

    def _follow_a_metric(self, one: str, project: str, owner: Any) -> None:
        bounds = {"least": 1, "most": 3, "metric": "cpu_cores", "target": 1.0}
        change = services.Change(scaling=bounds) if self.random.random() < 0.5 else services.Change(fixed=True)
        self.ask(f"metric for {one}", lambda s: services.change_service(s, owner, project, one, lambda _: None, change))

    def _scale(self, one: str, project: str, owner: Any) -> None:
        count = self.random.randint(0, 4)
        self.ask(f"scale {one} to {count}", lambda s: services.scale_service(s, owner, project, one, count))

    def _roll_back(self, one: str, project: str, owner: Any) -> None:
        number = self.random.choice((None, 1))
        self.ask(f"roll {one} back to {number}", lambda s: services.roll_back(s, owner, project, one, number))

    def _rest(self, one: str, project: str, owner: Any) -> None:
        resume = self.random.random() < 0.5
        self.ask(f"rest {one}: {resume}", lambda s: services.suspend_service(s, owner, project, one, resume=resume))

    def _delete(self, one: str, project: str, owner: Any) -> None:
        self.ask(f"end {one}", lambda s: services.delete_service(s, owner, project, one, lambda _: None))
