"""
Fields that the documents of kubeadm, kubelet, kube-proxy and k3s may have, as far as we use them or are likely to.

Source: kubernetes.io, "kubeadm Configuration (v1beta4)", "Kubelet Configuration (v1beta1)", "kube-proxy Configuration (v1alpha1)";
docs.k3s.io, "k3s server", "k3s agent". A name stands for its type: str, int, bool, a list of one type, or fields of its own.
"""

from __future__ import annotations

from typing import Any

ARGS = [{"name": str, "value": str}]
ENVS = [{"name": str, "value": str}]
VOLUMES = [{"name": str, "hostPath": str, "mountPath": str, "readOnly": bool, "pathType": str}]
COMPONENT = {"extraArgs": ARGS, "extraVolumes": VOLUMES, "extraEnvs": ENVS}
ENDPOINT = {"advertiseAddress": str, "bindPort": int}
TIMEOUTS = dict.fromkeys(
    ("controlPlaneComponentHealthCheck", "kubeletHealthCheck", "kubernetesAPICall", "etcdAPICall", "tlsBootstrap", "discovery"), str
)
REGISTRATION = {
    "name": str,
    "criSocket": str,
    "taints": [{"key": str, "value": str, "effect": str}],
    "kubeletExtraArgs": ARGS,
    "ignorePreflightErrors": [str],
    "imagePullPolicy": str,
    "imagePullSerial": bool,
}
COMMON = {"apiVersion": str, "kind": str}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "InitConfiguration": {
        **COMMON,
        "bootstrapTokens": [{"token": str, "description": str, "ttl": str, "expires": str, "usages": [str], "groups": [str]}],
        "dryRun": bool,
        "nodeRegistration": REGISTRATION,
        "localAPIEndpoint": ENDPOINT,
        "certificateKey": str,
        "skipPhases": [str],
        "patches": {"directory": str},
        "timeouts": TIMEOUTS,
    },
    "JoinConfiguration": {
        **COMMON,
        "dryRun": bool,
        "nodeRegistration": REGISTRATION,
        "caCertPath": str,
        "discovery": {
            "bootstrapToken": {"token": str, "apiServerEndpoint": str, "caCertHashes": [str], "unsafeSkipCAVerification": bool},
            "file": {"kubeConfigPath": str},
            "tlsBootstrapToken": str,
        },
        "controlPlane": {"localAPIEndpoint": ENDPOINT, "certificateKey": str},
        "skipPhases": [str],
        "patches": {"directory": str},
        "timeouts": TIMEOUTS,
    },
    "ClusterConfiguration": {
        **COMMON,
        "etcd": {"local": {"dataDir": str, "imageRepository": str, "imageTag": str, "extraArgs": ARGS, "serverCertSANs": [str]}},
        "networking": {"serviceSubnet": str, "podSubnet": str, "dnsDomain": str},
        "kubernetesVersion": str,
        "controlPlaneEndpoint": str,
        "apiServer": {**COMPONENT, "certSANs": [str]},
        "controllerManager": COMPONENT,
        "scheduler": COMPONENT,
        "dns": {"imageRepository": str, "imageTag": str, "disabled": bool},
        "proxy": {"disabled": bool},
        "certificatesDir": str,
        "imageRepository": str,
        "featureGates": dict,
        "clusterName": str,
        "encryptionAlgorithm": str,
        "certificateValidityPeriod": str,
        "caCertificateValidityPeriod": str,
    },
    "KubeletConfiguration": {
        **COMMON,
        "cgroupDriver": str,
        "clusterDNS": [str],
        "clusterDomain": str,
        "rotateCertificates": bool,
        "serverTLSBootstrap": bool,
        "readOnlyPort": int,
        "authentication": {"anonymous": {"enabled": bool}, "webhook": {"enabled": bool, "cacheTTL": str}},
        "containerLogMaxSize": str,
        "containerLogMaxFiles": int,
        "systemReserved": dict,
        "kubeReserved": dict,
        "evictionHard": dict,
        "shutdownGracePeriod": str,
        "shutdownGracePeriodCriticalPods": str,
        "maxPods": int,
    },
    "KubeProxyConfiguration": {**COMMON, "clusterCIDR": str, "mode": str, "metricsBindAddress": str},
}
VERSIONS = {
    "InitConfiguration": "kubeadm.k8s.io/v1beta4",
    "JoinConfiguration": "kubeadm.k8s.io/v1beta4",
    "ClusterConfiguration": "kubeadm.k8s.io/v1beta4",
    "KubeletConfiguration": "kubelet.config.k8s.io/v1beta1",
    "KubeProxyConfiguration": "kubeproxy.config.k8s.io/v1alpha1",
}
AGENT: dict[str, Any] = {
    "server": str,
    "token": str,
    "token-file": str,
    "data-dir": str,
    "node-name": str,
    "node-ip": str,
    "node-label": [str],
    "node-taint": [str],
    "kubelet-arg": [str],
    "kube-proxy-arg": [str],
    "container-runtime-endpoint": str,
    "pause-image": str,
    "private-registry": str,
    "flannel-iface": str,
    "resolv-conf": str,
    "protect-kernel-defaults": bool,
}
SERVER: dict[str, Any] = {
    **AGENT,
    "cluster-init": bool,
    "agent-token": str,
    "agent-token-file": str,
    "tls-san": [str],
    "bind-address": str,
    "advertise-address": str,
    "cluster-cidr": str,
    "service-cidr": str,
    "cluster-dns": str,
    "cluster-domain": str,
    "flannel-backend": str,
    "disable": [str],
    "disable-cloud-controller": bool,
    "disable-network-policy": bool,
    "secrets-encryption": bool,
    "write-kubeconfig": str,
    "write-kubeconfig-mode": str,
    "system-default-registry": str,
    "kube-apiserver-arg": [str],
    "kube-controller-manager-arg": [str],
    "kube-scheduler-arg": [str],
}


def misfits(value: Any, wanted: Any, where: str = "") -> list[str]:
    """
    Every part of the value that the type does not know.
    """
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [each for place, one in enumerate(value) for each in misfits(one, wanted[0], f"{where}.{place}")]
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return [f"{where}: not an object"]
        unknown = [f"{where}.{name}: unknown" for name in value if name not in wanted]
        return unknown + [
            each for name, one in value.items() if name in wanted for each in misfits(one, wanted[name], f"{where}.{name}")
        ]
    return [] if type(value) is wanted else [f"{where}: {type(value).__name__} instead of {wanted.__name__}"]
