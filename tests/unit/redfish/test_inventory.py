"""
What machines have that no recording shows: boards and cards told twice, parts that do not answer, controllers of several machines.
"""

from __future__ import annotations

import pytest

from controlplane.providers.adapters.redfish.inventory import take_inventory
from controlplane.providers.errors import AuthFailed, NotFound, ProviderError, Refused, Unknown
from controlplane.providers.hardware import Drive, Gpu, HardwareInventory, Nic
from tests.unit.redfish.controllers import BOARD, CHASSIS, HOST, OK, V1, Controller, Resources, collection, hgx, link, resource

GPU_1 = Gpu("GPU_SXM_1", "H100 80GB HBM3", "1650000000001", 80, "96.00.99", "ok", 700.0)
GPU_2 = Gpu("GPU_SXM_2", "H100 80GB HBM3", "1650000000002", 80, "96.00.99", "ok", 700.0)
EXPECTED = HardwareInventory(
    uuid="0b6c1a6e-0000-4000-8000-00000000abcd",
    vendor="Maker",
    model="Server 9",
    serial="S1",
    cpus=128,
    memory_gib=64,
    gpus=(GPU_1, GPU_2),
    nics=(Nic("eth0", "aa:bb:cc:00:00:01", "up", 25.0),),
    drives=(Drive("0", "Disk", "D-1", 10**12, "ok"),),
    firmware={
        "BIOS": "1.0",
        "BMC": "24.05",
        "GPU_SXM_1": "96.00.99",
        "GPU_SXM_2": "96.00.99",
        "HGX_FW_FPGA_0": "1.61",
        "HGX_FW_GPU_SXM_1": "96.00.99",
    },
)


def _take(tree: Resources, *, expand: str = "ignored") -> HardwareInventory:
    return take_inventory(Controller(tree, expand=expand), HOST)


@pytest.mark.parametrize("expand", ["ignored", "yes", "refused"])
def test_host_and_board_are_one_machine(expand: str) -> None:
    """GPUs of the board, everything else of the host, texts trimmed, placeholders left out."""
    assert _take(hgx(), expand=expand) == EXPECTED


def test_expansion_saves_most_calls_and_is_dropped_once_refused() -> None:
    """One refusal is enough; where it works, fewer calls are made."""
    plain, expanding, refusing = (Controller(hgx(), expand=expand) for expand in ("ignored", "yes", "refused"))
    for controller in (plain, expanding, refusing):
        take_inventory(controller, HOST)
    assert len(expanding.asked) < len(plain.asked) * 3 / 4
    assert sum("$expand" in path for path in refusing.asked) == 1


def test_a_card_the_host_lists_too_is_told_once() -> None:
    """By its UUID, or by its serial number when it tells no UUID; the board's name of it and the worst health win."""
    tree = hgx()
    copies = [
        resource(tree, f"{HOST}/Processors/GPU1", ProcessorType="GPU", UUID="00000001-aaaa-4000-8000-000000000000", Status=OK),
        resource(tree, f"{HOST}/Processors/GPU2", ProcessorType="GPU", SerialNumber="1650000000002 ", Status={"Health": None}),
    ]
    collection(tree, f"{HOST}/Processors", f"{HOST}/Processors/CPU_0", *copies)
    found = _take(tree)
    assert [(gpu.slot, gpu.health) for gpu in found.gpus] == [("GPU_SXM_1", "ok"), ("GPU_SXM_2", "unknown")]
    assert found.cpus == 128


def test_gpus_of_one_board_share_a_serial_number() -> None:
    """Siblings with one serial number and no UUIDs are two GPUs; with one UUID they are one."""
    tree = hgx()
    for number in (1, 2):
        tree[f"{BOARD}/Processors/GPU_SXM_{number}"] |= {"UUID": None, "SerialNumber": "1650000000009"}
    assert len(_take(tree).gpus) == 2
    for number in (1, 2):
        tree[f"{BOARD}/Processors/GPU_SXM_{number}"]["UUID"] = "00000001-aaaa-4000-8000-000000000000"
    assert len(_take(tree).gpus) == 1


