"""
Metal3's hosts as machines. A tenancy is a mark on the host; what is installed on it is its cluster's affair, and after it Metal3 itself
takes that off and cleans.

A host has many writers: its operator, Metal3, Cluster API. It is changed by a merge patch that names the version it was read at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.clusterapi import folding
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.folding import HELD
from controlplane.providers.adapters.clusterapi.marks import Mark
from controlplane.providers.adapters.clusterapi.names import (
    ALLOCATION,
    CLUSTER,
    GPUS,
    NAMED,
    OWNER,
    PIN,
    UP_SINCE,
    Names,
    labels_of,
    notes_of,
    word,
)
from controlplane.providers.clusters import Member
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.kube.changing import Edit, change
from controlplane.providers.kube.client import Conflict, Kube
from controlplane.providers.kube.memory import MACHINE, read, rewriting
from controlplane.providers.kube.reading import instant
from controlplane.providers.machines import Deployment, MachineList, MachineView, WipeReport

Json = dict[str, Any]
"""How often a host is read anew when somebody else changes it at the same time."""


class Hosts:
    """
    The Machines port, and what clusters do with their hosts.
    """

    def __init__(self, kube: Kube, names: Names, config: ClusterApiConfig, now: Callable[[], datetime]) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._now = now
        self._models = {label: model for model, label in config.gpu_models.items()}

    def list_views(self) -> MachineList:
        """
        See `Machines.list_machines`.
        """
        return MachineList(tuple(self._view(one) for one in self.list_all()), complete=True)

    def list_all(self) -> list[Json]:
        """
        Every host that is sold.
        """
        return self._kube.list_all(self._names.host_path(), labels=self._config.host_selector)

    def observe(self, ref: str) -> MachineView:
        """
        See `Machines.observe`. The look that first finds a host ready, or a wipe proved, writes down when.
        """
        host = self._host(ref)
        mark = self._mark(host)
        if mark is not None and mark.phase == "deployed" and not mark.ready and not self._unready(host):
            host = self._write(host, mark, replace(mark, ready=self._stamp()))
        elif mark is not None and mark.wipe and not mark.wiped and not folding.uncleaned(host, mark):
            host = self._write(host, mark, replace(mark, wiped=self._stamp()))
        return self._view(host)

    def inspect(self, ref: str) -> None:
        """
        See `Machines.inspect`: Metal3 inspects a host when it is registered, and what it found stays.
        """
        self._host(ref)

    def qualify(self, ref: str, token: str) -> None:
        """
        See `Machines.qualify`: what Metal3 says of the host is judged when it is looked at.
        """
        host, mark = self._marked(ref)
        self._write(host, mark, replace(mark, qualified=word(token, "token")))

    def deploy(self, deployment: Deployment) -> None:
        """
        See `Machines.deploy`. The host is the tenancy's, and switched on: it obeys before a cluster is built on it.
        """
        token = word(deployment.token, "token")
        host, mark = self._marked(deployment.ref)
        if mark.alloc == token and mark.phase == "deployed":
            self._switch(host, on=True)
            return
        if mark.alloc == token and mark.phase:
            raise Refused(f"the tenancy {token} of {deployment.ref} is over", code="provider_tenancy_over")
        if mark.phase == "deployed" or (mark.phase == "releasing" and not folding.is_back(host)):
            raise Refused(f"{deployment.ref} is held by {mark.alloc}", code="provider_held_by_other")
        self._refuse_used(host)
        if mark.wipe and not mark.wiped:
            raise Busy(f"{deployment.ref} is being wiped", retry_in_s=5.0)
        fresh = Mark(
            alloc=token,
            phase="deployed",
            cluster=deployment.cluster_id,
            network=deployment.network,
            qualified=mark.qualified,
            uncleaned=mark.uncleaned,
        )
        self._switch(self._write(host, mark, fresh), on=True)

    def release(self, ref: str, token: str) -> None:
        """
        See `Machines.release`. Busy while a Machine of its cluster still has the host.
        """
        host, mark = self._marked(ref)
        if mark.alloc != token and (mark.phase == "deployed" or (mark.phase == "releasing" and not folding.is_back(host))):
            raise Refused(f"{ref} is held by {mark.alloc}", code="provider_held_by_other")
        if mark.alloc == token and mark.phase == "releasing" and (mark.wipe or folding.is_back(host)):
            return
        over = replace(mark, alloc=word(token, "token"), phase="releasing", network="", wipe="", wiped="")
        host = self._write(host, mark, self._noted(host, over))
        if folding.consumer(host):
            raise Busy(f"{folding.consumer(host)} still has {ref}, which is {folding.state_of(host)}", retry_in_s=5.0)
        self._switch(self.leave(host), on=False)

    def wipe(self, ref: str, token: str) -> None:
        """
        See `Machines.wipe`: Metal3 cleans a host when it takes an image off it. `observe` believes that once the host shows it.
        """
        host, mark = self._marked(ref)
        if mark.phase == "deployed" or (mark.phase == "releasing" and not mark.wipe and not folding.is_back(host)):
            raise Refused(f"{ref} is held by {mark.alloc}", code="provider_held_by_other")
        if mark.wipe == token:
            return
        self._write(host, mark, self._noted(host, replace(mark, wipe=word(token, "token"), wiped="")))

    def power(self, ref: str, *, on: bool) -> None:
        """
        See `Machines.power`.
        """
        host, _ = self._marked(ref)
        self._switch(host, on=on)

    def marked(self, cluster_id: str = "") -> list[Json]:
        """
        Every host that carries a cluster's marks, of one cluster or of all.
        """
        return self._kube.list_all(self._names.host_path(), labels=self._names.selector(cluster_id))

    def read_free(self, cluster_id: str, ref: str) -> Json:
        """
        The host, which the cluster may have. Raises Refused for another's, or for none.
        """
        try:
            host = self._host(ref)
        except NotFound as error:
            raise Refused(f"there is no host {ref}", code="provider_no_such_node") from error
        self._refuse_held(host, cluster_id)
        if not self._names.marks(host, cluster_id):
            self._refuse_used(host)
        return host

    def join(self, cluster_id: str, member: Member, host: Json, named: str = "") -> Json:
        """
        Machines of the member's node set, and of no other, may take the host; which is returned as it is then. `named` is what Cluster API
        calls the cluster, where that is not made of its id.
        """
        wanted = self._names.labels(cluster_id) | {PIN: self._names.pin(cluster_id, member.node_set)}
        facts: dict[str, str | None] = {ALLOCATION: member.token, GPUS: str(member.gpus)}
        if named:
            facts[NAMED] = named

        def joined(seen: Json) -> Json | None:
            self._refuse_held(seen, cluster_id)
            kept = notes_of(seen)
            if wanted.items() <= labels_of(seen).items() and facts.items() <= kept.items():
                return None
            anew = {UP_SINCE: None} if kept.get(ALLOCATION) != member.token else {}
            return {"metadata": {"labels": wanted, "annotations": {**facts, **anew}}}

        return self.change(host, joined)

    def unpin(self, host: Json) -> Json:
        """
        No Machine takes the host from now on; one that has it keeps it until it ends.
        """
        return self.change(host, lambda seen: {"metadata": {"labels": {PIN: None}}} if PIN in labels_of(seen) else None)

    def leave(self, host: Json) -> Json:
        """
        Nothing of a cluster of ours is on the host.
        """

        def cleared(seen: Json) -> Json | None:
            foreign = labels_of(seen).get(OWNER, self._names.deployment) != self._names.deployment
            # while a Machine has it, it is known by what Cluster API calls its cluster
            named = () if folding.consumer(seen) else (NAMED,)
            if foreign or (CLUSTER not in labels_of(seen) and not set(named) & set(notes_of(seen))):
                return None
            gone: Mapping[str, None] = dict.fromkeys((CLUSTER, OWNER, PIN))
            return {"metadata": {"labels": gone, "annotations": dict.fromkeys((ALLOCATION, GPUS, UP_SINCE, *named))}}

        return self.change(host, cleared)

    def take(self, cluster_id: str, member: Member, host: Json, named: str) -> Json:
        """
        The host is the member's as if it had been deployed for it, and the Machine that has it keeps it. Raises Refused when it is somebody
        else's by now.
        """
        labels = self._names.labels(cluster_id) | {PIN: self._names.pin(cluster_id, member.node_set)}
        notes = {ALLOCATION: member.token, GPUS: str(member.gpus), NAMED: named}

        def taken(seen: Json) -> Json | None:
            self._refuse_held(seen, cluster_id)
            if not folding.consumer(seen) or folding.consumer(seen) != folding.consumer(host):
                raise Refused(f"{member.ref} has changed hands", code="provider_cluster_changed")
            old = self._mark(seen) or Mark()
            ready = old.ready if old.alloc == member.token else ""
            mark = Mark(
                alloc=member.token,
                phase="deployed",
                cluster=cluster_id,
                ready=ready or self._stamp(),
                qualified=old.qualified,
                uncleaned=old.uncleaned,
            )
            if old == mark and labels.items() <= labels_of(seen).items() and notes.items() <= notes_of(seen).items():
                return None
            return {"metadata": {"labels": labels, "annotations": {**notes, MACHINE: mark.text(self._names.deployment)}}}

        return self.change(host, taken)

    def untake(self, cluster_id: str, host: Json) -> Json:
        """
        The host carries no mark of the cluster and of no tenancy; whatever has it keeps it.
        """

        def cleared(seen: Json) -> Json | None:
            if not self._names.marks(seen, cluster_id):
                return None
            old = self._mark(seen) or Mark()
            kept = Mark(qualified=old.qualified, uncleaned=old.uncleaned)
            text = None if kept == Mark() else kept.text(self._names.deployment)
            notes: dict[str, str | None] = {**dict.fromkeys((ALLOCATION, GPUS, UP_SINCE, NAMED)), MACHINE: text}
            return {"metadata": {"labels": dict.fromkeys((CLUSTER, OWNER, PIN)), "annotations": notes}}

        return self.change(host, cleared)

    def keep_up_since(self, host: Json, at: datetime) -> datetime | None:
        """
        The host says since when its Node is up; None when somebody changed it meanwhile: then a later look does it.
        """
        patch = {"metadata": {"resourceVersion": host["metadata"]["resourceVersion"], "annotations": {UP_SINCE: at.isoformat()}}}
        try:
            self._kube.patch(self._names.host_path(host["metadata"]["name"]), patch)
        except Conflict:
            return None
        return at

    def change(self, host: Json, edit: Edit) -> Json:
        """
        The host with the edit's patch on its latest version, or as it was where there was nothing to change.
        """
        return change(self._kube, self._names.host_path(host["metadata"]["name"]), host, edit)

    def _switch(self, host: Json, *, on: bool) -> Json:
        def switched(seen: Json) -> Json | None:
            return None if seen.get("spec", {}).get("online") is on else {"spec": {"online": on}}

        return self.change(host, switched)

    def _noted(self, host: Json, mark: Mark) -> Mark:
        """
        The memory, with the instant when cleaning is switched off: whatever was taken off the host until now was not cleaned.
        """
        return replace(mark, uncleaned=self._stamp()) if folding.never_cleans(host) else mark

    def _unready(self, host: Json) -> str:
        """
        Why no cluster could be built on the host; empty when one could, or is.
        """
        if folding.trouble(host):
            return folding.trouble(host)
        if folding.power_of(host) != "on":
            return "it is not switched on yet"
        return "" if folding.consumer(host) or folding.state_of(host) in folding.SETTLED else f"it is {folding.state_of(host)}"

    def _refuse_used(self, host: Json) -> None:
        ref = host["metadata"]["name"]
        if folding.is_foreign(host, ""):
            raise Refused(
                f"{ref} is in use by {folding.consumer(host) or 'what its operator installed'}", code="provider_host_used"
            )
        if folding.never_cleans(host):
            raise Refused(
                f"{ref} is not cleaned after use: its automatedCleaningMode is not metadata", code="provider_never_cleans"
            )

    def _refuse_held(self, host: Json, cluster_id: str) -> None:
        ref, labels, mark = host["metadata"]["name"], labels_of(host), self._mark(host)
        if CLUSTER in labels and not self._names.marks(host, cluster_id):
            raise Refused(f"{ref} belongs to {labels[CLUSTER]}", code="provider_node_held")
        if mark is None or (mark.phase in HELD and mark.cluster not in {"", cluster_id}):
            raise Refused(f"{ref} is held for another cluster", code="provider_node_held")

    def _view(self, host: Json) -> MachineView:
        mark = self._mark(host)
        ref = host["metadata"]["name"]
        found = folding.inventory(host, self._config, self._models)
        power = folding.power_of(host)
        called = notes_of(host).get(NAMED, "")
        if mark is not None and mark.cluster and not called:
            called = self._names.cluster(mark.cluster)
        if mark is None or folding.is_foreign(host, called):
            used = "foreign mark" if mark is None else f"in use by {folding.consumer(host) or 'what its operator installed'}"
            return MachineView(ref, power, "unknown", inventory=found, failure=used)
        phase = folding.phase_of(host, mark)
        wiped_at = instant(mark.wiped)
        failure = folding.uncleaned(host, mark) if phase in {"wiping", "failed"} else ""
        return MachineView(
            ref=ref,
            power=power,
            phase=phase,
            token=mark.alloc or None,
            ready_at=instant(mark.ready) if phase == "deployed" else None,
            network=mark.network or None,
            inventory=found,
            wipe=WipeReport(mark.wipe, wiped_at, folding.wipe_checks(host)) if wiped_at and phase != "deployed" else None,
            checks=folding.checks(host, held=phase in {"deploying", "deployed", "releasing"}) if mark.qualified else (),
            qualified_token=mark.qualified or None,
            failure=self._unready(host) if phase == "deploying" else failure,
        )

    def _host(self, ref: str) -> Json:
        return self._kube.get(self._names.host_path(ref))

    def _marked(self, ref: str) -> tuple[Json, Mark]:
        host = self._host(ref)
        mark = self._mark(host)
        if mark is None:
            raise Refused(f"{ref} carries somebody else's mark in {MACHINE}", code="provider_held_by_other")
        return host, mark

    def _mark(self, host: Json) -> Mark | None:
        return read(Mark, host, self._names.deployment)

    def _write(self, host: Json, old: Mark, new: Mark) -> Json:
        return host if new == old else self.change(host, rewriting(old, new, self._names.deployment))

    def _stamp(self) -> str:
        return (self._kube.seen_at or self._now()).isoformat()
