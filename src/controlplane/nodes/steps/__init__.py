"""
What is done in each moving state of a node. No database here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.kit.outcome import Outcome
from controlplane.nodes.steps.cleaning import clean
from controlplane.nodes.steps.deploying import deploy
from controlplane.nodes.steps.enrolled import begin
from controlplane.nodes.steps.inspecting import inspect
from controlplane.nodes.steps.qualifying import qualify
from controlplane.nodes.steps.releasing import release
from controlplane.nodes.steps.reserved import reserve

STEPS: Mapping[str, Callable[[Any, Any], Outcome]] = {
    "enrolled": begin,
    "inspecting": inspect,
    "qualifying": qualify,
    "reserved": reserve,
    "deploying": deploy,
    "releasing": release,
    "cleaning": clean,
}
