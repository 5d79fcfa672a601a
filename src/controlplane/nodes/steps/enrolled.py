"""
A node that was just enrolled.
"""

from controlplane.kit.outcome import Advance, Outcome
from controlplane.nodes.states import NodeSnapshot
from controlplane.providers.toolbox import Toolbox


def begin(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The node goes on to inspection once its provider knows it.
    """
    tools.machines(node.provider).observe(node.ref)
    return Advance("inspecting")
