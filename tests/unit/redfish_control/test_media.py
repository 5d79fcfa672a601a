"""
The virtual drive of each vendor.
"""

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import Busy, Refused, Unknown, Unsupported
from controlplane.providers.hardware import Controller
from tests.simulators.redfish import ways
from tests.simulators.redfish.server import FakeBmc, no
from tests.simulators.redfish.tree import MANAGER, SYSTEM
from tests.unit.redfish_control.conftest import Build

CD = f"{MANAGER}/VirtualMedia/Cd"
OURS = "https://images.example/nod_1/boot.iso?once=7"
OLD = "https://images.example/nod_0/boot.iso"


def verb(path: str, name: str) -> str:
    """The line of that action."""
    return f"POST {path}/Actions/VirtualMedia.{name}Media"


def test_an_image_goes_in_and_out(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """It is read back; repeats send nothing; only the image is sent, because Supermicro refuses more."""
    bmc.rules.append(ways.insert_refuses("Inserted", "WriteProtected"))
    adapter.insert_media(at, OURS)
    adapter.insert_media(at, OURS)
    assert adapter.observe(at).media == OURS
    adapter.eject_media(at)
    adapter.eject_media(at)
    assert adapter.observe(at).media is None
    assert bmc.sent(verb(CD, "Insert")) == [{"Image": OURS}]
    assert len(bmc.sent(verb(CD, "Eject"))) == 1


def test_another_image_is_ejected_first(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """BR-043: what counts is which image is in, not that one is."""
    bmc.tree[CD] |= {"Image": OLD, "Inserted": True}
    adapter.insert_media(at, OURS)
    assert adapter.observe(at).media == OURS
    assert bmc.lines("POST") == [verb(CD, "Eject"), verb(CD, "Insert")]


def test_an_image_in_another_drive_goes_too(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """No other image is left, not even in a drive that we would not use."""
    usb, disc = ways.with_slots(bmc, ("Usb", ("USBStick",), True), ("Cd", ("CD",), True))
    bmc.tree[usb] |= {"Image": OLD, "Inserted": True}
    adapter.insert_media(at, OURS)
    assert (bmc.tree[usb]["Inserted"], bmc.tree[disc]["Image"]) == (False, OURS)


def test_each_missing_parameter_is_learned(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """One at a time from the controller's own words."""
    bmc.rules.append(ways.insert_needs("TransferProtocolType", "TransferMethod", "UserName"))
    adapter.insert_media(at, OURS)
    assert bmc.sent(verb(CD, "Insert"))[-1] == {
        "Image": OURS,
        "TransferProtocolType": "HTTPS",
        "TransferMethod": "Stream",
        "UserName": "none",
        "Password": "none",
    }


def test_four_calls_are_the_most(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Then the refusal is the answer."""
    bmc.rules.append(ways.insert_needs("TransferProtocolType", "TransferMethod", "UserName", "Inserted", "WriteProtected"))
    with pytest.raises(Refused):
        adapter.insert_media(at, OURS)
    assert len(bmc.sent(verb(CD, "Insert"))) == 4


@pytest.mark.parametrize("status", [400, 405])
def test_a_drive_for_the_console_only_is_passed_over(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, status: int) -> None:
    """Cisco: the next one takes it."""
    first, second = ways.with_slots(bmc, ("0", ("CD",), True), ("1", ("CD", "DVD"), True))
    bmc.rules.append(ways.kvm_slot(first, status))
    adapter.insert_media(at, OURS)
    assert bmc.tree[second]["Image"] == OURS


def test_drives_that_all_refuse_are_named(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """With each one's words."""
    for path in ways.with_slots(bmc, ("0", ("CD",), True), ("1", ("CD",), True)):
        bmc.rules.append(ways.kvm_slot(path, 400))
    with pytest.raises(Refused, match=r"for the console only.*for the console only"):
        adapter.insert_media(at, OURS)


@pytest.mark.parametrize("under", [SYSTEM, MANAGER])
def test_drives_are_found_in_either_place(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, under: str) -> None:
    """Under the system or its manager; a DVD drive will do, and so will one that only its name tells."""
    (dvd,) = ways.with_slots(bmc, ("1", ("DVD",), True), under=under)
    adapter.insert_media(at, OURS)
    assert bmc.tree[dvd]["Image"] == OURS
    bmc.tree[dvd] |= {"MediaTypes": None, "Id": "RemoteCD"}
    adapter.eject_media(at)
    adapter.insert_media(at, OURS)
    assert bmc.tree[dvd]["Image"] == OURS


def test_a_drive_without_actions_is_patched(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Lenovo SD530, whose PATCH needs Inserted and a strong If-Match."""
    bmc.etags = "weak"
    (path,) = ways.with_slots(bmc, ("Cd", ("CD",), False))
    adapter.insert_media(at, OURS)
    assert bmc.sent(f"PATCH {path}")[-1] == {"Image": OURS, "Inserted": True, "WriteProtected": True}
    adapter.eject_media(at)
    assert adapter.observe(at).media is None


def test_lenovo_drives_for_uploads_come_last(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Whatever order they are listed in."""
    bmc.system["Manufacturer"] = "Lenovo"
    kinds = ("CD", "DVD", "USBStick")
    *_, address = ways.with_slots(bmc, ("RDOC1", kinds, False), ("Remote1", kinds, False), ("EXT1", kinds, False), under=MANAGER)
    adapter.insert_media(at, OURS)
    assert bmc.lines("PATCH") == [f"PATCH {address}"]


def test_a_drive_that_went_away_is_left_out(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """And looked for anew."""
    adapter.insert_media(at, OURS)
    gone = bmc.tree.pop(CD)
    assert adapter.observe(at).media is None
    bmc.tree[CD] = gone
    assert adapter.observe(at).media == OURS


def test_an_eject_may_take_its_time(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Dell: the image shows for a while; one that never goes is busy, and nothing is inserted beside it."""
    bmc.tree[CD] |= {"Image": OLD, "Inserted": True}
    bmc.slow_eject = 3
    adapter.insert_media(at, OURS)
    assert adapter.observe(at).media == OURS
    bmc.slow_eject = 10_000
    with pytest.raises(Busy):
        adapter.insert_media(at, OLD)
    assert len(bmc.sent(verb(CD, "Insert"))) == 1


def test_an_insert_that_breaks_down_is_tried_again(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Dell, while the eject is still under way."""
    bmc.fail("InsertMedia", "say", payload=no(500, "Base.1.8.InternalError"))
    adapter.insert_media(at, OURS)
    assert adapter.observe(at).media == OURS


def test_an_insert_that_never_shows_is_unknown(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The yes alone is not believed."""
    bmc.fail("InsertMedia", "say", times=9, payload=(204, None, {}))
    with pytest.raises(Unknown, match="does not show it"):
        adapter.insert_media(at, OURS)


def test_an_eject_without_a_body_where_a_body_is_refused(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Controllers differ on the empty object."""
    bmc.tree[CD] |= {"Image": OLD, "Inserted": True}
    bmc.fail("EjectMedia", "say", payload=no(400, "Base.1.8.MalformedJSON"))
    adapter.eject_media(at)
    assert bmc.sent(verb(CD, "Eject")) == [{}, None]
    assert adapter.observe(at).media is None


def test_a_controller_without_drives_says_so(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """Unsupported, with a code; it can still be observed. A licence that is missing is unsupported too."""
    adapter = build()
    bmc.rules.append(lambda *asked: no(403, "SMC.1.0.OemLicenseNotPassed", "a licence") if "InsertMedia" in asked[1] else None)
    with pytest.raises(Refused, match="licence"):
        adapter.insert_media(at, OURS)
    del bmc.tree[MANAGER]["VirtualMedia"]
    other = build()
    with pytest.raises(Unsupported) as caught:
        other.insert_media(at, OURS)
    assert caught.value.code == "provider_no_virtual_media"
    assert other.observe(at).media is None
