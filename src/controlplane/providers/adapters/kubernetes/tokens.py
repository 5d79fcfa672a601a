"""
Kubeconfigs for a tenant's people: a token of a service account in the cluster's namespace, made by the server for a while and kept nowhere.
"""

from __future__ import annotations

import base64
from typing import Any

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.shared import Shared
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import Busy, NotFound, Refused, Unknown, Unsupported
from controlplane.providers.kube.access import Access
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.kubeconfigs import kubeconfig_text, token_request
from controlplane.providers.kube.reading import instant
from controlplane.providers.kube.work.names import TENANT, Names, core
from controlplane.providers.kube.work.walls import PEOPLE, people

Json = dict[str, Any]


class Tokens:
    """
    The SupportsKubeconfigs port.
    """

    def __init__(self, kube: Kube, names: Names, config: KubernetesConfig, way: Access, shared: Shared) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._shared = shared
        self._server: Json = {"server": config.tenant_url or way.url}
        ca_pem = config.tenant_ca_pem or way.ca_pem
        if ca_pem:
            self._server["certificate-authority-data"] = base64.b64encode(ca_pem.encode()).decode()
        if way.server_name and not config.tenant_url:
            self._server["tls-server-name"] = way.server_name

    def issue(self, cluster_id: str, tenant_id: str, lifetime_s: int) -> Kubeconfig:
        """
        See `SupportsKubeconfigs.issue_kubeconfig`.
        """
        if not str(self._server["server"]).startswith("https:"):
            raise Unsupported("kubectl shows a token to servers with TLS only: set tenant_url", code="kubeconfig_needs_tls")
        if lifetime_s > self._config.kubeconfig_max_s:
            raise Refused(f"at most {self._config.kubeconfig_max_s} s here", code="kubeconfig_too_long")
        space = self._shared.space(cluster_id)
        if (space["metadata"].get("annotations") or {}).get(TENANT) != tenant_id:
            raise Refused(f"{tenant_id} is not the tenant of {cluster_id}", code="provider_wrong_user")
        if space["metadata"].get("deletionTimestamp"):
            raise Busy("the namespace is being removed", retry_in_s=5.0, code="provider_namespace_terminating")
        status = self._request(cluster_id, tenant_id, lifetime_s).get("status") or {}
        token, expires_at = status.get("token"), instant(status.get("expirationTimestamp"))
        if not isinstance(token, str) or not token or expires_at is None:
            raise Unknown("the server's answer holds no token")
        text = kubeconfig_text(cluster_id, self._server, {"token": token}, self._names.namespace(cluster_id))
        return Kubeconfig(text, expires_at)

    def _request(self, cluster_id: str, tenant_id: str, lifetime_s: int) -> Json:
        """
        The server's TokenRequest; in a namespace that was made before there were kubeconfigs the account is made first.
        """
        path = core(self._names.namespace(cluster_id), "serviceaccounts", f"{PEOPLE}/token")
        body = token_request(lifetime_s)
        try:
            return self._kube.create(path, body)
        except NotFound:
            for part in people(self._names, cluster_id, tenant_id):
                self._kube.apply(part.path, part.body)
            return self._kube.create(path, body)
