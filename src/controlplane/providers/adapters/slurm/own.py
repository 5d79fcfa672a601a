"""
A Slurm that is one tenant's alone: its members are its nodes, and what they are stands in files that whoever made it renews.
"""

from __future__ import annotations

from collections import Counter

from controlplane.providers.adapters.slurm.peer import Peer
from controlplane.providers.adapters.slurm.walls import answering, gpu_words, member_view
from controlplane.providers.clusters import ClusterList, ClusterSpec, ClusterView
from controlplane.providers.errors import Refused, Unsupported
from controlplane.providers.machines import Check, CheckResult


class Own:
    """
    The Clusters port on a whole Slurm.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def apply(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`. Nothing is changed: members are told to the head by its own files. Raises Refused while they differ.
        """
        wanted, there = {member.ref for member in spec.members}, {node.name for node in self._peer.nodes()}
        if wanted != there:
            words = f"{len(wanted - there)} members are not in this Slurm and {len(there - wanted)} of its nodes are not members"
            raise Refused(words, code="provider_unknown_member")

    def observe(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`.
        """
        nodes = self._peer.nodes()
        load = Counter(ref for job in self._peer.jobs() if not job.ended and not job.waits for ref in job.nodes)
        members = tuple(member_view(node.name, node, load[node.name], self._peer.names) for node in nodes)
        answers = answering(members)
        counted: CheckResult = answers if answers != "passed" or all(node.gpus for node in nodes) else "not_measured"
        return ClusterView(
            cluster_id=cluster_id,
            members=members,
            verified_at=None,
            checks=(
                Check("nodes_answer", answers, f"{sum(node.answers for node in nodes)} of {len(nodes)}"),
                Check("gpu_count", counted, gpu_words(nodes)),
                Check("fabric_bandwidth", "not_measured", "Slurm does not measure the fabric"),
            ),
            version=self._peer.release(),
        )

    def delete(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`. It ends with its machines, not before. Raises Unsupported.
        """
        raise Unsupported(f"{cluster_id} ends with its machines", code="provider_dedicated")

    def list_ids(self) -> ClusterList:
        """
        See `Clusters.list_clusters`. It knows its cluster by no id of ours, so the list is never complete.
        """
        return ClusterList(cluster_ids=(), complete=False)

    def drain(self, cluster_id: str, refs: tuple[str, ...], *, reason: str) -> None:
        """
        See `Clusters.drain`. The list on the head does it. Raises Unsupported.
        """
        raise Unsupported(f"{len(refs)} nodes of {cluster_id} cannot be drained from here: {reason}", code="provider_dedicated")

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """
        See `Clusters.undrain`. Raises Unsupported, as `drain`.
        """
        raise Unsupported(f"{len(refs)} nodes of {cluster_id} cannot be undrained from here", code="provider_dedicated")
