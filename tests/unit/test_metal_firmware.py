"""
Bringing a bare machine's firmware to what is wanted: what is believed of tasks, and that a crash between two calls installs nothing twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.catalog.states import FirmwareImage, Parts
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import Access, NodeSnapshot, Rotation, Update
from controlplane.nodes.steps import STEPS
from controlplane.nodes.steps.metal.updating import INSTALL_S, MOST_TRIES, PATIENCE_S, READ_POLL_S, SETTLE_S
from controlplane.providers.errors import AuthFailed, Unknown, Unsupported
from tests.factories.metal import INVENTORY, PROVIDER, Bench, Tools, bare_node, drive, learnt

BMC_2 = FirmwareImage("2.0", "http://images.example/BMC-2.0")
BIOS_3 = FirmwareImage("3.0", "http://images.example/BIOS-3.0")
PARTS = Parts(firmware={"BMC": ("2.0",), "BIOS": ("3.0", "3.1")}, images={"BMC": BMC_2, "BIOS": BIOS_3})
OLD = replace(INVENTORY, firmware={"BMC": "1.0", "BIOS": "2.9"})
WANTED = {"BMC": "2.0", "BIOS": "3.0"}


def outdated(**changes: Any) -> NodeSnapshot:
    """A node whose firmware is to be updated."""
    node = bare_node("updating", **changes)
    return replace(node, expected=replace(node.expected, parts=PARTS))


def through(node: NodeSnapshot, bench: Bench, most: int = 200) -> tuple[Outcome, float]:
    """What becomes of the node, however long it takes, and how long it took; calls without an answer are made again."""
    passed = 0.0
    for _ in range(most):
        node = replace(node, state_for_s=passed)
        try:
            outcome = STEPS["updating"](node, Tools(bench))
        except Unknown as error:
            passed += error.retry_in_s
            continue
        if not isinstance(outcome, Wait):
            return outcome, passed
        node = replace(learnt(node, outcome.facts), step=node.step if outcome.step is None else outcome.step)
        passed += outcome.retry_in_s
    raise AssertionError(f"no end at {node.step}")


@pytest.mark.parametrize("looks", [1, 5])
@pytest.mark.parametrize("ends", ["succeeded", "unknown"])
@pytest.mark.parametrize("when", ["end", "start"])
def test_the_version_decides(ends: str, when: str, looks: int) -> None:
    """Each component is installed once, whatever its task said, at once or at the next start, and the node is inspected anew."""
    bench = Bench(inventory=OLD, flash={"ends": ends, "looks": looks, "when": when})
    outcome, passed = through(outdated(), bench)
    assert outcome == Advance("inspecting", "Its firmware is what is wanted.")
    assert bench.inventory.firmware == WANTED
    assert bench.flashed == [BIOS_3.url, BMC_2.url]
    assert passed < INSTALL_S


def test_power_is_cut_before_anything_is_sent() -> None:
    """And what is wanted already costs one look."""
    bench = Bench(inventory=OLD)
    through(outdated(), bench)
    assert bench.acts[:2] == ["cut", "update"]
    for firmware in (WANTED, {"BMC": "2.0", "BIOS": "3.1"}):
        good = Bench(inventory=replace(INVENTORY, firmware=firmware))
        assert through(outdated(), good)[0] == Advance("inspecting", "Its firmware is what is wanted.")
        assert good.acts == []


def flashing(looks: int) -> Bench:
    """A machine whose controller installs an image that nobody here noted; it says so to that many looks."""
    way = {"ends": "succeeded", "looks": looks, "left": looks, "when": "end"}
    return Bench(inventory=OLD, flash=way, flashing=("BMC", "2.0"))


@pytest.mark.parametrize("state", ["updating", "inspecting"])
def test_power_is_not_cut_under_an_update_that_nobody_noted(state: str) -> None:
    """As after a person took a node up again in mid-update: what is being installed is let finish before anything else is done."""
    bench = flashing(4)
    node = replace(outdated(), state=state)
    for _ in range(3):
        outcome = STEPS[state](replace(node, step="cut" if state == "updating" else ""), Tools(bench))
        assert outcome == Wait("Its controller still installs an image.", READ_POLL_S, step=outcome.step, detail="")  # type: ignore[union-attr]
        assert bench.acts == []
    ended = STEPS[state](replace(node, step="cut" if state == "updating" else ""), Tools(bench))
    assert isinstance(ended, Wait)
    assert (ended.step, bench.inventory.firmware["BMC"]) == ("dark" if state == "updating" else "read", "2.0")


@pytest.mark.parametrize("state", ["updating", "inspecting"])
def test_a_task_that_never_ends_or_never_answers_holds_nobody_up(state: str) -> None:
    """Controllers forget tasks in mid-course, or have none to tell of: past the time of an installation they are passed over."""
    step, following = ("cut", "dark") if state == "updating" else ("", "read")
    stuck = STEPS[state](replace(outdated(step=step), state=state, state_for_s=INSTALL_S + 1), Tools(flashing(1000)))
    assert isinstance(stuck, Wait)
    assert stuck.step == following
    broken = Bench(inventory=OLD, goes_wrong={"find_update": ["dropped"] * 2})
    with pytest.raises(Unknown):
        STEPS[state](replace(outdated(step=step), state=state, state_for_s=PATIENCE_S - 1), Tools(broken))
    passed_over = STEPS[state](replace(outdated(step=step), state=state, state_for_s=PATIENCE_S), Tools(broken))
    assert isinstance(passed_over, Wait)
    assert passed_over.step == following


@pytest.mark.parametrize("when", ["end", "start"])
def test_steps_taken_twice_install_nothing_twice(when: str) -> None:
    """As after a crash between the call and its record."""
    bench = Bench(inventory=OLD, flash={"ends": "succeeded", "looks": 3, "when": when})
    node = outdated()
    passed = 0.0
    while True:
        node = replace(node, state_for_s=passed)
        STEPS["updating"](node, Tools(bench))
        outcome = STEPS["updating"](node, Tools(bench))
        if not isinstance(outcome, Wait):
            break
        node = replace(learnt(node, outcome.facts), step=node.step if outcome.step is None else outcome.step)
        passed += outcome.retry_in_s
    assert isinstance(outcome, Advance)
    assert bench.flashed == [BIOS_3.url, BMC_2.url]


def test_a_lost_answer_is_settled_by_looking() -> None:
    """The controller began although its answer never came: the repeat finds what runs; one that had ended shows its version."""
    bench = Bench(inventory=OLD, goes_wrong={"update_firmware": ["lost"]})
    assert isinstance(through(outdated(), bench)[0], Advance)
    assert bench.flashed == [BIOS_3.url, BMC_2.url]
    node = replace(outdated(step="send"), update=Update(component="BMC"))
    done = Bench(inventory=replace(INVENTORY, firmware=WANTED))
    outcome = STEPS["updating"](node, Tools(done))
    assert isinstance(outcome, Wait)
    assert (outcome.step, done.acts) == ("weigh", [])


@pytest.mark.parametrize("call", ["observe_update", "take_inventory", "update_firmware", "observe", "power"])
def test_a_controller_that_restarts_in_the_middle_is_asked_again(call: str) -> None:
    """Silence for a while, wherever it falls, is no failure."""
    bench = Bench(inventory=OLD, goes_wrong={call: ["dropped"] * 8})
    assert isinstance(through(outdated(), bench)[0], Advance)
    assert bench.inventory.firmware == WANTED


def test_a_task_that_fails_puts_the_node_aside() -> None:
    """With the controller's words for operators; the next component is not begun."""
    bench = Bench(inventory=OLD, flash={"ends": "failed", "looks": 2, "when": "end"})
    outcome, _ = through(outdated(), bench)
    assert outcome == Fail("firmware_update_failed", "Its controller could not install BIOS.", detail="so it ended")
    assert bench.flashed == [BIOS_3.url]