def test_slots_are_in_the_order_of_their_numbers() -> None:
    """GPU_SXM_10 comes after GPU_SXM_2."""
    tree = hgx()
    tenth = resource(tree, f"{BOARD}/Processors/GPU_SXM_10", ProcessorType="GPU", SerialNumber="1650000000010", Status=OK)
    collection(tree, f"{BOARD}/Processors", tenth, *(f"{BOARD}/Processors/GPU_SXM_{number}" for number in (2, 1)))
    assert [gpu.slot for gpu in _take(tree).gpus] == ["GPU_SXM_1", "GPU_SXM_2", "GPU_SXM_10"]


def test_null_is_unknown_and_absent_is_said() -> None:
    """A GPU with nothing but nulls is there and unknown; a place that is absent holds none."""
    tree = hgx()
    first, second = (tree[f"{BOARD}/Processors/GPU_SXM_{number}"] for number in (1, 2))
    for key in set(first) - {"@odata.id", "@odata.type", "Id"}:
        first[key] = None
    second["Status"] = {"State": "Absent", "Health": None}
    found = _take(tree)
    assert found.gpus == (Gpu("GPU_SXM_1"),)
    assert not found.complete


@pytest.mark.parametrize("error", [Unknown("timeout"), NotFound("gone"), Refused("no")])
def test_a_gpu_that_does_not_answer_is_named(error: ProviderError) -> None:
    """The inventory goes on without it and is not complete."""
    controller = Controller(hgx())
    controller.faults[f"{BOARD}/Processors/GPU_SXM_2"] = error
    found = take_inventory(controller, HOST)
    assert found.gpus == (GPU_1,)
    assert (found.complete, found.unread) == (False, (f"Systems/HGX_Baseboard_0/Processors/GPU_SXM_2: {error.code}",))


def test_fewer_members_than_counted_is_incomplete() -> None:
    """A list that is shorter than its own count proves no absence."""
    tree = hgx()
    tree[f"{BOARD}/Processors"]["Members"].pop()
    found = _take(tree)
    assert (found.gpus, found.complete) == ((GPU_1,), False)


def test_a_system_without_processors_proves_no_absence() -> None:
    """GPUs that nobody lists may be there."""
    tree = hgx()
    del tree[BOARD]["Processors"]
    assert not _take(tree).complete


def test_a_processor_without_a_kind_is_told_by_its_name_or_named_as_unread() -> None:
    """Never dropped in silence."""
    tree = hgx()
    tree[f"{BOARD}/Processors/GPU_SXM_1"]["ProcessorType"] = None
    tree[f"{BOARD}/Processors/GPU_SXM_2"]["ProcessorType"] = "FPGA"
    odd = resource(tree, f"{BOARD}/Processors/Thing", ProcessorType=["GPU"], Status=OK)
    collection(tree, f"{BOARD}/Processors", *(f"{BOARD}/Processors/GPU_SXM_{number}" for number in (1, 2)), odd)
    found = _take(tree)
    assert found.gpus == (GPU_1,)
    assert found.unread == ("Systems/HGX_Baseboard_0/Processors/Thing: does not tell what kind of processor it is",)


def test_cards_that_are_only_pcie_devices_are_found() -> None:
    """By class and vendor of a function: the controller's own display and the network card are none."""
    tree = hgx()
    del tree[BOARD]
    collection(tree, f"{V1}/Systems", HOST)
    devices = {"8": ("NVIDIA", "0x10de", "ProcessingAccelerators"), "1": ("ASPEED", "0x1a03", "DisplayController")}
    devices |= {"9": ("NVIDIA", "0x15b3", "NetworkController"), "7": ("", "0x1002", "DisplayController")}
    paths = []
    for name, (maker, vendor, kind) in devices.items():
        path = f"{CHASSIS}/PCIeDevices/{name}"
        function = resource(tree, f"{path}/PCIeFunctions/0", DeviceClass=kind, VendorId=vendor)
        collection(tree, f"{path}/PCIeFunctions", function)
        paths.append(
            resource(tree, path, Manufacturer=maker, Model=f"M{name}", PCIeFunctions=link(f"{path}/PCIeFunctions"), Status=OK)
        )
    collection(tree, f"{CHASSIS}/PCIeDevices", *paths)
    tree[CHASSIS]["PCIeDevices"] = link(f"{CHASSIS}/PCIeDevices")
    assert [(gpu.slot, gpu.model, gpu.health) for gpu in _take(tree).gpus] == [("7", "M7", "ok"), ("8", "M8", "ok")]


