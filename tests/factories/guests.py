"""
Bare machines that are lent to fabric checks: what they would say, through the real routes, when their controllers have switched them on.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.app import create_app
from controlplane.kit.ids import new_id
from tests.conftest import Database
from tests.factories.boots import LINKS, URL, Answer, Machine
from tests.factories.identity import Caller
from tests.factories.nodes import path_between
from tests.factories.qualification import nccl, write_bw
from tests.factories.serving import settings_for
from tests.factories.world import World
from tests.integration.test_bare_nodes import Rack

JSON, GZIP = "application/json", "application/gzip"
TOOLS = ["all_reduce_perf", "ib_write_bw", "mpirun", "ssh", "sshd"]
SETTINGS = {"rails": ["mlx5_0", "mlx5_1"], "timeout_s": 30}
OUTPUTS = {"client": write_bw(391.5), "head": nccl(460.0)}


@dataclass
class Guest:
    """
    One machine's ways.
    """

    tools: list[str] = field(default_factory=lambda: list(TOOLS))
    devices: list[str] = field(default_factory=lambda: ["mlx5_0", "mlx5_1"])
    gpus: int = 8
    dies_in: str = ""
    """The run in which it says nothing any more, nor afterwards."""
    dead: bool = False
    says: dict[str, Any] = field(default_factory=dict)
    """By role, its word, where that is not the good one."""
    errands: list[dict[str, Any]] = field(default_factory=list)
    """What it was sent to do."""


class Guests(Rack):
    """
    Free bare machines on one leaf, and the operator's requests.
    """

    def __init__(self, world: World, count: int, app: Any, **settings: Any) -> None:
        super().__init__(world, count)
        self.app = app
        self.guests = {one: Guest() for one in self.ids}
        self.booted: set[str] = set()
        self.sent: set[tuple[str, str]] = set()
        self.call = Caller(app, world.keys.operator_key)
        config = json.dumps({"fabric_tools": SETTINGS, **settings})
        world.do(
            lambda s: s.connection().exec_driver_sql(
                "UPDATE providers SET config = %s::jsonb, version = version + 1 WHERE adapter = 'redfish'", (config,)
            )
        )
        world.do(self._free)
        for one in self.ids:
            self.tools.benches[one].power_ = "off"

    def _free(self, session: Session) -> None:
        """Ours came to be free by lawful moves; nothing becomes of any other machine."""
        session.execute(text("UPDATE nodes SET due_at = NULL"))
        for state in path_between("enrolled", "available"):
            for node_id in self.ids if state == "available" else ():
                session.execute(
                    text("INSERT INTO wipes (id, node_id, verified) VALUES (:w, :n, true)"), {"w": new_id("wip"), "n": node_id}
                )
            session.execute(text("UPDATE nodes SET state = :state WHERE id = ANY(:ids)"), {"state": state, "ids": self.ids})

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.call(method, f"/v1/admin/{path}", body, **more)

    def order(self, tool: str = "nccl-tests", **scope: Any) -> str:
        """The id of a check that is under way: of the first pair, unless a scope is given."""
        pair = {"kind": "pair", "node_id": self.ids[0], "peer_node_id": self.ids[1]}
        answer = self("POST", "fabric-checks", {"scope": scope or pair, "tool": tool})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def leaf(self, tool: str = "nccl-tests") -> str:
        """The same of all of them."""
        return self.order(tool, kind="leaf", site=self.world.keys.site, leaf="l9")

    def show(self, check_id: str) -> dict[str, Any]:
        """The check as operators see it."""
        shown: dict[str, Any] = self("GET", f"fabric-checks/{check_id}").json()
        return shown

    def run(self, check_id: str) -> dict[str, Any]:
        """The check after its end, when every machine must be as it was."""
        self.settle()
        done = self.show(check_id)
        assert done["status"]["state"] in {"done", "failed", "cancelled"}, done["status"]
        self.assert_home()
        return done

    def assert_home(self) -> None:
        """Every machine is free and off, its drive is empty, and no token of the check opens anything."""
        assert self.states() == {"available": len(self.ids)}
        assert {(self.tools.benches[one].power_, self.tools.benches[one].media) for one in self.ids} == {("off", None)}
        assert all(self.tools.benches[one].unsafe == [] for one in self.ids)
        assert self.world.rows("SELECT id FROM boots WHERE state <> 'ended'") == []
        assert self.world.rows("SELECT run FROM fabric_check_attendances WHERE closed_at IS NULL OR output <> ''") == []

    def machine(self, node_id: str) -> Machine:
        """The machine with the token of its last boot."""
        (row,) = self.world.rows("SELECT boot_id FROM nodes WHERE id = :id", id=node_id)
        return Machine(self.app, row.boot_id, LINKS.token(row.boot_id))

    def come(self, node_id: str, **changes: Any) -> Answer:
        """The answer to a machine that asks what it is to run."""
        guest, number = self.guests[node_id], self.ids.index(node_id)
        key = f"ssh-ed25519 {'AAAAC3NzaC1lZDI1NTE5AAAAI'}{chr(65 + number) * 43}"
        told = {
            "address": f"192.0.2.{number + 1}",
            "tools": guest.tools,
            "devices": guest.devices,
            "gpus": guest.gpus,
            "key": key,
            "host_key": key.replace("AAAAI", "AAAAJ"),
            **changes,
        }
        return self._post(node_id, "", json.dumps(told).encode(), JSON)

    def say(self, node_id: str, run: str, result: str = "passed", detail: str = "", output: str = "") -> Answer:
        """The answer to a machine's word on a run."""
        word = json.dumps({"result": result, "detail": detail, "output": output}).encode()
        return self._post(node_id, f"/{run}", gzip.compress(word, mtime=0), GZIP)

    def _post(self, node_id: str, path: str, body: bytes, kind: str) -> Answer:
        machine = self.machine(node_id)
        return machine.call("POST", f"/v1/fabric-runs/{machine.token}{path}", body, kind)

    def _speak(self) -> int:
        lent = self.world.rows(
            "SELECT node_id, id FROM boots WHERE purpose = 'fabric' AND state IN ('made', 'fetched', 'reporting')"
        )
        before = self._said()
        for row in lent:
            bench, guest = self.tools.benches[row.node_id], self.guests[row.node_id]
            if row.node_id not in self.silent and not guest.dead and bench.power_ == "on" and bench.media == f"http://cp/{row.id}":
                self._take_part(row.node_id, row.id, guest)
        ours = self._said() != before
        return super()._speak() + ours

    def _said(self) -> Any:
        return self.world.rows(
            "SELECT (SELECT count(*) FROM boots WHERE state <> 'made' AND purpose = 'fabric'),"
            f" {sum(len(one.errands) for one in self.guests.values())},"
            " (SELECT count(arrived_at) FROM fabric_check_nodes), (SELECT count(came_at) + count(told_at) FROM fabric_check_attendances)"
        )

    def _take_part(self, node_id: str, boot_id: str, guest: Guest) -> None:
        if boot_id not in self.booted:
            self.booted.add(boot_id)
            assert self.machine(node_id).get("user-data").status == 200
        answer = self.come(node_id)
        errand = answer.json()["errand"] if answer.status == 200 else None
        if errand is None:
            return
        if (boot_id, errand["run"]) not in self.sent:
            self.sent.add((boot_id, errand["run"]))
            guest.errands.append(errand)
            return  # tools take a while
        if guest.dies_in == errand["run"]:
            guest.dead = True
            return
        role = errand["role"]
        if role in guest.says:
            self.say(node_id, errand["run"], **guest.says[role])
        elif role in OUTPUTS:
            self.say(node_id, errand["run"], output=OUTPUTS[role])


@contextmanager
def application(database: Database) -> Iterator[Any]:
    """
    The whole application until the end of the block; the test run's logging stays as it was.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    app = create_app(settings_for(database, machine_url=URL))
    try:
        yield app
    finally:
        app.state.runtime.close()
        root.handlers[:] = handlers
        root.setLevel(level)
