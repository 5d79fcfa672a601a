"""
Watching a job that runs, and what it prints.
"""

import re
from dataclasses import replace

from controlplane.jobs.states import IDLED, JobFacts, JobSnapshot, poll_in_s
from controlplane.jobs.steps.idling import idle_words, is_idle
from controlplane.jobs.steps.watching import Reading, conclude, ended, facts_of, find, glance, missing, patient, stop, waiting_words
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import NotFound, ProviderError
from controlplane.providers.toolbox import Toolbox

_LAST_READ = re.compile(r"read@(\d+)")
FROM_START_BYTES = 1024 * 1024
"""So much is read again from its beginning, where the peer knows no offset, before that becomes rare."""
LONGEST_PAUSE_S = 60.0


@patient
def watch(job: JobSnapshot, tools: Toolbox) -> Outcome:
    """
    The job has ended, was queued again by its scheduler, is being cancelled, or runs on and its new output is known.
    """
    try:
        view = glance(job, tools)
        if view is None or view.phase == "pending":  # a hint may be behind what is known: it takes nothing back
            view = find(job, tools)
    except NotFound:
        return missing()
    facts = facts_of(job, view)
    if ended(view):
        return conclude(view, facts)
    if job.stopping:
        return stop(job, tools, facts)
    if view.phase == "pending":
        return Advance("starting", f"Queued again by the scheduler. {waiting_words(view)}", facts)
    if is_idle(job, tools):
        return stop(job, tools, replace(facts, issue=(IDLED, idle_words(job))))
    return _read(job, tools, facts)


def _read(job: JobSnapshot, tools: Toolbox, facts: JobFacts) -> Wait:
    """
    Output is a convenience while the job runs: what cannot be read now is read later.
    """
    poll = poll_in_s(job.state_age_s)
    if job.sent or not _may_read(job, tools):
        return Wait("Runs.", poll, facts=facts)
    step = f"read@{job.state_age_s:.0f}"
    try:
        reading = Reading(job, tools)
    except ProviderError:
        return Wait("Runs.", poll, step=step, facts=facts)
    if not reading.data:
        return Wait("Runs.", poll, step=step, facts=facts)
    issue = ("output_truncated", "It printed more than is kept.") if reading.truncated else None
    told = replace(facts, log_offset=job.log_bytes, log=reading.data, issue=issue)
    # while a job prints, people read along; where little was printed, reading it again costs little
    step = "" if job.log_bytes < FROM_START_BYTES else step
    return Wait("Runs.", 0.0 if reading.more else 2.0, step="" if reading.more else step, facts=told)


def _may_read(job: JobSnapshot, tools: Toolbox) -> bool:
    """
    Whether output is read at this look. A peer that tells of its jobs by itself is not asked for a log at every look that costs it nothing
    else: less and less often while nothing new comes, and once a minute where much would have to be read again.
    """
    assert job.provider is not None
    last = _LAST_READ.fullmatch(job.step)
    if last is None or tools.glances(job.provider) is None:
        return True
    pause_s = LONGEST_PAUSE_S if job.log_bytes >= FROM_START_BYTES else min(LONGEST_PAUSE_S, job.state_age_s / 10)
    return job.state_age_s - int(last[1]) >= pause_s
