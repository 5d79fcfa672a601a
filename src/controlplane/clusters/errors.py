"""
What can go wrong with clusters.
"""

from controlplane.kit.errors import Conflict


class NotChangeable(Conflict):
    """
    The cluster's state does not allow the change; `state` says which it is.
    """

    code = "wrong_state"
    title = "The state does not allow this"


class QuorumAtRisk(Conflict):
    """
    The other control planes alone could not keep the cluster; `members` and `ready` say why.
    """

    code = "quorum_at_risk"
    title = "The cluster would lose its quorum"


class NoProduct(Conflict):
    """
    No provider in the site makes clusters of this kind.
    """

    code = "product_not_available"
    title = "Not available in this site"


class NoKubeconfig(Conflict):
    """
    The cluster is none that kubectl could talk to.
    """

    code = "kubeconfig_not_offered"
    title = "There is no kubeconfig for this"


class NotAdoptable(Conflict):
    """
    The cluster cannot be taken over as it is: fields `obstacles` [{code, message}], `hint`.
    """

    code = "not_adoptable"
    title = "It cannot be taken over as it is"


class AdoptionNotOffered(Conflict):
    """
    The provider hands over no clusters that exist already; field `hint`.
    """

    code = "adoption_not_offered"
    title = "The provider hands over no clusters"


class ControlPlanesStay(Conflict):
    """
    The cluster stood before it was ours, and its control planes are not changed through us; field `hint`.
    """

    code = "control_planes_stay"
    title = "Its control planes are not changed through us"


class NoWorkersJoin(Conflict):
    """
    The provider of the cluster's machines does not offer what a new worker of it would need; field `hint`.
    """

    code = "growth_not_offered"
    title = "No worker can join it"
