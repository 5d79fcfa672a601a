"""
What is done in each state of a cluster that needs its provider. No database here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.clusters.states import ClusterSnapshot
from controlplane.clusters.steps import bare
from controlplane.clusters.steps.bootstrapping import bootstrap
from controlplane.clusters.steps.deleting import delete
from controlplane.clusters.steps.failed import clear
from controlplane.clusters.steps.running import watch
from controlplane.clusters.steps.updating import change
from controlplane.clusters.steps.verifying import verify
from controlplane.kit.outcome import Outcome
from controlplane.providers.toolbox import Toolbox

Step = Callable[[ClusterSnapshot, Toolbox], Outcome]


def _either(made: Step, alone: Step) -> Callable[[Any, Any], Outcome]:
    """
    The first for a cluster that a peer makes of its nodes, the second where the nodes alone are the product.
    """

    def step(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
        return alone(cluster, tools) if cluster.kind == "baremetal" else made(cluster, tools)

    return step


STEPS: Mapping[str, Callable[[Any, Any], Outcome]] = {
    "bootstrapping": _either(bootstrap, bare.bootstrap),
    "verifying": _either(verify, bare.verify),
    "running": _either(watch, bare.watch),
    "degraded": _either(watch, bare.watch),
    "updating": _either(change, bare.change),
    "failed": _either(clear, bare.clear),
    "deleting": _either(delete, bare.delete),
}
