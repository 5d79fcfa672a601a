"""
Handing a job to the scheduler, once.
"""

from collections.abc import Mapping
from typing import Any, cast

from controlplane.clusters.states import HOME_LOST
from controlplane.jobs.states import JobFacts, JobSnapshot
from controlplane.jobs.steps.watching import facts_of, find
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.providers.clusters import JobSpec, Priority
from controlplane.providers.errors import NoCapacity, NotFound, ProviderError, Refused, Transient, Unknown, Unsupported
from controlplane.providers.gpus import kind_of, slices_of
from controlplane.providers.launching import Launch
from controlplane.providers.toolbox import Toolbox
from controlplane.providers.volumes import Mount

REFUSED_FOR = {
    "job_script_invalid": "The scheduler takes no such script.",
    "job_env_invalid": "Its environment or script cannot be sent to the scheduler.",
    "job_image_invalid": "The image's name is wrong.",
    "job_gpu_model_unknown": "No node of the cluster has that GPU.",
    "job_mig_unknown": "No node of the cluster has such slices of GPUs.",
    "job_gpu_unknown": "No node of the cluster has such GPUs.",
    "job_gang_unsupported": "The cluster starts no gangs of several nodes.",
    "job_feature_unsupported": "The cluster cannot do what the job asks for.",
    "job_volume_unknown": "The cluster has no such volume.",
    "job_mount_invalid": "A volume cannot be mounted like that.",
}
"""What a provider's refusal means, by its code."""
UNSURE = "unsure"
"""The part of the state in which a submit may have taken effect that we have no answer of."""


def submit(job: JobSnapshot, tools: Toolbox) -> Outcome:
    """
    The attempt is with the scheduler, or it waits, or it is withdrawn without leaving anything there.
    """
    if job.cancel or job.cluster_state in HOME_LOST or job.provider is None:
        return _withdraw(job, tools)
    gone = next((one.name for one in job.secrets if not one.id), None)
    if gone is not None:
        return _refused(job, Refused(f"no secret {gone}", code="job_secret_unknown"), f"The project has no secret {gone} any more.")
    try:
        external_id = tools.jobs(job.provider).submit(_spec(job, tools))
    except (Refused, Unsupported) as error:
        return _refused(job, error, REFUSED_FOR.get(error.code, "The scheduler turned the job down."))
    except ProviderError as error:
        return _not_now(job, error)
    return Advance("starting", "Handed to the scheduler.", JobFacts(external_id=external_id))


def _spec(job: JobSnapshot, tools: Toolbox) -> JobSpec:
    values = {one.name: tools.open_job_secret(one.id, one.sealed) for one in job.secrets}
    return JobSpec(
        token=job.token,
        cluster_id=job.cluster_id,
        tenant_id=job.tenant_id,
        user=job.user,
        script=job.script,
        nodes=job.nodes,
        gpus_per_node=job.gpus_per_node,
        tasks_per_node=job.tasks_per_node,
        time_limit_s=job.time_limit_s,
        env=dict(job.env),
        gpu_model=job.gpu_model,
        requeue=job.max_restarts > 0,
        image=job.image,
        priority=cast("Priority", job.priority),
        launch=None if job.launch is None else _launch(job.launch),
        secret_env={one.env: values[one.name] for one in job.secrets if one.env},
        secret_files={one.file: values[one.name] for one in job.secrets if one.file},
        mounts=tuple(Mount(one["volume"], one["path"], read_only=one["read_only"]) for one in job.mounts),
        gpu=kind_of(job.gpu),
        mig=slices_of(job.mig),
        cluster_kind=job.cluster_kind,
    )


def _launch(wanted: Mapping[str, Any]) -> Launch:
    return Launch(
        kind=wanted["kind"],
        command=tuple(wanted["command"]),
        launcher=tuple(wanted["launcher"]),
        setup=wanted["setup"],
        pmi=wanted["pmi"] or "",
        implementation=wanted.get("implementation", "openmpi"),
    )


def _not_now(job: JobSnapshot, error: ProviderError) -> Wait:
    """
    The submit is tried again, under the same token. Once it may have taken effect unseen, that is remembered until it is found.
    """
    words, retry_in_s = "The scheduler cannot be asked now; the operator has been told.", 60.0
    if isinstance(error, NoCapacity):
        words, retry_in_s = "The cluster has too few usable nodes for it now.", 15.0
    elif isinstance(error, NotFound):
        words, retry_in_s = "The scheduler does not know the cluster yet.", 10.0
    elif isinstance(error, Transient):
        words, retry_in_s = "The scheduler does not answer as it should; it is tried again.", error.retry_in_s
    unsure = job.unsure or isinstance(error, Unknown)
    return Wait(words, retry_in_s, step=UNSURE if unsure else None, detail=error.detail)


def _refused(job: JobSnapshot, error: ProviderError, words: str) -> Outcome:
    failure_class = "user_error" if error.code.startswith("job_") else "provider_fault"
    facts = JobFacts(failure_class=failure_class, issue=(error.code, words))
    if job.unsure:
        return Advance("unknown", f"{words} It is made sure that an earlier try left nothing behind.", facts)
    return Fail(error.code, words, facts=facts, detail=error.detail)


def _withdraw(job: JobSnapshot, tools: Toolbox) -> Outcome:
    """
    A job that may be with the scheduler is followed there; one that cannot be ends here.
    """
    if job.unsure:
        try:
            view = find(job, tools)
        except NotFound:
            return Advance("unknown", "It is made sure that the scheduler does not have it.")
        return Advance("starting", "Found with the scheduler.", facts_of(job, view))
    if job.cancel:
        return Advance("cancelled", "Cancelled before it was handed to the scheduler.")
    if job.cluster_state in HOME_LOST:
        return Fail("cluster_gone", f"Its cluster is {job.cluster_state}.", facts=JobFacts(failure_class="user_error"))
    return Wait("Waits for its cluster.", 5.0)
