"""
What is done in each moving state of a fabric check; `judging` is decided in the database and has no step.
"""

from collections.abc import Callable, Mapping

from controlplane.fabric_checks.states import CheckSnapshot
from controlplane.fabric_checks.steps.returning import let_go
from controlplane.fabric_checks.steps.running import measure
from controlplane.fabric_checks.steps.starting import make_ready
from controlplane.kit.outcome import Outcome
from controlplane.providers.toolbox import Toolbox

STEPS: Mapping[str, Callable[[CheckSnapshot, Toolbox], Outcome]] = {
    "starting": make_ready,
    "running": measure,
    "returning": let_go,
}
