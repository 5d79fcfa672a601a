"""
What is done in each moving state of a node. No database here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.kit.outcome import Outcome
from controlplane.nodes.states import NodeSnapshot
from controlplane.nodes.steps import cleaning, deploying, enrolled, inspecting, qualifying, releasing
from controlplane.nodes.steps.metal import acting, is_bare
from controlplane.nodes.steps.metal import cleaning as metal_cleaning
from controlplane.nodes.steps.metal import deploying as metal_deploying
from controlplane.nodes.steps.metal import inspecting as metal_inspecting
from controlplane.nodes.steps.metal import lending as metal_lending
from controlplane.nodes.steps.metal import qualifying as metal_qualifying
from controlplane.nodes.steps.metal import releasing as metal_releasing
from controlplane.nodes.steps.metal import updating as metal_updating
from controlplane.nodes.steps.metal.accounts import is_unsettled, settle
from controlplane.nodes.steps.reserved import reserve
from controlplane.providers.toolbox import Toolbox

Step = Callable[[NodeSnapshot, Toolbox], Outcome]


def _either(owned: Step, bare: Step) -> Callable[[Any, Any], Outcome]:
    """
    The first for a machine whose provider owns its whole life, the second for one that we drive through its controller: once it is
    settled which of two passwords lets us in there.
    """

    def step(node: NodeSnapshot, tools: Toolbox) -> Outcome:
        if is_unsettled(node):
            return settle(node, tools)
        return bare(node, tools) if is_bare(node) else owned(node, tools)

    return step


STEPS: Mapping[str, Callable[[Any, Any], Outcome]] = {
    "enrolled": _either(enrolled.begin, metal_inspecting.meet),
    "inspecting": _either(inspecting.inspect, metal_inspecting.inspect),
    "updating": metal_updating.update,
    "qualifying": _either(qualifying.qualify, metal_qualifying.qualify),
    "checking": _either(metal_lending.wait_out, metal_lending.lend),
    "reserved": reserve,
    "deploying": _either(deploying.deploy, metal_deploying.deploy),
    "restarting": acting.restart,
    "stopping": acting.stop,
    "starting": acting.start,
    "reinstalling": acting.reinstall,
    "rescuing": acting.rescue,
    "releasing": _either(releasing.release, metal_releasing.release),
    "cleaning": _either(cleaning.clean, metal_cleaning.clean),
}
