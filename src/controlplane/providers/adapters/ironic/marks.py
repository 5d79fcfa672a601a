"""
What we remember on a node itself, in one key of its `extra`: its tenancy, its running task, and what the last ones found.

Ironic keeps it over undeploys, cleanings and restarts, so a repeat after any crash of ours finds how far the first try came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from controlplane.providers.machines import Check, Inventory, WipeReport

KEPT_TOKENS = 32
"""How many ended tenancies and power switches a node remembers."""
_RESULTS = ("passed", "failed", "not_measured")
TenancyStage = Literal["held", "releasing", "released"]
TaskKind = Literal["wipe", "qualify", "inspect"]


class UnreadableMarks(Exception):
    """
    Our key holds something that we did not write.
    """


@dataclass(frozen=True, slots=True)
class Tenancy:
    """
    The allocation a node is, or was last, deployed for.
    """

    token: str
    """The allocation's id."""
    stage: TenancyStage = "held"
    """How far it is; `held` from the claim on, before anything is deployed."""
    tenant: str = ""
    """Whose it is."""
    cluster: str = ""
    """The cluster it belongs to."""
    network: str = ""
    """The tenant network, as it was named to us."""
    image: str = ""
    """The image, by our name."""
    ready_at: str = ""
    """When Ironic first had it active, by Ironic's clock; ISO 8601, empty before we saw it."""
    accepted_at: str = ""
    """When our tenant's release was accepted, ISO 8601: evidence."""


@dataclass(frozen=True, slots=True)
class Task:
    """
    Something that runs in Ironic under a token of ours.
    """

    kind: TaskKind
    """What it is for."""
    token: str
    """Its id."""
    flow: str = ""
    """`manual_cleaning` or `automated_cleaning`: how Ironic's history names it."""
    steps: tuple[str, ...] = ()
    """`interface.step` of what was asked, in order; empty where Ironic chooses."""
    since: str = ""
    """The instant of the node's last change of state before it was begun, as Ironic writes it: still the same, and it has not begun."""
    after: str = ""
    """The newest entry of the node's history before it was begun; empty: there was none."""
    seen: bool = False
    """Whether we saw Ironic at it."""


@dataclass(frozen=True, slots=True)
class Marks:
    """
    One node's memory.
    """

    revision: int = 0
    """Grows with every change of ours, so that two writers notice each other; 0: nothing written yet."""
    tenancy: Tenancy | None = None
    """The present or last tenancy."""
    ended: tuple[str, ...] = ()
    """Tokens of ended tenancies, newest first: none of them can come back."""
    wiped_since: bool = False
    """Whether a wipe has finished after that tenancy."""
    task: Task | None = None
    """What runs now."""
    wipe: WipeReport | None = None
    """The last finished wipe."""
    qualified_token: str | None = None
    """The last qualification."""
    checks: tuple[Check, ...] = ()
    """What it found."""
    inspected_token: str = ""
    """The last finished inspection."""
    inventory: Inventory | None = None
    """What it found."""
    powers: tuple[str, ...] = field(default=())
    """Tokens of power switches, newest first: an older one is not done again."""

    def ending(self, token: str) -> Marks:
        """
        The same, and the token can never be deployed again.
        """
        return self if token in self.ended else replace(self, ended=(token, *self.ended)[:KEPT_TOKENS])


def to_json(marks: Marks) -> dict[str, Any]:
    """
    As it is written, under a member named for the revision: removing that member is how the next writer proves what it read.
    """
    said: dict[str, Any] = {name: value for name, value in asdict(marks).items() if value and name not in {"revision", "wipe"}}
    if marks.wipe is not None:
        said["wipe"] = {**asdict(marks.wipe), "finished_at": stamp(marks.wipe.finished_at)}
    return {guard(marks.revision): said}


def guard(revision: int) -> str:
    """
    The member's name.
    """
    return f"revision-{revision}"


def from_json(value: Any) -> Marks:
    """
    The memory; an empty one for None. Raises UnreadableMarks.
    """
    if value is None:
        return Marks()
    try:
        ((name, said),) = value.items()
        head, _, number = name.rpartition("-")
        if head != "revision":
            raise UnreadableMarks(str(value)[:80])
        return Marks(
            revision=int(number),
            tenancy=Tenancy(**said["tenancy"]) if "tenancy" in said else None,
            ended=tuple(said.get("ended", ())),
            wiped_since=bool(said.get("wiped_since", False)),
            task=_task(said.get("task")),
            wipe=_report(said.get("wipe")),
            qualified_token=said.get("qualified_token"),
            checks=_checks(said.get("checks", ())),
            inspected_token=str(said.get("inspected_token", "")),
            inventory=Inventory(**said["inventory"]) if "inventory" in said else None,
            powers=tuple(said.get("powers", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableMarks(str(value)[:80]) from error


def stamp(at: datetime) -> str:
    """
    The instant as it is written.
    """
    return at.astimezone(UTC).isoformat()


def instant(written: Any) -> datetime | None:
    """
    The instant that is written; without a zone it is UTC, as Ironic's are. None for nothing and for what is no instant.
    """
    if not isinstance(written, str) or not written:
        return None
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _task(said: Mapping[str, Any] | None) -> Task | None:
    return None if said is None else Task(**{**said, "steps": tuple(said.get("steps", ()))})


def _report(said: Mapping[str, Any] | None) -> WipeReport | None:
    if said is None:
        return None
    finished_at = instant(said["finished_at"])
    if finished_at is None:
        raise ValueError("a wipe without its end")
    return WipeReport(str(said["token"]), finished_at, _checks(said["checks"]))


def _checks(said: Any) -> tuple[Check, ...]:
    checks = tuple(Check(**one) for one in said)
    if any(one.result not in _RESULTS for one in checks):
        raise ValueError("a check with an unknown result")
    return checks
