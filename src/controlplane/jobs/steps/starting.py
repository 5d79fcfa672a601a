"""
Watching a job that waits in the scheduler.
"""

from dataclasses import replace

from controlplane.jobs.hopeless import HOPELESS, given_up, next_step
from controlplane.jobs.states import JobSnapshot, poll_in_s
from controlplane.jobs.steps.watching import conclude, ended, facts_of, find, glance, missing, patient, stop, waiting_words
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox


@patient
def watch_start(job: JobSnapshot, tools: Toolbox) -> Outcome:
    """
    The job runs, has ended, is being cancelled, is given up, or shows what the scheduler says it waits for.
    """
    try:
        view = glance(job, tools) or find(job, tools)
    except NotFound:
        return missing()
    facts = facts_of(job, view)
    if ended(view):
        return conclude(view, facts)
    if job.stopping:
        return stop(job, tools, facts)
    if view.phase in {"running", "completing"}:
        return Advance("running", "Runs.", facts)
    code = given_up(job.step, view.reason, job.state_age_s)
    if code:
        # on record before the scheduler is told to end it: who finds it ended then knows why, and takes it for nobody's cancel
        return Wait(HOPELESS[code].words, 0.0, facts=replace(facts, issue=(code, HOPELESS[code].words)))
    step = next_step(job.step, view.reason, job.state_age_s)
    return Wait(waiting_words(view), poll_in_s(job.state_age_s), step=step, facts=facts)
