"""
What can go wrong with nodes and providers.
"""

from controlplane.kit.errors import Conflict, Invalid


class WrongState(Conflict):
    """
    The node's state does not allow the verb; `state` and `allowed` say more.
    """

    code = "wrong_state"
    title = "The state does not allow this"


class ProviderInUse(Conflict):
    """
    Nodes or clusters still stand on the provider.
    """

    code = "provider_in_use"
    title = "The provider is in use"


class UnknownAdapter(Invalid):
    """
    No adapter of this name is installed.
    """

    code = "adapter_unknown"
    title = "There is no such adapter"


class FileRefused(Invalid):
    """
    A file of machines has lines that cannot be used; nothing was changed. `errors` names them all, `lines` says how many there are.
    """

    code = "file_refused"
    title = "The file cannot be used"


class EnrolmentConflict(Conflict):
    """
    The file is well formed, and what is known of some machines does not allow it; nothing was changed. `errors` names the lines.
    """

    code = "enrolment_conflict"
    title = "What is known of the machines does not allow this"


class AlreadyEnrolled(Conflict):
    """
    The machine is enrolled; `node_id` says as what.
    """

    code = "already_enrolled"
    title = "The machine is enrolled already"
