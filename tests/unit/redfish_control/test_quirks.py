"""
The table of vendors' ways, and the provider's settings.
"""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.nodes.states import ProviderRef
from controlplane.nodes.steps.provider import check
from controlplane.providers.adapters.redfish.adapter import build
from controlplane.providers.adapters.redfish.quirks import QUIRKS, Facts, Make, Quirk, asks_manager, facts_of, version_of
from controlplane.providers.errors import Permanent
from controlplane.providers.registry import AdapterInput
from controlplane.providers.toolbox import Toolbox


def test_every_row_names_its_source_and_real_facts() -> None:
    """A row that nobody stands for, or that sets a fact that does not exist, is a mistake."""
    assert [row for row in QUIRKS if len(row.source) < 10 or row.vendor != row.vendor.lower()] == []
    for row in QUIRKS:
        Facts(**row.facts)


@pytest.mark.parametrize(
    ("said", "version"),
    [("7.00.60.00", (7, 0, 60, 0)), ("iLO 5 v2.72", (5,)), ("", ()), ("unversioned", ()), ("GB200Nvl-24.10-9", (200,))],
)
def test_versions_are_read_as_far_as_they_go(said: str, version: tuple[int, ...]) -> None:
    """The first number with its dots; nothing where there is none."""
    assert version_of(said) == version


@pytest.mark.parametrize(
    ("make", "media", "off_s"),
    [
        (Make("Dell Inc.", "XE9680", "16G Monolithic", "5.9.9"), True, 0.0),
        (Make("Dell Inc.", "XE9680", "16G Monolithic", "6.00.00.00"), False, 0.0),
        (Make("Dell Inc.", "XE9785", "17G Monolithic", "2.10.0"), False, 15.0),
        (Make("Dell Inc.", "XE9680"), False, 0.0),
        (Make("Delltronics", "XE9680", "17G Monolithic", "2.10.0"), False, 0.0),
        (Make("Dell Inc.", "XE9680", "16G Monolithic", "unversioned"), False, 0.0),
        (Make("", ""), False, 0.0),
    ],
)
def test_rows_match_by_make_generation_and_version(make: Make, media: bool, off_s: float) -> None:  # noqa: FBT001 - a table
    """A manager that is not known, or has no version, matches no row that asks for one."""
    facts = facts_of(make)
    assert (bool(facts.media_boot_path), facts.off_s) == (media, off_s)


def test_later_rows_overrule_earlier_ones() -> None:
    """So a row for one model can correct its vendor's."""
    rows = (Quirk("acme", "row one of the test", {"usb_cd_first": True}), Quirk("acme", "two", {"usb_cd_first": False}, model="^Z"))
    assert facts_of(Make("ACME", "A1"), rows).usb_cd_first is True
    assert facts_of(Make("ACME", "Z1"), rows).usb_cd_first is False


@pytest.mark.parametrize(
    ("vendor", "form", "usb"),
    [
        ("Super Micro Computer, Inc.", "target", True),
        ("Supermicro", "target", True),
        ("GIGABYTE", "all", False),
        ("Giga Computing", "all", False),
        ("ASRockRack", "all", False),
        ("American Megatrends International", "all", False),
        ("Amiga", "target", False),
    ],
)
def test_vendors_go_by_several_names(vendor: str, form: str, usb: bool) -> None:  # noqa: FBT001 - a table
    """Whole words count."""
    facts = facts_of(Make(vendor, ""))
    assert (facts.boot_fields, facts.usb_cd_first) == (form, usb)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=30), st.text(max_size=30))
def test_whatever_a_machine_says_of_itself_the_table_answers(vendor: str, model: str, manager_model: str, version: str) -> None:
    """No text breaks the look-up, and the manager is asked only where a row wants it."""
    make = Make(vendor, model, manager_model, version)
    facts_of(make)
    assert asks_manager(make) <= ("dell" in vendor.lower())


@pytest.mark.parametrize(
    "config",
    [
        {"verify": "relative.pem"},
        {"verify": "/nowhere/authority.pem"},
        {"timeout_s": "5"},
        {"timeout_s": 31.0},
        {"timeout_s": 20.0, "call_limit_s": 10.0},
        {"wait_s": 10.0, "call_limit_s": 45.0},
        {"unheard": 1},
        {"network_boot": "Floppy"},
        {"clients": 0},
    ],
    ids=str,
)
def test_a_wrong_config_is_refused(config: dict[str, object]) -> None:
    """With the field's name, before anything is built."""
    with pytest.raises(Permanent) as caught:
        build(AdapterInput("prv_1", config, {}, "test", lambda: datetime.now(UTC)))
    assert caught.value.code == "provider_config_invalid"
    assert list(config)[-1] in str(caught.value)


def test_unknown_secrets_are_refused_without_being_told() -> None:
    """Only their names stand in the error."""
    with pytest.raises(Permanent, match="token") as caught:
        build(AdapterInput("prv_1", {}, {"token": "hush hush"}, "test", lambda: datetime.now(UTC)))
    assert "hush" not in str(caught.value)


def test_the_check_of_a_provider_asks_no_controller() -> None:
    """Its capabilities are known as soon as it is registered, by the entry point's name."""
    provider = ProviderRef(id="prv_1", adapter="redfish", config={}, sealed=None, version=1)
    tools = Toolbox(deployment="test", now=lambda: datetime.now(UTC), open_secrets=lambda _, __: {})
    try:
        found = check(provider, tools)
    finally:
        tools.close()
    assert found.problem is None or found.problem == ""
    assert (found.capabilities or {})["products"] == ["baremetal"]
    assert (found.capabilities or {})["scrub"] is True
