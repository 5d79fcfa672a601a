"""
What a person sees of a start.
"""

from __future__ import annotations

import io
import threading

import pytest

from controlplane.local.progress import Progress


class Screen(io.StringIO):
    """A stream that is, or is not, a terminal, in some encoding."""

    def __init__(self, *, live: bool = False, encoding: str = "utf-8") -> None:
        super().__init__()
        self._live = live
        self._named = encoding

    def isatty(self) -> bool:
        """Whether somebody watches."""
        return self._live

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """What it can show."""
        return self._named


def test_plain_output_has_one_line_per_step_and_no_control_characters() -> None:
    """A log gets each step once, when it is over, with tick and seconds."""
    screen = Screen()
    progress = Progress(screen)
    with progress.step("database") as step:
        progress.change(step, "database on port 1")
    assert screen.getvalue().split() == ["✓", "database", "on", "port", "1", "0.0", "s"]


def test_failed_step_has_a_cross() -> None:
    """A step that failed does not look like one that is done."""
    screen = Screen()
    with pytest.raises(RuntimeError), Progress(screen).step("database"):
        raise RuntimeError
    assert screen.getvalue().startswith("  ✗ database")


def test_terminal_sees_the_step_while_it_runs() -> None:
    """Whoever watches sees what is going on before it is over."""
    screen = Screen(live=True)
    with Progress(screen).step("database"):
        assert screen.getvalue().endswith("database")


def test_stream_without_signs_gets_words() -> None:
    """An old terminal shows words instead of failing on a tick."""
    screen = Screen(encoding="ascii")
    with Progress(screen).step("placing · leaf → block"):
        pass
    assert screen.getvalue().startswith("  ok     placing - leaf -> block")
    screen.getvalue().encode("ascii")


def test_other_threads_fall_silent_while_everything_stops() -> None:
    """What the main job says when its server goes away does not stand between the last lines."""
    screen = Screen()
    progress = Progress(screen)
    progress.keep_to_this_thread()
    other = threading.Thread(target=progress.say, args=["the API does not answer"])
    other.start()
    other.join()
    progress.say("stopped")
    assert screen.getvalue() == "stopped\n"
