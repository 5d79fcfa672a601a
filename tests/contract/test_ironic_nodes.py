"""
What an Ironic brings with it that the port's contract does not ask: strangers, people, crashes, and what a cleaning proves.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pytest

from controlplane.providers.adapters.ironic.adapter import IronicAdapter, SupportsHistory, SupportsRescue
from controlplane.providers.adapters.ironic.client import IronicRest
from controlplane.providers.adapters.ironic.config import IronicConfig
from controlplane.providers.adapters.ironic.login import Nobody
from controlplane.providers.adapters.ironic.naming import Names
from controlplane.providers.adapters.ironic.nodes import Nodes
from controlplane.providers.errors import Busy, Permanent, ProviderError, Refused, Transient, Unsupported
from controlplane.providers.machines import Deployment, MachineView, OwnImage, SupportsPositions
from tests.ironic_kit import DEPLOYMENT, IronicKit, session_kit

ACCEPTED_AT = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
STRANGER = "3f0c1a52-96f1-4f0e-8b2e-0d4d8a4b6f11"
PATIENCE_S = 30.0
POLL_S = 0.1


@dataclass
class Lab:
    """
    One node of the process's Ironic, and the adapter to it.
    """

    kit: IronicKit
    """The Ironic."""
    ref: str
    """The node."""
    adapter: IronicAdapter
    """Registered for it."""

    @property
    def wanted(self) -> Deployment:
        """
        A tenancy of the node.
        """
        return Deployment(self.ref, f"alc_{self.ref}", "ten_one", "clu_one", network="net-one")

    def until(self, phase: str, adapter: IronicAdapter | None = None) -> MachineView:
        """
        The node in the phase.
        """
        looker = adapter or self.adapter
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(Transient):
                seen = looker.observe(self.ref)
                if seen.phase == phase:
                    return seen
            assert time.monotonic() < ends_at, f"not {phase}: {self.kit.node(self.ref)['provision_state']}"
            time.sleep(POLL_S)

    def insist(self, act: Callable[[], None]) -> None:
        """
        The change was accepted; requests for patience are granted.
        """
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return act()
            except Transient:
                assert time.monotonic() < ends_at
                time.sleep(POLL_S)

    def deployed(self) -> Deployment:
        """
        The tenancy, begun.
        """
        wanted = self.wanted
        self.insist(partial(self.adapter.deploy, wanted))
        self.until("deployed")
        return wanted

    def released(self) -> Deployment:
        """
        The tenancy, over.
        """
        wanted = self.deployed()
        self.insist(partial(self.adapter.release, self.ref, wanted.token, accepted_at=ACCEPTED_AT))
        self.until("released")
        return wanted


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A free node."""
    kit = session_kit()
    ref = f"lab-{secrets.token_hex(4)}"
    kit.make(ref)
    adapter = kit.adapter()
    yield Lab(kit, ref, adapter)
    adapter.close()
    kit.drop(ref)


def _admin_patch(lab: Lab, *patch: dict[str, Any]) -> None:
    lab.kit.call("PATCH", f"nodes/{lab.ref}", list(patch))


def test_a_strangers_node_is_shown_as_unknown_and_never_touched(lab: Lab) -> None:
    """No token, no phase to act on, every change refused, and the node afterwards as it was."""
    _admin_patch(lab, {"op": "add", "path": "/instance_uuid", "value": STRANGER})
    lab.kit.go(lab.ref, "active", "active")
    before = lab.kit.node(lab.ref)
    view = lab.adapter.observe(lab.ref)
    assert (view.phase, view.token) == ("unknown", None)
    assert STRANGER in view.failure
    changes: tuple[Callable[[], None], ...] = (
        partial(lab.adapter.deploy, lab.wanted),
        partial(lab.adapter.release, lab.ref, lab.wanted.token, accepted_at=ACCEPTED_AT),
        partial(lab.adapter.wipe, lab.ref, "wip_1"),
        partial(lab.adapter.qualify, lab.ref, "qua_1"),
        partial(lab.adapter.inspect, lab.ref, "isp_1"),
        partial(lab.adapter.power, lab.ref, on=False, token="pwr_1"),
        partial(lab.adapter.rescue, lab.ref, lab.wanted.token, password="x"),
    )
    for change in changes:
        with pytest.raises(Refused, match="not ours"):
            change()
    assert lab.kit.node(lab.ref) == before
    assert any("held by others" in note for note in lab.adapter.capabilities().notes)


