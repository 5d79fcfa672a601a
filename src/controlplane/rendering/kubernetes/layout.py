"""
Where things stand on a host, and how the API is asked there.
"""

from __future__ import annotations

from controlplane.rendering.kubernetes.plan import Distribution, KubernetesPlan

OURS = "/etc/controlplane/kubernetes"
"""Folder of what the control plane lays down and no distribution looks for."""
ADDONS = f"{OURS}/addons"
"""Manifests, applied in the order of their names."""
AFTER = f"{OURS}/after"
"""Manifests of kinds that a chart brings, applied when all charts are installed."""
CHARTS = f"{OURS}/charts"
"""Values of Helm charts."""
INIT, JOIN, JOIN_CONTROL_PLANE, CLUSTER = (f"{OURS}/{name}.yaml" for name in ("init", "join", "join-control-plane", "cluster"))
"""kubeadm's documents."""
CONTROL_PLANES = f"{OURS}/control-planes"
"""Names and addresses."""
FOUNDER = f"{OURS}/founder"
"""Name of the control plane that founds the cluster where no other answers; `-` once it was founded: an empty disk founds no second one."""
MEMBERS = f"{OURS}/members"
"""Workers, what becomes of each, and where they hang in the fabric."""
LEADS = f"{OURS}/leads"
"""Control planes and what becomes of each, as members are listed."""
VERSIONS = f"{OURS}/versions"
"""Hosts that have a later version than the others, and the others' in the last line."""
LEVEL = f"{OURS}/version"
"""What this host was brought to: a line as in the list, without its name."""
STAMP = f"{OURS}/joined"
"""Is there once the host is part of the cluster."""
KUBELET = "/etc/kubernetes/kubelet.conf"
"""kubeadm's: is there once the host's kubelet has a certificate of its own."""
PROGRAMS = "/usr/local/lib/controlplane"
FOLLOW, FOLLOW_VERSION, APPLY = (f"{PROGRAMS}/{name}" for name in ("follow-members", "follow-version", "apply-addons"))
HOSTS = "/etc/hosts"
PKI = "/etc/kubernetes/pki"
K3S_CONFIG = "/etc/rancher/k3s/config.yaml"
K3S_ROLE = "/etc/rancher/k3s/config.yaml.d/10-role.yaml"
"""Whether this server founds or joins: written on the host, as all servers are given the same files."""
K3S_TLS = "/var/lib/rancher/k3s/server/tls"
K3S_TOKENS = {role: f"/etc/rancher/k3s/{role}-token" for role in ("server", "agent")}
_KUBECTL: dict[Distribution, str] = {
    "kubeadm": "kubectl --kubeconfig=/etc/kubernetes/admin.conf",
    "k3s": "k3s kubectl --kubeconfig=/etc/rancher/k3s/k3s.yaml",
}
_HELM: dict[Distribution, str] = {
    "kubeadm": "helm --kubeconfig=/etc/kubernetes/admin.conf",
    "k3s": "helm --kubeconfig=/etc/rancher/k3s/k3s.yaml",
}


def kubectl(plan: KubernetesPlan) -> str:
    """
    How a control plane calls kubectl with all rights.
    """
    return _KUBECTL[plan.distribution]


def helm(plan: KubernetesPlan) -> str:
    """
    How a control plane calls helm with all rights.
    """
    return _HELM[plan.distribution]


def api_url(plan: KubernetesPlan) -> str:
    """
    Where hosts of the cluster find the API.
    """
    return f"https://{plan.api_at}"


def authority_path(plan: KubernetesPlan) -> str:
    """
    Where a control plane has the certificate of the cluster's authority.
    """
    return f"{PKI}/ca.crt" if plan.distribution == "kubeadm" else f"{K3S_TLS}/server-ca.crt"
