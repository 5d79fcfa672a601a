"""
Machines that are found: by asking providers and controllers, outside any request; what differs is told, and one call adopts.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.catalog.routes import router as catalog
from controlplane.nodes import checking, discovering, service
from controlplane.nodes.sightings import Listing, Sighting
from controlplane.nodes.states import ProviderCheck
from controlplane.providers.errors import NotSent
from controlplane.providers.hardware import Controller, Hardware, HardwareInventory
from controlplane.providers.toolbox import Reachable, Toolbox
from tests.conftest import Database
from tests.factories.metal import INVENTORY, Bench
from tests.factories.nodes import NOW, REFS, SITE, TYPE, Fleet, make_fleet, new_provider
from workers.sweeps import discover, look_at_targets

FOUND = "/v1/admin/discovered-machines"
FINDINGS = "/v1/admin/enrolment-findings"


class Controllers(Toolbox):
    """A toolbox whose controllers are benches, by address; an address without one does not answer."""

    def __init__(self) -> None:
        super().__init__(deployment="test", now=lambda: NOW, open_secrets=lambda _id, _sealed: {})
        self.benches: dict[str, Bench] = {}
        self.asked: list[Controller] = []

    def hardware(self, provider: Reachable, ref: str) -> Hardware:
        del provider, ref
        return self  # type: ignore[return-value]

    def take_inventory(self, controller: Controller) -> HardwareInventory:
        self.asked.append(controller)
        if controller.url not in self.benches:
            raise NotSent("nobody is there", retry_in_s=1.0)
        return self.benches[controller.url].inventory


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Fleet:
    """
    Three of the simulated region's machines enrolled, a provider that has answered, and a provider `bmc`.
    """
    made = make_fleet(database, tmp_path)
    made.do(
        lambda s: service.register_provider(
            s, new_provider(tmp_path, provider_id="prv_bmc", name="bmc", adapter="redfish", config={})
        )
    )
    made.do(lambda s: checking.store(s, made.provider_id, ProviderCheck({"products": ["slurm"], "scrub": True})))
    return made


@pytest.fixture
def tools() -> Iterator[Controllers]:
    """The toolbox, closed at the end."""
    made = Controllers()
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that ask."""
    with ThreadPoolExecutor(4) as one:
        yield one


def pages(fleet: Fleet, path: str) -> list[dict[str, Any]]:
    """Every item of the list."""
    items: list[dict[str, Any]] = []
    token, mark = "", "&" if "?" in path else "?"
    while True:
        body = fleet.call()("GET", f"{path}{mark}limit=200{token}").json()
        items += body["items"]
        if body["next_page_token"] is None:
            return items
        token = f"&page_token={body['next_page_token']}"


def test_a_providers_machines_are_found_and_adopted(fleet: Fleet, tools: Controllers) -> None:
    """What the provider lists is found with its place, differs only by what is not enrolled, and one call enrolls it."""
    assert {one["code"] for one in pages(fleet, FINDINGS)} == {"not_looked_for"}
    assert discover(fleet.engine, tools) == 1
    assert discover(fleet.engine, tools) == 0, "asked again only after a while"
    found = {one["ref"]: one for one in pages(fleet, FOUND)}
    assert len(found) > len(REFS)
    findings = pages(fleet, FINDINGS)
    strangers = {one["ref"] for one in findings if one["code"] == "not_enrolled"}
    assert strangers == set(found) - set(REFS)
    assert {(one["code"], one["ref"]) for one in findings if one["ref"] not in strangers} == {("other_place", ref) for ref in REFS}
    stranger = next(one for one in found.values() if one["ref"] not in REFS and one["place"]["site"] == SITE)
    adopt = f"{FOUND}/{stranger['id']}/actions/adopt"
    refused = fleet.call()("POST", adopt, {"name": "another"})
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "other_name")
    done = fleet.call()("POST", adopt, {"unit": 4})
    assert done.status_code == 202
    node = fleet.call()("GET", done.headers["Location"]).json()
    assert (node["ref"], node["unit"], node["status"]["state"]) == (stranger["ref"], 4, "enrolled")
    assert {name: node[name] for name in ("block", "leaf", "rack", "instance_type")} == {
        name: stranger["place"][name] for name in ("block", "leaf", "rack", "instance_type")
    }
    again = fleet.call()("POST", adopt, {})
    assert (again.status_code, again.json()["code"], again.json()["node_id"]) == (409, "already_enrolled", node["id"])
    assert fleet.call(fleet.tree.left.owner_key)("GET", FOUND).status_code == 403


