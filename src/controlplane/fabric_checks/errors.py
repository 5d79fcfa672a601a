"""
What can go wrong when a fabric check is asked for.
"""

from controlplane.kit.errors import Conflict


class NodesNotFree(Conflict):
    """
    A check touches only nodes that are free and wiped, and these are not; field `states`.
    """

    code = "nodes_not_free"
    title = "The nodes are not free"


class SeveralProviders(Conflict):
    """
    The nodes belong to several providers, and one session of tools runs within one of them; field `provider_ids`.
    """

    code = "several_providers"
    title = "The nodes belong to several providers"


class CheckEnding(Conflict):
    """
    The check has ended or is giving its nodes back; field `state`.
    """

    code = "check_ending"
    title = "The check is over or ending"
