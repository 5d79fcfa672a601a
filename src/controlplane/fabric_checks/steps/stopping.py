"""
When a check goes no further: somebody asked to stop it, or its state lasts too long.
"""

from controlplane.fabric_checks.states import CheckFacts, CheckSnapshot
from controlplane.kit.outcome import Advance


def stop_of(check: CheckSnapshot) -> Advance | None:
    """
    The way back, where the check is to go no further; None where it goes on.
    """
    if check.cancel:
        return Advance("returning", "Stopped as asked.", CheckFacts(end="cancelled"))
    if check.overdue:
        facts = CheckFacts(end="failed", failure="fabric_check_timeout")
        return Advance("returning", "It did not come to its end in time; its nodes are given back.", facts)
    return None
