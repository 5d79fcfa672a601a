"""
Firmware updates and the tasks that they become.
"""

from typing import Literal

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import Busy, Refused, Unknown, Unsupported
from controlplane.providers.hardware import Controller
from tests.simulators.redfish import ways
from tests.simulators.redfish.server import FakeBmc, no
from tests.simulators.redfish.tree import MONITOR, SIMPLE_UPDATE, SYSTEM, TASK, V1, ref

IMAGE = "https://images.example/bios-2.1.bin"
POST_UPDATE = f"POST {SIMPLE_UPDATE}"


def test_an_update_is_followed_to_its_end(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Through its monitor, with percentages and words."""
    view = adapter.update_firmware(at, IMAGE, targets=("/redfish/v1/UpdateService/FirmwareInventory/BIOS",))
    assert (view.task, view.state) == (MONITOR, "running")
    assert bmc.sent(POST_UPDATE) == [
        {"ImageURI": IMAGE, "TransferProtocol": "HTTPS", "Targets": ["/redfish/v1/UpdateService/FirmwareInventory/BIOS"]}
    ]
    bmc.task = [("Running", 30), ("Running", 80), ("Completed", 100)]
    seen = [adapter.observe_update(at, view.task) for _ in range(3)]
    assert [(one.state, one.percent) for one in seen] == [("running", 30), ("running", 80), ("succeeded", 100)]
    assert seen[0].message == "it is Running"


@pytest.mark.parametrize(("answer", "task"), [("204", TASK), ("202", MONITOR), ("200", "")])
def test_each_way_to_accept(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, answer: Literal["202", "204", "200"], task: str
) -> None:
    """With a task or without; without one nothing is claimed."""
    bmc.update = answer
    view = adapter.update_firmware(at, IMAGE)
    assert (view.task, view.state) == (task, "running" if task else "unknown")


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        (("Pending", 0), "running"),
        (("Suspended", 10), "running"),
        (("Exception", 40), "failed"),
        (("Killed", 40), "failed"),
        (("Cancelled", 40), "failed"),
        (("Unheard", 40), "unknown"),
        ("gone", "unknown"),
        ("done", "succeeded"),
    ],
)
def test_each_state_of_a_task(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, shown: tuple[str, int] | str, state: str
) -> None:
    """A task that vanished proves nothing: it is neither success nor failure."""
    bmc.task = [shown]
    assert adapter.observe_update(at, TASK).state == state


def test_a_task_with_a_critical_end_has_failed(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Completed is when it stopped, not how; a monitor that answers with a refusal has failed too."""
    bmc.tree[TASK] = ref(TASK) | {"TaskState": "Completed", "TaskStatus": "Critical"}
    assert adapter.observe_update(at, TASK).state == "failed"
    bmc.fail(f"GET {MONITOR}", "say", payload=no(400, "Update.1.0.VerificationFailed", "a wrong signature"))
    view = adapter.observe_update(at, MONITOR)
    assert view.state == "failed"
    assert "wrong signature" in view.message


def test_success_only_when_the_controller_is_steady(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """It restarts over its own update: three good answers in a row are wanted."""
    adapter.observe(at)
    bmc.task = [("Completed", 100)]
    bmc.fail(f"GET {SYSTEM}$", "reset", times=3)  # the first over a connection that was kept
    assert adapter.observe_update(at, TASK).state == "running"
    assert adapter.observe_update(at, TASK).state == "succeeded"


def test_a_reset_in_mid_update_is_unknown(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """And the next look goes on; a session that the restart ended is renewed."""
    bmc.task = [("Running", 50)]
    adapter.observe_update(at, TASK)
    bmc.fail(f"GET {TASK}", "reset", times=2)
    with pytest.raises(Unknown):
        adapter.observe_update(at, TASK)
    bmc.expire_sessions()
    assert adapter.observe_update(at, TASK).percent == 50


def test_a_repeat_finds_the_update_that_runs(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """It does not begin another; one that has ended does not count."""
    payload = {"TargetUri": SIMPLE_UPDATE, "JsonBody": f'{{"ImageURI": "{IMAGE}"}}'}
    bmc.tree[f"{V1}/TaskService/Tasks"]["Members"] = [ref(TASK)]
    bmc.tree[TASK] = ref(TASK) | {"TaskState": "Running", "PercentComplete": 60, "Payload": payload}
    assert adapter.update_firmware(at, IMAGE).percent == 60
    assert bmc.sent(POST_UPDATE) == []
    bmc.tree[TASK]["TaskState"] = "Completed"
    adapter.update_firmware(at, IMAGE)
    assert len(bmc.sent(POST_UPDATE)) == 1


def test_an_update_under_way_is_found_without_its_name(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Whoever began it, while its task says that it runs; no other kind of task; none where a controller keeps none or takes no updates."""
    assert adapter.find_update(at) is None
    bmc.tree[f"{V1}/TaskService/Tasks"]["Members"] = [ref(TASK)]
    payload = {"TargetUri": SIMPLE_UPDATE, "JsonBody": '{"ImageURI": "https://elsewhere.example/x"}'}
    bmc.tree[TASK] = ref(TASK) | {"TaskState": "Running", "PercentComplete": 60, "Payload": payload}
    found = adapter.find_update(at)
    assert found is not None
    assert (found.task, found.state, found.percent) == (TASK, "running", 60)
    bmc.tree[TASK]["TaskState"] = "Completed"
    assert adapter.find_update(at) is None
    bmc.tree[TASK] |= {"TaskState": "Running", "Payload": {"TargetUri": f"{V1}/Systems/1/LogServices", "JsonBody": "{}"}}
    assert adapter.find_update(at) is None
    bmc.tree[TASK]["Payload"] = payload
    del bmc.tree[f"{V1}/UpdateService"]
    assert adapter.find_update(at) is None


def test_another_update_under_way_is_busy(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """As long as the controller says."""
    bmc.fail(POST_UPDATE, "say", payload=no(503, "Base.1.8.ResourceInUse", "one at a time", retry_after="30"))
    with pytest.raises(Busy) as caught:
        adapter.update_firmware(at, IMAGE)
    assert caught.value.retry_in_s == 30.0


def test_upload_only_is_said_in_words(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """NVIDIA boards take images by upload."""
    ways.by_upload_only(bmc)
    with pytest.raises(Unsupported, match="MultipartHttpPushUri"):
        adapter.update_firmware(at, IMAGE)
    with pytest.raises(Refused):
        adapter.observe_update(at, "http://elsewhere.example/task")


def test_a_protocol_that_the_controller_lacks(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Is told before anything is sent."""
    update = bmc.tree[f"{V1}/UpdateService"]["Actions"]["#UpdateService.SimpleUpdate"]
    update["TransferProtocol@Redfish.AllowableValues"] = [["NFS"]]
    with pytest.raises(Unsupported, match="HTTPS"):
        adapter.update_firmware(at, IMAGE)
    assert bmc.sent(POST_UPDATE) == []