def test_only_a_whole_list_says_that_a_machine_is_missing(fleet: Fleet) -> None:
    """A machine that a part of a list does not name is unknown or as before; one that a whole list does not name is missing."""
    some = tuple(Sighting(ref) for ref in REFS[:2])

    def store(listing: Listing) -> None:
        """The provider was asked, and that came of it."""
        fleet.sql("UPDATE providers SET discovered_at = cp_clock() WHERE id = :p", p=fleet.provider_id)
        fleet.do(lambda s: discovering.store_listing(s, fleet.provider_id, listing))

    codes = lambda: {one["ref"]: one["code"] for one in pages(fleet, FINDINGS)}  # noqa: E731
    store(Listing(some, complete=False))
    assert codes() == {REFS[2]: "not_looked_for"}
    store(Listing(some, complete=True))
    assert codes() == {REFS[2]: "not_seen"}
    store(Listing(some[:1], complete=False))
    assert codes() == {REFS[2]: "not_seen"}
    store(Listing(some[:1], complete=True))
    assert codes() == {REFS[1]: "not_seen", REFS[2]: "not_seen"}
    store(Listing((*some, Sighting(REFS[2])), complete=False))
    assert codes() == {}


def test_a_list_that_comes_late_makes_nobody_missing(fleet: Fleet) -> None:
    """What was seen since the provider was last asked is there, whatever an older whole list says."""
    asked = "UPDATE providers SET discovered_at = cp_clock() WHERE id = :p"
    store = lambda *refs: fleet.do(  # noqa: E731
        lambda s: discovering.store_listing(s, fleet.provider_id, Listing(tuple(Sighting(ref) for ref in refs), complete=True))
    )
    gone = lambda: {one["ref"] for one in pages(fleet, FINDINGS) if one["code"] == "not_seen"}  # noqa: E731
    fleet.sql(asked, p=fleet.provider_id)
    store(*REFS)
    store(*REFS[:1])
    assert gone() == set()
    fleet.sql("UPDATE providers SET discovered_at = NULL WHERE id = :p", p=fleet.provider_id)
    store(*REFS[:1])
    assert gone() == set()
    fleet.sql(asked, p=fleet.provider_id)
    store(*REFS[:1])
    assert gone() == set(REFS[1:])


def test_controllers_are_looked_at_and_adopted(fleet: Fleet, tools: Controllers, pool: ThreadPoolExecutor) -> None:
    """Controllers of a range are asked without changing them; those that answer can be adopted under a name, with their serial number."""
    for number in (1, 2):
        tools.benches[f"https://10.0.7.{number}"] = Bench(inventory=replace(INVENTORY, serial=f"S{number}"))
    path = "/v1/admin/providers/prv_bmc/discovery"
    put = fleet.call()("PUT", f"{path}/targets", {"controllers": ["https://10.0.8.1/"], "ranges": [{"network": "10.0.7.0/29"}]})
    assert (put.status_code, put.json()["targets"]) == (200, 7)
    assert look_at_targets(fleet.engine, tools, pool) == 7
    assert look_at_targets(fleet.engine, tools, pool) == 0
    seen = fleet.call()("GET", path).json()
    assert (seen["answered"], seen["silent"]) == (2, 5)
    assert {one["problem"] for one in pages(fleet, f"{path}/targets")} == {"", "provider_unreachable: nobody is there"}
    assert all(bench.acts == [] for bench in tools.benches.values())
    first, second = sorted(pages(fleet, FOUND), key=lambda one: one["serial"])
    assert (first["serial"], first["inventory"]["gpus"], first["controller_url"]) == ("S1", 8, "https://10.0.7.1")
    adopt = f"{FOUND}/{first['id']}/actions/adopt"
    unsaid = fleet.call()("POST", adopt, {"name": "gpu-1"})
    assert {one["field"] for one in unsaid.json()["errors"]} == {"body.block", "body.leaf", "body.rack", "body.instance_type"}
    place = {"block": "b7", "leaf": "l7", "rack": "r7", "instance_type": TYPE}
    done = fleet.call()("POST", adopt, {"name": "gpu-1", "username": "root", "password": "canary-8812", **place})
    node = fleet.call()("GET", done.headers["Location"]).json()
    assert (node["ref"], node["serial"]) == ("gpu-1", "S1")
    assert [(one["code"], one["discovered_id"]) for one in pages(fleet, f"{FINDINGS}?provider_id=prv_bmc")] == [
        ("not_enrolled", second["id"])
    ]
    tools.asked.clear()
    assert fleet.call()("POST", "/v1/admin/providers/prv_bmc/actions/discover").status_code == 202
    tools._open_password = lambda ref, sealed: f"{ref}" if sealed else ""
    look_at_targets(fleet.engine, tools, pool)
    accounts = {one.url: (one.username, one.password) for one in tools.asked}
    assert accounts["https://10.0.7.1"] == ("root", node["id"]), "an enrolled machine is asked with its own account"
    assert accounts["https://10.0.7.2"] == ("", "")
    left = fleet.call()("PUT", f"{path}/targets", {"controllers": ["https://10.0.7.1"]}).json()
    assert left["targets"] == 1
    assert pages(fleet, f"{FINDINGS}?provider_id=prv_bmc") == []