def test_a_stranger_who_deploys_without_an_instance_is_one_too(lab: Lab) -> None:
    """A node that is active and names nobody is not ours either."""
    lab.kit.go(lab.ref, "active", "active")
    assert (lab.adapter.observe(lab.ref).phase, lab.adapter.observe(lab.ref).token) == ("unknown", None)
    with pytest.raises(Refused):
        lab.adapter.deploy(lab.wanted)


def test_of_two_tenancies_at_once_one_gets_the_node(lab: Lab) -> None:
    """However their looks and changes fall together, one token holds the node and the other is refused."""
    both = [replace(lab.wanted, token=f"{lab.wanted.token}-{number}") for number in (1, 2)]

    def take(wanted: Deployment) -> ProviderError | None:
        adapter = lab.kit.adapter()
        try:
            lab.insist(partial(adapter.deploy, wanted))
        except Permanent as refused:
            return refused
        finally:
            adapter.close()
        return None

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(take, both))
    assert sorted(one is None for one in said) == [False, True]
    winner = both[said.index(None)]
    assert lab.until("deployed").token == winner.token
    assert lab.kit.node(lab.ref)["instance_uuid"] == Names(DEPLOYMENT).instance_uuid(winner.token)


def test_the_same_tenancy_twice_at_once_is_one(lab: Lab) -> None:
    """Two workers with the same token both succeed."""

    def take(_: int) -> None:
        adapter = lab.kit.adapter()
        lab.insist(partial(adapter.deploy, lab.wanted))
        adapter.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take, range(2)))
    assert lab.until("deployed").token == lab.wanted.token


def test_a_writer_who_has_not_read_the_latest_marks_is_sent_back(lab: Lab) -> None:
    """The second of two writers with the same look gets Busy, and the first one's marks stand."""
    rest = IronicRest(lab.kit.url, Nobody(), timeout_s=10, max_body_bytes=10**6)
    nodes = Nodes(rest, IronicConfig(url=lab.kit.url, site="ams1"), Names(DEPLOYMENT))
    lab.adapter.qualify(lab.ref, "qua_first")
    look = nodes.get(lab.ref)
    nodes.remember(look, replace(look.marks, qualified_token="qua_one"))
    with pytest.raises(Busy) as refused:
        nodes.remember(look, replace(look.marks, qualified_token="qua_two"))
    rest.close()
    assert refused.value.code == "machine_changed"
    assert lab.adapter.observe(lab.ref).qualified_token == "qua_one"


def test_a_node_in_maintenance_is_left_alone_in_clear_words(lab: Lab) -> None:
    """Busy, with the reason a person gave; out of maintenance it goes on."""
    lab.kit.call("PUT", f"nodes/{lab.ref}/maintenance", {"reason": "riser being replaced"})
    for change in (partial(lab.adapter.deploy, lab.wanted), partial(lab.adapter.wipe, lab.ref, "wip_1")):
        with pytest.raises(Busy, match="riser being replaced") as refused:
            change()
        assert refused.value.code == "machine_in_maintenance"
    lab.kit.call("DELETE", f"nodes/{lab.ref}/maintenance")
    lab.deployed()


def test_an_image_that_is_not_configured_is_refused(lab: Lab) -> None:
    """The names that are known are said; nothing is claimed."""
    with pytest.raises(Refused, match="known: default") as refused:
        lab.adapter.deploy(replace(lab.wanted, image="nixos"))
    assert refused.value.code == "image_unknown"
    assert lab.kit.node(lab.ref)["instance_uuid"] is None


