"""
Whom the certificates that a cluster's own authority signs speak for: groups, bound to roles by `manifests`.
"""

from __future__ import annotations

OWNERS = "controlplane:owners"
"""Group of the cluster's owner; `manifests.owners` binds it to the role cluster-admin, so that unbinding it takes every way in back."""
DRIVERS = "controlplane:drivers"
"""Group of the control plane itself."""
