"""
What can go wrong with jobs.
"""

from controlplane.kit.errors import Conflict, NoCapacity


class ClusterRunsNoJobs(Conflict):
    """
    Clusters of this kind have no scheduler of ours; field `hint`.
    """

    code = "cluster_runs_no_jobs"
    title = "This cluster runs no jobs"


class ClusterNotUsable(Conflict):
    """
    The cluster has failed or is going; field `cluster_state`.
    """

    code = "cluster_not_usable"
    title = "The cluster is not usable"


class FeatureMissing(Conflict):
    """
    The provider of the job's cluster does not offer what the job asks for: fields `feature`, `hint`.
    """

    code = "job_feature_unsupported"
    title = "The cluster cannot do what the job asks for"


class VolumeUnknown(Conflict):
    """
    The job mounts a volume that its cluster's operator does not offer: fields `volume`, `offered`.
    """

    code = "volume_unknown"
    title = "The cluster has no such volume"


class MigProfileUnknown(Conflict):
    """
    The job asks for slices that the GPUs of its cluster are not, or cannot be, cut into: fields `profile`, `offered`, `hint`.
    """

    code = "mig_profile_unknown"
    title = "The cluster has no such slices"


class SecretUnknown(Conflict):
    """
    A job or service names a secret that its project does not have: fields `secret`, `hint`.
    """

    code = "secret_unknown"
    title = "The project has no such secret"


class JobEnded(Conflict):
    """
    The job has ended; field `state`.
    """

    code = "job_ended"
    title = "The job has ended"


class ArrayEnded(Conflict):
    """
    All tasks of the array have ended; field `state`.
    """

    code = "job_array_ended"
    title = "The array has ended"


class TemplateOfArrays(Conflict):
    """
    The template makes arrays and no single jobs; field `hint`.
    """

    code = "job_template_of_arrays"
    title = "The template makes arrays"


class GangTooLarge(NoCapacity):
    """
    The job asks for more than its cluster has: fields `resource`, `limit`, `requested`.
    """

    code = "job_larger_than_cluster"
    title = "The job is larger than its cluster"


class CheckpointExists(Conflict):
    """
    The job has registered a checkpoint of this step, kind and location that is not bad: field `checkpoint_id`.
    """

    code = "checkpoint_exists"
    title = "The checkpoint is registered"


class CheckpointSettled(Conflict):
    """
    The checkpoint cannot be changed so from the state it is in: field `state`.
    """

    code = "checkpoint_settled"
    title = "The checkpoint is not in a state for this"
