"""
The Redfish adapter against a controller that nobody of us wrote: sushy-tools' emulator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter, build
from controlplane.providers.errors import AuthFailed, NotFound, NotSent, Permanent, ProviderError, Unknown, Unsupported
from controlplane.providers.hardware import Controller, HardwareView
from controlplane.providers.registry import AdapterInput
from tests.redfish_kit import ACCOUNT, RedfishKit, recorded, running_kit

SYSTEMS = 4
SLOWEST_POWER_S = 30.0
"""The emulator takes 1 to 11 s for a change of power; the machine may be busy."""
POLL_S = 0.25


@pytest.fixture(scope="module")
def kit() -> Iterator[RedfishKit]:
    """A running emulator."""
    with running_kit(systems=SYSTEMS) as running:
        yield running


@pytest.fixture(scope="module")
def adapter() -> Iterator[RedfishAdapter]:
    """An adapter with the kit's account."""
    made = build(
        AdapterInput("prv_kit", {}, dict(zip(("username", "password"), ACCOUNT, strict=True)), "test", lambda: datetime.now(UTC))
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image that can be fetched: the emulator does fetch it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/boot.iso"
            body = b"x" * 4096 if found else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/boot.iso"
    server.shutdown()
    server.server_close()
    thread.join(5)


def machine(kit: RedfishKit, number: int) -> Controller:
    """That machine of the kit."""
    return Controller(f"nod_{number}", kit.url, system=kit.systems[number])


def until(look: Callable[[], HardwareView], good: Callable[[HardwareView], bool]) -> HardwareView:
    """The first view that is good."""
    ends_at = time.monotonic() + SLOWEST_POWER_S
    while not good(view := look()):
        assert time.monotonic() < ends_at, view
        time.sleep(POLL_S)
    return view


def test_power_goes_on_and_off(kit: RedfishKit, adapter: RedfishAdapter) -> None:
    """Read back, as slow as on hardware; the other machines of the controller stay as they are."""
    one = machine(kit, 0)
    for power in ("on", "off"):
        adapter.power(one, on=power == "on", force=True)
        until(partial(adapter.observe, one), lambda view, power=power: view.power == power)  # type: ignore[misc]
    assert adapter.observe(machine(kit, 2)).power == "off"


@pytest.mark.parametrize("source", ["network", "disk"])
def test_the_boot_source_is_set_and_read_back(kit: RedfishKit, adapter: RedfishAdapter, source: str) -> None:
    """The emulator calls every override continuous: that is what is shown, not what was asked."""
    at = machine(kit, 2)
    adapter.boot_from(at, source)  # type: ignore[arg-type]
    view = adapter.observe(at)
    assert (view.boot_source, view.boot_once) == (source, False)


def test_media_is_inserted_booted_from_and_ejected(kit: RedfishKit, adapter: RedfishAdapter, image: str) -> None:
    """The emulator fetches the image itself; repeats change nothing."""
    at = machine(kit, 3)
    for _ in range(2):
        adapter.insert_media(at, image)
    assert adapter.observe(at).media == image
    adapter.boot_from(at, "media")
    assert adapter.observe(at).boot_source == "media"
    for _ in range(2):
        adapter.eject_media(at)
    assert adapter.observe(at).media is None


def test_an_image_that_cannot_be_fetched_is_an_error(kit: RedfishKit, adapter: RedfishAdapter, image: str) -> None:
    """And the drive stays empty."""
    at = machine(kit, 3)
    with pytest.raises(ProviderError):
        adapter.insert_media(at, image.replace("boot.iso", "missing.iso"))
    assert adapter.observe(at).media is None


def test_secure_boot_is_read_and_switched(kit: RedfishKit, adapter: RedfishAdapter) -> None:
    """It applies at once here."""
    at = machine(kit, 2)
    adapter.change_settings(at, {"secure_boot": "on"})
    assert adapter.read_settings(at)["secure_boot"] == "on"
    adapter.change_settings(at, {"secure_boot": "off"})
    assert adapter.read_settings(at)["secure_boot"] == "off"


def test_a_system_is_found_by_its_name_and_not_guessed(kit: RedfishKit, adapter: RedfishAdapter) -> None:
    """By redirect; an unknown one is not found; without a name four are too many."""
    by_name = replace(machine(kit, 2), ref="nod_name", system="gpu-node-0002")
    assert adapter.observe(by_name) == adapter.observe(machine(kit, 2))
    with pytest.raises(NotFound):
        adapter.observe(replace(by_name, system="gpu-node-9999"))
    with pytest.raises(Permanent, match="name the machine"):
        adapter.observe(replace(by_name, system=""))


def test_what_the_emulator_cannot_do_is_said(kit: RedfishKit, adapter: RedfishAdapter) -> None:
    """Wrong password, no lock, no settings of that name, nobody at the address."""
    at = machine(kit, 2)
    with pytest.raises(AuthFailed):
        adapter.observe(replace(at, ref="nod_stranger", password="not it at all"))
    with pytest.raises(Unsupported):
        adapter.lock(at, locked=True)
    with pytest.raises(ProviderError):
        adapter.change_settings(at, {"ProcTurbo": "Enabled"})
    with pytest.raises(NotSent):
        adapter.observe(replace(at, ref="nod_nobody", url="http://127.0.0.1:1"))


def test_firmware_is_set_and_updated(adapter: RedfishAdapter) -> None:
    """A BIOS attribute, applied at once here, and an update that its task shows as done; what the driver breaks down over is unknown."""
    with running_kit(systems=1, driver="test") as kit:
        at = Controller("nod_firmware", kit.url, system=kit.systems[0])
        adapter.change_settings(at, {"ProcTurboMode": "Disabled"})
        settings = adapter.read_settings(at)
        assert (settings["ProcTurboMode"], settings["secure_boot"]) == ("Disabled", "unknown")
        view = adapter.update_firmware(at, "http://images.example/x.bin", targets=(f"/redfish/v1/Systems/{at.system}",))
        assert (view.state, bool(view.task)) == ("running", True)
        assert adapter.observe_update(at, view.task).state == "succeeded"


@pytest.mark.parametrize(
    ("tree", "power", "accounts", "setting", "update"),
    [
        ("gh200", "on", {"root"}, "EGM", "takes uploads"),
        ("dell_poweredge_r750", "on", {"root"}, "AcPwrRcvry", ""),
        ("lenovo_thinksystem_sr670", "on", {"USERID"}, "Memory_MirrorMode", "only TFTP, SFTP"),
    ],
)
def test_recorded_machines_are_understood(tree: str, power: str, accounts: set[str], setting: str, update: str) -> None:
    """The machine is found beside its baseboard; its drives, settings and accounts are read; what it cannot do is said in words."""
    made = build(AdapterInput("prv_recorded", {"media_wait_s": 0.1, "poll_s": 0.05}, {}, "test", lambda: datetime.now(UTC)))
    try:
        with recorded(tree) as url:
            at = Controller(f"nod_{tree}", url)
            view = made.observe(at)
            assert (view.power, view.health, view.media) == (power, "ok", None)
            assert accounts <= set(made.list_accounts(at))
            settings = made.read_settings(at)
            assert setting in settings
            assert settings["secure_boot"] in {"on", "off"}
            made.power(at, on=False, force=True)
            made.boot_from(at, "media")
            if update:
                with pytest.raises(Unsupported, match=update):
                    made.update_firmware(at, "http://images.example/x.bin")
            with pytest.raises(Unknown, match="does not show it"):
                made.insert_media(at, "http://images.example/boot.iso")
    finally:
        made.close()
