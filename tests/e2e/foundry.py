"""
A cloud whose machines are a real Ironic's, and what operators and tenants do with it.
"""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
from pycdlib.pycdlib import PyCdlib

from controlplane import seeding
from controlplane.boots.states import CLOUD_INIT_STAGES
from tests.conftest import Database
from tests.e2e.rack import done
from tests.factories.images import declared, uploaded
from tests.factories.processes import until
from tests.factories.serving import Served, serving, settings_for
from tests.ironic_kit import IronicKit
from workers.engine import Engine

PLACE = {"block": "b1", "leaf": "leaf1", "rack": "r1", "instance_type": "hgx-h100-8"}


@dataclass
class Foundry:
    """
    The API, which looks after images, a worker, and an Ironic with one node.
    """

    kit: IronicKit
    """The Ironic."""
    name: str
    """Its node."""
    operator: httpx.Client
    """Of the cloud."""
    tenant: httpx.Client
    """Of the cloud."""
    project: str
    """The tenant's."""
    patience_s: float
    """Longest that a change may take."""

    def until(self, client: httpx.Client, path: str, *states: str) -> dict[str, Any]:
        """
        The resource once it has come to one of the states.
        """
        until(lambda: self._state(client, path) in states, f"{path} is {states}", within_s=self.patience_s)
        seen: dict[str, Any] = done(client.get(path))
        return seen

    def _state(self, client: httpx.Client, path: str) -> str:
        return str(done(client.get(path))["status"]["state"])

    def wait(self, path: str, reason: str) -> None:
        """
        The operator is shown this reason at the resource.
        """
        until(lambda: done(self.operator.get(path))["status"]["reason"] == reason, reason, within_s=self.patience_s)

    def register(self, **config: Any) -> str:
        """
        The node of the Ironic is ours and free; its path.
        """
        told = {**self.kit.config(), "site": "lab", "positions": None, **config}
        wanted = {"name": "iron", "adapter": "ironic", "site": "lab", "config": told, "secrets": {}, "shared": True}
        provider = done(self.operator.post("/v1/admin/providers", json=wanted))["id"]
        body = {"provider_id": provider, "nodes": [{"ref": self.name, **PLACE}]}
        (enrolled,) = done(self.operator.post("/v1/admin/nodes", json=body))["enrolled"]
        seen = self.until(self.operator, f"/v1/admin/nodes/{enrolled}", "available", "quarantined")
        assert seen["status"]["state"] == "available", done(self.operator.get(f"/v1/admin/nodes/{enrolled}/wipes"))
        asked = f"/v1/admin/providers/{provider}"
        until(lambda: "products" in done(self.operator.get(asked))["capabilities"], "it can do something", within_s=self.patience_s)
        return f"/v1/admin/nodes/{enrolled}"

    def ask(self, image: str | None, login: Mapping[str, Any]) -> httpx.Response:
        """
        The answer to an order of one machine, with the image if there is one.
        """
        sets = [{"name": "workers", "instance_type": "hgx-h100-8", "count": 1}]
        spec = {"kind": "baremetal", "site": "lab", "node_sets": sets, "image": image, "login": login, "wait": True}
        return self.tenant.post(f"/v1/projects/{self.project}/clusters", json={"name": "own", "spec": spec})

    def order(self, image: str | None, login: Mapping[str, Any]) -> str:
        """
        Its path once it is accepted.
        """
        return f"/v1/projects/{self.project}/clusters/{done(self.ask(image, login))['id']}"

    def image(self, content: bytes, image_format: str = "raw") -> dict[str, Any]:
        """
        An image of the tenant's, checked.
        """
        return uploaded(self.tenant, content, spec=declared(content, format=image_format)["spec"])

    def told(self) -> dict[str, Any]:
        """
        What the agent on the node would be told: Ironic hides a part of it from whoever asks over its API.
        """
        with closing(sqlite3.connect(self.kit.base / "ironic" / "state" / "ironic.sqlite")) as database:
            ((found,),) = database.execute("SELECT instance_info FROM nodes WHERE name = ?", (self.name,)).fetchall()
        said: dict[str, Any] = json.loads(found)
        return said

    def deployed(self) -> dict[str, Any]:
        """
        What the agent was told of the node, once Ironic has deployed it.
        """
        self.kit.until(self.name, lambda seen: seen["provision_state"] == "active" and seen["power_state"] == "power on")
        return self.told()


@contextmanager
def running_foundry(
    kit: IronicKit, name: str, database: Database, folder: Path, port: int, *, patience_s: float = 90.0, log_level: str = "INFO"
) -> Iterator[Foundry]:
    """
    A cloud that machines reach at the port of this machine's loopback, as long as the block.
    """
    keys = seeding.sow_people(database.engine, "USD", site="lab")
    with ExitStack() as stack:
        told = {"data_dir": folder, "machine_url": f"http://127.0.0.1:{port}", "log_level": log_level}
        served: Served = stack.enter_context(serving(database, at=("127.0.0.1", port), **told))
        engine = Engine(settings_for(database, **told, sweep_interval_s=0.3, observe_interval_s=2.0))
        engine.start()
        stack.callback(engine.stop)
        operator = stack.enter_context(served.client(keys.operator_key))
        tenant = stack.enter_context(served.client(keys.tenant_key))
        yield Foundry(kit, name, operator, tenant, keys.project_id, patience_s)


def documents(drive: bytes) -> dict[str, bytes]:
    """
    What a machine finds on a config drive that was written to its disk.
    """
    disc = PyCdlib()
    disc.open_fp(BytesIO(gzip.decompress(base64.b64decode(drive, validate=True))))
    assert disc.pvd.volume_identifier.strip() == b"CIDATA"
    found = {}
    for name in ("meta-data", "user-data", "vendor-data"):
        out = BytesIO()
        disc.get_file_from_iso_fp(out, joliet_path=f"/{name}")
        found[name] = out.getvalue()
    disc.close()
    return found


def report(url: str, boot_id: str, failure: str = "") -> None:
    """
    The machine's own word: all went well, or a stage did not.
    """
    httpx.post(f"{url}phone-home", data={"instance_id": boot_id}).raise_for_status()
    stages = [{"name": one, "errors": failure if one == "modules-final" else ""} for one in CLOUD_INIT_STAGES]
    said = {"boot_id": boot_id, "final": True, "stages": stages, "scripts": [], "checks": []}
    httpx.post(f"{url}report", json=said).raise_for_status()
