"""
What is done in each moving state of a job; `queued` is decided in the database and has no step.
"""

from collections.abc import Callable, Mapping

from controlplane.jobs.states import JobSnapshot
from controlplane.jobs.steps.admitted import submit
from controlplane.jobs.steps.completing import collect
from controlplane.jobs.steps.running import watch
from controlplane.jobs.steps.starting import watch_start
from controlplane.jobs.steps.unknown import search
from controlplane.kit.outcome import Outcome
from controlplane.providers.toolbox import Toolbox

STEPS: Mapping[str, Callable[[JobSnapshot, Toolbox], Outcome]] = {
    "admitted": submit,
    "starting": watch_start,
    "running": watch,
    "completing": collect,
    "unknown": search,
}
