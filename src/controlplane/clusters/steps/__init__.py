"""
What is done in each state of a cluster that needs its provider. No database here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.clusters.steps.bootstrapping import bootstrap
from controlplane.clusters.steps.deleting import delete
from controlplane.clusters.steps.failed import clear
from controlplane.clusters.steps.running import watch
from controlplane.clusters.steps.updating import change
from controlplane.clusters.steps.verifying import verify
from controlplane.kit.outcome import Outcome

STEPS: Mapping[str, Callable[[Any, Any], Outcome]] = {
    "bootstrapping": bootstrap,
    "verifying": verify,
    "running": watch,
    "degraded": watch,
    "updating": change,
    "failed": clear,
    "deleting": delete,
}
