"""
Single nodes of clusters over HTTP.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from controlplane.clusters import instances, replacing
from controlplane.clusters.instance_schemas import (
    After,
    BootId,
    InstanceActionsOut,
    InstanceConsoleOut,
    InstanceOut,
    InstancesOut,
    ReinstallImage,
    console_out,
    instance_out,
)
from controlplane.clusters.schemas import ClusterOut, cluster_out
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint

router = APIRouter(tags=["Clusters"])
ALL = "/v1/projects/{project_id}/clusters/{cluster_id}/instances"
ONE = ALL + "/{instance_id}"


@endpoint(
    router,
    "GET",
    ALL,
    permission="clusters:read",
    answer=InstancesOut,
    summary="List the nodes of a cluster",
    works_suspended=True,
)
def list_instances(call: Call, project_id: str, cluster_id: str) -> InstancesOut:
    """
    Every node the cluster holds, by the id it has while it is part of the cluster.
    """
    found = instances.list_instances(call.session, call.principal, project_id, cluster_id)
    return InstancesOut(items=[instance_out(one) for one in found])


@endpoint(
    router,
    "POST",
    ONE + "/actions/replace",
    permission="clusters:update",
    status=202,
    answer=ClusterOut,
    summary="Replace a node of a cluster",
    problems=(409, 412, 428),
)
def replace_instance(call: Call, project_id: str, cluster_id: str, instance_id: str) -> Reply:
    """
    Another node near the others takes the place of this one, which is drained first, then taken out, wiped and looked at. It is billed
    until it is out, and counted once. A node with the role control_plane leaves etcd before the other joins, and only while the
    others are a quorum without it: it is refused otherwise. Needs If-Match with the cluster's version.
    """
    view, operation_id = replacing.replace_instance(
        call.session, call.principal, project_id, cluster_id, instance_id, call.check_version
    )
    call.audit_target = view.row.id
    call.nudge("cluster", view.row.id)
    return Reply(cluster_out(view), headers={"Location": f"/v1/operations/{operation_id}"}, etag=view.row.version)


@endpoint(
    router,
    "GET",
    ONE + "/actions",
    permission="clusters:read",
    answer=InstanceActionsOut,
    summary="What may be done with a node of a cluster",
    works_suspended=True,
)
def get_instance_actions(call: Call, project_id: str, cluster_id: str, instance_id: str) -> InstanceActionsOut:
    """
    Every verb, with the reason why it is not allowed now where it is not.
    """
    found = instances.allowed_actions(call.session, call.principal, project_id, cluster_id, instance_id)
    return InstanceActionsOut(actions=dict(found))


@endpoint(
    router,
    "GET",
    ONE + "/console",
    permission="clusters:read",
    answer=InstanceConsoleOut,
    summary="Show what a node wrote while it booted",
)
def get_instance_console(
    call: Call, project_id: str, cluster_id: str, instance_id: str, boot: BootId = None, after: After = 0
) -> InstanceConsoleOut:
    """
    The boots that the node went through for its present owner, and the console of one of them, the last by default; the last MiB of each is
    kept. Boots of earlier owners, checks and wipes are never shown.
    """
    return console_out(instances.read_console(call.session, call.principal, project_id, cluster_id, instance_id, boot, after))


def _act(call: Call, project_id: str, cluster_id: str, instance_id: str, verb: str, *, image_id: str | None = None) -> Reply:
    call.audit_target, call.audit_detail = instance_id, {"action": verb, "cluster_id": cluster_id}
    begun = instances.act(call.session, call.principal, project_id, cluster_id, instance_id, verb, call.check_version, image_id)
    call.nudge("node", begun.node_id)
    headers = {"Location": f"/v1/operations/{begun.operation_id}"}
    return Reply(instance_out(begun.instance), headers=headers, etag=begun.version)


def _verb(verb: str, summary: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return endpoint(
        router,
        "POST",
        f"{ONE}/actions/{verb}",
        permission="clusters:update",
        status=202,
        answer=InstanceOut,
        summary=summary,
        problems=(409, 412, 428),
    )


@_verb("reboot", "Reboot a node")
def reboot_instance(call: Call, project_id: str, cluster_id: str, instance_id: str) -> Reply:
    """
    The operating system is asked to shut down, power is cut when it has not in time, and the machine is switched on again. Bare metal
    only. Needs If-Match with the cluster's version.
    """
    return _act(call, project_id, cluster_id, instance_id, "reboot")


@_verb("power-cycle", "Power-cycle a node")
def power_cycle_instance(call: Call, project_id: str, cluster_id: str, instance_id: str) -> Reply:
    """
    Power is cut without asking the operating system, and switched on again. Bare metal only. Needs If-Match with the cluster's version.
    """
    return _act(call, project_id, cluster_id, instance_id, "power-cycle")


@_verb("stop", "Stop a node")
def stop_instance(call: Call, project_id: str, cluster_id: str, instance_id: str) -> Reply:
    """
    The machine is shut down and stays off, with its disks as they are. It stays the tenant's, and is billed as before. Bare metal only.
    Needs If-Match with the cluster's version.
    """
    return _act(call, project_id, cluster_id, instance_id, "stop")


@_verb("start", "Start a node")
def start_instance(call: Call, project_id: str, cluster_id: str, instance_id: str) -> Reply:
    """
    A stopped machine is switched on. Bare metal only. Needs If-Match with the cluster's version.
    """
    return _act(call, project_id, cluster_id, instance_id, "start")


@_verb("reinstall", "Reinstall a node")
def reinstall_instance(call: Call, project_id: str, cluster_id: str, instance_id: str, image: ReinstallImage = None) -> Reply:
    """
    The machine is deployed anew from its order's login and user-data, as a new instance to cloud-init, with its image or, where `image`
    names one, with that. Its disks are not wiped: what was on them is the tenant's own. If it does not come up it is left stopped. Bare
    metal only. Needs If-Match with the cluster's version.
    """
    return _act(call, project_id, cluster_id, instance_id, "reinstall", image_id=image)


@_verb("rescue", "Start a node's rescue system")
def rescue_instance(call: Call, project_id: str, cluster_id: str, instance_id: str) -> Reply:
    """
    Power is cut and the operator's rescue system is started, with the order's login and without its user-data. If it does not come up the
    machine is left stopped. Bare metal only. Needs If-Match with the cluster's version.
    """
    return _act(call, project_id, cluster_id, instance_id, "rescue")


@_verb("unrescue", "Leave a node's rescue system")
def unrescue_instance(call: Call, project_id: str, cluster_id: str, instance_id: str) -> Reply:
    """
    Power is cut and the machine is started as it was installed. Bare metal only. Needs If-Match with the cluster's version.
    """
    return _act(call, project_id, cluster_id, instance_id, "unrescue")
