"""
Watching a job that waits in the scheduler.
"""

from controlplane.jobs.states import JobSnapshot, poll_in_s
from controlplane.jobs.steps.watching import conclude, ended, facts_of, find, glance, missing, patient, stop, waiting_words
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox


@patient
def watch_start(job: JobSnapshot, tools: Toolbox) -> Outcome:
    """
    The job runs, has ended, is being cancelled, or shows what the scheduler says it waits for.
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
    return Wait(waiting_words(view), poll_in_s(job.state_age_s), facts=facts)
