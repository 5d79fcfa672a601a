"""
What a machine has against what was bought. A part that cannot be seen is never said to be well.

Severities: `blocking` keeps the machine out, `warning` is for a person to look at, `info` is what could not be measured.
"""

from collections.abc import Iterable, Mapping

from controlplane.nodes.states import Expected
from controlplane.nodes.steps.metal.models import catalog_model
from controlplane.providers.hardware import Drive, Gpu, HardwareInventory, Nic
from controlplane.providers.machines import Inventory

Finding = dict[str, str]
MEMORY_TOLERANCE = 0.95
"""Firmware keeps some of what was bought."""
GPU_MEMORY_TOLERANCE = 0.85
"""Makers name gigabytes, controllers tell what error correction leaves, in gibibytes."""
SIZE_TOLERANCE = 0.98
"""Drives of one size differ by a little between makers."""
GIB = 1024**3


def find_differences(
    expected: Expected, seen: Inventory | HardwareInventory, models: Mapping[str, str] | None = None
) -> list[Finding]:
    """
    Every difference between what was bought and what was found, and everything that could not be compared, as {check, severity,
    message}. `models` are the operator's words for GPU models that controllers print.
    """
    bare = isinstance(seen, HardwareInventory)
    whole = summarize(seen, models or {}) if isinstance(seen, HardwareInventory) else seen
    names = _named(seen, models or {})
    found = [*_gpus(expected, whole), *_models(expected, names), *_memory(expected, whole), *_serial(expected, whole)]
    if isinstance(seen, HardwareInventory):
        found += [*_gpu_memory(expected, seen.gpus), *_ports(expected, seen), *_drives(expected, seen)]
    found += _firmware(expected, whole.firmware)
    return found if bare else [*found, *_unseen(expected)]


def summarize(seen: HardwareInventory, models: Mapping[str, str]) -> Inventory:
    """
    The inventory in the words of the catalog. A controller that shows no GPU at all may not see any: their number is then unknown.
    """
    named = _named(seen, models)
    return Inventory(
        gpu_model=named[0] if len(named) == 1 else "",
        gpus=len(seen.gpus) or None,
        memory_gib=seen.memory_gib,
        cpus=seen.cpus,
        serial=seen.serial,
        firmware=seen.firmware,
    )


def _named(seen: Inventory | HardwareInventory, models: Mapping[str, str]) -> list[str]:
    """
    The GPU models that were told, each once, in the words of the catalog.
    """
    if isinstance(seen, Inventory):
        return [seen.gpu_model] if seen.gpu_model else []
    return sorted({catalog_model(gpu.model, models) for gpu in seen.gpus if gpu.model})


def _gpus(expected: Expected, seen: Inventory) -> Iterable[Finding]:
    if seen.gpus is None:
        yield _finding("gpu_count", "info", f"not seen from outside; {expected.gpus} expected")
    elif seen.gpus != expected.gpus:
        yield _finding("gpu_count", "blocking", f"{seen.gpus} GPUs found, {expected.gpus} expected")


def _models(expected: Expected, named: list[str]) -> Iterable[Finding]:
    if not named:
        yield _finding("gpu_model", "info", f"not told; {expected.gpu_model} expected")
    elif named != [expected.gpu_model]:
        yield _finding("gpu_model", "blocking", f"{' and '.join(named)} found, {expected.gpu_model} expected")


def _memory(expected: Expected, seen: Inventory) -> Iterable[Finding]:
    if not seen.memory_gib:
        yield _finding("memory", "info", f"not told; {expected.memory_gib} GiB expected")
    elif seen.memory_gib < expected.memory_gib * MEMORY_TOLERANCE:
        yield _finding("memory", "warning", f"{seen.memory_gib} GiB found, {expected.memory_gib} GiB expected")


def _serial(expected: Expected, seen: Inventory) -> Iterable[Finding]:
    if expected.serial is None:
        return
    if not seen.serial:
        yield _finding("serial", "info", f"not told; {expected.serial} expected")
    elif seen.serial.casefold() != expected.serial.casefold():
        yield _finding("serial", "blocking", f"{seen.serial} found, {expected.serial} expected: another machine stands here")