def test_a_tenants_image_is_deployed_where_the_operator_lets_it(lab: Lab) -> None:
    """
    Refused without `own_images` and in a format that is not named there, with nothing claimed; else the node has its address, format and
    digest and the deploy interface, and Ironic shows nobody the config drive's address.
    """
    image = OwnImage("http://images.test/v1/boot/one/image", "raw", 1000, "ab" * 32)
    wanted = replace(lab.wanted, own_image=image, config_drive_url="http://images.test/v1/boot/two/config-drive")
    adapter = lab.kit.adapter(own_images={"deploy_interface": "fake", "capabilities": {"boot_mode": "uefi"}})
    for asked, able in ((wanted, lab.adapter), (replace(wanted, own_image=replace(image, format="qcow2")), adapter)):
        with pytest.raises(Refused) as refused:
            able.deploy(asked)
        assert refused.value.code == "image_not_taken"
    assert lab.kit.node(lab.ref)["instance_uuid"] is None
    assert (lab.adapter.capabilities().images, adapter.capabilities().images) == (False, True)
    for _ in range(2):
        lab.insist(partial(adapter.deploy, wanted))
    lab.until("deployed", adapter)
    adapter.close()
    node = lab.kit.node(lab.ref)
    assert node["deploy_interface"] == "fake"
    assert node["instance_info"] == {
        "image_source": image.url,
        "image_type": "whole-disk",
        "image_disk_format": "raw",
        "image_checksum": image.sha256,
        "image_os_hash_algo": "sha256",
        "image_os_hash_value": image.sha256,
        "capabilities": {"boot_mode": "uefi"},
        "configdrive": "******",
    }


def test_a_released_node_is_off_the_market_until_the_next_tenancy(lab: Lab) -> None:
    """Nobody can deploy on an unwiped node by asking Ironic for an available one."""
    lab.released()
    seen = lab.kit.node(lab.ref)
    assert (seen["provision_state"], seen["instance_uuid"], seen["instance_info"]) == ("manageable", None, {})


def test_a_tenancy_torn_down_behind_our_back_is_a_failure_and_can_be_released(lab: Lab) -> None:
    """An administrator's undeploy is seen; the release still ends as released."""
    wanted = lab.deployed()
    lab.kit.go(lab.ref, "deleted", "available")
    view = lab.adapter.observe(lab.ref)
    assert (view.phase, view.token) == ("failed", wanted.token)
    assert "taken away" in view.failure
    with pytest.raises(Refused):
        lab.adapter.deploy(wanted)
    lab.insist(partial(lab.adapter.release, lab.ref, wanted.token, accepted_at=ACCEPTED_AT))
    assert lab.until("released").power == "off"


def test_a_release_of_a_claim_that_was_never_begun_gives_the_node_back(lab: Lab) -> None:
    """The claim goes, and its token stays over."""
    adapter = _cut(lab, "/states/provision", after=False)
    with pytest.raises(Transient):
        adapter.deploy(lab.wanted)
    adapter.close()
    assert lab.kit.node(lab.ref)["instance_uuid"] is not None
    lab.insist(partial(lab.adapter.release, lab.ref, lab.wanted.token, accepted_at=ACCEPTED_AT))
    lab.until("released")
    assert lab.kit.node(lab.ref)["instance_uuid"] is None
    with pytest.raises(Refused):
        lab.adapter.deploy(lab.wanted)


class _Cut(httpx.BaseTransport):
    """
    A connection that breaks once, at the first change whose path ends so: before it is sent, or after it took effect.
    """

    def __init__(self, path: str, *, after: bool) -> None:
        self._real = httpx.HTTPTransport()
        self._path = path
        self._after = after
        self.broke = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        hit = not self.broke and request.method != "GET" and request.url.path.endswith(self._path)
        self.broke = self.broke or hit
        if hit and not self._after:
            raise httpx.ConnectError("cut", request=request)
        response = self._real.handle_request(request)
        if hit:
            response.close()
            raise httpx.ReadError("cut", request=request)
        return response

    def close(self) -> None:
        self._real.close()


