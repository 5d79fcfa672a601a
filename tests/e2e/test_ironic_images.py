"""
Images that tenants choose, on machines of a real Ironic: what Ironic is told, what its agent finds there, and that the machine's own word
is waited for. The hardware is fake; this test does what the agent and the machine would.
"""

from __future__ import annotations

import base64
import json
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from controlplane.local.addresses import free_port
from tests.conftest import Database
from tests.e2e.foundry import Foundry, documents, report, running_foundry
from tests.e2e.rack import done
from tests.factories.images import content_of
from tests.ironic_kit import session_kit

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Ql2ZyVjzQ0bZ4mVbq1m0Vf3y7d8n5k2s9q4w6e8r0 ada"
USER_DATA = "#cloud-config\nwrite_files: [{path: /canary, content: mine}]\n"
LOGIN = {"ssh_keys": [KEY], "user_data": USER_DATA}
CONTENT = content_of(1_000_000)
QCOW2 = struct.pack(">4sI", b"QFI\xfb", 2).ljust(72, b"\0") + content_of(1000)


@pytest.fixture
def foundry(database: Database, tmp_path: Path) -> Iterator[Foundry]:
    """
    A cloud with one machine, of fake hardware.
    """
    kit, name = session_kit(), f"own-{secrets.token_hex(4)}"
    kit.make(name)
    try:
        with running_foundry(kit, name, database, tmp_path, free_port()) as made:
            yield made
    finally:
        kit.drop(name)


def test_a_tenants_image_is_deployed_by_ironic(foundry: Foundry) -> None:
    """
    Ironic is told where the image is, its digest and its format, and the agent where the config drive is; both addresses are of this
    deployment alone, and the image's opens nothing else. The machine is its tenant's once it says so itself, and what was told is gone once
    it is given back.
    """
    node = foundry.register(own_images={"deploy_interface": "fake"})
    image = foundry.image(CONTENT)
    path = foundry.order(image["id"], LOGIN)
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
    foundry.wait(node, waits)
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
    """
    What Ironic calls active and says of itself that it did not come up is wiped, and a person looks before it is sold again. The image is a
    qcow2, which Ironic is given as it is where its operator lets it.
    """
    node = foundry.register(own_images={"deploy_interface": "fake", "formats": ["raw", "qcow2"]})
    foundry.order(foundry.image(QCOW2, "qcow2")["id"], LOGIN)
    info = foundry.deployed()
    drive_url = info["configdrive"]
    assert (info["image_disk_format"], httpx.get(info["image_source"]).content) == ("qcow2", QCOW2)
    boot_id = json.loads(documents(httpx.get(drive_url).content)["meta-data"])["instance-id"]
    report(drive_url.removesuffix("config-drive"), boot_id, "no module named tenant")
    seen = foundry.until(foundry.operator, node, "available")
    assert seen["holds"][0]["reason"].startswith("deploy_failed")
    assert httpx.get(drive_url).status_code == 404


def test_a_login_reaches_an_operators_image(foundry: Foundry) -> None:
    """
    Where the operator says so (`seeds`), a machine with one of the provider's own images gets its tenant's login, and is waited for; an
    order that names another image is refused when it is made, without `own_images`.
    """
    foundry.register(seeds=True)
    refused = foundry.ask(foundry.image(CONTENT)["id"], LOGIN)
    assert (refused.status_code, refused.json()["code"]) == (409, "product_not_available")
    path = foundry.order(None, LOGIN)
    info = foundry.deployed()
    assert "image_source" not in info
    found = documents(httpx.get(info["configdrive"]).content)
    assert KEY.encode() in found["user-data"]
    assert httpx.get(info["configdrive"].removesuffix("config-drive") + "image").status_code == 404
    report(info["configdrive"].removesuffix("config-drive"), json.loads(found["meta-data"])["instance-id"])
    foundry.until(foundry.tenant, path, "running")
