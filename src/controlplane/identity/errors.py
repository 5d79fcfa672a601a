"""
What can go wrong in the tree and with keys.
"""

from controlplane.kit.errors import Conflict, Forbidden


class ExceedsMaker(Forbidden):
    """
    Nobody gives or takes what they do not hold: rights, networks or lifetime.
    """

    code = "exceeds_own_rights"


class NotAllowedNow(Conflict):
    """
    The verb does not fit the present state; `GET …/actions` says which do.
    """

    code = "not_allowed_now"


class StillInUse(Conflict):
    """
    Something that lives below must be deleted first.
    """

    code = "still_in_use"


class LastOwner(Conflict):
    """
    A tenant keeps at least one active owner.
    """

    code = "last_owner"


class DomainTaken(Conflict):
    """
    A host name belongs to one reseller only.
    """

    code = "domain_taken"
