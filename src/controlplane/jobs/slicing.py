"""
Slices of GPUs: whether a cluster can have them, and which share of a GPU each is. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.clusters.states import Home
from controlplane.jobs.errors import GangTooLarge, MigProfileUnknown


def compute_slices(profile: str) -> int:
    """
    How many of a GPU's equal parts of compute a profile has: 3 of `3g.40gb`.
    """
    return int(profile.partition("g.")[0])


def settled(home: Home, wanted: Mapping[str, Any], profiles: Sequence[str]) -> dict[str, Any]:
    """
    The slices with the share of a GPU that each of them is, by the catalog's profiles of the cluster's GPUs: a GPU has as many parts as its
    largest profile. Raises MigProfileUnknown, GangTooLarge.
    """
    profile, per_node = wanted["profile"], wanted["per_node"]
    if profile not in profiles:
        raise _unknown(home, profile, profiles)
    slices, parts = compute_slices(profile), max(map(compute_slices, profiles))
    most = home.gpus_per_node * parts // slices
    if per_node > most:
        raise _too_many(home, profile, per_node, most)
    return {"profile": profile, "per_node": per_node, "slices": slices, "of_slices": parts}


def refusal(home: Home, wanted: Mapping[str, Any] | None) -> MigProfileUnknown | GangTooLarge | None:
    """
    Why no node that the cluster can have has such slices as they are partitioned now; None where one has, or where none is asked for.
    """
    if not wanted or home.provider is None:
        return None
    offered = home.offers.mig
    if wanted["profile"] not in offered:
        return _unknown(home, wanted["profile"], list(offered))
    most = offered[wanted["profile"]]
    return _too_many(home, wanted["profile"], wanted["per_node"], most) if wanted["per_node"] > most else None


def held_by(spec: Mapping[str, Any]) -> int:
    """
    How many GPUs, or slices of GPUs, a run of the job holds on all of its nodes.
    """
    per_node: int = spec["mig"]["per_node"] if spec.get("mig") else spec["gpus_per_node"]
    return per_node * int(spec["nodes"])


def share_of(spec: Mapping[str, Any]) -> tuple[str, int, int]:
    """
    The profile of what it holds, and which share of a GPU each is: so many slices, of so many. Whole GPUs have no profile.
    """
    mig = spec.get("mig")
    return (mig["profile"], mig["slices"], mig["of_slices"]) if mig else ("", 1, 1)


def _unknown(home: Home, profile: str, offered: Sequence[str]) -> MigProfileUnknown:
    hint = f"Ask for one of {', '.join(offered)}." if offered else "Ask for whole GPUs by gpus_per_node."
    return MigProfileUnknown(
        f"The GPUs of {home.cluster_id} have no slices {profile}. {hint}", profile=profile, offered=list(offered), hint=hint
    )


def _too_many(home: Home, profile: str, asked: int, most: int) -> GangTooLarge:
    words = f"{asked} slices {profile} per node asked; a node of {home.cluster_id} has at most {most}."
    return GangTooLarge(words, resource="mig_per_node", limit=most, requested=asked)
