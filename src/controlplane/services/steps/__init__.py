"""
What is done in each state of a service that is looked at; `pending` is decided in the database and has no step.
"""

from collections.abc import Callable, Mapping

from controlplane.kit.outcome import Outcome
from controlplane.providers.toolbox import Toolbox
from controlplane.services.states import ServiceSnapshot
from controlplane.services.steps.deleting import remove
from controlplane.services.steps.rolling_out import roll_out
from controlplane.services.steps.running import watch

STEPS: Mapping[str, Callable[[ServiceSnapshot, Toolbox], Outcome]] = {
    "rolling_out": roll_out,
    "running": watch,
    "degraded": watch,
    "deleting": remove,
}
