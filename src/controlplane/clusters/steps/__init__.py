"""
What is done in each state of a cluster that needs its provider. No database here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.clusters.states import ClusterSnapshot
from controlplane.clusters.steps import bare, dedicated
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


def _by_kind(made: Step, alone: Step, own: Step) -> Callable[[Any, Any], Outcome]:
    """
    The first for a cluster that a peer makes of its nodes, the second where the nodes alone are the product, the third for a Slurm that
    the nodes make of themselves.
    """

    def step(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
        if cluster.dedicated:
            return own(cluster, tools)
        return alone(cluster, tools) if cluster.kind == "baremetal" else made(cluster, tools)

    return step


STEPS: Mapping[str, Callable[[Any, Any], Outcome]] = {
    "bootstrapping": _by_kind(bootstrap, bare.bootstrap, dedicated.bootstrap),
    "verifying": _by_kind(verify, bare.verify, dedicated.verify),
    "running": _by_kind(watch, bare.watch, dedicated.watch),
    "degraded": _by_kind(watch, bare.watch, dedicated.watch),
    "updating": _by_kind(change, bare.change, dedicated.change),
    "upgrading": roll,
    "failed": _by_kind(clear, bare.clear, bare.clear),
    "deleting": _by_kind(delete, bare.delete, bare.delete),
}