def test_pages_are_followed_and_circles_end() -> None:
    """Both members of two pages are found; a circle is noted."""
    tree = hgx()
    path, following = f"{BOARD}/Processors", f"{BOARD}/Processors?$skip=1"
    links = tree[path]["Members"]
    tree[path] |= {"Members": links[:1], "Members@odata.nextLink": following}
    tree[following] = {"Members": links[1:], "Members@odata.count": 2}
    assert _take(tree) == EXPECTED
    tree[following]["Members@odata.nextLink"] = path
    found = _take(tree)
    assert found.gpus == EXPECTED.gpus
    assert found.unread == ("Systems/HGX_Baseboard_0/Processors: has pages that lead nowhere",)


@pytest.mark.parametrize(
    "odd", ["http://192.0.2.1/redfish/v1/Systems/1", "//192.0.2.1/x", "/etc/passwd", f"{V1}/../../etc", f"{V1}/%2e%2e/x"]
)
def test_links_that_leave_the_tree_are_not_followed(odd: str) -> None:
    """A controller cannot send our credentials elsewhere."""
    tree = hgx()
    tree[f"{BOARD}/Processors"]["Members"][1] = link(odd)
    controller = Controller(tree)
    found = take_inventory(controller, HOST)
    assert not [path for path in controller.asked if not path.startswith(V1) or ".." in path or "%2e" in path]
    assert (found.gpus, found.complete) == ((GPU_1,), False)


def test_a_controller_that_falls_silent_is_left_alone() -> None:
    """Three timeouts in a row end the look: each would have cost the whole timeout."""
    controller = Controller(hgx())
    for path in list(controller.resources):
        if path.startswith((BOARD, f"{HOST}/")):
            controller.faults[path] = Unknown("timeout")
    found = take_inventory(controller, HOST)
    assert len(controller.asked) < 10
    assert not found.complete
    assert "controller: stopped answering" in found.unread


def test_a_refused_credential_is_raised_at_once() -> None:
    """More calls would lock the account."""
    controller = Controller(hgx())
    controller.faults[f"{HOST}/Processors"] = AuthFailed("401")
    with pytest.raises(AuthFailed):
        take_inventory(controller, HOST)
    assert controller.asked[-1].startswith(f"{HOST}/Processors")


@pytest.mark.parametrize("error", [NotFound("gone"), Unknown("timeout"), AuthFailed("401")])
def test_without_the_system_there_is_no_inventory(error: ProviderError) -> None:
    """Its own error is raised."""
    controller = Controller(hgx())
    controller.faults[HOST] = error
    with pytest.raises(type(error)):
        take_inventory(controller, HOST)


def test_an_endless_tree_has_an_end() -> None:
    """A collection of thousands that cannot be expanded costs 1,500 calls."""
    tree = hgx()
    drives = [resource(tree, f"{HOST}/Storage/1/Drives/{number}", Status=OK) for number in range(3000)]
    tree[f"{HOST}/Storage/1"]["Drives"] = [link(path) for path in drives]
    controller = Controller(tree)
    found = take_inventory(controller, HOST)
    assert len(controller.asked) <= 1502
    assert "controller: has more than 1500 resources" in found.unread
    assert len(found.unread) < 100


