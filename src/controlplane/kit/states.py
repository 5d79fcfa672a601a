"""
State machines as data: which states there are, which moves are legal, how long each may last. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


class IllegalMove(Exception):
    """
    The table does not allow the move.
    """

    def __init__(self, kind: str, before: str, after: str) -> None:
        super().__init__(f"{kind} may not move from {before} to {after}")
        self.kind, self.before, self.after = kind, before, after


class BadTable(Exception):
    """
    The table contradicts itself; the process must not start with it.
    """


Nature = Literal["moving", "settled", "final"]


@dataclass(frozen=True, slots=True)
class State:
    """
    One state of one kind of resource.
    """

    name: str
    """As stored and shown."""
    nature: Nature
    """`moving`: we drive it on; `settled`: it stays until somebody asks; `final`: it never leaves."""
    moves: frozenset[str] = frozenset()
    """Where it may go."""
    longest_stay_s: float | None = None
    """After this the resource needs attention; required for moving states."""
    fails_to: str | None = None
    """Where `Fail` leads from here."""
    keeps_trying: bool = False
    """Whether it is still tried, slowly, while it needs attention: what may cost money must go in the end."""
    says: str = ""
    """One sentence for documentation and `reason` defaults."""


@dataclass(frozen=True)
class StateTable:
    """
    All states of one kind; checked when it is made.
    """

    kind: str
    """The resource's noun: `node`, `cluster`, `job`."""
    states: tuple[State, ...]
    """The first one is the initial state."""
    gone: str = ""
    """Where `Gone` leads; empty where a resource of the kind never goes."""
    by_name: Mapping[str, State] = field(init=False)
    """The same states by name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {state.name: state for state in self.states})
        problems = list(self._problems())
        if problems:
            raise BadTable(f"{self.kind}: " + "; ".join(problems))

    @property
    def initial(self) -> str:
        """
        The state that a new resource starts in.
        """
        return self.states[0].name

    def names(self, *natures: Nature) -> tuple[str, ...]:
        """
        The names of all states of the given natures; of all states when none is given.
        """
        return tuple(state.name for state in self.states if not natures or state.nature in natures)

    def check_move(self, before: str, after: str) -> None:
        """
        Returns when the move is legal. Raises IllegalMove otherwise.
        """
        if before not in self.by_name or after not in self.by_name[before].moves:
            raise IllegalMove(self.kind, before, after)

    def moves(self) -> tuple[tuple[str, str], ...]:
        """
        Every legal move as (before, after), sorted.
        """
        return tuple(sorted((state.name, after) for state in self.states for after in state.moves))

    def mermaid(self) -> str:
        """
        The diagram for the documentation, generated so that it cannot differ from the code.
        """
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        lines += [f"    {before} --> {after}" for before, after in self.moves()]
        lines += [f"    {name} --> [*]" for name in self.names("final")]
        return "\n".join(lines)

    def _problems(self) -> Iterable[str]:
        if len(self.by_name) != len(self.states):
            yield "a state is named twice"
        for state in self.states:
            targets = set(state.moves) | ({state.fails_to} if state.fails_to else set())
            for unknown in sorted(targets - set(self.by_name)):
                yield f"{state.name} leads to {unknown}, which does not exist"
            if state.fails_to and state.fails_to not in state.moves:
                yield f"{state.name} fails to {state.fails_to} without a move to it"
            if state.nature == "moving" and (state.longest_stay_s is None or not state.moves):
                yield f"{state.name} is moving and needs a longest stay and a way out"
            if state.nature == "final" and state.moves:
                yield f"{state.name} is final and has a way out"
        if self.gone and self.gone not in self.by_name:
            yield f"gone leads to {self.gone}, which does not exist"
        unreachable = set(self.by_name) - self._reachable()
        if unreachable:
            yield f"never reached: {', '.join(sorted(unreachable))}"

    def _reachable(self) -> set[str]:
        seen: set[str] = set()
        ahead = [self.initial]
        while ahead:
            name = ahead.pop()
            if name in seen or name not in self.by_name:
                continue
            seen.add(name)
            ahead.extend(self.by_name[name].moves)
        return seen
