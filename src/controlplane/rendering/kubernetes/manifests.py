"""
Objects that stand in a cluster from the start: who may come in, the pods' network, GPUs, figures. Written for what our plans need, and
no copies of what the projects publish.

Source: kubernetes.io, API reference of 1.36; the projects' own documentation of their programs' options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from controlplane.rendering.kubernetes.credentials import DRIVERS, OWNERS
from controlplane.rendering.kubernetes.kubeadm import GPU_LABEL
from controlplane.rendering.kubernetes.objects import EVERYWHERE, Object, bound, daemon, host_path, mount, namespace, rights, thing
from controlplane.rendering.kubernetes.plan import KubernetesPlan

IMAGES = {
    "flannel": "ghcr.io/flannel-io/flannel:v0.27.0",
    "flannel-cni": "ghcr.io/flannel-io/flannel-cni-plugin:v1.7.1-flannel1",
    "device-plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.17.4",
    "dcgm-exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3-4.1.3-ubuntu22.04",
    "metrics-server": "registry.k8s.io/metrics-server/metrics-server:v0.8.0",
}
"""Exactly these versions; an operator's mirror holds them under the same path."""
GPU_NAMESPACE = "controlplane-gpus"
NVIDIA = "nvidia"
"""Name of the container runtime with GPUs in containerd's configuration, which is the image's."""


def manifests(plan: KubernetesPlan) -> Mapping[str, Sequence[Object]]:
    """
    All objects by the name of their file, in the order they are applied in.
    """
    made: dict[str, Sequence[Object]] = {"10-owners": _owners()}
    if plan.distribution == "kubeadm":
        made["20-network"] = _network(plan)  # k3s brings the same one
    if plan.has_gpus and "gpu-operator" not in plan.addons.charts:  # which makes one itself
        made["30-runtime"] = [thing("node.k8s.io/v1", "RuntimeClass", NVIDIA, handler=NVIDIA)]
    if plan.has_gpus and plan.addons.gpus and "gpu-operator" not in plan.addons.charts:
        made["40-gpus"] = [namespace(GPU_NAMESPACE, privileged=True), *_device_plugin(plan), _exporter(plan), _exporter_service()]
    if plan.addons.metrics:
        made["50-metrics"] = _metrics(plan)
    return made


def manifests_after(plan: KubernetesPlan) -> Mapping[str, Sequence[Object]]:
    """
    Objects of kinds that charts bring, by the name of their file.
    """
    interfaces = sorted({interface for one in plan.shapes for interface in one.rdma_interfaces})
    chart = plan.addons.charts.get("network-operator")
    if chart is None or not interfaces:
        return {}
    chosen = {"resourceName": "rdma_shared", "rdmaHcaMax": 64, "selectors": {"ifNames": interfaces}}
    plugin = {
        "image": "k8s-rdma-shared-dev-plugin",
        "repository": plan.image("nvcr.io/nvidia/mellanox"),
        "version": f"network-operator-v{chart.version.removeprefix('v')}",
        "config": _json({"configList": [chosen]}),
    }
    # the operator looks at the policy of this name only
    return {
        "10-rdma": [
            thing("mellanox.com/v1alpha1", "NicClusterPolicy", "nic-cluster-policy", spec={"rdmaSharedDevicePlugin": plugin})
        ]
    }


def _owners() -> Sequence[Object]:
    """
    Who comes in with a kubeconfig of ours: groups, not `system:masters`, whose rights nothing could take back.
    """
    groups = {"controlplane-owners": OWNERS, "controlplane-drivers": DRIVERS}
    return [
        bound(name, "cluster-admin", {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group})
        for name, group in groups.items()
    ]