@pytest.mark.parametrize(("ends", "tries"), [("succeeded", 1), ("unknown", MOST_TRIES)])
def test_a_version_that_never_shows_is_a_failure(ends: str, tries: int) -> None:
    """A task that succeeded is not sent again; one that left no trace is, once."""
    bench = Bench(inventory=OLD, flash={"ends": ends, "looks": 1, "when": "never"})
    outcome, passed = through(outdated(), bench, most=1000)
    assert isinstance(outcome, Fail)
    assert outcome.code == "firmware_not_installed"
    assert bench.flashed == [BIOS_3.url] * tries
    assert passed >= (SETTLE_S + INSTALL_S) * tries


def test_an_update_without_a_task_is_settled_by_the_version() -> None:
    """Some controllers accept and name nothing to follow."""
    bench = Bench(inventory=OLD, flash={"ends": "unknown", "looks": 1, "when": "start", "task": ""})
    assert isinstance(through(outdated(), bench)[0], Advance)
    assert bench.flashed == [BIOS_3.url, BMC_2.url]


def test_what_is_not_shown_is_left_alone_and_told() -> None:
    """A component that the controller does not tell cannot be verified; parts that may still come are waited for."""
    bench = Bench(inventory=replace(INVENTORY, firmware={"BMC": "1.0"}))
    outcome, _ = through(outdated(), bench)
    assert isinstance(outcome, Advance)
    assert "left alone: BIOS" in outcome.reason
    assert bench.flashed == [BMC_2.url]
    partly = Bench(inventory=replace(INVENTORY, firmware={"BMC": "2.0"}, complete=False, unread=("firmware: no answer",)))
    assert isinstance(STEPS["updating"](outdated(), Tools(partly)), Wait)


