"""
The boot override in the form, and at the place, that each vendor wants.
"""

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import Busy, Refused, Unsupported
from controlplane.providers.hardware import BootSource, Controller
from tests.simulators.redfish import ways
from tests.simulators.redfish.server import Etags, FakeBmc, no
from tests.simulators.redfish.tree import SYSTEM
from tests.unit.redfish_control.conftest import Build

PATCH = f"PATCH {SYSTEM}"
ALLOWABLE = "BootSourceOverrideTarget@Redfish.AllowableValues"


def override(target: str, enabled: str = "Once", **more: str) -> dict[str, dict[str, str]]:
    """What is sent."""
    return {"Boot": {"BootSourceOverrideTarget": target, "BootSourceOverrideEnabled": enabled} | more}


@pytest.mark.parametrize(("source", "target"), [("disk", "Hdd"), ("network", "Pxe"), ("media", "Cd")])
def test_each_source_is_one_target_once(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, source: BootSource, target: str
) -> None:
    """It is read back as asked."""
    adapter.boot_from(at, source)
    assert bmc.sent(PATCH) == [override(target)]
    view = adapter.observe(at)
    assert (view.boot_source, view.boot_once) == (source, True)


def test_network_boot_by_http_where_preferred_or_alone(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """UefiHttp needs UEFI, and says so; a preference gives way to what the machine knows."""
    build(network_boot="UefiHttp").boot_from(at, "network")
    bmc.system["Boot"][ALLOWABLE] = ["Pxe"]
    build(network_boot="UefiHttp").boot_from(at, "network")
    assert bmc.sent(PATCH) == [override("UefiHttp", BootSourceOverrideMode="UEFI"), override("Pxe")]


def test_a_source_that_the_machine_lacks_is_unsupported(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Nothing is sent."""
    bmc.system["Boot"][ALLOWABLE] = ["Pxe"]
    with pytest.raises(Unsupported):
        adapter.boot_from(at, "media")
    assert bmc.sent(PATCH) == []


def test_without_a_disk_target_the_override_is_lifted(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Then the boot order decides."""
    bmc.system["Boot"][ALLOWABLE] = ["None", "Pxe"]
    adapter.boot_from(at, "disk")
    assert bmc.sent(PATCH) == [override("None", "Disabled")]


def test_continuous_where_once_is_not_offered(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """And the observation says that it is not once."""
    bmc.system["Boot"]["BootSourceOverrideEnabled@Redfish.AllowableValues"] = ["Disabled", "Continuous"]
    adapter.boot_from(at, "network")
    assert adapter.observe(at).boot_once is False


@pytest.mark.parametrize(
    "etags",
    ["none", "empty", "strong", "weak", "changing", "demanded", "refused", "weak_shown_strong_demanded", "unshown_demanded"],
)
def test_every_way_with_etags(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, etags: Etags) -> None:
    """BR-044: the change goes through in at most five requests, and is in force."""
    bmc.etags = etags
    adapter.boot_from(at, "network")
    assert 1 <= len(bmc.sent(PATCH)) <= 4
    assert adapter.observe(at).boot_source == "network"


def test_a_strong_etag_is_sent_at_once(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The one just read, and no second request."""
    adapter.boot_from(at, "network")
    sent = [one for one in bmc.requests if one.line == PATCH]
    assert [one.headers.get("If-Match", "").startswith('"') for one in sent] == [True]
    assert sent[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("linked", [True, False])
def test_ami_takes_all_of_it_in_its_settings_object(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, *, linked: bool) -> None:
    """Mode, enabled and target together, in /SD, whether it is linked or only known of."""
    bmc.system["Manufacturer"] = "AMI"
    ways.with_boot_in_settings_object(bmc, linked=linked)
    bmc.rules.append(ways.boot_takes_all_or_nothing)
    adapter.boot_from(at, "media")
    assert bmc.sent(PATCH) == []
    assert bmc.sent(f"PATCH {ways.SD}") == [override("Cd", BootSourceOverrideMode="UEFI")]
    assert adapter.observe(at).boot_source == "media"


def test_a_vendor_not_in_the_table_is_learned_from(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """A refusal leads to the next form; a machine of unknown make that wants everything gets it."""
    bmc.rules.append(ways.boot_takes_all_or_nothing)
    adapter.boot_from(at, "network")
    assert bmc.sent(PATCH)[-1] == override("Pxe", BootSourceOverrideMode="UEFI")


def test_nothing_unchanged_is_sent_to_those_that_refuse_it(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The third form holds only what differs; a repeat of what is so already is success."""
    bmc.system["Boot"]["BootSourceOverrideEnabled"] = "Once"
    bmc.rules.append(ways.boot_refuses_the_unchanged(bmc))
    adapter.boot_from(at, "network")
    assert bmc.sent(PATCH)[-1] == {"Boot": {"BootSourceOverrideTarget": "Pxe"}}
    adapter.boot_from(at, "network")
    assert adapter.observe(at).boot_source == "network"


def test_a_machine_without_a_mode_is_not_asked_for_one(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """Old Supermicro (metal-operator 982)."""
    del bmc.system["Boot"]["BootSourceOverrideMode"]
    build(vendor="AMI").boot_from(at, "network")
    assert bmc.sent(PATCH) == [override("Pxe")]


def test_supermicro_boots_media_as_usb(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """`Cd` is offered and does not work."""
    ways.as_supermicro(bmc)
    adapter.boot_from(at, "media")
    assert bmc.sent(PATCH) == [override("UsbCd")]
    assert adapter.observe(at).boot_source == "media"


@pytest.mark.parametrize(
    ("model", "version", "by_attributes"),
    [("14G Monolithic", "5.10.50.00", True), ("16G Monolithic", "7.00.60.00", False), ("17G Monolithic", "1.20.25.00", False)],
)
def test_dell_by_generation_and_version(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, model: str, version: str, *, by_attributes: bool
) -> None:
    """Before iDRAC9 6.00 by attributes; later ones, and iDRAC10 with its low numbers, by the override."""
    attributes = ways.as_dell(bmc, model=model, version=version)
    adapter.boot_from(at, "media")
    oem = bmc.sent(f"PATCH {attributes}")
    assert bool(oem) is by_attributes
    assert bool(bmc.sent(PATCH)) is not by_attributes
    assert not oem or oem[0] == {"Attributes": {"ServerBoot.1.BootOnce": "Enabled", "ServerBoot.1.FirstBootDevice": "VCD-DVD"}}


def test_dell_attributes_are_read_back_and_taken_back(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """What was asked shows; a repeat sends nothing; another source is not overruled by what was asked before."""
    attributes = ways.as_dell(bmc, model="14G Monolithic", version="5.10.50.00")
    for _ in range(2):
        adapter.boot_from(at, "media")
    view = adapter.observe(at)
    assert (view.boot_source, view.boot_once) == ("media", True)
    adapter.boot_from(at, "disk")
    assert adapter.observe(at).boot_source == "disk"
    assert [sent["Attributes"]["ServerBoot.1.FirstBootDevice"] for sent in bmc.sent(f"PATCH {attributes}") if sent] == [
        "VCD-DVD",
        "Normal",
    ]


def test_a_refusal_in_every_form_is_final(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """With the vendor's words, after at most three requests."""
    bmc.rules.append(lambda method, *_: no(400, "Base.1.8.PropertyNotWritable", "never") if method == "PATCH" else None)
    with pytest.raises(Refused, match="never"):
        adapter.boot_from(at, "network")
    assert len(bmc.sent(PATCH)) <= 3


def test_a_refusal_during_post_is_busy(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """iLO: the same request works later, so nothing else is tried now."""
    bmc.rules.append(lambda method, *_: no(400, "iLO.2.8.UnableToModifyDuringSystemPOST") if method == "PATCH" else None)
    with pytest.raises(Busy):
        adapter.boot_from(at, "network")
    assert len(bmc.sent(PATCH)) == 1


def test_a_setting_that_was_not_kept_is_seen(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """BR-038: the yes is not believed; reading back shows that there is no override."""
    bmc.keeps_settings = False
    adapter.boot_from(at, "network")
    assert adapter.observe(at).boot_source is None
