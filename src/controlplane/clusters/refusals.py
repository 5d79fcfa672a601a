"""
Changes that a provider turned down for good, as they are kept until a look has shown what of them is there. Pure.
"""

from dataclasses import dataclass

REFUSED, UNDOING, UNDONE = "refused", "undoing", "undone"
"""Parts of such a change: what of it is there is looked up, taken back, and looked at."""
CHANGE_REFUSED = "change_refused"
"""Why nodes go back that came for a change which was given up."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    Why the provider turned it down.
    """

    code: str
    """Stable code."""
    detail: str = ""
    """The provider's own words, for operators only."""
