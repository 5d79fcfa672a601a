"""
The whole wanted cluster, as the provider is told it.
"""

from controlplane.clusters.states import ClusterSnapshot, MemberSnapshot
from controlplane.providers.clusters import ClusterSpec, Member


def staying(cluster: ClusterSnapshot) -> list[MemberSnapshot]:
    """
    The members that are deployed and are to stay.
    """
    return [one for one in cluster.members if one.state == "active" and one.allocation_id not in cluster.leaving]


def wanted(cluster: ClusterSnapshot) -> ClusterSpec:
    """
    Exactly the members that stay.
    """
    sets = {one.id: (one.name, one.instance_type) for one in cluster.sets}
    return ClusterSpec(
        cluster_id=cluster.id,
        tenant_id=cluster.tenant_id,
        project_id=cluster.project_id,
        user=cluster.user,
        members=tuple(
            Member(
                one.ref,
                one.gpus,
                one.allocation_id,
                *sets.get(one.node_set_id, ("", "")),
                leads=one.role == "control_plane",
            )
            for one in staying(cluster)
        ),
        version=cluster.version,
    )