def test_too_many_controllers_are_refused(fleet: Fleet) -> None:
    """A range that no rack has is refused before it is spelled out, and a provider that is not there is not found."""
    path = "/v1/admin/providers/prv_bmc/discovery/targets"
    refused = fleet.call()("PUT", path, {"ranges": [{"network": "10.0.0.0/8"}]})
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "too_many_targets")
    assert fleet.call()("PUT", path, {"ranges": [{"network": "fd00::/64"}]}).status_code == 422
    assert fleet.call()("PUT", path.replace("prv_bmc", "prv_none"), {}).status_code == 404
    assert fleet.one("SELECT count(*) FROM discovery_targets") == 0


def test_findings_meet_every_page_once(fleet: Fleet, tools: Controllers) -> None:
    """Pages of findings hold each once; tokens of others are refused."""
    discover(fleet.engine, tools)
    whole = pages(fleet, FINDINGS)
    first = fleet.call()("GET", f"{FINDINGS}?limit=7").json()
    rest = fleet.call()("GET", f"{FINDINGS}?limit=200&page_token={first['next_page_token']}").json()
    assert first["items"] + rest["items"] == whole
    assert fleet.call()("GET", f"{FINDINGS}?page_token=bm9k").status_code == 422


def test_parts_are_asked_for_by_operators(fleet: Fleet) -> None:
    """What machines of a type must have is the catalog's until an operator asks for more."""
    path = f"/v1/admin/instance-types/{TYPE}/parts"
    call = fleet.call()
    fleet.app.include_router(catalog)
    assert call("GET", path).json() == {
        "gpu_memory_gib": 80,
        "nics": 8,
        "nic_gbit_s": 400,
        "drives": None,
        "drive_gib": None,
        "firmware": {},
        "firmware_images": {},
        "asked": [],
    }
    image = {"version": "1.3", "url": "https://images.example/bmc-1.3.bin", "targets": []}
    wanted = {"drives": 8, "drive_gib": 3500, "firmware": {"BMC": ["1.2", "1.3"]}, "firmware_images": {"BMC": image}}
    put = call("PUT", path, wanted)
    assert put.json()["firmware_images"] == {"BMC": image}
    assert put.json()["asked"] == ["drive_gib", "drives"]
    assert call("GET", path).json() == put.json()
    assert call("PUT", path.replace(TYPE, "none"), {}).status_code == 404
    assert call("PUT", path, {"firmware": {"BMC": []}}).status_code == 422
    for wrong in (
        {"version": "1.4"},  # not among those wanted
        {"url": "https://me:secret@images.example/bmc.bin"},
        {"url": "https://images.example/bmc.bin?token=secret"},
        {"url": "ftp://images.example/bmc.bin"},
        {"targets": ["http://elsewhere.example/"]},
    ):
        assert call("PUT", path, {**wanted, "firmware_images": {"BMC": image | wrong}}).status_code == 422
    assert fleet.call(fleet.tree.left.owner_key)("GET", path).status_code == 403
