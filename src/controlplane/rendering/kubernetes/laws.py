"""
What Kubernetes and etcd refuse, or survive, by their own rules. Pure.

Source: kubernetes.io, "Version Skew Policy", "Upgrading kubeadm clusters"; etcd.io, "Runtime reconfiguration".
"""

from __future__ import annotations

KUBELETS_BEHIND = 3
"""Minor releases that a kubelet may be older than the API server that it talks to; it may never be newer."""


def parts_of(version: str) -> tuple[int, int, int]:
    """
    1.36.2 as numbers, with or without `v` before it or a distribution's own `+k3s1` behind it. Raises ValueError.
    """
    major, minor, patch = version.removeprefix("v").split("+")[0].split(".")
    return int(major), int(minor), int(patch)


def same(one: str, other: str) -> bool:
    """
    Whether both name one version of Kubernetes; what is no version is the same as nothing.
    """
    try:
        return parts_of(one) == parts_of(other)
    except ValueError:
        return False


def upgrade_refusal(current: str, target: str) -> str | None:
    """
    Why a cluster of the one version does not become one of the other in one step; None where it does. Raises ValueError.
    """
    old, new = parts_of(current), parts_of(target)
    if new == old:
        return f"it has {current} already"
    if new < old:
        return f"{target} is older than {current}, and nothing goes back over what a newer API server has stored"
    if new[0] != old[0] or new[1] > old[1] + 1:
        return f"from {current} to {target} skips a minor release: {old[0]}.{old[1] + 1} comes first"
    return None


def serves(api: str, kubelet: str) -> bool:
    """
    Whether an API server of the one version takes a kubelet of the other. Raises ValueError.
    """
    server, node = parts_of(api), parts_of(kubelet)
    return node[0] == server[0] and server[1] - KUBELETS_BEHIND <= node[1] and node[:2] <= server[:2]


def quorum(members: int) -> int:
    """
    How many of so many members of etcd must answer for it to take a change.
    """
    return members // 2 + 1


def may_part(members: int, ready_others: int) -> bool:
    """
    Whether etcd of so many members goes on while one of them is taken out and another comes in its place, when so many of the others are
    ready: those others alone must be a quorum of what is left, as the one that comes may never start.
    """
    return members > 1 and ready_others >= quorum(members - 1) and ready_others >= quorum(members)
