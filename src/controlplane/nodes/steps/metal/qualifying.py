"""
Acceptance checks and burn-in of a bare machine, run by itself from a boot of ours.
"""

from controlplane.kit.outcome import Advance, Fail, Outcome
from controlplane.nodes.states import Boot, NodeFacts, NodeSnapshot
from controlplane.nodes.steps.metal.power import as_checks, boot_acts, eject
from controlplane.nodes.steps.metal.sequence import Act, Machine, run
from controlplane.nodes.steps.qualifying import CLEARED_BY_WIPE
from controlplane.providers.toolbox import Toolbox

MOST_WORDS = 5
"""Figures that a failure names; all of them stand in the ledger."""


def qualify(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine ran our checks and tests and reported them; one failure keeps it out, and so does a figure of this boot that is under its
    baseline. What it could not measure is shown as that, and keeps it out where its policy cannot do without.
    """
    return run(ACTS, node, tools)


def judge(machine: Machine, boot: Boot) -> Outcome:
    """
    On to the wipe when something passed, nothing failed but what the wipe clears, and every figure and every required test is good.
    """
    checks = completed(boot)
    facts = NodeFacts(checks=checks)
    words = _words(boot, checks)
    if words:
        return Fail("qualification_failed", " ".join(words), facts=facts)
    if not any(one["result"] == "passed" for one in checks):
        return Fail("qualification_failed", "No check was run.", facts=facts)
    eject(machine)
    return Advance("cleaning", facts=facts)


def completed(boot: Boot) -> tuple[dict[str, str], ...]:
    """
    What the machine reported, corrected by what came of it: a test has passed only if its outputs came and could be read, and one that
    was not reported is not measured.
    """
    reported = as_checks(boot.checks)
    said = {one["name"] for one in reported}
    missing = tuple({"name": name, "result": "not_measured", "detail": "not reported"} for name in boot.burn_in if name not in said)
    return (*(_corrected(one, boot) for one in reported), *missing)


def _corrected(check: dict[str, str], boot: Boot) -> dict[str, str]:
    if check["name"] not in boot.burn_in or check["result"] != "passed":
        return check
    outputs = [failure for test, failure in boot.outputs if test == check["name"]]
    failures = [failure for failure in outputs if failure]
    if outputs and not failures:
        return check
    return {**check, "result": "failed", "detail": "; ".join(failures) or "its output did not come, or was refused"}


def _words(boot: Boot, checks: tuple[dict[str, str], ...]) -> list[str]:
    failed = [one["name"] for one in checks if one["result"] == "failed" and one["name"] not in CLEARED_BY_WIPE]
    lacking = [one["name"] for one in checks if one["result"] == "not_measured" and boot.burn_in.get(one["name"], False)]
    words = [f"Failed: {', '.join(failed)}."] if failed else []
    if lacking:
        words.append(f"Required and not measured: {', '.join(lacking)}.")
    if boot.under:
        more = len(boot.under) - MOST_WORDS
        rest = f", and {more} more" if more > 0 else ""
        words.append(f"Not good enough: {'; '.join(boot.under[:MOST_WORDS])}{rest}.")
    return words


ACTS: tuple[Act, ...] = boot_acts("qualification_failed", judge)
