"""
What is done in each state of a cluster that needs its provider. No database here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.clusters.states import KUBERNETES, ClusterSnapshot
from controlplane.clusters.steps import bare, dedicated, managed, own_kubernetes, taken_over, upgrading_kubernetes
from controlplane.clusters.steps.adopting import adopt
from controlplane.clusters.steps.bootstrapping import bootstrap
from controlplane.clusters.steps.deleting import delete
from controlplane.clusters.steps.failed import clear
from controlplane.clusters.steps.running import watch
from controlplane.clusters.steps.updating import change
from controlplane.clusters.steps.upgrading import roll
from controlplane.clusters.steps.verifying import verify
from controlplane.kit.outcome import Outcome
from controlplane.providers.toolbox import Toolbox

Step = Callable[[ClusterSnapshot, Toolbox], Outcome]


def _by_kind(made: Step, alone: Step, slurm: Step, kubernetes: Step, came: Step | None = None) -> Callable[[Any, Any], Outcome]:
    """
    The first for a cluster that a peer makes of its nodes, the second where the nodes alone are the product, the others for a Slurm or
    a Kubernetes that the nodes make of themselves, the last for one that stood before it was ours, where that differs.
    """

    def step(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
        if cluster.came and came is not None:
            return came(cluster, tools)
        if cluster.dedicated:
            return kubernetes(cluster, tools) if cluster.kind == KUBERNETES else slurm(cluster, tools)
        return alone(cluster, tools) if cluster.kind == "baremetal" else made(cluster, tools)

    return step


STEPS: Mapping[str, Callable[[Any, Any], Outcome]] = {
    "adopting": adopt,
    "bootstrapping": _by_kind(bootstrap, bare.bootstrap, dedicated.bootstrap, own_kubernetes.bootstrap),
    "verifying": _by_kind(verify, bare.verify, dedicated.verify, own_kubernetes.verify),
    "running": _by_kind(watch, bare.watch, dedicated.watch, own_kubernetes.watch, taken_over.watch),
    "degraded": _by_kind(watch, bare.watch, dedicated.watch, own_kubernetes.watch, taken_over.watch),
    "updating": _by_kind(change, bare.change, dedicated.change, own_kubernetes.change, taken_over.change),
    "upgrading": _by_kind(managed.roll, roll, roll, upgrading_kubernetes.roll),
    "failed": _by_kind(clear, bare.clear, bare.clear, bare.clear),
    "deleting": _by_kind(delete, bare.delete, bare.delete, bare.delete, taken_over.delete),
}
