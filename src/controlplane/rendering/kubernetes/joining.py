"""
Workers of a cluster that others set up: they join by a token that ends, and know its authority by a digest.

Source: kubernetes.io, "kubeadm join" (discovery by bootstrap token); docs.k3s.io, "k3s token": `K10<digest>::<id>.<secret>` names the
authority, and a bootstrap token makes an agent and never a server.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.rendering.kubernetes import k3s, kubeadm, layout
from controlplane.rendering.kubernetes.files import RenderedFile
from controlplane.rendering.kubernetes.plan import Distribution, KubernetesPlan
from controlplane.rendering.kubernetes.roles import host_files


@dataclass(frozen=True, slots=True)
class Entry:
    """
    What a host needs to join. Its repr shows no secret.
    """

    distribution: Distribution
    """Who set the cluster up."""
    version: str
    """Of its API server."""
    server: str
    """Host and port of the API, as hosts reach it."""
    token: str = field(repr=False)
    """A bootstrap token, `<id>.<secret>`."""
    authority: str
    """Digest of its authority: of the public key for kubeadm, of the certificate for k3s."""


def entry_files(plan: KubernetesPlan, entry: Entry, shape: str) -> tuple[RenderedFile, ...]:
    """
    Secret files of workers of this shape, which hold as long as the token does. Raises KeyError.
    """
    if entry.distribution == "kubeadm":
        return (kubeadm.join_with(plan, entry.token, f"sha256:{entry.authority}", plan.shape(shape)),)
    token = RenderedFile(layout.K3S_TOKENS["agent"], f"K10{entry.authority}::{entry.token}\n", 0o600, secret=True)
    return (k3s.agent_config(plan, shape), token)


def joining_files(plan: KubernetesPlan) -> tuple[RenderedFile, ...]:
    """
    Files of such workers without keys, by path. No hosts file: how the API is called is not ours to say.
    """
    files = [*host_files(plan, "worker")]
    if plan.distribution == "k3s":
        files.append(k3s.unit_file("worker"))
    return tuple(sorted(files, key=lambda one: one.path))
