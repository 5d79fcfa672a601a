"""
What a job asks for, and whether its cluster can give it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.clusters.states import HOME_LOST, Home
from controlplane.jobs import slicing
from controlplane.jobs.errors import ClusterNotUsable, ClusterRunsNoJobs, FeatureMissing, GangTooLarge, SecretUnknown, VolumeUnknown
from controlplane.jobs.states import FEATURE_HINTS, GivenSecret, JobFacts, Parent, features_of
from controlplane.kit.errors import DomainError
from controlplane.kit.outcome import Advance, Wait

PRODUCTS = ("slurm", "kubernetes")
"""The kinds of cluster that run jobs."""
PARENTS_AGAIN_S = 60.0
"""How often a held job is looked at though nobody woke it; the end of what it waits for wakes it at once."""
PLACE_AGAIN_S = 60.0
"""How often a task that waits for its array is looked at though nobody woke it; the end of another task wakes it at once."""
ENDED_WORDS = {"failed": "failed", "cancelled": "was cancelled"}


@dataclass(frozen=True, slots=True)
class JobOrder:
    """
    A job as it was asked for, defaults filled in.
    """

    name: str
    """For people."""
    labels: dict[str, str]
    """Free key-value pairs."""
    cluster_id: str
    """Where it shall run."""
    nodes: int
    """All or none."""
    gpus_per_node: int
    """GPUs on each."""
    spec: dict[str, Any]
    """All of it, as stored and shown."""
    template: Mapping[str, Any] | None = None
    """The template it was made from, its version and values; None where it was sent whole."""


def check_home(home: Home, order: JobOrder) -> None:
    """
    The job can be queued for the cluster. Raises ClusterRunsNoJobs, ClusterNotUsable, GangTooLarge, FeatureMissing.
    """
    if home.kind not in PRODUCTS:
        kinds = " or ".join(PRODUCTS)
        raise ClusterRunsNoJobs(
            f"{home.cluster_id} is a {home.kind} cluster; jobs run on clusters of the kind {kinds}.",
            hint=f"Order a cluster of the kind {kinds}, or start the work on this one yourself with its credentials.",
        )
    if home.runs is not None and "jobs" not in home.runs:
        raise ClusterRunsNoJobs(
            f"{home.cluster_id} is kept by its provider, who starts no jobs for us in it.",
            hint="Get a kubeconfig (POST …/kubeconfigs) and start the work with kubectl.",
        )
    if home.state in HOME_LOST:
        raise ClusterNotUsable(
            f"{home.cluster_id} is {home.state}; name a cluster that runs or is being made.", cluster_state=home.state
        )
    wrong = refusal(home, order.spec)
    if wrong is not None:
        raise wrong


def check_secrets(names: Sequence[str], known: Mapping[str, object]) -> None:
    """
    The project has all of these secrets. Raises SecretUnknown.
    """
    missing = [name for name in names if name not in known]
    if missing:
        hint = f"Write it first: PUT /v1/projects/…/secrets/{missing[0]}."
        raise SecretUnknown(f"The project has no secret {missing[0]}. {hint}", secret=missing[0], hint=hint)


def given(wanted: Sequence[Mapping[str, Any]], known: Mapping[str, tuple[str, bytes]]) -> tuple[GivenSecret, ...]:
    """
    The secrets that a job names, as they are kept now.
    """
    return tuple(GivenSecret(one["name"], one["env"], one["file"], *known.get(one["name"], ())) for one in wanted)


def held_by(parents: Sequence[Parent]) -> Advance | Wait | None:
    """
    What the jobs that it waits for mean for a queued job; None where they are no hindrance.
    """
    lost = next((one for one in parents if one.hopeless), None)
    if lost is not None:
        words = f"Cancelled: it was to run after {lost.id} has succeeded, and that one {ENDED_WORDS[lost.state]}."
        return Advance("cancelled", words, JobFacts(issue=("dependency_failed", words)))
    waits = [one for one in parents if one.awaited]
    if not waits:
        return None
    first = waits[0]
    more = "" if len(waits) == 1 else f" and {len(waits) - 1} other{'s' if len(waits) > 2 else ''}"  # noqa: PLR2004 - grammar
    return Wait(f"Waits for {first.id} to {'succeed' if first.condition == 'afterok' else 'end'}{more}.", PARENTS_AGAIN_S)


class Places:
    """
    How many more tasks may be under way, of each array that bounds it, while they are given away.
    """

    def __init__(self, free: Mapping[str, int]) -> None:
        self._free = dict(free)

    def take(self, array_id: str | None) -> Wait | None:
        """
        A place is taken; where there is none, what the task does instead.
        """
        free = None if array_id is None else self._free.get(array_id)
        if array_id is None or free is None:
            return None
        if free <= 0:
            return Wait("Waits for other tasks of its array to end.", PLACE_AGAIN_S)
        self._free[array_id] = free - 1
        return None


def refusal(home: Home, spec: Mapping[str, Any]) -> DomainError | None:
    """
    Why the cluster can never run such a job; None where it can, or where its provider has not said yet.
    """
    too_large = _too_large(home, nodes=spec["nodes"], gpus_per_node=spec["gpus_per_node"])
    if too_large is not None:
        return too_large
    model = (spec.get("gpu") or {}).get("model")
    if model and home.gpu_model and model != home.gpu_model:
        words = f"GPUs of the model {model} asked; those of {home.cluster_id} are {home.gpu_model}."
        return GangTooLarge(words, resource="gpu_model", limit=home.gpu_model, requested=model)
    offered = home.offers.features
    missing = [] if offered is None else [one for one in features_of(spec) if one not in offered]
    if not missing:
        if offered is None or home.provider is None:
            return None
        return _no_volume(spec, home.offers.volumes) or slicing.refusal(home, spec.get("mig"))
    what, hint = FEATURE_HINTS[missing[0]]
    return FeatureMissing(f"{home.cluster_id} cannot run it: {what} {hint}", feature=missing[0], hint=hint)


def _no_volume(spec: Mapping[str, Any], offered: Sequence[str]) -> VolumeUnknown | None:
    volume = next((one["volume"] for one in spec.get("mounts") or () if one["volume"] not in offered), None)
    if volume is None:
        return None
    return VolumeUnknown(f"No volume {volume} is offered, but {', '.join(offered)}.", volume=volume, offered=list(offered))


def _too_large(home: Home, *, nodes: int, gpus_per_node: int) -> GangTooLarge | None:
    """
    By the nodes that are ordered, whether they are there yet or not.
    """
    if home.gpus_per_node and gpus_per_node > home.gpus_per_node:
        words = f"{gpus_per_node} GPUs per node asked; the nodes of {home.cluster_id} have {home.gpus_per_node}."
        return GangTooLarge(words, resource="gpus_per_node", limit=home.gpus_per_node, requested=gpus_per_node)
    if nodes > home.nodes:
        words = f"{nodes} nodes asked; {home.cluster_id} has {home.nodes}. Ask for fewer or let the cluster grow."
        return GangTooLarge(words, resource="nodes", limit=home.nodes, requested=nodes)
    return None
