"""
A node that was chosen for a cluster.
"""

from controlplane.kit.outcome import Advance, Outcome
from controlplane.nodes.states import NodeSnapshot
from controlplane.providers.toolbox import Toolbox


def reserve(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The node goes on to be deployed, or back when its order was withdrawn meanwhile.
    """
    del tools
    return Advance("releasing", "The order was withdrawn.") if node.cancel else Advance("deploying")
