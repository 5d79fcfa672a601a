"""
A machine's controller through tenancies: its password, its accounts, the way from the host to it, its restarts and firmware settings.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import Access, Boot, NodeSnapshot, ProviderRef, Rotation
from controlplane.nodes.steps import STEPS
from controlplane.nodes.steps.metal.accounts import MOST_REFUSALS, PAUSE_S, new_password, renew
from controlplane.providers.errors import Permanent, Unknown
from tests.factories.metal import NOW, Bench, Tools, bare_node, drive, learnt
from tests.unit.test_metal_steps import BASELINE, WIPED

OLD, NEW = "old secret 1", "new secret 2"
DUE = Rotation("due")
KNOWN = Access("https://10.0.0.7", sealed=OLD.encode())
BOTH = replace(KNOWN, sealed_next=NEW.encode())
READY = Boot("bot_1", "ready", 90.0, NOW, checks=WIPED)
ACCOUNTS = {"hardware": {**BASELINE["hardware"], "accounts": ["admin"]}}


def at_provider(**config: Any) -> ProviderRef:
    """The provider with these settings."""
    return ProviderRef("prv_bmc", "redfish", config, None, 1)


def rotated(node: NodeSnapshot, bench: Bench, most: int = 8) -> tuple[NodeSnapshot, Outcome]:
    """The node after the rotation that is due on it has come as far as it does by itself, and the last outcome."""
    for _ in range(most):
        outcome = renew(node, Tools(bench))  # type: ignore[arg-type]
        node = learnt(node, outcome.facts)
        if not isinstance(outcome, Wait) or outcome.retry_in_s > 0 or node.rotation.state not in {"prepared", "told"}:
            return node, outcome
    raise AssertionError(node.rotation)


def secret_of(node: NodeSnapshot) -> str:
    """The password that counts."""
    assert node.access is not None
    return (node.access.sealed or b"").decode()


def test_new_passwords_suit_every_controller() -> None:
    """All kinds of characters, no longer than IPMI bears, none twice in a row, never the same."""
    made = {new_password() for _ in range(200)}
    assert len(made) == 200
    for one in made:
        assert len(one) == 16
        assert one[0].isalpha()
        assert {any(map(kind, one)) for kind in (str.islower, str.isupper, str.isdigit)} == {True}
        assert set(one) & set("-_.")
        assert all(left != right for left, right in pairwise(one))


def test_a_controller_gets_a_password_of_its_own() -> None:
    """Stored before it is told, proved by a login, then the one that counts."""
    bench, node = Bench(secret=OLD), bare_node("inspecting", rotation=DUE, access=KNOWN)
    first = STEPS["inspecting"](node, Tools(bench))
    assert isinstance(first, Wait)
    assert first.facts.rotation == "prepared"
    assert bench.secret == OLD
    after, _ = rotated(node, bench)
    assert after.rotation == Rotation("rotated")
    assert secret_of(after) == bench.secret != OLD
    assert bench.most_wrong == 0


@pytest.mark.parametrize("state", ["enrolled", "inspecting", "qualifying", "deploying", "releasing", "cleaning"])
@pytest.mark.parametrize("taken", [False, True])
def test_every_state_first_settles_which_password_counts(state: str, taken: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A rotation that was left half done is finished before anything else is asked, at the cost of one wrong password at most."""
    bench = Bench(secret=NEW if taken else OLD)
    node = bare_node(state, access=BOTH, rotation=Rotation("prepared"), step="")
    outcome = STEPS[state](node, Tools(bench))
    assert isinstance(outcome, Wait)
    assert (outcome.step, outcome.retry_in_s) == (None, 0.0)
    node = learnt(node, outcome.facts)
    assert node.rotation.state == "told"
    node = learnt(node, STEPS[state](node, Tools(bench)).facts)
    assert node.rotation.state == "rotated"
    assert secret_of(node) == bench.secret == NEW
    assert bench.most_wrong <= 1
    assert set(bench.acts) <= {"password"}


@pytest.mark.parametrize("way", ["lost", "dropped"])
def test_a_lost_answer_is_settled_by_the_next_try(way: str) -> None:
    """Whether the controller took it or not: nothing is forgotten, the same password is told again."""
    bench = Bench(secret=OLD, goes_wrong={"set_password": [way]})
    node = bare_node("cleaning", access=BOTH, rotation=Rotation("prepared"))
    with pytest.raises(Unknown):
        renew(node, Tools(bench))  # type: ignore[arg-type]
    after, _ = rotated(node, bench)
    assert (after.rotation.state, secret_of(after), bench.secret) == ("rotated", NEW, NEW)


