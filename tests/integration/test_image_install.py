"""
What writes an image to a machine's disk: the real program on a plain file, from the real application and from a server that breaks off.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from controlplane.boots import service
from controlplane.boots.states import CLOUD_INIT_STAGES, BootLinks, BootView, Facts, NewBoot
from controlplane.images.keeping import verify
from controlplane.images.store import LocalImageStore
from tests.conftest import Database
from tests.factories.identity import principal_of
from tests.factories.images import content_of, filled_image
from tests.factories.nodes import make_fleet
from tests.factories.serving import MASTER_KEY, serving
from tests.integration.test_boots_agent import Host, eventually

PROGRAM = files("controlplane.boots") / "scripts" / "image.py"
CONTENT = content_of(3_000_000)
DISK_BYTES = 4 * 1024 * 1024


@dataclass
class Disks(Host):
    """
    A machine whose disks are plain files.
    """

    checks: Path = field(init=False)
    """Where the program tells what it found."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checks = self.root / "checks.jsonl"
        for folder in ("sys", "dev"):
            (self.root / folder).mkdir()

    def disk(self, name: str, size_bytes: int = DISK_BYTES, **facts: str) -> Path:
        """A disk of another tenant's bytes."""
        seen = self.root / "sys" / name
        seen.mkdir()
        for fact, value in {"size": str(size_bytes // 512), "removable": "0", **facts}.items():
            (seen / fact).parent.mkdir(exist_ok=True)
            (seen / fact).write_text(f"{value}\n", encoding="utf-8")
        path = self.root / "dev" / name
        path.write_bytes(b"x" * size_bytes)
        return path

    def environment(self) -> dict[str, str]:
        """Where the program finds them."""
        more = {"IMAGE_SYS": str(self.root / "sys"), "IMAGE_DEV": str(self.root / "dev"), "IMAGE_PAUSE_S": "0"}
        return {**super().environment(), **more}

    def program(self, verb: str, url: str = "http://127.0.0.1:1/", **known: str) -> subprocess.CompletedProcess[str]:
        """What came of one verb of the program."""
        told = {
            "IMAGE_ARCH": platform.machine(),
            "IMAGE_SIZE_BYTES": str(len(CONTENT)),
            "IMAGE_SHA256": hashlib.sha256(CONTENT).hexdigest(),
            "BOOT_URL": url,
            "BOOT_CHECKS": str(self.checks),
            **known,
        }
        given = {**os.environ, **self.environment(), **told}
        return subprocess.run(
            [sys.executable, str(PROGRAM), verb], env=given, capture_output=True, text=True, check=False, timeout=60
        )


@pytest.fixture
def host(tmp_path: Path) -> Disks:
    """A machine that was just switched on."""
    return Disks(tmp_path / "root")


class Peer(ThreadingHTTPServer):
    """
    Gives parts of a content, and breaks off after so many bytes.
    """

    def __init__(self, content: bytes, most_bytes: int) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.content, self.most_bytes = content, most_bytes
        self.asked: list[str] = []
        self.refusals: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"


class Answers(BaseHTTPRequestHandler):
    """One request."""

    server: Peer

    def do_GET(self) -> None:
        self.server.asked.append(self.headers["Range"])
        if self.server.refusals:
            self.send_response(self.server.refusals.pop())
            self.end_headers()
            return
        at = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        rest = self.server.content[at:]
        self.send_response(206)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: self.server.most_bytes])

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A server that breaks off after a million bytes."""
    with Peer(CONTENT, 1_000_000) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_image_that_breaks_off_is_fetched_on(host: Disks, peer: Peer) -> None:
    """Each request begins where the last one ended, also after the server was away; every byte stands on the disk, and is read back."""
    disk = host.disk("sda")
    peer.refusals = [503]
    done = host.program("image", peer.url)
    assert done.returncode == 0, done.stderr
    assert peer.asked == ["bytes=0-", "bytes=0-", "bytes=1000000-", "bytes=2000000-"]
    assert disk.read_bytes() == CONTENT + b"x" * (DISK_BYTES - len(CONTENT))
    assert host.program("verify").returncode == 0
    assert "image_written:100" in host.checks.read_text(encoding="utf-8")
    assert "image_verified" in host.checks.read_text(encoding="utf-8")


def test_what_is_not_the_image_is_not_installed(host: Disks, peer: Peer) -> None:
    """Other bytes than declared fail the writing, other bytes on the disk the reading; nothing can start from such a disk."""
    disk = host.disk("sda")
    peer.content = CONTENT[:-1] + b"?"
    done = host.program("image", peer.url)
    assert done.returncode == 1
    assert "what came is not the image" in done.stderr
    assert disk.read_bytes()[: 1024 * 1024] == bytes(1024 * 1024)
    peer.content = CONTENT
    assert host.program("image", peer.url).returncode == 0
    with disk.open("r+b") as flipped:
        flipped.seek(2_000_000)
        flipped.write(b"?")
    done = host.program("verify")
    assert done.returncode == 1
    assert "what the disk gives back is not the image" in done.stderr
    assert disk.read_bytes()[: 1024 * 1024] == bytes(1024 * 1024)


def test_a_qemu_disk_is_not_written_as_it_is(host: Disks, peer: Peer) -> None:
    """An image that was taken before formats were looked at is found out here; what was on the disk is untouched."""
    disk = host.disk("sda")
    peer.content = b"QFI\xfb" + CONTENT[4:]
    done = host.program("image", peer.url)
    assert done.returncode == 1
    assert "a QEMU disk" in done.stderr
    assert disk.read_bytes() == b"x" * DISK_BYTES


def test_the_chosen_disk_stays_chosen_when_its_volumes_come_to_life(host: Disks, peer: Peer) -> None:
    """A system that puts the image's volumes to use as soon as they stand does not send the rest to another disk, whose bytes stay."""
    disk, other = host.disk("sda"), host.disk("sdb")
    assert host.program("disk").stdout.startswith("image_disk sda, ")
    assert host.program("image", peer.url).returncode == 0
    (host.root / "sys/sda/holders/dm-0").mkdir(parents=True)
    for verb in ("verify", "disk", "image"):
        done = host.program(verb, peer.url)
        assert done.returncode == 0, done.stderr
    assert disk.read_bytes()[: len(CONTENT)] == CONTENT
    assert other.read_bytes() == b"x" * DISK_BYTES