def _cut(lab: Lab, path: str, *, after: bool) -> IronicAdapter:
    config = IronicConfig.model_validate(lab.kit.config())
    transport = _Cut(path, after=after)
    rest = IronicRest(lab.kit.url, Nobody(), timeout_s=10, max_body_bytes=10**6, transport=transport)
    return IronicAdapter(config, rest, Names(DEPLOYMENT))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_life_whose_every_call_breaks_once_comes_to_the_same_end(lab: Lab, *, after: bool) -> None:
    """Each change is cut off once, before or after its effect, and repeated by another worker: one deployment, one release, one wipe."""
    wanted = lab.wanted
    steps: tuple[tuple[str, Callable[[IronicAdapter], None], str], ...] = (
        (lab.ref, lambda one: one.deploy(wanted), "deployed"),
        ("/states/provision", lambda one: one.deploy(wanted), "deployed"),
        ("/states/power", lambda one: one.release(lab.ref, wanted.token, accepted_at=ACCEPTED_AT), "released"),
        ("/states/provision", lambda one: one.wipe(lab.ref, "wip_cut"), "wiped"),
    )
    path_of_node = f"/v1/nodes/{lab.kit.node(lab.ref)['uuid']}"
    for path, act, phase in steps:
        adapter = _cut(lab, path_of_node if path == lab.ref else path, after=after)
        with contextlib.suppress(Transient):
            act(adapter)
        with contextlib.suppress(Transient):
            adapter.observe(lab.ref)
        adapter.close()
        lab.insist(partial(act, lab.adapter))
        assert lab.until(phase).token == wanted.token
    flows = [one.kind for one in lab.adapter.history(lab.ref)]
    assert (flows.count("deployment_end"), flows.count("manual_cleaning_end")) == (1, 1)


def test_what_a_fake_ran_is_called_a_fake(lab: Lab) -> None:
    """Steps of a fake interface prove nothing but themselves, whatever the config says they prove."""
    lab.adapter.wipe(lab.ref, "wip_1")
    report = lab.until("wiped").wipe
    assert report is not None
    found = {one.name: one.result for one in report.checks}
    assert found["fake_step:vendor.log_passthrough"] == "passed"
    assert found["fake_step:bios.factory_reset"] == "passed"
    assert {found[name] for name in ("disk_wiped", "memory_cleared", "gpu_memory_scrubbed")} == {"not_measured"}
    assert all("nothing was touched" in one.detail for one in report.checks if one.result == "passed")


def test_a_wipe_that_fails_says_which_step_and_can_be_tried_again(lab: Lab) -> None:
    """The phase is failed, the report has a failed check, and the next wipe starts from there."""
    broken = lab.kit.adapter(wipe={"kind": "manual", "steps": [{"interface": "vendor", "step": "no_such_step"}]})
    broken.wipe(lab.ref, "wip_1")
    view = lab.until("failed", broken)
    broken.close()
    assert view.wipe is not None
    assert view.wipe.token == "wip_1"
    assert next((one.name, one.result) for one in view.wipe.checks) == ("fake_step:vendor.no_such_step", "failed")
    assert "no_such_step" in view.failure
    lab.insist(partial(lab.adapter.wipe, lab.ref, "wip_2"))
    again = lab.until("wiped").wipe
    assert again is not None
    assert again.token == "wip_2"


def test_a_failed_wipe_that_a_person_put_right_is_still_a_failed_wipe(lab: Lab) -> None:
    """Ironic shows the node manageable and without trouble; its history remembers what happened."""
    broken = lab.kit.adapter(wipe={"kind": "manual", "steps": [{"interface": "vendor", "step": "no_such_step"}]})
    broken.wipe(lab.ref, "wip_1")
    lab.kit.until(lab.ref, lambda seen: seen["provision_state"] == "clean failed" and seen["reservation"] is None)
    lab.kit.go(lab.ref, "manage", "manageable")
    view = broken.observe(lab.ref)
    broken.close()
    assert view.wipe is not None
    assert "failed" in {one.result for one in view.wipe.checks}
    assert view.phase != "wiped"


def test_an_automated_wipe_names_the_steps_that_ironic_chose(lab: Lab) -> None:
    """They are read from the node's history; the node is off the market afterwards, and Ironic no longer cleans by itself."""
    adapter = lab.kit.adapter(wipe={"kind": "automated"})
    adapter.wipe(lab.ref, "wip_1")
    view = lab.until("wiped", adapter)
    assert view.wipe is not None
    assert ("fake_step:vendor.log_passthrough", "passed") in {(one.name, one.result) for one in view.wipe.checks}
    assert lab.kit.node(lab.ref)["provision_state"] == "manageable"
    lab.insist(partial(adapter.deploy, lab.wanted))
    lab.until("deployed", adapter)
    adapter.close()
    assert lab.kit.node(lab.ref)["automated_clean"] is False


