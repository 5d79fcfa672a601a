"""
Names and values that may reach a command line or an object's name at Slurm: checked, never escaped by hand.
"""

from __future__ import annotations

import re

from controlplane.providers.errors import Refused

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PATH = re.compile(r"(/[A-Za-z0-9_.+-]+)+")
_REASON = re.compile(r"[^A-Za-z0-9 ._:/@+-]+")


def check_name(value: str) -> str:
    """
    The value is a plain word: letters, digits, `_`, `.`, `-`, none of them leading to an option. Raises ValueError.
    """
    if not _NAME.fullmatch(value):
        raise ValueError(f"not a plain name: {value[:80]!r}")
    return value


def check_path(value: str) -> str:
    """
    The value is an absolute path of plain words without `..` and without Slurm's `%` patterns. Raises ValueError.
    """
    if not _PATH.fullmatch(value) or ".." in value.split("/"):
        raise ValueError(f"not a plain absolute path: {value[:200]!r}")
    return value


def plain(value: str, what: str) -> str:
    """
    The value, when it is a plain name. Raises Refused: such a name cannot exist at the peer.
    """
    try:
        return check_name(value)
    except ValueError as error:
        raise Refused(f"{what}: {error}", code="provider_bad_name") from error


def one_line(text: str) -> str:
    """
    The text as a reason Slurm can hold: one line of harmless characters, at most 160.
    """
    return _REASON.sub(" ", text).strip()[:160]


class Names:
    """
    Our objects' names at one Slurm; all are functions of our ids and the installation's name.
    """

    def __init__(self, deployment: str, reason_prefix: str) -> None:
        self.deployment = check_name(deployment)
        self._reason_prefix = f"{reason_prefix}({deployment}):"

    def reservation(self, cluster_id: str) -> str:
        """
        The reservation that is the cluster's wall. `:` cannot occur in either part, so that no two pairs share a name.
        """
        return f"{self.deployment}:{plain(cluster_id, 'cluster id')}"

    def cluster_id(self, reservation: str) -> str | None:
        """
        The cluster whose wall the reservation is; None when it is not ours.
        """
        owner, _, cluster_id = reservation.partition(":")
        return cluster_id if owner == self.deployment and _NAME.fullmatch(cluster_id) else None

    def job_comment(self, cluster_id: str) -> str:
        """
        What marks a job as submitted by us for the cluster.
        """
        return self.reservation(cluster_id)

    def scrub_job(self, token: str) -> str:
        """
        The name of the wipe's job.
        """
        return f"{self.deployment}:wipe:{plain(token, 'token')}"

    def check_job(self, token: str, run: str) -> str:
        """
        The name of a fabric check's run; without a run what all its names begin with.
        """
        return f"{self.deployment}:check:{plain(token, 'token')}:{plain(run, 'run') if run else ''}"

    def reason(self, text: str) -> str:
        """
        A drain's reason that says it is ours.
        """
        return f"{self._reason_prefix} {one_line(text)}"

    def is_our_reason(self, reason: str) -> bool:
        """
        Whether a drain with this reason was made by this installation.
        """
        return reason.startswith(self._reason_prefix)

    def account(self, tenant_id: str) -> str:
        """
        The tenant's account in slurmdbd, which folds names to lower case.
        """
        return f"{self.deployment}_{plain(tenant_id, 'tenant id')}".lower()
