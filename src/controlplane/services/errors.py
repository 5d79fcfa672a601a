"""
What can go wrong with services.
"""

from controlplane.kit.errors import Conflict, NoCapacity, NotFound


class ClusterRunsNoServices(Conflict):
    """
    Clusters of this kind keep no services up; field `hint`.
    """

    code = "cluster_runs_no_services"
    title = "This cluster runs no services"


class ClusterUnusable(Conflict):
    """
    The cluster has failed or is going; field `cluster_state`.
    """

    code = "cluster_not_usable"
    title = "The cluster is not usable"


class ServiceFeatureMissing(Conflict):
    """
    The provider of the service's cluster does not offer what the service asks for: fields `feature`, `hint`.
    """

    code = "service_feature_unsupported"
    title = "The cluster cannot do what the service asks for"


class ServiceNotChangeable(Conflict):
    """
    The service cannot be changed so from the state it is in: field `state`.
    """

    code = "service_not_changeable"
    title = "The service is not in a state for this"


class ServiceTooLarge(NoCapacity):
    """
    The service asks for more than its cluster has: fields `resource`, `limit`, `requested`.
    """

    code = "service_larger_than_cluster"
    title = "The service is larger than its cluster"


class UnknownVersion(NotFound):
    """
    The service has had no such version, or none that it could go back to.
    """

    code = "version_unknown"
    title = "There is no such version"


class DoesNotFit(NoCapacity):
    """
    No way to serve the model on this cluster's nodes: fields `resource`, `reason`.
    """

    code = "model_does_not_fit"
    title = "The model does not fit"
