"""
Words that may stand in a Slurm configuration: checked against what Slurm's own parser takes for one word, never escaped.

Source: slurm.conf(5), "Any text following a # is treated as a comment", names of nodes, partitions and features.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import AddressValueError, IPv4Address

from controlplane.kit.errors import FieldError, Invalid

MAX_LISTED_ERRORS = 50
"""An error names at most this many fields."""
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9_-]{0,30}[a-z0-9])?")
_CLUSTER = re.compile(r"[a-z][a-z0-9_]{0,39}")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_PATH = re.compile(r"(/[A-Za-z0-9_.+-]+)+")
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")
_CORES = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*")
_SETTING = re.compile(r"[a-z][A-Za-z0-9_]{0,63}(=[A-Za-z0-9_.:/+-]{1,64})?")
RESERVED = frozenset({"default", "all", "localhost", "none", "infinite", "unlimited"})
"""Slurm gives these a meaning of its own where a name stands."""


class BadPlan(Invalid):
    """
    The plan cannot be rendered: `errors` names each part that is wrong.
    """

    code = "slurm_plan_invalid"
    title = "The Slurm cluster cannot be built like this"


class Findings:
    """
    Collects what is wrong with a plan, so that all of it is told at once.
    """

    def __init__(self, error: type[Invalid] = BadPlan) -> None:
        self._errors: list[FieldError] = []
        self._error = error

    def add(self, field: str, code: str, message: str) -> None:
        """
        One more part is wrong.
        """
        self._errors.append(FieldError(field, code, message))

    def require(self, *, met: bool, field: str, code: str, message: str) -> None:
        """
        The part is wrong unless the condition is met.
        """
        if not met:
            self.add(field, code, message)

    def word(self, kind: str, value: str, field: str) -> None:
        """
        The part is wrong unless it is one word of this kind.
        """
        pattern, wanted = KINDS[kind]
        if not pattern.fullmatch(value) or value in RESERVED or ".." in value:
            self.add(field, "bad_word", f"{value[:60]!r} is not {wanted}")

    def address(self, value: str, field: str) -> None:
        """
        The part is wrong unless it is an IPv4 address that one host can have.
        """
        try:
            address = IPv4Address(value)
        except AddressValueError:
            self.add(field, "bad_address", f"{value[:60]!r} is not an IPv4 address")
            return
        if address.is_multicast or address.is_unspecified or str(address) != value:
            self.add(field, "bad_address", f"{value} is not the address of a host")

    def between(self, value: int, low: int, high: int, field: str) -> None:
        """
        The part is wrong unless it lies between the two, both included.
        """
        if not low <= value <= high:
            self.add(field, "out_of_range", f"{value} is not between {low} and {high}")

    def unique(self, values: Collection[str], field: str) -> None:
        """
        The part is wrong when a value occurs twice.
        """
        seen: set[str] = set()
        twice = sorted({value for value in values if value in seen or seen.add(value)})  # type: ignore[func-returns-value]
        if twice:
            self.add(field, "duplicate", f"more than once: {', '.join(twice[:10])}")

    def settle(self) -> None:
        """
        Nothing was wrong. Raises BadPlan, or the error it was made for, with everything that was.
        """
        if self._errors:
            first = self._errors[0]
            raise self._error(f"{first.field}: {first.message}", errors=self._errors[:MAX_LISTED_ERRORS])


KINDS = {
    "host": (_HOST, "a host name of lower-case letters, digits and inner hyphens"),
    "label": (_LABEL, "a short name of lower-case letters, digits, '_' and '-'"),
    "cluster": (_CLUSTER, "a cluster name of at most 40 lower-case letters, digits and '_'"),
    "account": (_ACCOUNT, "a user name"),
    "path": (_PATH, "an absolute path of plain words"),
    "device": (_DEVICE, "a device name"),
    "cores": (_CORES, "a list of core numbers such as 0-55"),
    "setting": (_SETTING, "a parameter such as bf_interval=30"),
}
"""Each kind of word: its form, and how it is called in an error."""


def cluster_name(cluster_id: str) -> str:
    """
    The ClusterName of one of our clusters: the id itself, so that no two share one. Raises BadPlan when Slurm would fold or refuse it.
    """
    found = Findings()
    found.word("cluster", cluster_id, "cluster_id")
    found.settle()
    return cluster_id