def test_a_sibling_machine_is_left_out() -> None:
    """On a controller of two machines only what the system links to is its own, and whose the board is cannot be told."""
    tree = hgx()
    sibling = resource(tree, f"{V1}/Systems/System_1", Actions={"#ComputerSystem.Reset": {}}, Status=OK)
    collection(tree, f"{V1}/Systems", HOST, BOARD, sibling)
    other = resource(tree, f"{V1}/Chassis/Other", NetworkAdapters=link(f"{V1}/Chassis/Other/NetworkAdapters"))
    collection(tree, f"{V1}/Chassis", CHASSIS, other)
    controller = Controller(tree)
    found = take_inventory(controller, HOST)
    assert found.gpus == ()
    assert "Systems/HGX_Baseboard_0: belongs to one of several machines" in found.unread
    assert not [path for path in controller.asked if path.startswith(other)]


def test_memory_is_summed_from_its_modules_when_nobody_did() -> None:
    """All or nothing, and without what sits on GPUs."""
    tree = hgx()
    tree[HOST]["MemorySummary"] = {"TotalSystemMemoryGiB": None}
    hbm = resource(tree, f"{HOST}/Memory/GPU_0_DRAM_0", MemoryDeviceType="HBM3", CapacityMiB=81920, Status=OK)
    collection(tree, f"{HOST}/Memory", *(f"{HOST}/Memory/D{number}" for number in (1, 2, 3)), hbm)
    assert _take(tree).memory_gib == 64
    tree[f"{HOST}/Memory/D2"]["CapacityMiB"] = "32768"
    assert _take(tree).memory_gib == 0


def test_memory_of_a_gpu_is_that_of_all_its_modules() -> None:
    """Where the GPU itself does not tell; unknown when one of them does not answer."""
    tree = hgx()
    gpu = tree[f"{BOARD}/Processors/GPU_SXM_1"]
    del gpu["MemorySummary"]
    assert _take(tree).gpus[0].memory_gib == 80
    gpu["Links"]["Memory"].append(link(f"{BOARD}/Memory/Gone"))
    assert _take(tree).gpus[0].memory_gib == 0


def test_logical_cpus_are_unknown_unless_all_sockets_tell() -> None:
    """The summary wins; a socket without a count makes the sum unknown, and so does one that is missing."""
    tree = hgx()
    tree[HOST]["ProcessorSummary"] = {"Count": 2}
    assert _take(tree).cpus == 0
    tree[HOST]["ProcessorSummary"] = {"Count": 1, "LogicalProcessorCount": 96}
    assert _take(tree).cpus == 96
    tree[HOST]["ProcessorSummary"] = None
    tree[f"{HOST}/Processors/CPU_0"]["TotalThreads"] = None
    assert _take(tree).cpus == 0


def test_ports_of_adapters_join_the_interfaces_by_mac() -> None:
    """One port seen in both places is one; a port without a MAC is told, one for storage only and a virtual one are not."""
    tree = hgx()
    adapters = f"{CHASSIS}/NetworkAdapters"
    tree[CHASSIS]["NetworkAdapters"] = link(adapters)
    card = resource(tree, f"{adapters}/A", Ports=link(f"{adapters}/A/Ports"), NetworkDeviceFunctions=link(f"{adapters}/A/F"))
    collection(tree, adapters, card)
    ports = {"1": ("LinkUp", 25), "2": ("LinkDown", 400), "3": ("LinkUp", 400)}
    for name, (state, speed) in ports.items():
        resource(tree, f"{card}/Ports/{name}", LinkStatus=state, CurrentSpeedGbps=speed)
    tree[f"{card}/Ports/3"]["InfiniBand"] = {}
    collection(tree, f"{card}/Ports", *(f"{card}/Ports/{name}" for name in ports))
    functions = {"f1": "aabbcc000001", "f2": "AA:BB:CC:00:00:02", "f4": "00:00:00:00:00:00"}
    for number, (name, mac) in enumerate(functions.items(), start=1):
        assigned = {"PhysicalPortAssignment": link(f"{card}/Ports/{number}")} if number < 3 else {}
        resource(tree, f"{card}/F/{name}", Ethernet={"MACAddress": mac}, Links=assigned, NetDevFuncType="Ethernet")
    tree[f"{card}/F/f4"]["NetDevFuncType"] = "FibreChannel"
    collection(tree, f"{card}/F", *(f"{card}/F/{name}" for name in functions))
    tree[f"{HOST}/EthernetInterfaces/eth0"] |= {"LinkStatus": None, "SpeedMbps": None}
    virtual = resource(tree, f"{HOST}/EthernetInterfaces/br0", EthernetInterfaceType="Virtual", MACAddress="AA:BB:CC:00:00:09")
    collection(tree, f"{HOST}/EthernetInterfaces", f"{HOST}/EthernetInterfaces/eth0", virtual)
    assert _take(tree).nics == (
        Nic("3", "", "up", 400.0),
        Nic("eth0", "aa:bb:cc:00:00:01", "up", 25.0),
        Nic("f2", "aa:bb:cc:00:00:02", "down", 400.0),
    )


