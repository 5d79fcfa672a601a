"""
The classes that every report of a node's health falls into; behaviour hangs on the class, never on the name of an alert.

    ok                 nothing is wrong
    info               worth knowing; nothing follows
    block_allocation   no new order gets the node; whoever holds it keeps it
    drain              the node is replaced once running work has left it
    quarantine         the node is replaced at once and is out of use until it was repaired
"""

from collections.abc import Iterable
from typing import Literal

HealthClass = Literal["ok", "info", "block_allocation", "drain", "quarantine"]
CLASSES: tuple[HealthClass, ...] = ("ok", "info", "block_allocation", "drain", "quarantine")
SICK: frozenset[str] = frozenset({"drain", "quarantine"})
"""Classes of nodes that are to be replaced."""


def worst(classes: Iterable[str]) -> HealthClass:
    """
    The worst of the classes; ok for none.
    """
    found = set(classes)
    return next((one for one in reversed(CLASSES) if one in found), "ok")
