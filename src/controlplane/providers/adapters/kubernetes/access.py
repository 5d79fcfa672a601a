"""
Where one registered Kubernetes is and how we show who we are.
"""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.kube.access import Access, operators_access


def access(config: KubernetesConfig, secrets: Mapping[str, str]) -> Access:
    """
    The way in that the operator gave. Raises Permanent, without repeating a secret.
    """
    return operators_access(secrets, url=config.url, ca_pem=config.ca_pem, context=config.context)
