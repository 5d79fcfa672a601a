"""
What vendors do, one rule each: added to `FakeBmc.rules`, it answers before the ordinary controller does. Each names who does it.
"""

from __future__ import annotations

from typing import Any

from tests.simulators.redfish.server import Answer, FakeBmc, Rule, no
from tests.simulators.redfish.tree import MANAGER, SYSTEM, V1, collection, ref, slot

OVERRIDE = {"BootSourceOverrideTarget", "BootSourceOverrideEnabled", "BootSourceOverrideMode"}
SD = f"{SYSTEM}/SD"


def insert_needs(*names: str) -> Rule:
    """
    An insert without one of these is refused, one at a time. sushy 5.14, `virtual_media.insert_media`: TransferProtocolType and
    TransferMethod on several, UserName and Password on NVIDIA DGX.
    """

    def rule(method: str, path: str, content: dict[str, Any]) -> Answer | None:
        if method == "POST" and path.endswith("InsertMedia"):
            for name in names:
                if name not in content:
                    return no(400, "Base.1.8.ActionParameterMissing", f"the action requires the parameter {name}", name)
        return None

    return rule


def insert_refuses(*names: str) -> Rule:
    """
    An insert with one of these is refused. Supermicro X11 and X12: Inserted and WriteProtected.
    """

    def rule(method: str, path: str, content: dict[str, Any]) -> Answer | None:
        if method == "POST" and path.endswith("InsertMedia") and set(names) & set(content):
            return no(400, "Base.1.8.ActionParameterUnknown", "unknown parameter")
        return None

    return rule


def kvm_slot(place: str, status: int) -> Rule:
    """
    The drive serves the console only. Cisco UCS and C845A: 400 or 405.
    """

    def rule(method: str, path: str, _: dict[str, Any]) -> Answer | None:
        if method == "POST" and path.startswith(f"{place}/"):
            return no(status, "Base.1.8.ActionNotSupported", "for the console only")
        return None

    return rule


def boot_takes_all_or_nothing(method: str, path: str, content: dict[str, Any]) -> Answer | None:
    """
    An override holds mode, enabled and target together. AMI, ASRockRack.
    """
    if method == "PATCH" and "Boot" in content and set(content["Boot"]) != OVERRIDE:
        return no(400, "Base.1.8.PropertyMissing", f"all of {', '.join(sorted(OVERRIDE))} on {path}")
    return None


def boot_refuses_the_unchanged(bmc: FakeBmc) -> Rule:
    """
    An override must not hold what is so already: "others" of the quirk table, where BootSourceOverrideEnabled is sent unchanged.
    """

    def rule(method: str, path: str, content: dict[str, Any]) -> Answer | None:
        boot = content.get("Boot", {}) if method == "PATCH" and path == SYSTEM else {}
        if any(bmc.system["Boot"].get(name) == value for name, value in boot.items()):
            return no(400, "Base.1.8.PropertyValueConflict", "it is so already")
        return None

    return rule


def reset_is_busy(code: str, status: int = 400) -> Rule:
    """
    A reset is refused with the vendor's word for busy. iDRAC: SYS518; iLO: InvalidOperationForSystemState.
    """

    def rule(method: str, path: str, _: dict[str, Any]) -> Answer | None:
        return no(status, code, "not ready after the previous operation") if method == "POST" and path.endswith("Reset") else None

    return rule


def redirect(old: str, new: str) -> Rule:
    """
    A name that is not the resource's own is redirected: sushy-tools answers 307 to a system's name.
    """

    def rule(_: str, path: str, __: dict[str, Any]) -> Answer | None:
        return (307, None, {"Location": new}) if path == old else None

    return rule


def with_boot_in_settings_object(bmc: FakeBmc, *, linked: bool) -> None:
    """
    Boot settings stand in `/Systems/Self/SD` only, linked or not. AMI, Gigabyte (metal-operator 188).
    """
    bmc.tree[SD] = {"@odata.id": SD, "Boot": dict(bmc.system["Boot"])}
    if linked:
        bmc.system["@Redfish.Settings"] = {"SettingsObject": ref(SD)}


def as_supermicro(bmc: FakeBmc) -> None:
    """
    A USB drive for virtual media, and the vendor's own locks. sushy 5.14; NVIDIA/libredfish supermicro.
    """
    bmc.system["Manufacturer"] = "Supermicro"
    bmc.system["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"] += ["UsbCd"]
    oem = f"{MANAGER}/Oem/Supermicro"
    bmc.tree[f"{oem}/SysLockdown"] = {"@odata.id": f"{oem}/SysLockdown", "SysLockdownEnabled": False}
    bmc.tree[f"{oem}/KCSInterface"] = {"@odata.id": f"{oem}/KCSInterface", "Privilege": "Administrator"}


def as_dell(bmc: FakeBmc, *, model: str, version: str) -> str:
    """
    An iDRAC of that generation and version; the path of its attributes. Ironic, drac boot.
    """
    bmc.system["Manufacturer"] = "Dell Inc."
    bmc.tree[MANAGER] |= {"Model": model, "FirmwareVersion": version}
    path = f"{MANAGER}/Oem/Dell/DellAttributes/BMC"
    bmc.tree[path] = {"@odata.id": path, "Attributes": {"OS-BMC.1.AdminState": "Enabled"}}
    return path


def with_slots(bmc: FakeBmc, *slots: tuple[str, tuple[str, ...], bool], under: str = SYSTEM) -> list[str]:
    """
    Virtual drives (name, media types, whether it has actions) under the system or a manager, and nowhere else; their paths.
    """
    bmc.system.pop("VirtualMedia", None)
    bmc.tree[MANAGER].pop("VirtualMedia", None)
    place = f"{under}/VirtualMedia"
    paths = [f"{place}/{name}" for name, _, _ in slots]
    bmc.tree[under]["VirtualMedia"] = ref(place)
    bmc.tree[place] = collection(*paths)
    for path, (_, kinds, action) in zip(paths, slots, strict=True):
        bmc.tree[path] = slot(path, *kinds, action=action)
    return paths


def by_upload_only(bmc: FakeBmc) -> None:
    """
    Firmware by upload only. NVIDIA GH200, recorded.
    """
    bmc.tree[f"{V1}/UpdateService"] = {"MultipartHttpPushUri": "/redfish/v1/UpdateService/update-multipart", "Actions": {}}
