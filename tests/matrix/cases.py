"""
What is played: each case is one fault in one operation on one adapter, its numbers drawn by a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.providers.adapters.simulated.faults import PRESETS
from tests.matrix.flashing import ENDS

OPERATIONS = ("enrol", "inspect", "qualify", "wipe", "deploy", "release", "replace", "power", "attach", "detach", "firmware")
"""What happens to a machine in its life."""
POWER = ("power", "observe")
DRIVE = ("power", "observe", "insert_media", "boot_from", "eject_media")
DOWN = ("power", "observe", "eject_media")
ON = ("attach", "observe_port")
OFF = ("detach", "observe_port")
FLASH = ("take_inventory", "power", "observe", "update_firmware", "observe_update")
CALLS: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "enrol": (("enrolled", ("observe",)),),
    "inspect": (("inspecting", ("take_inventory",)),),
    "qualify": (("qualifying", DRIVE),),
    "wipe": (("cleaning", (*OFF, *DRIVE, "take_inventory")),),
    "deploy": (("deploying", (*DRIVE, *ON)),),
    "release": (("releasing", (*OFF, *DOWN)),),
    "replace": (("releasing", (*OFF, *DOWN)), ("cleaning", (*OFF, *DRIVE)), ("deploying", (*DRIVE, *ON))),
    "power": (("qualifying", POWER), ("cleaning", POWER), ("deploying", POWER), ("releasing", POWER)),
    "attach": (("deploying", ON),),
    "detach": (("releasing", OFF), ("cleaning", OFF)),
    "firmware": (("updating", FLASH),),
}
"""The node's state and the calls in it that belong to an operation."""
LINE = tuple(name for name, preset in PRESETS.items() if preset.on_fabrics and preset.when in {"before", "after", "late"})
"""What can befall every call."""
BOOTING = ("qualify", "wipe", "deploy", "replace")
WORK = (*BOOTING, "release")
LIES: Mapping[str, tuple[str, ...]] = {
    "delay": OPERATIONS,
    "duplicate_effect": tuple(one for one in OPERATIONS if one not in {"enrol", "inspect"}),
    "stale_read": tuple(one for one in OPERATIONS if one != "inspect"),
    "controller_gone": OPERATIONS,
    "power_lies": (*WORK, "power", "firmware"),
    "power_lost": (*WORK, "power", "attach", "detach", "firmware"),
    "power_reset": (*WORK, "power", "attach", "detach", "firmware"),
    "media_lies": BOOTING,
    "boot_order_pending": BOOTING,
    "parts_unread": ("inspect", "wipe"),
    "parts_changed": ("inspect", "wipe"),
    "attach_lies": ("deploy", "attach", "replace"),
    "attach_half_made": ("deploy", "attach", "replace"),
    "detach_lies": ("release", "wipe", "detach", "replace"),
    "port_meddled_with": ("attach", "detach"),
    **dict.fromkeys(ENDS, ("firmware",)),
}
"""What a controller, a switch or somebody at the machine does although every call succeeds, and where."""
REPORTS: Mapping[str, tuple[str, ...]] = {
    "never_calls": BOOTING,
    "calls_twice": BOOTING,
    "calls_late": BOOTING,
    "calls_as_another": BOOTING,
    "fails_but_calls": BOOTING,
    "says_two_things": BOOTING,
    "says_nothing_of_checks": ("qualify", "wipe"),
    "half_of_the_disks": ("wipe",),
    "dies_before_its_report": BOOTING,
}
"""What a machine does that boots one of our seeds."""
TARGETS: Mapping[str, tuple[str, ...]] = {
    "media_lies": ("insert_media",),
    "boot_order_pending": ("boot_from",),
    "parts_unread": ("take_inventory",),
    "parts_changed": ("take_inventory",),
    "power_lies": ("power",),
    "stale_read": ("observe", "observe_port"),
    "duplicate_effect": ("power", "insert_media", "boot_from", "eject_media", "attach", "detach", "update_firmware"),
    **dict.fromkeys(ENDS, ("observe_update",)),
    "attach_lies": ("attach",),
    "attach_half_made": ("attach",),
    "detach_lies": ("detach",),
    "port_meddled_with": (*ON, *OFF),
}
"""The calls in which a fault makes sense, where not in all."""
APART = frozenset({"replace", "firmware"})
"""Operations that need a course of their own."""
SINGLE = frozenset({"enrol", "inspect"})
"""Operations of one call."""
COUNTS: tuple[int | None, ...] = (1, 1, 2, 3, 6, None)
"""How often a fault is played; None: until it is healed."""


@dataclass(frozen=True, slots=True)
class Case:
    """
    One cell of the matrix, for one seed.
    """

    adapter: str
    """Whose calls go wrong."""
    operation: str
    """In which part of the machine's life."""
    fault: str
    """How."""
    seed: int
    """Decides in which call, how often, and after how many."""

    @property
    def name(self) -> str:
        """
        For people, and for `--only`.
        """
        return f"{self.adapter}/{self.operation}/{self.fault}/{self.seed}"


@dataclass(frozen=True, slots=True)
class Plan:
    """
    A case's numbers.
    """

    state: str
    """The node's state in which it is played."""
    calls: tuple[str, ...]
    """On which calls."""
    skip: int
    """How many of them go by first."""
    count: int | None
    """How often it is played."""
    after_tenancy: bool
    """Whether the machine's first time through is left alone."""


def plan(case: Case) -> Plan:
    """
    The numbers of the case, the same each time.
    """
    dice = random.Random(case.name)
    wanted = (*ON, *OFF) if case.adapter == "frr_evpn" else TARGETS.get(case.fault)
    places = [(state, tuple(one for one in calls if wanted is None or one in wanted)) for state, calls in CALLS[case.operation]]
    state, calls = dice.choice([(state, calls) for state, calls in places if calls])
    one = dice.choice(calls)
    chosen = calls if case.fault == "controller_gone" else (one,)
    again = state == "cleaning" and case.operation != "replace" and dice.random() < 0.7
    return Plan(state, chosen, 0 if case.operation in SINGLE else dice.choice((0, 0, 0, 0, 1)), dice.choice(COUNTS), again)


def faults_of(operation: str, own: Sequence[str] = ()) -> Iterator[str]:
    """
    Every fault that makes sense in the operation; only those of `own` where that is given.
    """
    known = [*LINE, *(name for name, where in {**LIES, **REPORTS}.items() if operation in where)]
    for name in known:
        wanted = TARGETS.get(name)
        fits = wanted is None or any(set(calls) & set(wanted) for _, calls in CALLS[operation])
        if fits and (not own or name in own):
            yield name
