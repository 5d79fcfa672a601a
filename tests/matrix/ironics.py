"""
The matrix with the real Ironic adapter, on an Ironic in this process whose nodes move by the virtual clock and go wrong as they are told.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from controlplane.nodes import service as nodes
from controlplane.nodes.states import NodeSnapshot
from controlplane.providers.adapters.ironic.adapter import IronicAdapter
from controlplane.providers.adapters.ironic.client import IronicRest
from controlplane.providers.adapters.ironic.config import IronicConfig
from controlplane.providers.adapters.ironic.login import login_for
from controlplane.providers.adapters.ironic.naming import Names
from controlplane.providers.circuits import Circuit
from controlplane.providers.toolbox import Guarded
from tests.conftest import Database
from tests.ironic_kit import STEPS
from tests.matrix.cases import CALLS
from tests.matrix.driven import Rack
from tests.unit.ironic.peer import VERSIONS, fault, node

TAKES_S = 4.0
FINISH = {
    "inspecting": "manageable",
    "cleaning": "clean wait",
    "clean wait": "manageable",
    "deploying": "active",
    "deleting": "available",
}
BEGIN = {
    "manage": "manageable",
    "provide": "available",
    "inspect": "inspecting",
    "clean": "cleaning",
    "active": "deploying",
    "deleted": "deleting",
}
FROM = {
    "manage": {"available", "enroll", "clean failed", "inspect failed"},
    "provide": {"manageable"},
    "inspect": {"manageable"},
    "clean": {"manageable"},
    "active": {"available"},
    "deleted": {"active", "deploy failed", "error"},
}
SAID = {
    "says_400": fault(400, "not acceptable"),
    "says_401": fault(401, "log in first"),
    "says_404": fault(404, "Node could not be found"),
    "says_409": fault(409, "Node is locked by host conductor-1"),
    "says_500": fault(500, "it broke"),
    "says_503": fault(503, "no conductor"),
    "html": httpx.Response(200, text="<html>Welcome</html>"),
    "truncated": httpx.Response(200, text='{"uuid": "5d7'),
    "a_list": httpx.Response(200, json=[1, 2]),
}
LOST = ("refused", "timeout_before", "effect_then_timeout", "effect_then_500", "effect_then_garbage")
PEERS = ("stuck", "fails", "maintenance", "forgets_power")
FAULTS = (*SAID, *LOST, *PEERS)


@dataclass
class FakeNode:
    """
    One node as Ironic has it, and what is on its disks.
    """

    said: dict[str, Any]
    """As Ironic says it."""
    moves_at: Any = None
    """When it leaves its passing state."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Its entries, oldest first."""
    residue: str = ""
    """Instance whose data is on it."""
    broken: str = ""
    """`stuck`: it never leaves a passing state; `fails`: it leaves it for a failure."""


