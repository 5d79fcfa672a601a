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


class NoController(Conflict):
    """
    The control plane drives no management controller of the node.
    """

    code = "no_controller"
    title = "The node has no controller of ours"


class PasswordsElsewhere(Conflict):
    """
    The provider's settings say that somebody else changes the passwords of its controllers.
    """

    code = "passwords_elsewhere"
    title = "Somebody else changes these passwords"


class NotOffered(Conflict):
    """
    The machine's provider has no such action; `allowed` names those it has now.
    """

    code = "action_not_offered"
    title = "The provider does not offer this"


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