def test_a_yes_that_was_none_is_found_by_the_login() -> None:
    """A controller that says yes and keeps the old password is told once more, after a pause."""
    bench = Bench(secret=OLD, goes_wrong={"set_password": ["stubborn"]})
    node, outcome = rotated(bare_node("cleaning", access=BOTH, rotation=Rotation("prepared")), bench)
    assert isinstance(outcome, Wait)
    assert (node.rotation, outcome.retry_in_s) == (Rotation("prepared", 1), PAUSE_S)
    assert node.access == BOTH
    node, _ = rotated(node, bench)
    assert (node.rotation, secret_of(node)) == (Rotation("rotated"), NEW)


@pytest.mark.parametrize(("lacks", "goes", "state"), [({"set_password"}, [], "not_supported"), (set(), ["refused"], "refused")])
def test_a_controller_that_cannot_or_will_not_keeps_its_password(lacks: set[str], goes: list[str], state: str) -> None:
    """The next one is forgotten once the present one was seen to let us in still, and the node goes on."""
    bench = Bench(secret=OLD, lacks=frozenset(lacks), goes_wrong={"set_password": goes})
    node, _ = rotated(bare_node("inspecting", access=KNOWN, rotation=DUE), bench)
    assert (node.rotation.state, node.access) == (state, KNOWN)
    outcome, _ = drive(node, bench)
    assert isinstance(outcome, Advance)


def test_a_refusal_is_not_believed_of_a_controller_that_shuts_us_out() -> None:
    """Saying no to the change and to the old password at once forgets neither."""

    class Odd(Bench):
        def set_password(self, controller: object, password: str) -> None:
            self.secret = "somebody else's"
            raise Permanent("no")

    node, outcome = rotated(bare_node("cleaning", access=BOTH, rotation=Rotation("prepared")), Odd(secret=OLD))
    assert isinstance(outcome, Wait)
    assert node.access == BOTH
    assert node.rotation == Rotation("prepared", 1)


def test_who_is_let_in_with_neither_stops_before_the_account_is_locked() -> None:
    """Three rounds of at most one try of both, a quarter of an hour apart, then a person; both passwords stay."""
    bench = Bench(secret="somebody else's")
    node = bare_node("cleaning", access=BOTH, rotation=Rotation("prepared"))
    for round_ in range(1, MOST_REFUSALS + 1):
        before = bench.wrong
        node, outcome = rotated(node, bench)
        assert bench.wrong - before <= 2
        assert node.rotation == Rotation("prepared", round_)
        assert node.access == BOTH
    assert isinstance(outcome, Fail)
    assert outcome.code == "controller_refuses"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"provider": at_provider(rotate_passwords=False)}, "off"),
        ({"rotation": Rotation("due", shared=True)}, "shared"),
    ],
)
def test_passwords_that_are_not_ours_to_change_stay(changes: dict[str, Any], state: str) -> None:
    """Where the operator says so, or other nodes hang on the same controller, nothing is told."""
    bench = Bench(secret=OLD)
    node, _ = rotated(bare_node("inspecting", **{"access": KNOWN, "rotation": DUE, **changes}), bench)
    assert (node.rotation.state, bench.secret, bench.acts) == (state, OLD, [])


def test_settings_that_are_no_settings_are_refused() -> None:
    """A switch that is neither on nor off, a time that is none: a clear error instead of a guess."""
    for state, step, config in (
        ("inspecting", "rotate", {"rotate_passwords": "no"}),
        ("deploying", "lock", {"require_lock": "yes"}),
        ("cleaning", "restart", {"restart_settle_s": -1}),
        ("cleaning", "adjust", {"settings_wanted": {"secure_boot": True}}),
    ):
        node = bare_node(state, step=step, rotation=DUE, access=KNOWN, provider=at_provider(**config))
        with pytest.raises(Permanent) as caught:
            STEPS[state](node, Tools(Bench(secret=OLD, power_="off")))
        assert caught.value.code == "provider_config_invalid"


def wiped(bench: Bench, **changes: Any) -> Outcome:
    """What becomes of a machine whose wipe boot has reported."""
    given = {"step": "report", "boot": READY, "inventory": ACCOUNTS, "task_id": "wip_1", **changes}
    return drive(bare_node("cleaning", **given), bench)[0]


def checks_of(outcome: Outcome) -> dict[str, str]:
    """Results by check."""
    return {one["name"]: one["result"] for one in outcome.facts.checks}  # type: ignore[union-attr]


def test_the_accounts_of_the_inspection_are_the_baseline() -> None:
    """Inspection stores them; the same ones, or fewer, after a tenant are good."""
    inspected, _ = drive(bare_node("inspecting"), Bench(accounts=("root", "admin")))
    assert isinstance(inspected, Advance)
    assert inspected.facts.inventory["hardware"]["accounts"] == ["admin", "root"]
    for accounts in (("admin", "root"), ("admin",)):
        outcome = wiped(Bench(power_="off", accounts=accounts), inventory=inspected.facts.inventory)
        assert isinstance(outcome, Advance)
        assert checks_of(outcome)["baseline_accounts"] == "passed"


