"""
The adapter's door: what the ports ask, each call under one deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol, runtime_checkable

from controlplane.providers.adapters.ironic.cleaning import Cleaning
from controlplane.providers.adapters.ironic.client import NEWEST, IronicRest
from controlplane.providers.adapters.ironic.config import IronicConfig
from controlplane.providers.adapters.ironic.evidence import HistoryEntry, read_history
from controlplane.providers.adapters.ironic.inventory import Inspections
from controlplane.providers.adapters.ironic.life import Life
from controlplane.providers.adapters.ironic.login import login_for
from controlplane.providers.adapters.ironic.naming import Names
from controlplane.providers.adapters.ironic.nodes import Node, Nodes
from controlplane.providers.adapters.ironic.states import is_foreign, view_of
from controlplane.providers.clusters import Capabilities, ClusterList
from controlplane.providers.deadline import one_call
from controlplane.providers.errors import Busy, Permanent, Unsupported
from controlplane.providers.machines import Deployment, MachineList, MachineView, Position
from controlplane.providers.registry import AdapterInput, read_config

MIB = 1024 * 1024
NO_IMAGES = "no images: nothing can be deployed"


@runtime_checkable
class SupportsRescue(Protocol):
    """
    A provider that can boot a held machine into a rescue system.
    """

    def rescue(self, ref: str, token: str, *, password: str) -> None:
        """
        The peer has begun to boot the rescue system, which lets `password` in. Refused when the token does not hold the machine.
        """
        ...

    def unrescue(self, ref: str, token: str) -> None:
        """
        The peer has begun to boot the machine's own system again.
        """
        ...


@runtime_checkable
class SupportsHistory(Protocol):
    """
    A provider that remembers what happened to its machines.
    """

    def history(self, ref: str) -> tuple[HistoryEntry, ...]:
        """
        What the peer remembers of the machine, oldest first: operators only. Raises NotFound.
        """
        ...


def build(given: AdapterInput) -> IronicAdapter:
    """
    An adapter for the Ironic that the config names; nothing has been asked of it yet. Raises Permanent for a config that is wrong.
    """
    config = read_config(IronicConfig, given, "the Ironic provider's")
    try:
        rest = IronicRest(
            config.url,
            login_for(config, given.secrets, given.now),
            timeout_s=config.timeout_s,
            max_body_bytes=config.max_body_mib * MIB,
            ca_file=config.ca_file,
        )
    except OSError as error:
        raise Permanent(f"ca_file cannot be read: {error}", code="provider_config_invalid") from error
    return IronicAdapter(config, rest, Names(given.deployment))


class IronicAdapter:
    """
    One Ironic as Machines, SupportsPositions, SupportsRescue and SupportsHistory. Safe to share between threads.
    """

    def __init__(self, config: IronicConfig, rest: IronicRest, names: Names) -> None:
        self._config = config
        self._rest = rest
        self._nodes = Nodes(rest, config, names)
        self._life = Life(self._nodes)
        self._cleaning = Cleaning(self._nodes)
        self._inspections = Inspections(self._nodes)

    def close(self) -> None:
        """
        Its connections are closed.
        """
        self._rest.close()

    def capabilities(self) -> Capabilities:
        """
        What this Ironic can do. Lists its nodes too, so that a credential that may not read is found out at once.
        """
        with one_call():
            minor = self._rest.minor()
            nodes = self._nodes.list_all()
        wiping, own = self._config.wipe.kind != "off", self._config.own_images
        return Capabilities(
            version=f"ironic api 1.{minor}",
            products=("baremetal",),
            walls=("machine",),
            scrub=wiping,
            images=own is not None,
            image_formats=() if own is None else tuple(own.formats),
            notes=tuple(self._notes(minor, nodes, wiping=wiping)),
        )

    def list_clusters(self) -> ClusterList:
        """
        Raises Unsupported: Ironic knows machines only.
        """
        raise Unsupported("Ironic makes no clusters", code="provider_no_clusters")

    def list_machines(self) -> MachineList:
        """
        See `Machines.list_machines`. Incomplete when a page did not answer, or held something that is no node.
        """
        with one_call():
            nodes, complete = self._nodes.list_known()
        return MachineList(tuple(view_of(one) for one in nodes), complete=complete)

    def list_positions(self) -> tuple[Position, ...]:
        """
        See `SupportsPositions.list_positions`.
        """
        with one_call():
            return self._inspections.list_positions()

    def observe(self, ref: str) -> MachineView:
        """
        See `Machines.observe`. What Ironic has finished is written down, and what it leaves undone is done, on the way.
        """
        with one_call():
            node = self._nodes.get(ref)
            return view_of(node if is_foreign(node) else self._settled(node))

    def inspect(self, ref: str, token: str) -> None:
        """
        See `Machines.inspect`.
        """
        with one_call():
            self._inspections.inspect(ref, token)

    def qualify(self, ref: str, token: str) -> None:
        """
        See `Machines.qualify`.
        """
        with one_call():
            self._cleaning.qualify(ref, token)

    def deploy(self, deployment: Deployment) -> None:
        """
        See `Machines.deploy`.
        """
        with one_call():
            self._life.deploy(deployment)

    def release(self, ref: str, token: str, *, accepted_at: datetime) -> None:
        """
        See `Machines.release`.
        """
        with one_call():
            self._life.release(ref, token, accepted_at=accepted_at)

    def wipe(self, ref: str, token: str) -> None:
        """
        See `Machines.wipe`.
        """
        with one_call():
            self._cleaning.wipe(ref, token)

    def power(self, ref: str, *, on: bool, token: str) -> None:
        """
        See `Machines.power`.
        """
        with one_call():
            self._life.power(ref, on=on, token=token)

    def rescue(self, ref: str, token: str, *, password: str) -> None:
        """
        See `SupportsRescue.rescue`.
        """
        with one_call():
            self._life.rescue(ref, token, password=password)

    def unrescue(self, ref: str, token: str) -> None:
        """
        See `SupportsRescue.unrescue`.
        """
        with one_call():
            self._life.unrescue(ref, token)

    def history(self, ref: str) -> tuple[HistoryEntry, ...]:
        """
        See `SupportsHistory.history`.
        """
        with one_call():
            return read_history(self._rest, self._nodes.get(ref).uuid) or ()

    def _settled(self, node: Node) -> Node:
        settling: tuple[Callable[[Node], Node], ...] = (self._life.settle, self._cleaning.settle, self._inspections.settle)
        try:
            for settle in settling:
                node = settle(node)
        except Busy:
            # Somebody has the node just now; what we saw is true, and the next look settles it.
            return node
        return node

    def _notes(self, minor: int, nodes: list[Node], *, wiping: bool) -> list[str]:
        notes = []
        if minor == NEWEST:
            notes.append(f"spoken to in API 1.{NEWEST}, the newest that was tried")
        if not wiping:
            notes.append("wipe is off: sell this pool to one tenant only")
        if not self._config.images:
            notes.append("no images: nothing can be deployed but what tenants choose" if self._config.own_images else NO_IMAGES)
        held = sorted(one.ref for one in nodes if is_foreign(one))
        if held:
            notes.append(f"{len(held)} nodes are held by others and left alone, {held[0]} among them")
        away = sorted(one.ref for one in nodes if one.maintenance)
        if away:
            notes.append(f"{len(away)} nodes are in maintenance, {away[0]} among them")
        return notes