class FakeIronic:
    """
    An Ironic.
    """

    def __init__(self, rack: IronicRack) -> None:
        self._rack = rack
        self.nodes: dict[str, FakeNode] = {}
        self.findings: list[str] = []

    def add(self, name: str) -> None:
        """A free node."""
        properties = {"gpus": 8, "gpu_model": "H100-SXM5-80GB", "memory_mb": 2097152, "cpus": 192}
        one = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        interfaces = {f"{kind}_interface": "fake" for kind in ("bios", "vendor", "deploy", "power", "management")}
        self.nodes[one] = FakeNode(node(uuid=one, name=name, properties=properties, driver="fake-hardware", **interfaces))

    def find(self, name: str) -> FakeNode | None:
        """By uuid or name."""
        return self.nodes.get(name) or next((one for one in self.nodes.values() if one.said["name"] == name), None)

    def handle(self, request: httpx.Request) -> httpx.Response:
        """As Ironic would, unless the case has it otherwise."""
        parts = request.url.path.strip("/").split("/")
        if len(parts) < 3:
            return httpx.Response(200, json={"id": "v1"}, headers=VERSIONS)
        found = self.find(parts[2])
        if found is None:
            return fault(404, "no such node")
        wrong = self._rack.draw(found.said["name"], request)
        if wrong == "refused":
            raise httpx.ConnectError("refused", request=request)
        if wrong == "timeout_before":
            raise httpx.ReadTimeout("silent", request=request)
        if wrong in SAID:
            return SAID[wrong]
        answer = self._answer(found, request, "/".join(parts[3:]))
        if wrong == "effect_then_timeout":
            raise httpx.ReadTimeout("silent", request=request)
        if wrong in {"effect_then_500", "effect_then_garbage"}:
            return fault(500, "it broke") if wrong == "effect_then_500" else httpx.Response(200, text="{")
        return answer

    def _answer(self, found: FakeNode, request: httpx.Request, below: str) -> httpx.Response:
        self._move(found)
        if request.method == "GET":
            return self._look(found, below, request.url.params)
        told = json.loads(request.content or "null")
        if request.method == "PATCH":
            return self._patch(found, told)
        if below == "states/provision":
            return self._provision(found, told["target"])
        if below == "states/power":
            if found.broken != "forgets_power":
                found.said["power_state"] = told["target"]
        elif below == "maintenance":
            found.said |= {"maintenance": False, "maintenance_reason": None, "fault": None}
        return httpx.Response(202)

    def _look(self, found: FakeNode, below: str, asked: Mapping[str, str]) -> httpx.Response:
        if below == "history":
            entries = found.history if asked.get("sort_dir") != "desc" else found.history[::-1]
            ids = [one["uuid"] for one in entries]
            if asked.get("marker"):
                if asked["marker"] not in ids:
                    return fault(404, "no such entry")
                entries = entries[ids.index(asked["marker"]) + 1 :]
            return httpx.Response(200, json={"history": entries[: int(asked.get("limit", "200"))]})
        listed: dict[str, Any] = {"vifs": {"vifs": []}, "firmware": {"firmware": []}, "inventory": {"inventory": {}}}
        return httpx.Response(200, json=listed.get(below, found.said))

    def _patch(self, found: FakeNode, ops: list[dict[str, Any]]) -> httpx.Response:
        after = json.loads(json.dumps(found.said))
        for op in ops:
            *parents, name = [one.replace("~1", "/").replace("~0", "~") for one in op["path"][1:].split("/")]
            place = after
            for one in parents:
                if one not in place:
                    return fault(400, "no such path")
                place = place[one]
            if op["op"] == "remove":
                if name not in place:
                    return fault(400, "cannot remove what is not there")
                del place[name]
                if name == "instance_uuid":
                    place[name] = None
            elif name == "instance_uuid" and found.said["instance_uuid"] not in {None, op["value"]}:
                return fault(409, "the node is associated with another instance")
            else:
                place[name] = op["value"]
        found.said = after
        return httpx.Response(200, json=after)

    def _provision(self, found: FakeNode, target: str) -> httpx.Response:
        state = found.said["provision_state"]
        if state not in FROM.get(target, ()):
            return fault(400, f"The requested action {target} can not be performed on a node in state {state}")
        if target == "active":
            if found.residue and found.residue != found.said["instance_uuid"]:
                self.findings.append(f"I7 {found.said['name']}: deployed with data of instance {found.residue}")
            found.residue = found.said["instance_uuid"]
        if target == "clean":
            self._write(
                found, "manual_cleaning_start", f"with steps={[{'interface': s['interface'], 'step': s['step']} for s in STEPS]}"
            )
        self._enter(found, BEGIN[target])
        return httpx.Response(202)

    def _move(self, found: FakeNode) -> None:
        now, state = self._rack.world.clock(), found.said["provision_state"]
        if found.moves_at is None or now < found.moves_at or found.broken == "stuck":
            return
        if found.broken == "fails" and state in {"clean wait", "deploying", "inspecting"}:
            failed = {"clean wait": "clean failed", "deploying": "deploy failed", "inspecting": "inspect failed"}[state]
            found.said["last_error"] = "the agent says no"
            if failed == "clean failed":
                found.said |= {"maintenance": True, "fault": "clean failure"}
                self._write(found, "manual_cleaning_end", "Failed step factory_reset", severity="ERROR")
            self._enter(found, failed)
            return
        if state == "clean wait":
            found.residue = ""
            self._write(found, "manual_cleaning_end", "completed")
        elif state == "deploying":
            found.said["power_state"] = "power on"
        elif state == "deleting":
            found.said |= {"instance_uuid": None, "instance_info": {}}
        elif state == "inspecting":
            found.said["inspection_finished_at"] = now.isoformat()
        found.said["last_error"] = None
        self._enter(found, FINISH[state])

    def _enter(self, found: FakeNode, state: str) -> None:
        now = self._rack.world.clock()
        found.said |= {"provision_state": state, "provision_updated_at": now.isoformat()}
        found.moves_at = now + timedelta(seconds=TAKES_S) if state in FINISH else None

    def _write(self, found: FakeNode, kind: str, words: str, severity: str = "INFO") -> None:
        at = self._rack.world.clock().isoformat()
        entry = {"uuid": str(uuid.uuid4()), "created_at": at, "severity": severity, "event_type": kind, "event": words}
        found.history.append(entry)