@pytest.mark.parametrize(
    ("bench", "words"),
    [
        (Bench(power_="off", accounts=("admin", "backdoor")), "backdoor"),
        (Bench(power_="off", lacks=frozenset({"list_accounts"})), "no longer tells"),
    ],
)
def test_an_account_more_than_before_puts_the_machine_aside(bench: Bench, words: str) -> None:
    """Or a controller that no longer tells them: the wipe has failed, with the reason on record."""
    outcome = wiped(bench)
    assert isinstance(outcome, Fail)
    assert outcome.code == "wipe_failed"
    assert outcome.facts.wipe_id == "wip_1"
    (check,) = [one for one in outcome.facts.checks if one["name"] == "baseline_accounts"]
    assert check["result"] == "failed"
    assert words in check["detail"]
    assert "disks_counted" in checks_of(outcome)


def test_a_controller_without_accounts_is_not_measured() -> None:
    """What was never told is never compared, and never said to be good."""
    bench = Bench(lacks=frozenset({"list_accounts"}))
    inspected, _ = drive(bare_node("inspecting"), bench)
    assert isinstance(inspected, Advance)
    outcome = wiped(Bench(power_="off"), inventory=inspected.facts.inventory)
    assert isinstance(outcome, Advance)
    assert checks_of(outcome)["baseline_accounts"] == "not_measured"


@pytest.mark.parametrize(
    ("rotation", "restarted_for_s", "password", "restart"),
    [
        ("rotated", 100.0, "passed", "passed"),
        ("not_supported", None, "not_measured", "not_measured"),
        ("shared", 1000.0, "not_measured", "not_measured"),
        ("off", None, "not_measured", "not_measured"),
    ],
)
def test_a_wipe_tells_what_it_did_with_the_controller(
    rotation: str, restarted_for_s: float | None, password: str, restart: str
) -> None:
    """Only a restart of this very wipe counts, and only a password that was changed."""
    outcome = wiped(Bench(power_="off"), rotation=Rotation(rotation), restarted_for_s=restarted_for_s, state_for_s=500.0)
    assert isinstance(outcome, Advance)
    found = checks_of(outcome)
    assert (found["controller_password"], found["controller_restarted"]) == (password, restart)


def test_a_controller_that_refuses_a_new_password_after_a_tenant_is_put_aside() -> None:
    """The tenant may know the old one."""
    outcome = wiped(Bench(power_="off"), rotation=Rotation("refused"))
    assert isinstance(outcome, Fail)
    assert checks_of(outcome)["controller_password"] == "failed"