def test_a_controller_that_cannot_says_so() -> None:
    """A kind that has no such call, or that takes uploads only."""
    with pytest.raises(Unsupported):
        through(outdated(), Bench(inventory=OLD, lacks=frozenset({"update_firmware"})))


def test_which_password_counts_is_settled_first() -> None:
    """As in every state."""
    bench = Bench(inventory=OLD, secret="new")
    access = Access("https://10.0.0.7", sealed=b"old", sealed_next=b"new")
    node = outdated(access=access, rotation=Rotation("told"))
    outcome = STEPS["updating"](node, Tools(bench))
    assert isinstance(outcome, Wait)
    assert outcome.facts.rotation == "rotated"
    with pytest.raises(AuthFailed):
        STEPS["updating"](replace(node, access=Access("https://10.0.0.7", sealed=b"old"), rotation=Rotation()), Tools(bench))


@pytest.mark.parametrize(
    ("policy", "inventory", "installed", "ends"),
    [
        (True, OLD, {}, Advance),
        (False, OLD, {}, Fail),
        (True, OLD, {"BIOS": "3.0"}, Fail),
        (True, OLD, {"BIOS": "2.9"}, Advance),
        (True, replace(OLD, gpus=OLD.gpus[:-1]), {}, Fail),
    ],
)
def test_a_policy_updates_what_inspection_finds(policy: bool, inventory: Any, installed: dict[str, str], ends: type) -> None:  # noqa: FBT001 - a parameter of the test
    """Where it is on and only firmware is wrong; never a second time for a version that did not stay."""
    node = bare_node(
        "inspecting",
        provider=replace(PROVIDER, config={"update_firmware": policy}),
        update=Update(installed=installed, since_s=900),
    )
    outcome, _ = drive(replace(node, expected=replace(node.expected, parts=PARTS)), Bench(inventory=inventory))
    assert isinstance(outcome, ends)
    if isinstance(outcome, Advance):
        assert outcome.to == "updating"
        assert outcome.facts.update == Update(installed=installed)
    elif isinstance(outcome, Fail):
        assert outcome.code == "inventory_mismatch"