def test_a_refused_image_ends_at_once(host: Disks, peer: Peer) -> None:
    """A boot that is over is not asked again and again."""
    host.disk("sda")
    peer.refusals = [404]
    done = host.program("image", peer.url)
    assert (done.returncode, len(peer.asked)) == (1, 1)
    assert "the image is refused: 404" in done.stderr


def test_the_disk_is_chosen_by_rule(host: Disks) -> None:
    """The smallest that stays and holds the image; the operator's preference comes first. An image for other machines is not written."""
    assert "no disk can take the image" in host.program("disk").stderr
    host.disk("sda", DISK_BYTES // 2)
    host.disk("sdb", DISK_BYTES * 2)
    host.disk("sdc", DISK_BYTES, removable="1")
    host.disk("sr0")
    assert host.program("disk").stdout.startswith("image_disk sdb, ")
    host.disk("nvme0n1", DISK_BYTES * 3, **{"device/serial": "S1"})
    assert host.program("disk").stdout.startswith("image_disk sdb, ")
    for hint in ("nvme", "S1"):
        host.checks.unlink()  # another boot
        assert host.program("disk", ROOT_DISK=hint).stdout.startswith("image_disk nvme0n1, ")
    host.checks.unlink()
    assert "that the operator's settings name" in host.program("disk", ROOT_DISK="vd").stderr
    assert "the image is for riscv64" in host.program("disk", IMAGE_ARCH="riscv64").stderr


@dataclass
class Site:
    """
    The served application and one machine that is about to install an image.
    """

    url: str
    """The machine's own address at the application."""
    boot_id: str
    """Its boot."""
    do: Any
    """Runs a job in a transaction."""
    links: BootLinks
    """Makes addresses of other boots."""
    node_ids: list[str]
    """Machines."""

    def view(self) -> BootView:
        """Where the boot stands."""
        found: BootView = self.do(lambda session: service.views(session, [self.boot_id]))[self.boot_id]
        return found


@pytest.fixture
def site(database: Database, tmp_path: Path) -> Iterator[Site]:
    """A machine is about to be switched on."""
    fleet = make_fleet(database, tmp_path)
    fleet.put("deploying", due_at="2099-01-01T00:00:00Z")
    with serving(database, machine_url="http://127.0.0.1:1", image_dir=tmp_path / "images") as served:
        links = BootLinks.from_master(served.url, MASTER_KEY, "cp")
        served.app.state.boots = replace(served.app.state.boots, links=links)
        store = LocalImageStore((tmp_path / "images").resolve())
        owner = principal_of(database.engine, fleet.tree.left.owner_key)
        image_id = filled_image(database.engine, store, owner, CONTENT, "one")
        verify(database.engine, store)
        fleet.do(lambda s: s.execute(text("UPDATE images SET arch = :arch"), {"arch": platform.machine()}))
        new = NewBoot(
            fleet.node_ids[0], "install", Facts("n1.example"), 900, tenant_id=fleet.tree.left.tenant_id, image_id=image_id
        )
        boot_id = fleet.do(lambda session: service.begin(session, new))
        yield Site(links.url(boot_id), boot_id, fleet.do, links, list(fleet.node_ids))


def test_a_machine_installs_its_image(site: Site, host: Disks) -> None:
    """
    From the real user-data, over the real application, in three stages that are told while they run; the image is the boot's only, and only
    until it has its outcome.
    """
    disk = host.disk("vda")
    part = httpx.get(site.url + "image", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, CONTENT[10:20])
    assert httpx.head(site.url + "image").headers["Content-Length"] == str(len(CONTENT))
    check = NewBoot(site.node_ids[1], "check", Facts("n2"), 900)
    other = site.do(lambda session: service.begin(session, check))
    assert httpx.get(site.links.url(other) + "image").status_code == 404
    host.boot(httpx.get(site.url + "user-data").raise_for_status().content)
    with host.serve() as process:
        try:
            eventually(lambda: site.view().state == "reporting")
            home = {"instance_id": site.boot_id}
            httpx.post(site.url + "phone-home", data=home).raise_for_status()
            host.finish()
            eventually(lambda: site.view().state in {"ready", "failed"})
        finally:
            process.kill()
    view = site.view()
    assert (view.state, view.failure) == ("ready", "")
    assert [one.name for one in view.stages] == [*CLOUD_INIT_STAGES, "script:disk", "script:image", "script:verify"]
    assert {"image_disk", "image_written:100", "image_verified"} <= {str(one["name"]) for one in view.checks}
    assert disk.read_bytes()[: len(CONTENT)] == CONTENT
    assert httpx.get(site.url + "image").status_code == 404


def test_a_machine_without_a_disk_for_it_says_so(site: Site, host: Disks) -> None:
    """The boot has failed at its first stage, in the machine's words, and nothing was written."""
    disk = host.disk("vda", 1024 * 1024)
    host.boot(httpx.get(site.url + "user-data").raise_for_status().content)
    httpx.post(site.url + "phone-home", data={"instance_id": site.boot_id}).raise_for_status()
    host.finish()
    with host.serve() as process:
        try:
            eventually(lambda: site.view().state in {"ready", "failed"})
        finally:
            process.kill()
    view = site.view()
    assert (view.state, view.failure_code) == ("failed", "script_failed")
    told = {one.name: one.detail for one in view.stages if not one.ok}
    assert "no disk can take the image of 3000000 bytes; 1 are too small" in told["script:disk"]
    assert told["script:verify"] == "not run: one before it failed"
    assert disk.read_bytes() == b"x" * 1024 * 1024
