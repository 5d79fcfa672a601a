"""
k3s' files. All servers get the same, and all agents of a shape; whether a server founds or joins is written by its start script.

Source: docs.k3s.io, "k3s server", "k3s agent", "k3s token", "k3s certificate", "Configuration Options": keys are the flags' names.
"""

from __future__ import annotations

from typing import Any

from controlplane.rendering.kubernetes import layout
from controlplane.rendering.kubernetes.files import RenderedFile, text_file, yaml_text
from controlplane.rendering.kubernetes.keys import ClusterKeys
from controlplane.rendering.kubernetes.kubeadm import GPU_LABEL, name_server
from controlplane.rendering.kubernetes.plan import KubernetesPlan

UNITS = {"control_plane": "k3s.service", "worker": "k3s-agent.service"}
NO_TRAINS = ["traefik", "servicelb", "metrics-server"]
"""Parts of k3s that are left out: no traffic comes in by itself, and metrics-server is the same add-on for both distributions."""


def key_files(keys: ClusterKeys) -> tuple[RenderedFile, ...]:
    """
    The authorities as k3s looks for them before its first start, and the tokens of servers.

    One authority stands for servers and clients, and one for all of etcd, as with kubeadm: a kubeconfig is then signed alike.
    """
    made = {
        "server-ca": keys.cluster,
        "client-ca": keys.cluster,
        "request-header-ca": keys.front_proxy,
        "etcd/server-ca": keys.etcd,
        "etcd/peer-ca": keys.etcd,
    }
    files = [_secret(f"{layout.K3S_TLS}/{name}.crt", one.certificate, 0o644) for name, one in made.items()]
    files += [_secret(f"{layout.K3S_TLS}/{name}.key", one.key) for name, one in made.items()]
    files += [
        _secret(f"{layout.K3S_TLS}/service.key", keys.accounts),
        _secret(layout.K3S_TOKENS["server"], _token(keys, "server", keys.servers)),
        _secret(layout.K3S_TOKENS["agent"], f"{keys.agents}\n"),
    ]
    return tuple(files)


def agent_key_files(keys: ClusterKeys) -> tuple[RenderedFile, ...]:
    """
    The token of agents: it names the authority they must meet, and lets them be nothing but agents.
    """
    return (_secret(layout.K3S_TOKENS["agent"], _token(keys, "node", keys.agents)),)


def server_config(plan: KubernetesPlan) -> RenderedFile:
    """
    config.yaml of servers.
    """
    told: dict[str, Any] = {
        "token-file": layout.K3S_TOKENS["server"],
        "agent-token-file": layout.K3S_TOKENS["agent"],
        "tls-san": [plan.api_name, *(one.address for one in plan.founders)],
        "cluster-cidr": plan.networks.pods,
        "service-cidr": plan.networks.services,
        "cluster-dns": name_server(plan),
        "cluster-domain": plan.networks.domain,
        "flannel-backend": "vxlan",
        "disable": NO_TRAINS,
        "secrets-encryption": True,
        "write-kubeconfig-mode": "0600",
        "node-taint": ["node-role.kubernetes.io/control-plane=true:NoSchedule"],
        "kube-apiserver-arg": ["profiling=false"],
        "kubelet-arg": _KUBELET,
    }
    if plan.registry:
        told["system-default-registry"] = plan.registry
    return RenderedFile(layout.K3S_CONFIG, yaml_text(told), 0o600)


def agent_config(plan: KubernetesPlan, shape: str) -> RenderedFile:
    """
    config.yaml of agents of this shape.
    """
    wanted = plan.shape(shape)
    labels = [f"node.kubernetes.io/instance-type={wanted.name}", *([f"{GPU_LABEL}=true"] if wanted.gpus else [])]
    told = {
        "server": layout.api_url(plan),
        "token-file": layout.K3S_TOKENS["agent"],
        "node-label": labels,
        "kubelet-arg": _KUBELET,
    }
    return RenderedFile(layout.K3S_CONFIG, yaml_text(told), 0o600)


def unit_file(role: str) -> RenderedFile:
    """
    The unit: k3s comes as one program without one.
    """
    program = "server" if role == "control_plane" else "agent"
    lines = [
        "[Unit]",
        f"Description=Kubernetes of this cluster (k3s {program})",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=notify",
        f"ExecStart=/usr/local/bin/k3s {program}",
        "KillMode=process",
        "Delegate=yes",
        "LimitNOFILE=1048576",
        "LimitNPROC=infinity",
        "LimitCORE=infinity",
        "TasksMax=infinity",
        "TimeoutStartSec=0",
        "Restart=always",
        "RestartSec=5s",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return text_file(f"/etc/systemd/system/{UNITS[role]}", lines, on_change="systemctl daemon-reload")


_KUBELET = ["container-log-max-size=50Mi", "container-log-max-files=5", "system-reserved=cpu=500m,memory=2Gi"]


def _token(keys: ClusterKeys, user: str, password: str) -> str:
    return f"K10{keys.cluster.digest}::{user}:{password}\n"


def _secret(path: str, content: str, mode: int = 0o600) -> RenderedFile:
    return RenderedFile(path, content, mode, secret=True)
