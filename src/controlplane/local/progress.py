"""
Tells a person what happens: one line per step with a tick and its seconds, plain text when nobody watches.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

COLUMN = 70
ERASE_LINE = "\r\x1b[2K"
SIGNS = {"done": ("✓", "32", "ok"), "failed": ("✗", "31", "failed"), "waiting": ("·", "2", ""), "note": ("!", "33", "note")}


class Step:
    """
    One line that is still open: its words may become more exact until it is closed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.started_at_s = time.monotonic()


class Progress:
    """
    Writes steps, notes and paragraphs to one stream; safe to use from several threads.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.RLock()
        self._open: Step | None = None
        self._only_thread: int | None = None
        self._is_live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._has_colour = self._is_live and "NO_COLOR" not in os.environ
        self._has_signs = _can_write("✓✗·→x", self._stream)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """
        The step has a line with a tick and its seconds after the block, or a cross when the block failed.
        """
        step = Step(text)
        with self._lock:
            self._open = step
            self._redraw()
        try:
            yield step
        except BaseException:
            self._close(step, "failed")
            raise
        self._close(step, "done")

    def change(self, step: Step, text: str) -> None:
        """
        The open step has other words, at once for whoever watches.
        """
        with self._lock:
            step.text = text
            self._redraw()

    def note(self, text: str) -> None:
        """
        A line that belongs to no step stands above the open one.
        """
        self._above(f"  {self._sign('note')} {text}")

    def detail(self, text: str) -> None:
        """
        A line under a step says more about it.
        """
        self._above(f"      {self.plain(text)}")

    def say(self, text: str = "") -> None:
        """
        The text stands as it is, on lines of its own.
        """
        self._above(self.plain(text))

    def heading(self, text: str) -> None:
        """
        A new part has begun.
        """
        self._above(f"\n{self._painted(self.plain(text), '1')}")

    def keep_to_this_thread(self) -> None:
        """
        Other threads write nothing any more: what they have to say while everything stops is of no use to anybody.
        """
        with self._lock:
            self._only_thread = threading.get_ident()
            self._open = None
            if self._is_live:
                self._write("")

    def plain(self, text: str) -> str:
        """
        Answers a text that the stream can show.
        """
        return text if self._has_signs else text.replace("→", "->").replace("x", "x").replace("·", "-")

    def _close(self, step: Step, outcome: str) -> None:
        seconds = f"{time.monotonic() - step.started_at_s:6.1f} s"
        line = f"  {self._sign(outcome)} {self.plain(step.text).ljust(COLUMN)} {self._painted(seconds, '2')}"
        with self._lock:
            self._open = None
            self._write(line + "\n")

    def _above(self, line: str) -> None:
        with self._lock:
            self._write(line + "\n")
            self._redraw()

    def _redraw(self) -> None:
        if self._open is not None and self._is_live:
            room = shutil.get_terminal_size().columns - 5  # a line that wraps cannot be erased
            self._write(f"  {self._sign('waiting')} {self.plain(self._open.text)[:room]}")

    def _write(self, text: str) -> None:
        if self._only_thread not in {None, threading.get_ident()}:
            return
        with contextlib.suppress(BrokenPipeError):
            self._stream.write((ERASE_LINE if self._is_live else "") + text)
            self._stream.flush()

    def _sign(self, kind: str) -> str:
        sign, colour, word = SIGNS[kind]
        return self._painted(sign, colour) if self._has_signs else word.ljust(6)

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._has_colour else text


def _can_write(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
