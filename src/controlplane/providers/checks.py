"""
The port to whatever can measure the network between machines that nobody holds.

A session under one token holds some machines from `prepare_checks` to `end_checks`; tools run in it between them. No method waits for a
machine or a tool: `observe_checks` shows how far they are. Every method may raise any error of `providers.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

RunPhase = Literal["running", "finished", "failed", "not_measured"]


@dataclass(frozen=True, slots=True)
class FabricRun:
    """
    One tool between some of a session's machines.
    """

    name: str
    """Unique in the session."""
    tool: str
    """`nccl-tests` over all the machines, or `ib_write_bw` from the first to the second."""
    collective: str
    """For nccl-tests, such as `all_reduce`; else empty."""
    refs: tuple[str, ...]
    """The machines by their names at the provider, at least two."""
    rail: int | None = None
    """The only rail it may use, counted from 0; None: all."""


@dataclass(frozen=True, slots=True)
class RunView:
    """
    How far a run is.
    """

    name: str
    """As it was begun."""
    phase: RunPhase
    """`failed`: the tool began and did not come to its end; `not_measured`: the tool or its hardware is not there."""
    output: str = ""
    """All that the tool printed, once it is finished."""
    detail: str = ""
    """Why it failed or was not measured; for operators."""


@dataclass(frozen=True, slots=True)
class ChecksView:
    """
    A session as the peer has it now.
    """

    ready: bool
    """Whether tools can be begun on all its machines."""
    runs: tuple[RunView, ...] = ()
    """Everything that was begun."""


@runtime_checkable
class SupportsFabricChecks(Protocol):
    """
    A provider that can measure between its machines.
    """

    def prepare_checks(self, token: str, refs: tuple[str, ...]) -> None:
        """
        The peer has begun to make the machines ready for tools; idempotent under its token. Raises Refused where one is held.
        """
        ...

    def begin_checks(self, token: str, runs: tuple[FabricRun, ...]) -> None:
        """
        The tools have begun; a run that was begun before goes on undisturbed. Raises Busy before the session is ready.
        """
        ...

    def observe_checks(self, token: str) -> ChecksView:
        """
        The session now. Raises NotFound when nothing of it is on any machine: it was never prepared, or it has ended.
        """
        ...

    def end_checks(self, token: str) -> None:
        """
        Whatever runs under the token is being ended and the machines are given up; a token that is unknown stays unusable.
        """
        ...
