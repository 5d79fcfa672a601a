"""
Nodes as Ironic tells them, and the few ways in which we change one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.ironic.client import IronicRest, node_path
from controlplane.providers.adapters.ironic.config import IronicConfig
from controlplane.providers.adapters.ironic.marks import Marks, UnreadableMarks, from_json, guard, instant, to_json
from controlplane.providers.adapters.ironic.naming import Names, escaped
from controlplane.providers.errors import Busy, NotFound, Refused, Transient, Unknown

INTERFACES = ("power", "management", "deploy", "firmware", "bios", "raid", "vendor", "inspect", "rescue")
FIELDS = (
    *("uuid", "name", "driver", "resource_class", "provision_state", "target_provision_state", "provision_updated_at"),
    *("power_state", "target_power_state", "maintenance", "maintenance_reason", "fault", "last_error", "protected", "retired"),
    *("instance_uuid", "extra", "properties", "automated_clean", "inspection_finished_at"),
    *(f"{name}_interface" for name in INTERFACES if name != "firmware"),
)
"""Asked of every node: credentials of controllers (`driver_info`) are left where they are."""
CLEAN_FAILURE = "clean failure"
"""The fault with which Ironic itself puts a node into maintenance when a clean step fails."""


@dataclass(frozen=True, slots=True)
class Node:
    """
    One node at one look.
    """

    ref: str
    """Its name, or its UUID when it has none."""
    uuid: str
    """Ironic's id."""
    state: str
    """Provision state."""
    changed: str
    """When that state was entered, as Ironic writes it; empty: never."""
    power_state: str | None
    """As last read from the machine."""
    target_power_state: str | None
    """Where a switch under way goes."""
    maintenance: bool
    """Whether Ironic, or a person, has taken it out of use."""
    maintenance_reason: str
    """Why."""
    fault: str
    """Ironic's own reason for maintenance."""
    last_error: str
    """What went wrong last."""
    instance_uuid: str | None
    """Who holds it."""
    our_instance_uuid: str | None
    """What that would be for the tenancy of our marks."""
    automated_clean: bool | None
    """Whether Ironic cleans it by itself; None: as the conductor is set."""
    inspected: str
    """When the last inspection ended, as Ironic writes it."""
    driver: str
    """Hardware type."""
    interfaces: Mapping[str, str]
    """Which implementation of each driver interface it uses."""
    document: Mapping[str, Any]
    """All that was told, for JSON pointers."""
    marks: Marks
    """What we remember on it."""
    unreadable: bool = False
    """Our key holds something that we did not write."""

    @property
    def changed_at(self) -> datetime | None:
        """
        When its state was entered, by Ironic's clock.
        """
        return instant(self.changed)

    @property
    def words(self) -> str:
        """
        What went wrong, for operators.
        """
        said = self.last_error or self.maintenance_reason or "Ironic names no reason"
        return f"{self.state}: {said}"


def read_node(said: Mapping[str, Any], names: Names) -> Node:
    """
    The node. Raises Unknown for an answer that is none.
    """
    uuid, state = said.get("uuid"), said.get("provision_state")
    extra = said.get("extra")
    if not isinstance(uuid, str) or not isinstance(state, str) or not isinstance(extra, Mapping):
        raise Unknown("Ironic's answer is no node: uuid, provision_state or extra is missing")
    try:
        marks, unreadable = from_json(extra.get(names.key)), False
    except UnreadableMarks:
        marks, unreadable = Marks(), True
    tenancy = marks.tenancy
    return Node(
        ref=_text(said, "name") or uuid,
        uuid=uuid,
        state=state,
        changed=_text(said, "provision_updated_at"),
        power_state=_text(said, "power_state") or None,
        target_power_state=_text(said, "target_power_state") or None,
        maintenance=said.get("maintenance") is True,
        maintenance_reason=_text(said, "maintenance_reason"),
        fault=_text(said, "fault"),
        last_error=_text(said, "last_error"),
        instance_uuid=_text(said, "instance_uuid") or None,
        our_instance_uuid=None if tenancy is None else names.instance_uuid(tenancy.token),
        automated_clean=said.get("automated_clean"),
        inspected=_text(said, "inspection_finished_at"),
        driver=_text(said, "driver"),
        interfaces={name: _text(said, f"{name}_interface") for name in INTERFACES},
        document={key: value for key, value in said.items() if key != "driver_info"},
        marks=marks,
        unreadable=unreadable,
    )


