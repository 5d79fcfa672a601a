"""
What the steps of a job that is with the scheduler have in common: reading its view.
"""

import functools
import re
from collections.abc import Callable

from controlplane.jobs.hopeless import HOPELESS, waits_for
from controlplane.jobs.states import FAILURE_WORDS, OUTPUT_CAP_BYTES, PIECE_BYTES, TRUNCATED, JobFacts, JobSnapshot
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.clusters import JobView
from controlplane.providers.errors import NoCapacity, NotFound, Permanent
from controlplane.providers.toolbox import Toolbox

CODE = re.compile(r"[A-Za-z0-9_]+")
WAITS_FOR = {
    "Resources": "Waits for free nodes",
    "Priority": "Waits behind other jobs",
    "ReqNodeNotAvail": "Waits for nodes that are out of service",
    "BeginTime": "Waits before its next start",
    "Queued": "Waits in the cluster's queue until all of its nodes are free",
    "ErrImagePull": "The image cannot be pulled",
    "ImagePullBackOff": "The image cannot be pulled",
    "InvalidImageName": "The image's name is wrong",
    "PodsMissing": "Its pods are not there: the cluster's quota may be used up",
    "PodsStarting": "Its pods are starting",
    "NoSuchNode": "No node of the cluster has such GPUs",
    "BadConstraints": "No node of the cluster has what it asks for",
    "ErrImageNeverPull": "The image cannot be pulled",
    "ImageInspectError": "The image cannot be used",
    "RegistryUnavailable": "The image cannot be pulled: its registry does not answer",
    "CreateContainerConfigError": "Its container cannot be set up",
    "CreateContainerError": "Its container cannot be set up",
    "RunContainerError": "Its container cannot be started",
    "Suspended": "Is suspended in the cluster",
    "Prolog": "Its nodes are being prepared",
    "Cleaning": "What is left of its last run is being removed",
    "Licenses": "Waits for licences",
    "Reservation": "Waits for the cluster's nodes",
    "JobHeldUser": "Is held at the scheduler",
    "JobHeldAdmin": "Is held by the cluster's administrator",
    "PartitionNodeLimit": "Asks for more nodes than the cluster's queue allows",
    "PartitionTimeLimit": "Asks for more time than the cluster's queue allows",
    "PartitionDown": "The cluster's queue is stopped",
    "PartitionInactive": "The cluster's queue is stopped",
    "NodeDown": "Waits for nodes that are out of service",
}
QUOTA = re.compile(r"(Assoc|QOS)(Grp|Max|Job|Resource|Usage)\w*")
"""Slurm's codes for limits of an account."""
Step = Callable[[JobSnapshot, Toolbox], Outcome]


def patient(step: Step) -> Step:
    """
    The step, for a job that was submitted: whatever its provider refuses then is no end of the job, so it waits.
    """

    @functools.wraps(step)
    def wait_instead(job: JobSnapshot, tools: Toolbox) -> Outcome:
        try:
            return step(job, tools)
        except (Permanent, NoCapacity, NotFound) as error:
            return Wait("The scheduler cannot be asked now; the operator has been told.", 60.0, detail=error.detail)

    return wait_instead


def find(job: JobSnapshot, tools: Toolbox) -> JobView:
    """
    The attempt as the scheduler sees it. Raises NotFound when it does not know it.
    """
    if job.provider is None:
        raise NotFound("the cluster has no provider any more")
    return tools.jobs(job.provider).find_job(job.cluster_id, job.token)


def glance(job: JobSnapshot, tools: Toolbox) -> JobView | None:
    """
    The attempt as the scheduler told it last, without asking; None where only asking will do, as for a job that is to be cancelled.
    """
    if job.stopping or job.provider is None:
        return None
    source = tools.glances(job.provider)
    return None if source is None else source.glance(job.cluster_id, job.token)


def missing() -> Advance:
    """
    The job goes where it is looked for once more, later.
    """
    return Advance("unknown", "The scheduler does not know the job; it is looked for again before it is believed lost.")


def stop(job: JobSnapshot, tools: Toolbox, facts: JobFacts) -> Wait:
    """
    The scheduler has been asked to end the job; its phase will tell when it has.
    """
    assert job.provider is not None
    tools.jobs(job.provider).cancel(job.cluster_id, job.token)
    given_up = job.hopeless and not job.cancel
    return Wait(f"{HOPELESS[job.hopeless].words} It is being stopped." if given_up else "Being cancelled.", 2.0, facts=facts)


