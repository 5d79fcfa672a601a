"""
What a host and a Machine say of themselves, in the words of our ports. Pure.

Source: metal3.io/v1alpha1 BareMetalHost, `status.provisioning.state`, `status.operationHistory`; cluster.x-k8s.io Machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.marks import Mark
from controlplane.providers.adapters.clusterapi.names import CLUSTER, DRAIN, GOES_FIRST, OF_CLUSTER, labels_of, notes_of
from controlplane.providers.clusters import MemberState
from controlplane.providers.kube.reading import instant, ready_condition
from controlplane.providers.machines import Check, CheckResult, Inventory, Phase, Power

Json = dict[str, Any]
AVAILABLE = frozenset({"available", "ready"})
"""States of a host that nothing is installed on; `ready` is what older Metal3 called it."""
SETTLED = AVAILABLE | {"provisioned"}
HELD = frozenset({"deployed", "releasing"})
CLEANS = "metadata"
NEVER = datetime(1, 1, 1, tzinfo=UTC)


def state_of(host: Json) -> str:
    """
    Where Metal3 has the host.
    """
    return str((host.get("status", {}).get("provisioning") or {}).get("state") or "")


def consumer(host: Json) -> str:
    """
    The name of the Metal3Machine, or of whatever else, that has the host; empty for nothing.
    """
    ref = host.get("spec", {}).get("consumerRef") or {}
    return f"{ref.get('kind', '')}/{ref.get('name', '')}" if ref else ""


def machine_of(host: Json, machines: Iterable[Json]) -> Json | None:
    """
    The Machine whose Metal3Machine has the host.
    """
    return next((one for one in machines if consumer(host) == f"Metal3Machine/{infrastructure(one)}"), None)


def infrastructure(machine: Json) -> str:
    """
    The name of the Machine's Metal3Machine.
    """
    return str((machine.get("spec", {}).get("infrastructureRef") or {}).get("name") or "")


def is_foreign(host: Json, ours: str) -> bool:
    """
    Whether the host is in use by something that is not the cluster named `ours`; empty: by anything.
    """
    if not consumer(host):
        return bool(host.get("spec", {}).get("externallyProvisioned"))
    return not ours or labels_of(host).get(OF_CLUSTER) != ours


def power_of(host: Json) -> Power:
    """
    As it was read back; Metal3 tells nothing of a host that it does not manage yet.
    """
    on = host.get("status", {}).get("poweredOn")
    return "unknown" if on is None or state_of(host) in {"", "unmanaged", "registering"} else "on" if on else "off"


def trouble(host: Json) -> str:
    """
    What Metal3 says is wrong with the host; empty for nothing.
    """
    status = host.get("status", {})
    if status.get("errorMessage"):
        return f"{status.get('errorType', 'error')}: {status['errorMessage']}"[:500]
    operational = status.get("operationalStatus", "")
    return "" if operational in {"OK", ""} else f"operational status {operational}"


def phase_of(host: Json, mark: Mark) -> Phase:
    """
    Where the host stands in its life with us.
    """
    if mark.phase == "deployed":
        # once ready it has been deployed, whatever befell it since; the member's own state tells that
        return "deployed" if mark.ready else "deploying"
    if mark.phase == "releasing" and not mark.wipe:
        return "released" if is_back(host) else "releasing"
    if mark.wipe:
        return "wiped" if mark.wiped else "failed" if never_cleans(host) else "wiping"
    return "idle"


def is_back(host: Json) -> bool:
    """
    Whether nothing of a cluster has the host, and it is switched off where it can be.
    """
    unpowered = power_of(host) == "off" or bool(host.get("spec", {}).get("disablePowerOff"))
    return not consumer(host) and CLUSTER not in labels_of(host) and state_of(host) in AVAILABLE and unpowered


def never_cleans(host: Json) -> bool:
    """
    Whether whoever owns the host has switched cleaning off. Where nothing is said, Metal3 cleans.
    """
    return str(host.get("spec", {}).get("automatedCleaningMode", CLEANS)) != CLEANS


def uncleaned(host: Json, mark: Mark) -> str:
    """
    Why the host is not known to be clean, in words; empty when it is: whatever was installed on it was taken off again, and cleaned, since.
    """
    spec = host.get("spec", {})
    cleaned, dirty = _happened(host, "deprovision", "end"), instant(mark.uncleaned)
    reasons = (
        (bool(consumer(host)), f"{consumer(host)} has it"),
        (CLUSTER in labels_of(host), "it still carries the marks of a cluster"),
        (bool(trouble(host)), trouble(host)),
        (state_of(host) not in AVAILABLE, f"it is {state_of(host) or 'not known to Metal3'}"),
        (never_cleans(host), "its automatedCleaningMode is not metadata"),
        (bool(spec.get("image") or spec.get("customDeploy")), "an image is about to be written to it"),
        (_happened(host, "provision", "start") > cleaned, "it was not cleaned since an image was written to it"),
        (dirty is not None and dirty >= cleaned, "it was not cleaned since it came back with cleaning switched off"),
    )
    return next((words for holds, words in reasons if holds), "")


def wipe_checks(host: Json) -> tuple[Check, ...]:
    """
    What a finished wipe has shown.
    """
    at = _happened(host, "deprovision", "end")
    told = "nothing was ever written to it" if at == NEVER else f"Ironic cleaned it until {at.isoformat()}"
    return (
        Check("disk_metadata", "passed", told),
        Check("unused", "passed", "no Machine has the host and no image is on it"),
        Check("disk_blocks", "not_measured", "automated cleaning erases partition tables, not blocks, unless Ironic is told to"),
        Check("gpu_memory", "not_measured", "Metal3 does not read the memory of GPUs"),
        Check("firmware_baseline", "not_measured", "Metal3 does not compare firmware"),
        Check("bmc_baseline", "not_measured", "Metal3 does not read the BMC's accounts"),
    )


def checks(host: Json, *, held: bool) -> tuple[Check, ...]:
    """
    What Metal3 knows of the host that decides whether it may be sold.
    """
    wrong = trouble(host)
    left = consumer(host) or ("marks of a cluster" if CLUSTER in labels_of(host) else "")
    return (
        _check("host_manageable", not wrong and state_of(host) in SETTLED, wrong or f"state {state_of(host) or 'unknown'}"),
        _check("cleaning_enabled", not never_cleans(host), "automatedCleaningMode"),
        _check("residue", held or not left, left),
        Check("gpu_burn_in", "not_measured", "Metal3 runs no burn-in"),
        Check("fabric_bandwidth", "not_measured", "Metal3 does not measure the fabric"),
    )


def inventory(host: Json, config: ClusterApiConfig, models: Mapping[str, str]) -> Inventory | None:
    """
    What Metal3's inspection found, with GPUs as the operator's labels tell them; None before there was an inspection.
    """
    found = host.get("status", {}).get("hardware")
    if not found:
        return None
    kept = labels_of(host)
    count = kept.get(config.gpu_count_label, "") if config.gpu_count_label else ""
    model = kept.get(config.gpu_model_label, "") if config.gpu_model_label else ""
    bios = (found.get("firmware") or {}).get("bios") or {}
    return Inventory(
        gpu_model=models.get(model, ""),
        gpus=int(count) if count.isdecimal() else None,
        memory_gib=int(found.get("ramMebibytes") or 0) // 1024,
        cpus=int((found.get("cpu") or {}).get("count") or 0),
        serial=str((found.get("systemVendor") or {}).get("serialNumber") or ""),
        firmware={"bios": str(bios["version"])} if bios.get("version") else {},
    )


def member_state(machine: Json | None, node: Json | None, *, pinned: bool) -> MemberState:
    """
    Where a worker stands, from its Machine and its Node. Without a Node it is absent: it has not joined, or has left. A cordon of the
    cluster's owner is the owner's affair: only one that we asked for counts.
    """
    if machine is None or node is None:
        return "absent" if pinned or machine is None else "draining"
    if not pinned or machine["metadata"].get("deletionTimestamp") or GOES_FIRST in notes_of(machine):
        return "draining"
    ready = ready_condition(node)
    if ready is None:
        return "joining"
    if ready.get("status") != "True":
        return "down"
    return "drained" if node.get("spec", {}).get("unschedulable") and DRAIN in notes_of(node) else "up"


def condition(thing: Json, kind: str) -> Json | None:
    """
    The condition of that type; where an object has conditions of both of Cluster API's generations, the newer.
    """
    status = thing.get("status", {})
    for some in ((status.get("v1beta2") or {}).get("conditions"), status.get("conditions")):
        found: Json | None = next((one for one in some or [] if one.get("type") == kind), None)
        if found is not None:
            return found
    return None


def control_plane_check(cluster: Json) -> Check:
    """
    Whether Cluster API calls the control plane good.
    """
    told = condition(cluster, "ControlPlaneAvailable") or condition(cluster, "ControlPlaneReady") or {}
    result: CheckResult = {"True": "passed", "False": "failed"}.get(str(told.get("status")), "not_measured")  # type: ignore[assignment]
    return Check("control_plane", result, f"{told.get('reason', '')}: {told.get('message', '')}".strip(": ")[:500])


def topology_check(cluster: Json) -> Check | None:
    """
    What Cluster API cannot make of the order, in its words; None where it can. That it is still at it is no failure.
    """
    told = condition(cluster, "TopologyReconciled") or {}
    if told.get("status") == "False" and str(told.get("reason")) in {
        "ReconcileFailed",
        "TopologyReconcileFailed",
        "ClusterClassNotFound",
    }:
        return Check("topology", "failed", f"{told['reason']}: {told.get('message', '')}"[:500])
    return None


def version_of(machines: Iterable[Json], wanted: str) -> str:
    """
    The version that all Machines that stay have, of the control plane and of workers; empty while they differ, or while one of them has no
    Node yet: that is an upgrade, or a beginning.
    """
    told = [one for one in machines if not one["metadata"].get("deletionTimestamp")]
    found = {(str(one["spec"].get("version") or "")).removeprefix("v") for one in told}
    joined = all((one.get("status", {}).get("nodeRef") or {}).get("name") for one in told)
    return wanted if found == {wanted} and joined else ""


def _check(name: str, good: bool, detail: str) -> Check:  # noqa: FBT001 - a verdict, not a flag
    return Check(name, "passed" if good else "failed", detail)


def _happened(host: Json, operation: str, edge: str) -> datetime:
    history = host.get("status", {}).get("operationHistory") or {}
    return instant((history.get(operation) or {}).get(edge)) or NEVER