class Nodes:
    """
    The nodes of one Ironic.
    """

    def __init__(self, rest: IronicRest, config: IronicConfig, names: Names) -> None:
        self.rest = rest
        self.config = config
        self.names = names

    def get(self, ref: str) -> Node:
        """
        The node now. Raises NotFound when Ironic says that it has none of that name.
        """
        if not ref or ref == "detail":
            raise NotFound(f"no node can be called {ref!r}")
        said = self.rest.get(node_path(ref), {"fields": self._fields()})
        node = read_node(said, self.names)
        if ref not in {node.ref, node.uuid}:
            raise Unknown(f"Ironic answered for {ref!r} with node {node.ref!r}")
        return replace(node, ref=ref)

    def list_all(self) -> list[Node]:
        """
        Every node of our part of the Ironic. Raises Unknown instead of returning a part.
        """
        nodes, complete = self.list_known()
        if not complete:
            raise Unknown("Ironic's list of nodes broke off")
        return nodes

    def list_known(self) -> tuple[list[Node], bool]:
        """
        The nodes of our part of the Ironic, each once, and whether these are all. Raises when not even one page came.
        """
        wanted = {"fields": self._fields(), "limit": str(self.config.page_size)}
        if self.config.conductor_group is not None:
            wanted["conductor_group"] = self.config.conductor_group
        if self.config.owner is not None:
            wanted["owner"] = self.config.owner
        nodes: dict[str, Node] = {}
        complete = True
        began = False
        try:
            for said in self.rest.pages("/v1/nodes", "nodes", wanted):
                began = True
                try:
                    node = read_node(said, self.names)
                except Unknown:
                    complete = False
                else:
                    nodes[node.uuid] = node
        except Transient:
            if not began:
                raise
            complete = False
        return list(nodes.values()), complete

    def remember(self, node: Node, marks: Marks, *more: Mapping[str, Any]) -> Node:
        """
        The marks, and whatever else belongs to the same change, are on the node. Busy when somebody wrote since our look.

        Ironic has no If-Match and refuses the patch operation `test`; removing a member that is gone makes it refuse the whole patch.
        """
        key = f"/extra/{escaped(self.names.key)}"
        written = replace(marks, revision=node.marks.revision + 1)
        patch: list[Mapping[str, Any]] = []
        if node.marks.revision:
            patch.append({"op": "remove", "path": f"{key}/{guard(node.marks.revision)}"})
        patch += [{"op": "add", "path": key, "value": to_json(written)}, *more]
        said = self.rest.change("PATCH", node_path(node.uuid), patch)
        if not isinstance(said, Mapping):
            raise Unknown(f"PATCH of {node.ref} was not answered with the node")
        return replace(read_node(said, self.names), ref=node.ref)

    def provision(self, node: Node, target: str, **more: Any) -> None:
        """
        Ironic has accepted the change of state and begun it. Busy when the node has left the state that we saw it in.
        """
        try:
            self.rest.change("PUT", node_path(node.uuid, "states", "provision"), {"target": target, **more})
        except Refused as refused:
            now = self.get(node.ref)
            if now.state == node.state:
                raise
            said = f"{node.ref} went from {node.state!r} to {now.state!r} between our look and our change"
            raise Busy(said, retry_in_s=0.5, code="machine_changed") from refused

    def switch(self, node: Node, *, on: bool) -> None:
        """
        Ironic has begun to switch power.
        """
        target = "power on" if on else "power off"
        self.rest.change("PUT", node_path(node.uuid, "states", "power"), {"target": target})

    def leave_maintenance(self, node: Node) -> None:
        """
        Ironic may work on the node again.
        """
        self.rest.change("DELETE", node_path(node.uuid, "maintenance"))

    def detach_all(self, node: Node) -> None:
        """
        No virtual interface is attached to the node.
        """
        attached = self.rest.get(node_path(node.uuid, "vifs")).get("vifs")
        if not isinstance(attached, list):
            raise Unknown(f"Ironic does not say what is attached to {node.ref}")
        for one in attached:
            try:
                self.rest.change("DELETE", node_path(node.uuid, "vifs", str(one["id"])))
            except NotFound:
                continue

    def to_manageable(self, node: Node) -> Node:
        """
        The node is in the state from which everything else begins. Raises Busy while something runs, or while people have it.
        """
        if node.maintenance and node.fault == CLEAN_FAILURE and node.state == "clean failed":
            self.leave_maintenance(node)
        else:
            need_service(node)
        if node.state == "manageable":
            return node
        if node.state not in {"available", "clean failed", "inspect failed", "enroll"}:
            raise Busy(f"{node.ref} is {node.state!r} at Ironic", retry_in_s=2.0)
        self.provision(node, "manage")
        again = self.get(node.ref)
        if again.state != "manageable":
            raise Busy(f"{node.ref} is being made manageable: it is {again.state!r}", retry_in_s=1.0)
        return again

    def _fields(self) -> str:
        return ",".join(FIELDS)


def need_service(node: Node) -> None:
    """
    Raises Busy for a node that is in maintenance.
    """
    if node.maintenance:
        raise Busy(
            f"{node.ref} is in maintenance at Ironic ({node.maintenance_reason or node.fault or 'no reason given'}):"
            " it is left alone until it is taken out of it",
            retry_in_s=30.0,
            code="machine_in_maintenance",
        )


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    return value if isinstance(value, str) else ""