@pytest.mark.parametrize("twice", [False, True])
def test_the_host_is_locked_away_from_its_controller_for_its_tenant(twice: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """On record before it is told, locked before the start, opened in the dark."""
    bench = Bench()
    node = bare_node("deploying", step="closing")
    intent = STEPS["deploying"](node, Tools(bench))
    assert (intent.facts.door, bench.locked) == ("locking", False)
    drive(bare_node("deploying"), bench, each_twice=twice)
    assert bench.acts.index("lock") < bench.acts.index("on")
    assert bench.locked
    for door in ("locked", "locking", "unsure"):
        bench.locked = True
        outcome, _ = drive(bare_node("releasing", door=door), bench, each_twice=twice)
        assert isinstance(outcome, Advance)
        assert not bench.locked
    assert bench.unsafe == []


def test_a_way_that_we_never_locked_stays_as_it_is() -> None:
    """An operator may keep it shut for good."""
    bench = Bench()
    drive(bare_node("releasing"), bench)
    assert "unlock" not in bench.acts


def test_a_second_start_opens_and_locks_again() -> None:
    """The seed of a second round is put in with the way open, and the machine never starts with it open."""
    bench = Bench(locked=True)
    node = bare_node("deploying", step="report", boot=Boot("bot_1", "made", 601.0), door="locked")
    _, trail = drive(node, bench)
    assert trail[-1] == "report-again"
    assert bench.acts == ["cut", "unlock", "insert", "boot network", "lock", "on"]


@pytest.mark.parametrize("required", [False, True])
def test_a_controller_without_a_lock_is_shown_or_not_given_out(required: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A finding; with `require_lock` the machine is never started for its tenant."""
    bench = Bench(lacks=frozenset({"lock"}))
    node = bare_node("deploying", step="lock", provider=at_provider(require_lock=required))
    outcome = STEPS["deploying"](node, Tools(bench))
    assert outcome.facts.door == "not_supported"
    if required:
        assert isinstance(outcome, Fail)
        assert outcome.code == "controller_not_locked"
    else:
        assert isinstance(outcome, Wait)
        assert outcome.step == "light"
    assert "on" not in bench.acts


def test_a_lock_that_is_not_shown_is_never_taken_for_one() -> None:
    """The machine is not started before its way is seen locked."""
    bench = Bench(power_="off", goes_wrong={"lock": ["stubborn"]})
    with pytest.raises(Unknown):
        STEPS["deploying"](bare_node("deploying", step="lock"), Tools(bench))


@pytest.mark.parametrize(
    ("way", "state_for_s", "door"), [("stubborn", 601.0, "unsure"), ("refused", 1.0, "unsure"), ("stubborn", 1.0, "")]
)
def test_a_way_that_does_not_open_holds_no_release_up_for_ever(way: str, state_for_s: float, door: str) -> None:
    """It is waited for a while; then operators are shown that nobody knows."""
    bench = Bench(power_="off", locked=True, goes_wrong={"lock": [way]})
    node = bare_node("releasing", step="unlock", door="locked", state_for_s=state_for_s)
    if not door:
        with pytest.raises(Unknown):
            STEPS["releasing"](node, Tools(bench))
        return
    outcome = STEPS["releasing"](node, Tools(bench))
    assert outcome.facts.door == door


def test_a_restart_is_waited_for() -> None:
    """Left alone for a moment, then looked at until it answers; the machine stays dark."""
    bench = Bench(power_="off", silent_looks=2)
    node = bare_node("cleaning", step="restart")
    told = STEPS["cleaning"](node, Tools(bench))
    assert isinstance(told, Wait)
    assert (told.step, told.retry_in_s, told.facts.restarted) == ("answering", 30.0, True)
    node = replace(learnt(node, told.facts), step="answering")
    for _ in range(2):
        with pytest.raises(Unknown):
            STEPS["cleaning"](node, Tools(bench))
    back = STEPS["cleaning"](node, Tools(bench))
    assert isinstance(back, Wait)
    assert back.step == "rotate"


def test_a_controller_that_does_not_come_back_is_put_aside() -> None:
    """After the limit, with a code of its own."""
    bench = Bench(power_="off", restarting=9)
    outcome = STEPS["cleaning"](bare_node("cleaning", step="answering", restarted_for_s=901.0), Tools(bench))
    assert isinstance(outcome, Fail)
    assert outcome.code == "controller_silent"


def test_a_restart_that_nobody_confirmed_is_not_claimed() -> None:
    """It is waited for all the same."""
    bench = Bench(power_="off", goes_wrong={"reset_controller": ["lost"]})
    outcome = STEPS["cleaning"](bare_node("cleaning", step="restart"), Tools(bench))
    assert isinstance(outcome, Wait)
    assert (outcome.step, outcome.facts) == ("answering", None)


def test_a_machine_that_a_restart_woke_is_cut_again() -> None:
    """Nothing goes on before it is dark."""
    bench = Bench(power_="on")
    outcome = STEPS["cleaning"](bare_node("cleaning", step="answering"), Tools(bench))
    assert isinstance(outcome, Wait)
    assert outcome.step == "answering"
    assert bench.power_ == "off"


@pytest.mark.parametrize("config", [{"restart_controllers": False}, {}])
def test_a_controller_that_is_not_to_restart_is_only_looked_at(config: dict[str, Any]) -> None:
    """Because its operator says so, or because it cannot."""
    bench = Bench(power_="off", lacks=frozenset() if config else frozenset({"reset_controller"}))
    outcome = STEPS["cleaning"](bare_node("cleaning", step="restart", provider=at_provider(**config)), Tools(bench))
    assert isinstance(outcome, Wait)
    assert (outcome.step, bench.restarts) == ("answering", 0)


WANTED = at_provider(settings_wanted={"secure_boot": "on", "ProcTurbo": "Enabled"})


def test_settings_that_differ_are_put_right_by_the_wipe() -> None:
    """Only what differs is changed, before the start that brings it into force; read back after it."""
    bench = Bench()
    drive(bare_node("cleaning", provider=WANTED), bench)
    assert "settings ['secure_boot']" in bench.acts
    assert bench.settings["secure_boot"] == "on"
    outcome = wiped(bench, provider=WANTED)
    assert isinstance(outcome, Advance)
    assert checks_of(outcome)["firmware_settings"] == "passed"


def test_settings_that_do_not_hold_put_the_machine_aside() -> None:
    """Accepted and never in force, or not to be read at all."""
    bench = Bench(goes_wrong={"change_settings": ["stubborn"]})
    drive(bare_node("cleaning", provider=WANTED), bench)
    unread = Bench(power_="off", settings={})
    for one in (bench, unread):
        outcome = wiped(one, provider=WANTED)
        assert isinstance(outcome, Fail)
        assert checks_of(outcome)["firmware_settings"] == "failed"
        assert "secure_boot" in outcome.detail
