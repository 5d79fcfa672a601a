"""
What may be removed of what a provider lists: fails closed.
"""

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.kit.orphans import GAP_S, OLD_ENOUGH_S, Look, judge

AT = datetime(2026, 3, 1, tzinfo=UTC)
LATER = AT + timedelta(seconds=GAP_S)
OLD = OLD_ENOUGH_S + 1


def look(*listed: str, complete: bool = True, ended: dict[str, float] | None = None, living: tuple[str, ...] = ()) -> Look:
    """
    A list, with `a` ended long ago unless something else is said.
    """
    return Look(listed, complete, {"a": OLD} if ended is None else ended, living)


def test_what_was_seen_twice_goes() -> None:
    """The first look makes a suspect, the second one removes it."""
    first = judge(look("a", "b", living=("b",)), {}, AT)
    assert (first.remove, dict(first.suspects)) == ((), {"a": AT})
    assert judge(look("a", "b", living=("b",)), first.suspects, LATER).remove == ("a",)


@pytest.mark.parametrize(
    ("second", "at"),
    [
        (look("a", complete=False), LATER),
        (look("a", ended={"a": OLD_ENOUGH_S}), LATER),
        (look("a", ended={}), LATER),
        (look("a", living=("a",)), LATER),
        (look("a"), LATER - timedelta(seconds=1)),
        (look("a", *"wxyz", ended=dict.fromkeys("awxyz", OLD)), LATER),
    ],
    ids=["partial", "young", "no_row", "wanted", "too_soon", "too_many"],
)
def test_doubt_removes_nothing(second: Look, at: datetime) -> None:
    """Any doubt at the second look keeps what the first one suspected."""
    assert judge(second, {"a": AT}, at).remove == ()


def test_a_whole_list_without_it_clears_it_and_a_part_does_not() -> None:
    """Twice in a row means in every whole list between."""
    assert dict(judge(look("b", living=("b",)), {"a": AT}, AT).suspects) == {}
    assert dict(judge(look("b", complete=False), {"a": AT}, AT).suspects) == {"a": AT}


def test_what_no_row_speaks_of_is_for_a_person() -> None:
    """Nor is it a suspect, however often it is seen; and many that go at once say why they stay."""
    found = judge(look("a", "x"), {"a": AT, "x": AT}, LATER)
    assert (found.remove, found.strange, set(found.suspects)) == (("a",), ("x",), {"a"})
    assert judge(look(*"abcd", ended=dict.fromkeys("abcd", OLD)), {}, AT).held == "too_many"
    assert judge(look(complete=False), {}, AT).held == "incomplete_list"
