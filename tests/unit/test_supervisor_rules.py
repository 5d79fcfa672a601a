"""
The rules of the supervisor that need no process.
"""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.local.interrupts import Interrupts, StopRequested
from controlplane.local.supervisor import FIRST_DELAY_S, LONGEST_DELAY_S, ending, restart_delay_s


@given(st.integers(min_value=1, max_value=10_000))
def test_delay_grows_and_stays_within_its_limit(crashes: int) -> None:
    """A child that keeps crashing waits longer each time, never less than the first delay nor more than the longest."""
    assert FIRST_DELAY_S <= restart_delay_s(crashes) <= restart_delay_s(crashes + 1) <= LONGEST_DELAY_S


def test_first_crash_is_answered_quickly() -> None:
    """One crash costs half a second, the next twice that."""
    assert [restart_delay_s(crashes) for crashes in (1, 2, 3)] == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("code", "words"), [(1, "ended with code 1"), (-9, "was killed by SIGKILL"), (-64 - 1, "was killed by signal 65")]
)
def test_ending_is_told_in_words(code: int, words: str) -> None:
    """An exit code is shown as a person would say it, unknown signals included."""
    assert ending(code) == words


def test_signal_raises_once() -> None:
    """The first signal breaks in, the second only counts: cleaning up is not broken off by it."""
    with Interrupts().entered() as interrupts:
        with pytest.raises(StopRequested):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 2


def test_signal_waits_for_the_end_of_a_held_block() -> None:
    """What is begun in a held block is finished before the signal breaks in."""
    done: list[str] = []

    def begin_and_record() -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            done.append("recorded")

    with Interrupts().entered() as interrupts:
        with pytest.raises(StopRequested):
            begin_and_record()
        assert done == ["recorded"]


def test_handlers_are_put_back() -> None:
    """After the block signals do what they did before."""
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts().entered():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
