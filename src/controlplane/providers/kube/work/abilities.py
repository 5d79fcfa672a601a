"""
What jobs can ask of a Kubernetes, and what one of a tenant's own can do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controlplane.providers.clusters import Capabilities, JobFeature
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.walls import Queueing

EXTRAS = {"jobset.x-k8s.io": "jobset", "leaderworkerset.x-k8s.io": "leaderworkerset", "resource.k8s.io": "dra"}
"""API groups that later parts of this adapter can use."""
ALWAYS: tuple[JobFeature, ...] = ("image", "launch_torchrun", "secret_env", "secret_files")
QUEUED: tuple[JobFeature, ...] = ("gangs", "priority")
"""What jobs may ask for where Kueue is. Without it a priority would be one over all that runs on the server, so it is not offered."""
NO_GANGS = "no Kueue: jobs of more than one node are refused"


@dataclass(frozen=True, slots=True)
class Offers:
    """
    What jobs and services may ask of one cluster.
    """

    features: tuple[JobFeature, ...]
    """Besides nodes, GPUs and a script."""
    volumes: tuple[str, ...]
    """Names of what jobs can mount."""
    mig: Mapping[str, int]
    """MIG profile to the most that one node has of it."""


def features(
    config: WorkConfig, *, queues: bool, sliced: bool = False, launches: bool = False, gauged: bool = False
) -> tuple[JobFeature, ...]:
    """
    What jobs may ask for.
    """
    mounts: tuple[JobFeature, ...] = ("mounts",) if config.volumes else ()
    kinds: tuple[JobFeature, ...] = ("gpu_attributes",) if config.gpus_by == "dra" else ()
    kinds += ("gpu_nvlink",) if kinds and config.nvlink_attribute else ()
    kinds += ("mig",) if sliced else ()
    kinds += ("launch_mpi",) if launches else ()
    kinds += ("idle_stop",) if config.metrics_url or gauged else ()
    return (*(QUEUED if queues else ()), *ALWAYS, *mounts, *kinds)


def version_words(version: str, kueue: Queueing | None, groups: Collection[str]) -> str:
    """
    The server's version with what it has beside its own kinds.
    """
    extras = [name for group, name in EXTRAS.items() if group in groups]
    return ", ".join([f"kubernetes {version}", *([kueue.api.replace("/", " ")] if kueue else []), *extras])


def of_own(version: str, kueue: Queueing | None, offers: Offers) -> Capabilities:
    """
    Of a Kubernetes that is one cluster already: no other is made of it, and its owner may take away what we may do in it.
    """
    return Capabilities(
        version=version,
        products=(),
        job_output=True,
        max_nodes_per_job=None if kueue else 1,
        notes=() if kueue else (NO_GANGS,),
        job_features=offers.features,
        volumes=offers.volumes,
        mig=dict(offers.mig),
    )
