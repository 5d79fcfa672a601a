"""
What upgrades of clusters look like on the wire.
"""

from typing import Any

from pydantic import Field

from controlplane.clusters.schemas import ImageId
from controlplane.clusters.states import MANAGED
from controlplane.rendering.slurm.releases import ReleaseName
from controlplane.web.schemas import Body, Name, Out


class UpgradeIn(Body):
    """
    How the workers of a Slurm of one's own are installed anew, or the hosts of a Kubernetes brought to another version in place.
    """

    image: ImageId | None = Field(
        default=None,
        description="A ready image for their disks; without one each is installed with the image its node set has.",
        examples=["img_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )
    node_sets: list[Name] = Field(default=[], max_length=16, description="Sets of workers; all of them where empty.")
    release: ReleaseName | None = Field(
        default=None,
        description="Slurm's release that all hosts have in the end: the head first, in place, then workers, then logins in place."
        " What is installed on workers must have it. Without one the release stays.",
        examples=["23.11"],
    )
    version: str | None = Field(
        default=None,
        pattern=r"^1\.[0-9]{1,3}\.[0-9]{1,3}$",
        description="Kubernetes' version that all hosts have in the end: API servers first, one after another, then workers. One that"
        " the site offers, no older than the present one, and at most one minor release later. Needed for a Kubernetes, and only there."
        " A managed one is brought there as its provider sees fit: node_sets are not taken, and its operator says how many at a time.",
        examples=["1.36.2"],
    )
    max_unavailable: int = Field(
        default=1, ge=1, le=64, description="Most workers that are out of use for it at a time.", examples=[1]
    )
    drain_timeout_s: int = Field(
        default=14_400,
        ge=0,
        le=604_800,
        description="How long running jobs are waited for; what still runs on a worker then is ended and queued again by Slurm. Pods that"
        " disruption budgets hold are not ended: the upgrade of a Kubernetes stops then, until somebody lets it go on.",
        examples=[14_400],
    )


class UpgradePart(Out):
    """
    One part of an upgrade.
    """

    hosts: str = Field(description="Which hosts, in words.", examples=["workers"])
    count: int = Field(description="How many.", examples=[3])
    at_once: int = Field(description="How many of them at a time.", examples=[1])
    emptied: bool = Field(description="Whether each is emptied before, as far as disruption budgets allow.", examples=[True])


class UpgradePlan(Out):
    """
    What an upgrade would do; nothing was changed.
    """

    version: str | None = Field(description="What all hosts would have; null where no release changes.", examples=["1.37.0"])
    parts: list[UpgradePart] = Field(description="What is done, in this order.")


def upgrade_plan(view: Any) -> UpgradePlan:
    """
    What the upgrade does that was just begun.
    """
    told, sets = view.row.upgrade, {one.id: one for one in view.sets}
    count = {role: sum(one.count for one in view.sets if one.role == role) for role in ("head", "control_plane", "login")}
    install = told["install"] or {}
    parts = []
    if "version" in install:
        alone = view.row.kubernetes["distribution"] != "kubeadm"
        parts = [] if alone else [("API servers", count["control_plane"], 1, False)]
        kept = view.row.kubernetes["distribution"] == MANAGED  # its control planes come first, too, and are nobody's to count
        parts += [] if kept else [("control planes" if alone else "kubelets of control planes", count["control_plane"], 1, True)]
    elif install:
        parts = [("head", count["head"], 1, False)]
    parts.append(("workers", sum(sets[one].count for one in told["sets"]), told["at_once"], True))
    if "release" in install and count["login"]:
        parts.append(("logins", count["login"], count["login"], False))
    shown = [UpgradePart(hosts=hosts, count=n, at_once=most, emptied=emptied) for hosts, n, most, emptied in parts]
    return UpgradePlan(version=install.get("version") or install.get("release"), parts=shown)
