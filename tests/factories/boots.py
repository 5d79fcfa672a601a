"""
A small fleet whose machines boot by pull, and the machines themselves as far as the API sees them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI
from sqlalchemy.orm import Session

from controlplane.app import create_app
from controlplane.boots import service
from controlplane.boots.states import CLOUD_INIT_STAGES, BootLinks, BootView, Facts, NewBlueprint, NewBoot, NodeFile, Script
from controlplane.kit.secrets import Sealer
from tests.conftest import Database
from tests.factories.nodes import Fleet, make_fleet
from tests.factories.serving import MASTER_KEY, settings_for

URL = "http://cp.example:8080"
PEER = "192.0.2.9"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl root@node"
LINKS = BootLinks.from_master(URL, MASTER_KEY, "cp")
BLUEPRINT = NewBlueprint(
    ssh_keys=(KEY,),
    user_data="#cloud-config\nruncmd: [[touch, /tenant]]\n",
    files=(NodeFile("/etc/demo.conf", "a = 1\n", on_change="systemctl restart demo"),),
    secret_files=(NodeFile("/etc/munge/munge.key", "munge-canary", "0400", "munge:munge"),),
    scripts=(Script("munge", "systemctl enable --now munge\n"),),
)
FORM = "application/x-www-form-urlencoded"
OCTETS = "application/octet-stream"


@dataclass(frozen=True)
class Answer:
    """
    What came back.
    """

    status: int
    """HTTP status."""
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes
    """All of it."""

    def json(self) -> Any:
        """
        The body as JSON.
        """
        return json.loads(self.body)


async def ask(app: FastAPI, method: str, path: str, body: bytes = b"", *, peer: str | None = PEER, **headers: str) -> Answer:
    """
    The application's answer, without a socket or a client library in between.
    """
    target, _, query = path.partition("?")
    sent = [(name.lower().replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    if body:
        sent.append((b"content-length", str(len(body)).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"cp.example"), *sent],
        "client": (peer, 40000) if peer else None,
        "server": ("127.0.0.1", 80),
        "root_path": "",
    }
    messages: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start = messages[0]
    found = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(one.get("body", b"") for one in messages[1:]))


@dataclass(frozen=True)
class Machine:
    """
    A machine with a token.
    """

    app: FastAPI
    """Whom it asks."""
    boot_id: str
    """Its boot."""
    token: str
    """Its token, or somebody else's."""
    peer: str = PEER
    """Its address."""

    def get(self, name: str, **headers: str) -> Answer:
        """
        What is there.
        """
        return asyncio.run(ask(self.app, "GET", f"/v1/boot/{self.token}/{name}", peer=self.peer, **headers))

    def post(self, name: str, body: bytes, kind: str) -> Answer:
        """
        What is answered.
        """
        return self.call("POST", f"/v1/boot/{self.token}/{name}", body, kind)

    def call(self, method: str, path: str, body: bytes, kind: str) -> Answer:
        """
        What is answered at any path.
        """
        return asyncio.run(ask(self.app, method, path, body, peer=self.peer, Content_Type=kind))

    def phone_home(self, **told: str) -> Answer:
        """
        As cloud-init does it.
        """
        form = {"instance_id": self.boot_id, "hostname": "n1", "fqdn": "n1", "pub_key_ed25519": KEY, **told}
        return self.post("phone-home", urlencode(form).encode(), FORM)

    def report(self, **changes: Any) -> Answer:
        """
        A final report that all is well, with these changes.
        """
        return self.post("report", json.dumps({**good_report(self.boot_id), **changes}).encode(), "application/json")


def good_report(boot_id: str) -> dict[str, Any]:
    """
    What a machine says when all is well.
    """
    scripts = [{"name": name, "ok": True, "exit_code": 0, "line": None, "output": ""} for name in ("files", "munge")]
    stages = [{"name": name, "errors": ""} for name in CLOUD_INIT_STAGES]
    return {"boot_id": boot_id, "final": True, "stages": stages, "scripts": scripts, "checks": []}


@dataclass
class Booting:
    """
    Three machines, and the whole application.
    """

    fleet: Fleet
    """The machines as rows."""
    app: FastAPI
    """Everything."""
    sealer: Sealer
    """The application's."""
    links: BootLinks = field(default=LINKS)
    """The application's."""

    def do(self, job: Any) -> Any:
        """
        What the job returned, in one committed transaction.
        """
        return self.fleet.do(job)

    def blueprint(self, **changes: Any) -> str:
        """
        A blueprint with a file, a secret file, a script and user-data.
        """
        new = replace(BLUEPRINT, **{"tenant_id": self.fleet.tree.left.tenant_id, "cluster_id": "clu_x", **changes})
        return str(self.do(lambda session: service.make_blueprint(session, self.sealer, new)))

    def begin(self, node: int = 0, **changes: Any) -> Machine:
        """
        The node is booted for a tenant by a blueprint of its own; it has a quarter of an hour.
        """
        new = NewBoot(
            self.fleet.node_ids[node],
            "deploy",
            Facts("n1.example", tags={"team": "vision"}),
            900,
            tenant_id=self.fleet.tree.left.tenant_id,
            blueprint_id=changes.pop("blueprint_id", None) or self.blueprint(),
        )
        new = replace(new, **changes)
        boot_id = self.do(lambda session: service.begin(session, new))
        return self.machine(boot_id)

    def machine(self, boot_id: str, peer: str = PEER) -> Machine:
        """
        The machine of the boot.
        """
        return Machine(self.app, boot_id, self.links.token(boot_id), peer)

    def view(self, boot_id: str) -> BootView:
        """
        Where it stands.
        """

        def look(session: Session) -> BootView:
            return service.views(session, [boot_id])[boot_id]

        found: BootView = self.do(look)
        return found

    def operator(self, path: str) -> Answer:
        """
        What the operator is shown.
        """
        return asyncio.run(ask(self.app, "GET", path, Authorization=f"Bearer {self.fleet.tree.operator_key}"))


@dataclass
class Root:
    """
    A machine's files below a folder, and its service manager, which only writes down what it is told.
    """

    root: Path
    """Its root folder."""

    def __post_init__(self) -> None:
        for folder in ("run/systemd/system", "run/cloud-init", "var/log", "etc", "bin"):
            (self.root / folder).mkdir(parents=True)
        manager = self.root / "bin/systemctl"
        manager.write_text(f'#!/bin/sh\necho "$@" >> {self.root}/systemctl.log\n', encoding="utf-8")
        manager.chmod(0o755)

    @property
    def home(self) -> Path:
        """The agent's folder."""
        return self.root / "var/lib/boot-agent"

    def environment(self) -> dict[str, str]:
        """In which everything runs."""
        return {**os.environ, "BOOT_AGENT_ROOT": str(self.root), "PATH": f"{self.root}/bin:{os.environ['PATH']}"}


@contextmanager
def booting(database: Database, folder: Path, **settings: Any) -> Iterator[Booting]:
    """
    The fleet and the application until the end of the block; the test run's logging stays as it was.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    fleet = make_fleet(database, folder)
    app = create_app(settings_for(database, **{"machine_url": URL, **settings}))
    try:
        yield Booting(fleet, app, Sealer.from_base64(MASTER_KEY))
    finally:
        app.state.runtime.close()
        root.handlers[:] = handlers
        root.setLevel(level)
