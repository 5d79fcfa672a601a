"""
Images that tenants choose, on machines of a real Ironic: what Ironic is told, what its agent finds there, and that the machine's own word
is waited for. The hardware is fake; this test does what the agent and the machine would.
"""

from __future__ import annotations

import base64
import gzip
import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from pycdlib.pycdlib import PyCdlib

from controlplane import seeding
from controlplane.boots.states import CLOUD_INIT_STAGES
from controlplane.local.addresses import free_port
from tests.conftest import Database
from tests.e2e.rack import done
from tests.factories.images import content_of, declared, uploaded
from tests.factories.processes import until
from tests.factories.serving import Served, serving, settings_for
from tests.ironic_kit import IronicKit, session_kit
from workers.engine import Engine

pytestmark = [pytest.mark.timeout(300)]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Ql2ZyVjzQ0bZ4mVbq1m0Vf3y7d8n5k2s9q4w6e8r0 ada"
USER_DATA = "#cloud-config\nwrite_files: [{path: /canary, content: mine}]\n"
CONTENT = content_of(1_000_000)
WITHIN_S = 90.0


@dataclass
class Foundry:
    """
    A cloud whose machines are an Ironic's.
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

    def until(self, client: httpx.Client, path: str, *states: str) -> dict[str, Any]:
        """The resource once it has come to one of the states."""
        until(lambda: done(client.get(path))["status"]["state"] in states, f"{path} is {states}", within_s=WITHIN_S)
        seen: dict[str, Any] = done(client.get(path))
        return seen

    def register(self, **config: Any) -> str:
        """One node of the Ironic is free; its path."""
        self.kit.make(self.name)
        told = {**self.kit.config(), "site": "lab", "positions": None, **config}
        wanted = {"name": "iron", "adapter": "ironic", "site": "lab", "config": told, "secrets": {}, "shared": True}
        provider = done(self.operator.post("/v1/admin/providers", json=wanted))["id"]
        place = {"block": "b1", "leaf": "leaf1", "rack": "r1", "instance_type": "hgx-h100-8"}
        nodes = [{"ref": self.name, **place}]
        (enrolled,) = done(self.operator.post("/v1/admin/nodes", json={"provider_id": provider, "nodes": nodes}))["enrolled"]
        assert (
            self.until(self.operator, f"/v1/admin/nodes/{enrolled}", "available", "quarantined")["status"]["state"] == "available"
        )
        asked = f"/v1/admin/providers/{provider}"
        until(
            lambda: "products" in done(self.operator.get(asked))["capabilities"], "it was asked what it can do", within_s=WITHIN_S
        )
        return f"/v1/admin/nodes/{enrolled}"

    def ask(self, image: str | None) -> httpx.Response:
        """The answer to an order of one machine, with the image if there is one."""
        sets = [{"name": "workers", "instance_type": "hgx-h100-8", "count": 1}]
        login = {"ssh_keys": [KEY], "user_data": USER_DATA}
        spec = {"kind": "baremetal", "site": "lab", "node_sets": sets, "image": image, "login": login, "wait": True}
        return self.tenant.post(f"/v1/projects/{self.project}/clusters", json={"name": "own", "spec": spec})

    def image(self) -> dict[str, Any]:
        """An image of the tenant's, ready."""
        return uploaded(self.tenant, CONTENT, spec=declared(CONTENT, format="raw")["spec"])

    def told(self) -> dict[str, Any]:
        """What the agent on the node would be told: Ironic hides a part of it from whoever asks over its API."""
        with closing(sqlite3.connect(self.kit.base / "ironic" / "state" / "ironic.sqlite")) as database:
            ((found,),) = database.execute("SELECT instance_info FROM nodes WHERE name = ?", (self.name,)).fetchall()
        said: dict[str, Any] = json.loads(found)
        return said

    def deployed(self) -> dict[str, Any]:
        """What the agent was told of the node, once Ironic has deployed it."""
        self.kit.until(self.name, lambda seen: seen["provision_state"] == "active" and seen["power_state"] == "power on")
        return self.told()


@pytest.fixture
def foundry(database: Database, tmp_path: Path) -> Iterator[Foundry]:
    """
    The API, which looks after images, a worker and an Ironic.
    """
    keys = seeding.sow_people(database.engine, "USD", site="lab")
    with ExitStack() as stack:
        kit, name = session_kit(), f"own-{secrets.token_hex(4)}"
        stack.callback(kit.drop, name)
        port = free_port()
        told = {"data_dir": tmp_path, "machine_url": f"http://127.0.0.1:{port}"}
        served: Served = stack.enter_context(serving(database, at=("127.0.0.1", port), **told))
        engine = Engine(settings_for(database, **told, sweep_interval_s=0.3, observe_interval_s=2.0))
        engine.start()
        stack.callback(engine.stop)
        operator = stack.enter_context(served.client(keys.operator_key))
        tenant = stack.enter_context(served.client(keys.tenant_key))
        yield Foundry(kit, name, operator, tenant, keys.project_id)


