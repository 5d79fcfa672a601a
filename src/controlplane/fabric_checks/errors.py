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


class AnotherWord(Conflict):
    """
    A machine of a check says otherwise than it has said before; the first word stands.
    """

    code = "another_word"
    title = "The machine has said otherwise before"


class RunOver(Conflict):
    """
    Nothing is taken for this run: it is recorded, or its machines are not together yet.
    """

    code = "run_over"
    title = "The run takes nothing now"


class CheckEnding(Conflict):
    """
    The check has ended or is giving its nodes back; field `state`.
    """

    code = "check_ending"
    title = "The check is over or ending"
