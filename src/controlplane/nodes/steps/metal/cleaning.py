"""
Wiping a bare machine between tenants, in this order: off every network, power cut, its controller restarted and given a new password,
our wipe image booted from the virtual drive, what it wiped and read back reported by itself, power cut again, and the machine, its
controller's accounts and its settings compared with the baseline that its inspection stored.
"""

from typing import Any

from controlplane.health.classes import SICK
from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.nodes.states import Boot, NodeFacts, NodeSnapshot
from controlplane.nodes.steps.cleaning import wiped
from controlplane.nodes.steps.metal.accounts import check_accounts, controller_checks, rotate
from controlplane.nodes.steps.metal.doors import answering, restart
from controlplane.nodes.steps.metal.firmware import adjust, held, settings_checks
from controlplane.nodes.steps.metal.inspecting import as_stored
from controlplane.nodes.steps.metal.ports import apart, detach
from controlplane.nodes.steps.metal.power import as_checks, boot_acts, cut, dark, eject, go_to, present_boot
from controlplane.nodes.steps.metal.sequence import Act, Machine, run
from controlplane.providers.toolbox import Toolbox

RETRY_S = 10.0
PATIENCE_S = 900.0
"""How long a part that inspection had read is asked for again, from the wipe's report on; then the machine is not the same."""
DISKS = "disks_counted"


def clean(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine wiped itself under our image, every disk that inspection had counted was among what it wiped, and it is still the machine
    that was inspected; or it is put aside.
    """
    return run(ACTS, node, tools)


def _compare(machine: Machine) -> Outcome:
    seen = machine.hardware.take_inventory(machine.controller)
    boot, baseline, now = present_boot(machine), machine.node.inventory.get("hardware", {}), as_stored(seen)
    silent = _unread_since(baseline, now)
    if silent and boot.ready_for_s < PATIENCE_S:
        return Wait("Part of the machine cannot be read yet.", RETRY_S, detail="; ".join(seen.unread)[:2000])
    view = machine.hardware.observe(machine.controller)
    if view.media is not None or view.power != "off":
        return Wait("The machine is not at rest yet.", RETRY_S, step="down")
    checks = (
        *as_checks(boot.checks),
        _disks_match(boot, len(seen.drives)),
        *differences(baseline, now),
        *({"name": "baseline_unread", "result": "failed", "detail": f"read before, not now: {one}"} for one in silent),
        *controller_checks(machine.node),
        *settings_checks(machine),
    )
    return _judge(machine.node, boot, checks)


def _unread_since(baseline: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """
    What is not read now although inspection had read it, or had read what it is a part of.
    """
    before = baseline.get("unread", ())
    if "others" in before:  # more than are named
        return []
    return [one for one in now["unread"] if not any(one == other or one.startswith((f"{other}/", f"{other}#")) for other in before)]


def _disks_match(boot: Boot, drives: int) -> dict[str, str]:
    """
    As many disks were wiped as the controller counts; it may not see any, and then it proves nothing.
    """
    wiped = sum(1 for one in boot.checks if one["name"].startswith("disk:") and one["result"] == "passed")
    result = "not_measured" if drives == 0 else "passed" if wiped >= drives else "failed"
    return {"name": "disks_match", "result": result, "detail": f"{wiped} wiped, {drives} seen from outside"}


def differences(baseline: dict[str, Any], now: dict[str, Any]) -> tuple[dict[str, str], ...]:
    """
    One check for each part of the baseline: the machine's identity, its GPUs, drives, ports and firmware are what inspection had found.
    """
    if not baseline:
        return ({"name": "baseline", "result": "failed", "detail": "the machine was never inspected"},)
    checks = []
    for part in ("uuid", "gpus", "drives", "nics", "firmware"):
        before, after = baseline.get(part), now.get(part)
        if before == after:
            known = bool(before) or not baseline.get("unread")
            result, detail = ("passed", "") if known else ("not_measured", "the controller does not tell")
        else:
            result, detail = "failed", _words(before, after)
        checks.append({"name": f"baseline_{part}", "result": result, "detail": detail})
    return tuple(checks)


def _words(before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        return "; ".join(f"{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in changed[:20])
    return f"{before} -> {after}"[:500]


def _judge(node: NodeSnapshot, boot: Boot, checks: tuple[dict[str, str], ...]) -> Outcome:
    assert node.task_id is not None
    facts = NodeFacts(wipe_id=node.task_id, wipe_finished_at=boot.ready_at, checks=checks)
    failed = [one["name"] for one in checks if one["result"] == "failed"]
    if failed:
        return Fail("wipe_failed", f"Not wiped, or not the same: {', '.join(failed)}.", facts=facts)
    if not any(one["name"] == DISKS and one["result"] == "passed" for one in checks):
        return Fail("wipe_not_performed", "The machine did not report its disks wiped.", facts=facts)
    verified = NodeFacts(wipe_id=node.task_id, wipe_finished_at=boot.ready_at, wipe_verified=True, checks=checks)
    return wiped(verified, sick=node.health in SICK)


CONTROLLER = (Act("restart", restart), Act("answering", answering), Act("rotate", rotate), Act("adjust", adjust))
"""A restart ends sessions that were left open on the controller; only then a new password is worth something."""
ACTS = (
    Act("detach", detach),
    Act("apart", apart),
    *boot_acts("wipe_failed", go_to("down"), before=CONTROLLER),
    Act("down", cut),
    Act("still", dark),
    Act("eject", eject),
    Act("accounts", check_accounts),
    Act("held", held),
    Act("compare", _compare),
)
