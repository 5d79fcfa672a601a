"""
Jobs whose GPUs do nothing: what was not measured is not idle.
"""

from controlplane.jobs.states import IDLE_PERCENT, JobSnapshot
from controlplane.providers.errors import ProviderError
from controlplane.providers.toolbox import Toolbox


def is_idle(job: JobSnapshot, tools: Toolbox) -> bool:
    """
    Whether each of the job's GPUs was measured all through the time that it may be idle for, and none of them ever did anything.
    """
    wanted, window_s = job.nodes * job.gpus_per_node, job.idle_stop_s
    if window_s is None or wanted == 0 or job.provider is None or job.state_age_s < window_s:
        return False
    source = tools.gpu_use(job.provider)
    if source is None:
        return False
    try:
        use = source.gpu_use(job.cluster_id, job.token, window_s=window_s)
    except ProviderError:
        return False
    return use.watched >= wanted and use.peak_percent is not None and use.peak_percent <= IDLE_PERCENT


def idle_words(job: JobSnapshot) -> str:
    """
    Why it is stopped, for its owner.
    """
    return f"Stopped: none of its GPUs did anything for {(job.idle_stop_s or 0) // 60} minutes."
