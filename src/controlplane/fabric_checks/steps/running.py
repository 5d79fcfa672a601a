"""
Tools run between a check's nodes, round by round.
"""

from collections.abc import Sequence

from controlplane.fabric_checks.states import COLLECTIVES, CheckFacts, CheckSnapshot, Ran, Result, Run
from controlplane.fabric_checks.steps.meeting import meet
from controlplane.fabric_checks.steps.stopping import stop_of
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.checks import FabricRun, RunView
from controlplane.providers.toolbox import Toolbox

LOOK_S = 5.0
RESULTS: dict[str, Result] = {"finished": "passed", "failed": "failed", "not_measured": "not_measured"}


def measure(check: CheckSnapshot, tools: Toolbox) -> Outcome:
    """
    The round's tools are begun, watched, and what they printed is handed over once all have ended; then the next round, or the judgement.
    """
    if check.meeting is not None:
        return meet(check, check.meeting)
    stop = stop_of(check)
    if stop is not None:
        return stop
    number = int(check.step or 0)
    due = check.rounds[number]
    words = f"Round {number + 1} of {len(check.rounds)}: {len(due)} runs of {check.tool}."
    peer = tools.fabric_checks(check.provider)
    seen = {one.name: one for one in peer.observe_checks(check.id).runs}
    missing = [run for run in due if run.name not in seen]
    if missing:
        peer.begin_checks(check.id, tuple(_run(check, run) for run in missing))
        return Wait(words, LOOK_S)
    if any(seen[run.name].phase == "running" for run in due):
        return Wait(words, LOOK_S)
    return _next(check, number, _ran(due, seen))


def _next(check: CheckSnapshot, number: int, ran: tuple[Ran, ...]) -> Outcome:
    if number + 1 < len(check.rounds):
        return Wait(f"Round {number + 1} of {len(check.rounds)} is over.", 0.0, step=str(number + 1), facts=CheckFacts(ran))
    return Advance("judging", "All rounds are over.", CheckFacts(ran))


def _run(check: CheckSnapshot, run: Run) -> FabricRun:
    return FabricRun(run.name, check.tool, COLLECTIVES[check.tool], run.refs, run.rail)


def _ran(due: Sequence[Run], seen: dict[str, RunView]) -> tuple[Ran, ...]:
    return tuple(Ran(run, RESULTS[seen[run.name].phase], seen[run.name].output, seen[run.name].detail) for run in due)
