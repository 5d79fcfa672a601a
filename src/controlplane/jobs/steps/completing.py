"""
Collecting the rest of what an attempt printed, and what follows from how it ended.
"""

from dataclasses import replace

from controlplane.clusters.states import HOME_LOST
from controlplane.jobs.hopeless import HOPELESS
from controlplane.jobs.states import REMOVED_WORDS, RESTARTS_BY_ITSELF, JobFacts, JobSnapshot, restart_in_s
from controlplane.jobs.steps.idling import idle_words
from controlplane.jobs.steps.watching import Reading, failure_words
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import AuthFailed, NotFound, ProviderError, Transient
from controlplane.providers.toolbox import Toolbox

LATE_FILE_S = 30.0
"""How long the output of a job that ran may take to appear on a shared file system."""
PATIENCE_S = 3000.0
"""How long output is waited for; shorter than the state's longest stay."""
SENT_PATIENCE_S = 90.0
"""How long a node may take to send the rest of what it has; it looks every few seconds."""
INCOMPLETE = ("output_incomplete", "Its output could not be collected to the end.")
UNREADABLE = ("output_unavailable", "Its output cannot be read.")


def collect(job: JobSnapshot, tools: Toolbox) -> Outcome:
    """
    All output that is kept is stored, or given up; then the job ends as its attempt did, or tries again.
    """
    if job.sent:
        return _await_sent(job)
    if job.provider is None:
        return _finish(job)
    try:
        reading = Reading(job, tools)
    except ProviderError as error:
        return _unread(job, error)
    facts = JobFacts(issue=("output_truncated", "It printed more than is kept.")) if reading.truncated else JobFacts()
    if reading.data:
        facts = replace(facts, log_offset=job.log_bytes, log=reading.data)
    if reading.done:
        return _finish(job, facts)
    if job.state_age_s >= PATIENCE_S:
        return _finish(job, replace(facts, issue=INCOMPLETE))
    return Wait("Ended; its output is being collected.", 0.0 if reading.data else 2.0, facts=facts)


def _await_sent(job: JobSnapshot) -> Outcome:
    """
    Nodes that send output themselves say when they have sent all of it; one that is dead or gone never does.
    """
    if job.log_closed or not job.ran or job.cluster_state in HOME_LOST:
        return _finish(job)
    if job.state_age_s < SENT_PATIENCE_S:
        return Wait("Ended; its output is being collected.", 1.0)
    return _finish(job, JobFacts(issue=INCOMPLETE if job.log_bytes else UNREADABLE))


def _unread(job: JobSnapshot, error: ProviderError) -> Outcome:
    """
    Output that is not there, or cannot be read, keeps no job from ending for ever.
    """
    if isinstance(error, NotFound):
        if not job.ran or job.state_age_s >= LATE_FILE_S:
            return _finish(job)
        return Wait("Ended; its output has not appeared yet.", 2.0, detail=error.detail)
    if isinstance(error, (Transient, AuthFailed)):
        if job.state_age_s >= PATIENCE_S:
            return _finish(job, JobFacts(issue=INCOMPLETE))
        raise error
    return _finish(job, JobFacts(issue=UNREADABLE))


def _finish(job: JobSnapshot, facts: JobFacts | None = None) -> Advance:
    facts = facts or JobFacts()
    if job.verdict == "succeeded":
        return Advance("succeeded", "Ended with exit code 0.", facts)
    if job.verdict == "cancelled":
        return Advance("cancelled", _why_stopped(job), facts)
    vain = job.hopeless and job.exit_code is None
    words = HOPELESS[job.hopeless].words if vain else failure_words(job.failure_class, job.exit_code)
    words = REMOVED_WORDS if job.removed else words
    by_itself = job.failure_class in RESTARTS_BY_ITSELF and job.cluster_state not in HOME_LOST
    if by_itself and (job.cancel or job.idled):
        return Advance("cancelled", f"{words} It was to be cancelled, so it is not started again.", facts)
    if by_itself and job.restarts < job.max_restarts:
        wait_s = restart_in_s(job.restarts)
        place = "" if job.resume_step is None else f" It can go on from step {job.resume_step}."
        again = f"{words} Starts again in {wait_s:.0f} s: restart {job.restarts + 1} of {job.max_restarts}.{place}"
        return Advance("queued", again, replace(facts, next_attempt=True, resume_in_s=wait_s))
    if by_itself and job.max_restarts:
        words = f"{words} All {job.max_restarts} restarts are used up."
    return Advance("failed", words, facts)


def _why_stopped(job: JobSnapshot) -> str:
    if job.cancel:
        return "Stopped on request."
    return idle_words(job) if job.idled else "Stopped at the scheduler."