def _gpu_memory(expected: Expected, gpus: tuple[Gpu, ...]) -> Iterable[Finding]:
    wanted = expected.parts.gpu_memory_gib
    if wanted is None or not gpus:
        return
    small = [one for one in gpus if one.memory_gib and one.memory_gib < wanted * GPU_MEMORY_TOLERANCE]
    if small:
        words = ", ".join(f"{one.slot} {one.memory_gib} GiB" for one in small)
        yield _finding("gpu_memory", _severity(expected, "gpu_memory_gib"), f"{words} found, {wanted} GiB expected of each")
    unknown = sum(1 for one in gpus if not one.memory_gib)
    if unknown:
        yield _finding("gpu_memory", "info", f"not told by {unknown} of {len(gpus)} GPUs; {wanted} GiB expected of each")


def _ports(expected: Expected, seen: HardwareInventory) -> Iterable[Finding]:
    wanted, rate = expected.parts.nics, expected.parts.nic_gbit_s
    if wanted is None:
        return
    fast, unknown = _fast(seen.nics, rate)
    of = f" of {rate} Gbit/s" if rate else ""
    if fast >= wanted:
        return
    if fast + unknown >= wanted or not seen.complete:
        yield _finding("nic_count", "info", f"{fast} ports{of} seen, {unknown} do not tell their rate; {wanted} expected")
    else:
        yield _finding("nic_count", _severity(expected, "nics", "nic_gbit_s"), f"{fast} ports{of} found, {wanted} expected")


def _fast(nics: tuple[Nic, ...], rate: int | None) -> tuple[int, int]:
    """
    How many ports have the rate, and how many do not tell: a port without a link shows no speed.
    """
    if rate is None:
        return len(nics), 0
    return sum(1 for one in nics if (one.speed_gbps or 0) >= rate), sum(1 for one in nics if one.speed_gbps is None)


def _drives(expected: Expected, seen: HardwareInventory) -> Iterable[Finding]:
    wanted, size = expected.parts.drives, expected.parts.drive_gib
    if wanted is None:
        return
    large, unknown = _large(seen.drives, size)
    of = f" of {size} GiB" if size else ""
    if large >= wanted:
        return
    if large + unknown >= wanted or not seen.complete:
        yield _finding("drive_count", "info", f"{large} drives{of} seen, {unknown} do not tell their size; {wanted} expected")
    else:
        yield _finding("drive_count", _severity(expected, "drives", "drive_gib"), f"{large} drives{of} found, {wanted} expected")


def _large(drives: tuple[Drive, ...], size: int | None) -> tuple[int, int]:
    if size is None:
        return len(drives), 0
    least = size * GIB * SIZE_TOLERANCE
    return sum(1 for one in drives if one.size_bytes >= least), sum(1 for one in drives if not one.size_bytes)


def _firmware(expected: Expected, seen: Mapping[str, str]) -> Iterable[Finding]:
    for component, versions in sorted(expected.parts.firmware.items()):
        wanted = " or ".join(versions)
        if component not in seen:
            yield _finding(f"firmware:{component}", "info", f"not told; {wanted} expected")
        elif seen[component] not in versions:
            yield _finding(f"firmware:{component}", "blocking", f"{seen[component]} found, {wanted} expected")


def _unseen(expected: Expected) -> Iterable[Finding]:
    """
    What a provider that owns machines' lives does not tell at all.
    """
    for check, wanted in (
        ("gpu_memory", expected.parts.gpu_memory_gib),
        ("nic_count", expected.parts.nics),
        ("drive_count", expected.parts.drives),
    ):
        if wanted is not None:
            yield _finding(check, "info", f"the provider does not tell; {wanted} expected")


def _severity(expected: Expected, *names: str) -> str:
    """
    Blocking where the operator asked for it; a figure that only follows from the catalog is not worth a machine.
    """
    return "blocking" if expected.parts.asked.intersection(names) else "warning"


def _finding(check: str, severity: str, message: str) -> Finding:
    return {"check": check, "severity": severity, "message": message}