def ended(view: JobView) -> bool:
    """
    Whether the attempt is over at the scheduler.
    """
    return view.phase in {"succeeded", "failed", "cancelled"}


def facts_of(job: JobSnapshot, view: JobView) -> JobFacts:
    """
    What the view tells, in the tenant's names.
    """
    known = tuple(job.instances[ref] for ref in view.nodes if ref in job.instances)
    whole = bool(known) and len(known) == len(view.nodes)
    verdict, failure = _verdict(job, view) if ended(view) else (None, None)
    vain = vain_wait(job, view) if verdict == "failed" else ""
    return JobFacts(
        external_id=view.external_id or None,
        exit_code=view.exit_code,
        signal=view.signal or None,
        failure_class=failure,
        verdict=verdict,
        placement=known if whole or (known and not job.placement) else None,
        started_at=view.started_at,
        ended_at=view.ended_at,
        expected_start_at=view.expected_start_at,
        observed=True,
        requeues=max(view.requeues, job.requeues),
        issue=(vain, HOPELESS[vain].words) if vain and not job.hopeless else None,
    )


def conclude(view: JobView, facts: JobFacts) -> Advance:
    """
    The attempt is over: its output is collected next.
    """
    if facts.verdict == "succeeded":
        return Advance("completing", "Ended with exit code 0; its output is being collected.", facts)
    if facts.verdict == "cancelled":
        return Advance("completing", "Cancelled; its output is being collected.", facts)
    why = facts.issue[1] if facts.issue else failure_words(facts.failure_class, view.exit_code)
    return Advance("completing", f"{why} Its output is being collected.", facts)


def failure_words(failure_class: str | None, exit_code: int | None) -> str:
    """
    Why an attempt failed, for its owner.
    """
    if failure_class == "user_error" and exit_code:
        return f"The script ended with exit code {exit_code}."
    return FAILURE_WORDS.get(failure_class or "unknown", FAILURE_WORDS["unknown"])


def waiting_words(view: JobView) -> str:
    """
    Why it waits: the scheduler's code and nothing behind it, for there it names nodes.
    """
    found = CODE.match(view.reason)
    if found is None or found[0] == "None":
        return "Waits in the scheduler."
    usual = "The cluster's quota is used up" if QUOTA.fullmatch(found[0]) else "Waits in the scheduler"
    return f"{WAITS_FOR.get(found[0], usual)} ({found[0]})."


def _verdict(job: JobSnapshot, view: JobView) -> tuple[str, str | None]:
    if view.phase == "succeeded":
        return "succeeded", None
    vain = vain_wait(job, view)
    if vain:
        return "failed", HOPELESS[vain].failure_class
    if view.phase == "cancelled" or view.failure == "cancelled":
        return "cancelled", None
    if job.stopping and view.signal:
        return "cancelled", None  # some schedulers call a job that was told to stop a failed one
    return "failed", view.failure or "unknown"


def vain_wait(job: JobSnapshot, view: JobView) -> str:
    """
    The code of what an attempt that has ended waited for in vain; empty where it ended by itself, or by somebody's wish.

    Its time limit may run out before it is given up: what it waited for until then is why it failed.
    """
    if job.cancel or view.phase == "succeeded":
        return ""
    if job.hopeless:
        stopped = view.phase == "cancelled" or bool(view.signal) or view.failure in {None, "cancelled", "time_limit", "unknown"}
        return job.hopeless if stopped else ""
    return waits_for(job.step) if view.failure == "time_limit" else ""


class Reading:
    """
    One look at the output of an attempt.
    """

    def __init__(self, job: JobSnapshot, tools: Toolbox) -> None:
        self.data = b""
        """What is new."""
        self.more = False
        """Whether there is likely more already."""
        self.done = True
        """Whether nothing will follow."""
        self.truncated = False
        """Whether the cap has just been passed."""
        assert job.provider is not None
        source = tools.output(job.provider)
        if source is None or job.log_bytes > OUTPUT_CAP_BYTES:
            return
        room = OUTPUT_CAP_BYTES - job.log_bytes
        limit = min(PIECE_BYTES, room) or 1
        chunk = source.read_output(job.cluster_id, job.token, offset=job.log_bytes, limit=limit)
        self.data = chunk.data[:limit]
        self.more = len(self.data) == limit
        self.done = chunk.end
        if room == 0 and self.data:
            self.data, self.more, self.done, self.truncated = TRUNCATED, False, True, True