def documents(drive: bytes) -> dict[str, bytes]:
    """What a machine finds on a config drive that was written to its disk."""
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
    """The machine's own word: all went well, or a stage did not."""
    httpx.post(f"{url}phone-home", data={"instance_id": boot_id}).raise_for_status()
    stages = [{"name": one, "errors": failure if one == "modules-final" else ""} for one in CLOUD_INIT_STAGES]
    httpx.post(
        f"{url}report", json={"boot_id": boot_id, "final": True, "stages": stages, "scripts": [], "checks": []}
    ).raise_for_status()


def test_a_tenants_image_is_deployed_by_ironic(foundry: Foundry) -> None:
    """
    Ironic is told where the image is, its digest and its format, and the agent where the config drive is; both addresses are of this
    deployment alone, and the image's opens nothing else. The machine is its tenant's once it says so itself, and what was told is gone once
    it is given back.
    """
    node = foundry.register(own_images={"deploy_interface": "fake"})
    image = foundry.image()
    ordered = done(foundry.ask(image["id"]))
    path = f"/v1/projects/{foundry.project}/clusters/{ordered['id']}"
    info = foundry.deployed()
    digest = image["spec"]["sha256"]
    assert {name: info[name] for name in ("image_disk_format", "image_type", "image_os_hash_algo", "image_os_hash_value")} == {
        "image_disk_format": "raw",
        "image_type": "whole-disk",
        "image_os_hash_algo": "sha256",
        "image_os_hash_value": digest,
    }
    source, drive_url = info["image_source"], info["configdrive"]
    assert httpx.head(source).headers["Content-Length"] == str(len(CONTENT))
    assert httpx.get(source).content == CONTENT
    beside = source.removesuffix("image")
    assert {httpx.get(beside + one).status_code for one in ("user-data", "meta-data", "seed.iso", "config-drive")} == {404}
    found = documents(httpx.get(drive_url).content)
    assert KEY.encode() in found["user-data"]
    assert base64.b64encode(USER_DATA.encode())[:40] in found["user-data"].replace(b"\n", b"")
    boot = json.loads(found["meta-data"])
    (instance,) = done(foundry.tenant.get(f"{path}/instances"))["items"]
    assert (boot["local-hostname"], instance["image"]) == (instance["id"].replace("_", "-"), image["id"])
    waits = "Deployed; waits for the machine's own report."
    until(lambda: done(foundry.operator.get(node))["status"]["reason"] == waits, "the machine is waited for", within_s=WITHIN_S)
    assert done(foundry.tenant.get(path))["status"]["state"] == "provisioning"
    kept = done(foundry.tenant.get(f"/v1/images/{image['id']}"))
    refused = foundry.tenant.delete(f"/v1/images/{image['id']}", headers={"If-Match": f'"{kept["version"]}"'})
    assert (refused.status_code, refused.json()["code"]) == (409, "image_in_use")

    report(drive_url.removesuffix("config-drive"), boot["instance-id"])
    foundry.until(foundry.tenant, path, "running")
    assert httpx.get(source).status_code == 404
    assert [one["purpose"] for one in done(foundry.tenant.get(f"{path}/instances/{instance['id']}/console"))["boots"]] == ["deploy"]

    done(foundry.tenant.delete(path, headers={"If-Match": "*"}))
    foundry.until(foundry.tenant, path, "deleted")
    assert httpx.get(drive_url).status_code == 404
    foundry.until(foundry.operator, node, "available")
    assert "image_source" not in foundry.told()


def test_a_machine_that_fails_by_its_own_word_is_not_sold(foundry: Foundry) -> None:
    """What Ironic calls active and says of itself that it did not come up is wiped, and a person looks before it is sold again."""
    node = foundry.register(own_images={"deploy_interface": "fake"})
    image = foundry.image()
    done(foundry.ask(image["id"]))
    drive_url = foundry.deployed()["configdrive"]
    boot_id = json.loads(documents(httpx.get(drive_url).content)["meta-data"])["instance-id"]
    report(drive_url.removesuffix("config-drive"), boot_id, "no module named tenant")
    seen = foundry.until(foundry.operator, node, "available")
    assert seen["holds"][0]["reason"].startswith("deploy_failed")
    assert httpx.get(drive_url).status_code == 404


def test_an_ironic_that_takes_no_images_is_not_ordered_from(foundry: Foundry) -> None:
    """Without `own_images` the order is refused when it is made."""
    foundry.register()
    image = foundry.image()
    refused = foundry.ask(image["id"])
    assert (refused.status_code, refused.json()["code"]) == (409, "product_not_available")


def test_a_login_reaches_an_operators_image(foundry: Foundry) -> None:
    """Where the operator says so (`seeds`), a machine with one of the provider's own images gets its tenant's login, and is waited for."""
    foundry.register(seeds=True)
    path = f"/v1/projects/{foundry.project}/clusters/{done(foundry.ask(None))['id']}"
    info = foundry.deployed()
    assert "image_source" not in info
    found = documents(httpx.get(info["configdrive"]).content)
    assert KEY.encode() in found["user-data"]
    assert httpx.get(info["configdrive"].removesuffix("config-drive") + "image").status_code == 404
    report(info["configdrive"].removesuffix("config-drive"), json.loads(found["meta-data"])["instance-id"])
    foundry.until(foundry.tenant, path, "running")