def test_without_wipes_the_pool_is_for_one_tenant(lab: Lab) -> None:
    """Unsupported, and the capabilities say so."""
    adapter = lab.kit.adapter(wipe={"kind": "off"})
    with pytest.raises(Unsupported):
        adapter.wipe(lab.ref, "wip_1")
    assert adapter.capabilities().scrub is False
    adapter.close()


def test_qualification_by_clean_steps_reports_them(lab: Lab) -> None:
    """Steps that ran are checks; the node's phase is not a wipe's."""
    adapter = lab.kit.adapter(qualify={"steps": [{"interface": "vendor", "step": "log_passthrough"}]})
    adapter.qualify(lab.ref, "qua_1")
    lab.kit.until(lab.ref, lambda seen: seen["provision_state"] == "manageable" and seen["reservation"] is None)
    view = adapter.observe(lab.ref)
    adapter.close()
    assert (view.qualified_token, view.phase) == ("qua_1", "idle")
    assert ("fake_step:vendor.log_passthrough", "passed") in {(one.name, one.result) for one in view.checks}


def test_a_power_switch_that_a_newer_one_replaced_is_not_done_again(lab: Lab) -> None:
    """A late repeat of `off` leaves a machine on that was switched on since."""
    lab.deployed()
    for token, turn_on in (("pwr_1", False), ("pwr_2", True)):
        lab.insist(partial(lab.adapter.power, lab.ref, on=turn_on, token=token))
        wanted = "power on" if turn_on else "power off"
        lab.kit.until(lab.ref, lambda seen, wanted=wanted: seen["power_state"] == wanted)
    lab.adapter.power(lab.ref, on=False, token="pwr_1")
    assert lab.kit.node(lab.ref)["target_power_state"] is None
    assert lab.adapter.observe(lab.ref).power == "on"


def test_a_held_node_can_be_rescued_by_its_holder_only(lab: Lab) -> None:
    """In rescue it is still deployed under its token; another token is refused."""
    assert isinstance(lab.adapter, SupportsRescue)
    wanted = lab.deployed()
    with pytest.raises(Refused):
        lab.adapter.rescue(lab.ref, "alc_other", password="s3cret")
    for change, state in (
        (partial(lab.adapter.rescue, lab.ref, wanted.token, password="s3cret"), "rescue"),
        (partial(lab.adapter.unrescue, lab.ref, wanted.token), "active"),
    ):
        lab.insist(change)
        lab.kit.until(lab.ref, lambda seen, state=state: seen["provision_state"] == state)
        lab.insist(change)
        view = lab.adapter.observe(lab.ref)
        assert (view.phase, view.token) == ("deployed", wanted.token)


def test_what_happened_to_a_node_can_be_read(lab: Lab) -> None:
    """Its deployment is in its history, in order, with Ironic's instants."""
    assert isinstance(lab.adapter, SupportsHistory)
    lab.deployed()
    entries = lab.adapter.history(lab.ref)
    assert [one.kind for one in entries] == ["deployment_start", "deployment_end"]
    assert all(one.at is not None and one.id for one in entries)


def test_places_are_read_where_the_operator_wrote_them(lab: Lab) -> None:
    """Pointers into the node and fixed texts; a node without a whole place is left out."""
    assert isinstance(lab.adapter, SupportsPositions)
    found = {one.ref: one for one in lab.adapter.list_positions()}[lab.ref]
    assert (found.site, found.region, found.rack, found.instance_type, found.gpus) == ("ams1", "eu", "r1", "hgx-h100-8", 8)
    assert found.nvlink_domain is None
    _admin_patch(lab, {"op": "remove", "path": "/extra/rack"})
    assert lab.ref not in {one.ref for one in lab.adapter.list_positions()}


def test_the_capabilities_come_from_the_peer(lab: Lab) -> None:
    """Version by negotiation; bare metal; no clusters."""
    able = lab.adapter.capabilities()
    assert (able.version, able.products, able.scrub) == ("ironic api 1.115", ("baremetal",), True)
    with pytest.raises(Unsupported):
        lab.adapter.list_clusters()
