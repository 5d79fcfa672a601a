"""
Which of the objects that a provider lists are ours and nobody's any more, and may be removed. Pure.

It fails closed. An object goes only when our own row of it says that it has ended, when that row is older than any create that may still be
under way, when two whole lists in a row showed the object, and when few are to go at once. What no row speaks of is never removed: our
database may be the one that is wrong.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

OLD_ENOUGH_S = 120.0
"""Longer than any create is under way, its retries by the provider's client included."""
GAP_S = 30.0
"""Two lists that are to count as two are that far apart: one may be answered from what was."""
FEW = 3
SHARE = 0.2
"""More than a few and more than this share of a list at once is no leftover but somebody's error."""


@dataclass(frozen=True, slots=True)
class Look:
    """
    One list of one provider, and what our rows said after it.
    """

    listed: Collection[str]
    """Objects with our marks, by our id."""
    complete: bool
    """Whether what is not listed is not there."""
    ended_s: Mapping[str, float]
    """For how long our rows have said that they are gone, for those of which they say so."""
    living: Collection[str]
    """Those that our rows want."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What may be done.
    """

    remove: tuple[str, ...] = ()
    """Ours, ended, and seen twice."""
    strange: tuple[str, ...] = ()
    """No row speaks of these: for a person, and left alone."""
    held: str = ""
    """Why nothing is removed though something might be: `incomplete_list`, `too_many`; empty where that is not so."""
    suspects: Mapping[str, datetime] = field(default_factory=dict)
    """Since when each orphan has been seen in every list; to be given to the next look."""


def judge(look: Look, before: Mapping[str, datetime], at: datetime) -> Verdict:
    """
    What may be done after this look at `at`, with the suspects of the last one. A whole list without an object clears it.
    """
    if not look.complete:
        return Verdict(held="incomplete_list", suspects=before)
    orphans = sorted(one for one in look.listed if look.ended_s.get(one, 0.0) > OLD_ENOUGH_S and one not in look.living)
    suspects = {one: before.get(one, at) for one in orphans}
    strange = tuple(sorted(one for one in look.listed if one not in look.ended_s and one not in look.living))
    if len(orphans) > max(FEW, int(SHARE * len(look.listed))):
        return Verdict(strange=strange, held="too_many", suspects=suspects)
    ripe = tuple(one for one in orphans if one in before and (at - before[one]).total_seconds() >= GAP_S)
    return Verdict(ripe, strange, suspects=suspects)
