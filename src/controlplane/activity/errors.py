"""
What can go wrong with operations and with what needs a person.
"""

from controlplane.kit.errors import Conflict


class NotCancellable(Conflict):
    """
    The operation has ended, or is of a kind that is not undone half-way.
    """

    code = "not_cancellable"
    title = "The operation cannot be cancelled"


class NotResolvable(Conflict):
    """
    Nothing waits for a person there, or the verb would forget something that may still cost money.
    """

    code = "not_resolvable"
    title = "There is nothing to decide"