def _network(plan: KubernetesPlan) -> Sequence[Object]:
    name, where = "flannel", "kube-flannel"
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ]
    chain = {
        "name": "cbr0",
        "cniVersion": "1.0.0",
        "plugins": [
            {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True}},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    settings = {"Network": plan.networks.pods, "EnableNFTables": True, "Backend": {"Type": "vxlan"}}
    data = {"cni-conf.json": _json(chain), "net-conf.json": _json(settings)}
    return [
        namespace(where, privileged=True),
        *rights(name, where, rules),
        thing("v1", "ConfigMap", "flannel", where, data=data),
        daemon(name, where, _network_pod(plan)),
    ]


def _network_pod(plan: KubernetesPlan) -> Object:
    copies = [
        {
            "name": "install-plugin",
            "image": plan.image(IMAGES["flannel-cni"]),
            "command": ["cp", "-f", "/flannel", "/opt/cni/bin/flannel"],
            "volumeMounts": [mount("plugins", "/opt/cni/bin")],
        },
        {
            "name": "install-chain",
            "image": plan.image(IMAGES["flannel"]),
            "command": ["cp", "-f", "/etc/kube-flannel/cni-conf.json", "/etc/cni/net.d/10-flannel.conflist"],
            "volumeMounts": [mount("chains", "/etc/cni/net.d"), mount("settings", "/etc/kube-flannel", read_only=True)],
        },
    ]
    main = {
        "name": "flannel",
        "image": plan.image(IMAGES["flannel"]),
        "command": ["/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}.items()
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": {"privileged": False, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        "volumeMounts": [
            mount("run", "/run/flannel"),
            mount("settings", "/etc/kube-flannel", read_only=True),
            mount("xtables-lock", "/run/xtables.lock"),
        ],
    }
    return {
        "hostNetwork": True,
        "priorityClassName": "system-node-critical",
        "serviceAccountName": "flannel",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": EVERYWHERE,
        "initContainers": copies,
        "containers": [main],
        "volumes": [
            host_path("run", "/run/flannel"),
            host_path("plugins", "/opt/cni/bin"),
            host_path("chains", "/etc/cni/net.d"),
            host_path("xtables-lock", "/run/xtables.lock", "FileOrCreate"),
            {"name": "settings", "configMap": {"name": "flannel"}},
        ],
    }


def _on_gpu_nodes(containers: Sequence[Object], volumes: Sequence[Object]) -> Object:
    return {
        "priorityClassName": "system-node-critical",
        "runtimeClassName": NVIDIA,
        "automountServiceAccountToken": False,
        "nodeSelector": {GPU_LABEL: "true"},
        "tolerations": EVERYWHERE,
        "containers": list(containers),
        "volumes": list(volumes),
    }


def _device_plugin(plan: KubernetesPlan) -> Sequence[Object]:
    container = {
        "name": "device-plugin",
        "image": plan.image(IMAGES["device-plugin"]),
        "env": [
            # a node on which no driver answers must be seen as one without GPUs, not as one whose pod is there
            {"name": "FAIL_ON_INIT_ERROR", "value": "true"},
            {"name": "MIG_STRATEGY", "value": "mixed"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": {"privileged": True},
        "volumeMounts": [mount("device-plugins", "/var/lib/kubelet/device-plugins")],
    }
    volumes = [host_path("device-plugins", "/var/lib/kubelet/device-plugins", "Directory")]
    return [daemon("nvidia-device-plugin", GPU_NAMESPACE, _on_gpu_nodes([container], volumes))]


def _exporter(plan: KubernetesPlan) -> Object:
    container = {
        "name": "dcgm-exporter",
        "image": plan.image(IMAGES["dcgm-exporter"]),
        "env": [
            {"name": "DCGM_EXPORTER_LISTEN", "value": ":9400"},
            {"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "metrics"}, "initialDelaySeconds": 30},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": {"runAsUser": 0, "capabilities": {"add": ["SYS_ADMIN"]}},
        "volumeMounts": [mount("pod-resources", "/var/lib/kubelet/pod-resources", read_only=True)],
    }
    volumes = [host_path("pod-resources", "/var/lib/kubelet/pod-resources", "Directory")]
    return daemon("dcgm-exporter", GPU_NAMESPACE, _on_gpu_nodes([container], volumes))


def _exporter_service() -> Object:
    spec = {
        "clusterIP": "None",
        "selector": {"app.kubernetes.io/name": "dcgm-exporter"},
        "ports": [{"name": "metrics", "port": 9400, "targetPort": "metrics"}],
    }
    return thing("v1", "Service", "dcgm-exporter", GPU_NAMESPACE, spec=spec)


def _metrics(plan: KubernetesPlan) -> Sequence[Object]:
    name, where = "metrics-server", "kube-system"
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    readers = [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": where}
    delegated = bound(f"{name}:system:auth-delegator", "system:auth-delegator", subject)
    reading = thing(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        f"{name}-auth-reader",
        where,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "extension-apiserver-authentication-reader"},
        subjects=[subject],
    )
    aggregate = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("view", "edit", "admin")}
    return [
        *rights(name, where, rules),
        thing("rbac.authorization.k8s.io/v1", "ClusterRole", "metrics-readers", labels=aggregate, rules=readers),
        delegated,
        reading,
        thing("v1", "Service", name, where, spec=_METRICS_SERVICE),
        thing("apps/v1", "Deployment", name, where, spec=_metrics_deployment(plan)),
        thing("apiregistration.k8s.io/v1", "APIService", "v1beta1.metrics.k8s.io", spec=_METRICS_API),
    ]


_METRICS_SERVICE = {
    "selector": {"app.kubernetes.io/name": "metrics-server"},
    "ports": [{"name": "https", "port": 443, "targetPort": "https"}],
}
_METRICS_API = {
    "group": "metrics.k8s.io",
    "version": "v1beta1",
    "groupPriorityMinimum": 100,
    "versionPriority": 100,
    "insecureSkipTLSVerify": True,
    "service": {"name": "metrics-server", "namespace": "kube-system"},
}


def _metrics_deployment(plan: KubernetesPlan) -> Object:
    probe = {"scheme": "HTTPS", "port": "https"}
    container = {
        "name": "metrics-server",
        "image": plan.image(IMAGES["metrics-server"]),
        "args": [
            "--secure-port=10250",
            "--cert-dir=/tmp",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-use-node-status-port",
            # kubelets sign their own serving certificates here, as kubeadm leaves it
            "--kubelet-insecure-tls",
            "--metric-resolution=15s",
        ],
        "ports": [{"name": "https", "containerPort": 10250}],
        "livenessProbe": {"httpGet": {"path": "/livez", **probe}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", **probe}, "initialDelaySeconds": 20, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [mount("scratch", "/tmp")],  # noqa: S108 - in the container
    }
    pod = {
        "priorityClassName": "system-cluster-critical",
        "serviceAccountName": "metrics-server",
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    labels = {"app.kubernetes.io/name": "metrics-server"}
    return {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}


def _json(value: Object) -> str:
    return json.dumps(value, indent=2) + "\n"