class IronicRack(Rack):
    """
    Nodes of one Ironic.
    """

    adapter = "ironic"
    reports = False

    def __init__(self, database: Database, folder: Path, count: int) -> None:
        self.ironic = FakeIronic(self)
        self._refs: dict[str, str] = {}
        for number in range(1, count + 1):
            self.ironic.add(f"iron-{number}")
        told = IronicConfig.model_validate(
            {
                "url": "http://ironic.test",
                "site": "one",
                "images": {"default": {}},
                "wipe": {"kind": "manual", "steps": list(STEPS)},
            }
        )
        transport = httpx.MockTransport(self.ironic.handle)
        login = login_for(told, {}, lambda: self.world.clock())  # noqa: PLW0108 - the world is made later
        rest = IronicRest(told.url, login, timeout_s=5, max_body_bytes=1_000_000, transport=transport)
        self._adapter = IronicAdapter(told, rest, Names("cp"))
        super().__init__(database, folder, count)

    def restart(self) -> None:
        """See `Rack.restart`; its adapter speaks to the Ironic of this process."""
        super().restart()
        guarded = Guarded(self._adapter, Circuit())
        self.world.tools.adapter = lambda _provider: guarded

    def _enrol(self, session: Any, count: int) -> list[str]:
        rows = [
            nodes.NewNode(f"iron-{number}", "b9", "l9", "r9", None, self.world.keys.instance_type, 8)
            for number in range(1, count + 1)
        ]
        return nodes.enroll_from(session, self.provider_id, rows)

    def _stand_up(self) -> None:
        self._refs = {f"iron-{number}": node_id for number, node_id in enumerate(self.ids, start=1)}

    def before_step(self, node: NodeSnapshot) -> None:
        """What is wrong with Ironic's work on the node is so while it is in the state that was chosen for it."""
        part, peer = self.director.part(node.id), self.ironic.find(node.ref)
        assert peer is not None
        fits = part is not None and part.plan.state == node.state and part.case.fault in PEERS
        peer.broken = ""
        if fits and part is not None and (part.plan.count is None or part.played < part.plan.count):
            part.played += 1
            peer.broken = part.case.fault
            if part.case.fault == "maintenance":
                peer.said |= {"maintenance": True, "maintenance_reason": "a person works on it"}

    def draw(self, name: str, request: httpx.Request) -> str:
        """The fault of this request; empty for none."""
        node_id = self._refs.get(name, "")
        part = self.director.part(node_id)
        if part is None or part.case.fault in PEERS:
            return ""
        of_power = part.case.operation == "power"
        wanted = random.Random(part.case.name).random() < 0.7 or of_power
        fits = (request.method != "GET") == wanted and (not of_power or request.url.path.endswith("/power"))
        return self.director.draw(node_id, part.plan.calls[0]) if fits else ""

    def heal(self) -> None:
        """Ironic is well, and whoever set maintenance has lifted it."""
        for one in self.ironic.nodes.values():
            one.broken = ""
            if one.said["maintenance"] and not one.said.get("fault"):
                one.said |= {"maintenance": False, "maintenance_reason": None}
        super().heal()

    def broken(self) -> list[str]:
        """What was deployed on somebody's data, or is offered with it."""
        found = [*self.ironic.findings]
        self.ironic.findings.clear()
        free = self.world.rows("SELECT ref FROM nodes WHERE state IN ('available', 'reserved') AND id = ANY(:ids)", ids=self.ids)
        left = [(row.ref, self.ironic.find(row.ref)) for row in free]
        return found + [f"I7 {ref}: offered with data of {one.residue}" for ref, one in left if one is not None and one.residue]

    def remains(self) -> list[str]:
        """Instances and power of nodes that nobody has."""
        return [
            f"I2 {one.said['name']}: instance {one.said['instance_uuid']}, {one.said['power_state']}, data {one.residue}"
            for one in self.ironic.nodes.values()
            if one.said["instance_uuid"] is not None or one.residue or one.said["power_state"] != "power off"
        ]

    def close(self) -> None:
        """Nothing is held."""
        self._adapter.close()
        super().close()


def faults_here(operation: str) -> list[str]:
    """
    The faults of an Ironic that make sense in the operation.
    """
    if operation not in CALLS or operation in {"attach", "detach", "firmware"}:
        return []
    return [one for one in FAULTS if operation not in {"enrol", "power"} or one not in {"stuck", "fails"}]
