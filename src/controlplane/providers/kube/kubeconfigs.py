"""
Kubeconfigs that we hand out, and the token in them, as pure functions.
"""

from __future__ import annotations

from typing import Any

import yaml

Json = dict[str, Any]


def kubeconfig_text(cluster_id: str, server: Json, user: Json, namespace: str = "") -> str:
    """
    The kubeconfig of one server and one user, both by the cluster's id.
    """
    context = {"cluster": cluster_id, "user": cluster_id} | ({"namespace": namespace} if namespace else {})
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster_id, "cluster": server}],
        "users": [{"name": cluster_id, "user": user}],
        "contexts": [{"name": cluster_id, "context": context}],
        "current-context": cluster_id,
    }
    return yaml.safe_dump(whole, sort_keys=False)


def token_request(lifetime_s: int) -> Json:
    """
    What is asked of the server: a token for itself that ends after so many seconds.
    """
    spec = {"audiences": [], "expirationSeconds": lifetime_s}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
