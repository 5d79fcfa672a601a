"""
The life of a machine that nobody drives for us: power, media and the machine's own reports, put in order one call at a time.
"""

from controlplane.nodes.states import NodeSnapshot


def is_bare(node: NodeSnapshot) -> bool:
    """
    Whether we drive the machine through its management controller; else its provider owns its whole life.
    """
    return node.access is not None