def test_a_drive_under_two_controllers_is_one_and_equal_names_are_told_apart() -> None:
    """By serial number; names get the storage's in front when they are not unique."""
    tree = hgx()
    same = resource(tree, f"{HOST}/Storage/2/Drives/0", Model="Disk", SerialNumber="D-1", Status=OK)
    other = resource(tree, f"{HOST}/Storage/3/Drives/0", Model="Disk", SerialNumber="D-2", FailurePredicted=True, Status=OK)
    second, third = (resource(tree, f"{HOST}/Storage/{n}", Drives=[link(path)]) for n, path in ((2, same), (3, other)))
    collection(tree, f"{HOST}/Storage", f"{HOST}/Storage/1", second, third)
    assert _take(tree).drives == (Drive("1/0", "Disk", "D-1", 10**12, "ok"), Drive("3/0", "Disk", "D-2", 0, "warning"))


def test_drives_come_from_simple_storage_where_there_is_no_other() -> None:
    """Without the backplane that some list among them."""
    tree = hgx()
    del tree[HOST]["Storage"]
    devices = [{"Name": "Bay 1", "Model": "X ", "CapacityBytes": 10**9, "Status": OK}, {"Name": "Backplane 1", "Status": OK}]
    collection(tree, f"{HOST}/SimpleStorage", resource(tree, f"{HOST}/SimpleStorage/1", Devices=[*devices, {"Name": "Bay 2"}]))
    tree[HOST]["SimpleStorage"] = link(f"{HOST}/SimpleStorage")
    assert _take(tree).drives == (Drive("Bay 1", "X", "", 10**9, "ok"), Drive("Bay 2"))


def test_firmware_that_is_not_in_force_is_left_out() -> None:
    """Dell lists what was and what could be beside what is, each with its version in the id."""
    tree = hgx()
    inventory = f"{V1}/UpdateService/FirmwareInventory"
    versions = {"Installed-159-2.0__BIOS.Setup.1-1": "2.0", "Previous-159-1.0__BIOS.Setup.1-1": "1.0"}
    versions |= {"Current-159-1.9__BIOS.Setup.1-1": "1.9", "Available-7-3.0__NIC.1": "3.0", "Current-8-4.0__NIC.2": "4.0"}
    collection(tree, inventory, *(resource(tree, f"{inventory}/{name}", Version=version) for name, version in versions.items()))
    found = _take(tree).firmware
    assert {name: version for name, version in found.items() if "." in name} == {"BIOS.Setup.1-1": "2.0", "NIC.2": "4.0"}


def test_identity_of_a_machine_that_tells_none_is_its_chassis() -> None:
    """Then the service's; placeholders and a UUID of zeros are none."""
    tree = hgx()
    tree[HOST] |= {
        "Manufacturer": "To be filled by O.E.M.",
        "Model": "",
        "SerialNumber": "N/A",
        "UUID": "00000000-0000-0000-0000-000000000000",
    }
    tree[CHASSIS] |= {"Model": "Chassis 9", "SerialNumber": "C1"}
    found = _take(tree)
    assert (found.uuid, found.vendor, found.model, found.serial) == ("", "Vendor", "Chassis 9", "C1")
