"""
What the Kubernetes adapter is told of a dedicated cluster, beside its keys.
"""

from __future__ import annotations

from typing import Any

from controlplane.rendering.kubernetes.checking import check_plan
from controlplane.rendering.kubernetes.credentials import DRIVERS, OWNERS
from controlplane.rendering.kubernetes.inplace import MARK as API_MARK
from controlplane.rendering.kubernetes.manifests import NVIDIA
from controlplane.rendering.kubernetes.members import MARK
from controlplane.rendering.kubernetes.plan import API_PORT, KubernetesPlan

JOB_IMAGE = "docker.io/library/debian:bookworm-slim"
"""What jobs run in that name no image."""


def adapter_config(plan: KubernetesPlan, cluster_id: str, tenant_id: str) -> dict[str, Any]:
    """
    How the cluster's API is reached from outside of it: the first control plane that stays, by its address, under the name that all of
    them have; the others where that one is not reached.
    """
    check_plan(plan)
    lead, *others = (f"https://{one.address}:{API_PORT}" for one in sorted(plan.founders, key=lambda one: one.standing != "stays"))
    own = {
        "cluster_id": cluster_id,
        "tenant_id": tenant_id,
        "server_name": plan.api_name,
        "others": others,
        "drivers": DRIVERS,
        "owners": OWNERS,
        "mark": MARK,
        "api_mark": API_MARK,
    }
    made: dict[str, Any] = {"url": lead, "dedicated": own}
    if plan.has_gpus:
        made["gpu_runtime_class"] = NVIDIA
    if plan.registry:
        made["image"] = plan.image(JOB_IMAGE)
    return made
