"""
Machines that boot through us are called together, run by run. Pure: all that they do, they do by themselves and tell of.
"""

from collections.abc import Sequence

from controlplane.fabric_checks.states import Attendance, CheckFacts, CheckSnapshot, Meeting, Ran, Run, tool_settings
from controlplane.fabric_checks.steps.stopping import stop_of
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import Permanent

LOOK_S = 15.0
"""What machines say wakes the check; this is for those that say nothing."""
START_S = 3000.0
"""Longest wait for machines that nothing is known of: they are counted out before the state's own end, so that the others are measured."""
GATHER_S = 120.0
"""A machine asks every few seconds; one that does not ask for so long does not come to the run."""
SLACK_S = 60.0
"""What a machine may take for its word after the tool's limit."""
LAST_WORD_S = 20.0
"""How long others may still say that they lack a tool when the first has said that it failed: that is then why."""


def call_together(check: CheckSnapshot, meeting: Meeting) -> Outcome:
    """
    On to the tools once every machine has come or will not come; with fewer than two there is nothing to measure.
    """
    stop = stop_of(check)
    if stop is not None:
        return stop
    _limit_s(check)
    guests = meeting.guests.values()
    come = sum(one.arrived for one in guests)
    if meeting.state_for_s < START_S and any(not one.arrived and not one.lost for one in guests):
        return Wait(f"{come} of {len(guests)} machines have booted for the check.", LOOK_S)
    return Advance("running", f"{come} of {len(guests)} machines have booted for the check.")


def meet(check: CheckSnapshot, meeting: Meeting) -> Outcome:
    """
    The round's runs are opened, each ends with what its machines say or fail to say in time, and then comes the next round, or the
    judgement.
    """
    stop = stop_of(check)
    if stop is not None:
        return stop
    number = int(check.step or 0)
    due = [run for run in check.rounds[number] if run.name not in meeting.ended]
    words = f"Round {number + 1} of {len(check.rounds)}: {len(check.rounds[number])} runs of {check.tool}."
    limit_s = _limit_s(check)
    ran, opened = [], []
    for run in due:
        attending = meeting.open_runs.get(run.name)
        one = _hindered(run, meeting) if attending is None else ended(run, attending, limit_s)
        if one is not None:
            ran.append(one)
        elif attending is None:
            opened.append(run)
    facts = CheckFacts(tuple(ran), opened=tuple(opened)) if ran or opened else None
    if len(ran) < len(due):
        return Wait(words, LOOK_S, facts=facts)
    if number + 1 < len(check.rounds):
        return Wait(f"Round {number + 1} of {len(check.rounds)} is over.", 0.0, step=str(number + 1), facts=facts)
    return Advance("judging", "All rounds are over.", facts)


def ended(run: Run, attending: Sequence[Attendance], limit_s: float) -> Ran | None:
    """
    What the run came to; None while that is open. The first machine's word counts, unless another lacks a tool.
    """
    lacking = next((one for one in attending if one.result == "not_measured"), None)
    if lacking is not None:
        return Ran(run, "not_measured", detail=f"{lacking.ref}: {lacking.detail}")
    absent = [one.ref for one in attending if one.came_for_s is None]
    if absent:
        late = attending[0].waited_s > GATHER_S
        return Ran(run, "not_measured", detail=f"{_few(absent)} did not come to the run") if late else None
    first = next(one for one in attending if one.ref == run.refs[0])
    if first.result == "passed":
        return Ran(run, "passed", first.output, first.detail)
    if first.result == "failed" and (first.told_for_s > LAST_WORD_S or all(one.result for one in attending)):
        order = sorted(attending, key=lambda one: run.refs.index(one.ref))
        others = [f"{one.ref}: {one.detail}" for one in order if one.result == "failed"]
        return Ran(run, "failed", detail="; ".join(others))
    together_for_s = min(one.came_for_s or 0.0 for one in attending)
    if first.result is None and together_for_s > limit_s + SLACK_S:
        return Ran(run, "failed", detail=f"{first.ref} began and said nothing more for {limit_s + SLACK_S:g} s")
    return None


def _limit_s(check: CheckSnapshot) -> float:
    """
    Of one tool. Raises Permanent where the provider's settings cannot be read.
    """
    try:
        return tool_settings(check.provider.config).timeout_s
    except ValueError as error:
        raise Permanent(str(error), code="provider_config_invalid") from None


def _hindered(run: Run, meeting: Meeting) -> Ran | None:
    """
    Why the run cannot begin; None where it can.
    """
    guests = {ref: meeting.guests[ref] for ref in run.refs}
    away = [ref for ref, one in guests.items() if not one.arrived]
    if away:
        return Ran(
            run, "not_measured", detail=f"{_few(away)} did not boot for the check: {guests[away[0]].lost or 'it did not call'}"
        )
    lacking = next(((ref, one.lacks) for ref, one in guests.items() if one.lacks), None)
    return None if lacking is None else Ran(run, "not_measured", detail=f"{lacking[0]}: {lacking[1]}")


def _few(refs: Sequence[str]) -> str:
    more = len(refs) - 3
    return ", ".join(refs[:3]) + (f" and {more} more" if more > 0 else "")
