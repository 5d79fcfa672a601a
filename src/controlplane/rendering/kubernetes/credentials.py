"""
Ways into a cluster that end by themselves, signed with its own authority: nobody is asked for them and nothing is kept.

Source: kubernetes.io, "Authenticating", X.509 client certificates: the common name is the user, each organisation a group.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime

from controlplane.kit.certificates import sign_client
from controlplane.rendering.kubernetes.files import yaml_text
from controlplane.rendering.kubernetes.keys import Authority

OWNERS = "controlplane:owners"
"""Group of the cluster's owner; `manifests.owners` binds it to the role cluster-admin, so that unbinding it takes every way in back."""
DRIVERS = "controlplane:drivers"
"""Group of the control plane itself."""


def kubeconfig(
    authority: Authority, *, server: str, cluster: str, user: str, groups: Sequence[str], now: datetime, ends: datetime
) -> str:
    """
    A kubeconfig for the user with a key and a certificate of its own, which the API server takes until `ends`.
    """
    certificate, key = sign_client((authority.certificate, authority.key), user, groups, now, ends)
    return yaml_text(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": cluster, "cluster": {"server": server, "certificate-authority-data": _base64(authority.certificate)}}
            ],
            "users": [{"name": user, "user": {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        }
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
