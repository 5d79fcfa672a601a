"""
Looking for a job that its scheduler did not know.
"""

from controlplane.clusters.states import HOME_LOST
from controlplane.jobs.hopeless import HOPELESS
from controlplane.jobs.states import ABSENCE_GAP_S, REMOVED, REMOVED_WORDS, JobFacts, JobSnapshot
from controlplane.jobs.steps.watching import conclude, ended, facts_of, failure_words, find, patient
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox


@patient
def search(job: JobSnapshot, tools: Toolbox) -> Outcome:
    """
    The job was found again, or is looked for once more, or is lost: absent now and absent long enough ago.
    """
    try:
        view = find(job, tools)
    except NotFound:
        return _absent(job)
    facts = facts_of(job, view)
    if ended(view):
        return conclude(view, facts)
    if view.phase in {"running", "completing"}:
        return Advance("running", "Found again; runs.", facts)
    return Advance("starting", "Found again; waits in the scheduler.", facts)


def _absent(job: JobSnapshot) -> Outcome:
    remaining_s = ABSENCE_GAP_S - job.state_age_s
    if remaining_s > 0:
        return Wait("The scheduler does not know the job; it is looked for again before it is believed lost.", remaining_s)
    if job.cancel:
        return Advance("completing", "The scheduler does not have it.", JobFacts(verdict="cancelled"))
    if job.cluster_state in HOME_LOST:
        gone = ("cluster_gone", f"Its cluster is {job.cluster_state}.")
        return Advance("completing", "It went with its cluster.", JobFacts(verdict="cancelled", issue=gone))
    vain = HOPELESS[job.hopeless].failure_class if job.hopeless else ""
    failure_class = vain or job.failure_class or "unknown"
    if job.ruled and failure_class == "unknown":
        facts = JobFacts(verdict="failed", failure_class=failure_class, issue=(REMOVED, REMOVED_WORDS))
        return Advance("completing", REMOVED_WORDS, facts)
    facts = JobFacts(verdict="failed", failure_class=failure_class)
    return Advance("completing", failure_words(failure_class, None), facts)
