"""
What `nvidia-smi -q` says of each GPU; its text and its XML (`-x`) are taken apart next door and become the same facts here.

States of NVLink are not in this output (they are in `nvidia-smi nvlink`); of the fabric it names only the registration.

Source: `man nvidia-smi`, and NVIDIA GPU Memory Error Management.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from controlplane.measurements.figures import NODE, Measurement, Subject, Unit, gpu, yes
from controlplane.measurements.reading import number, short, whole

TOOL: Final = "nvidia-smi"
MIB: Final = 2**20
SLOWDOWNS: Final = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
REASON_NAMES: Final = {"gpu_idle": "idle", "display_clocks_setting": "display_clock_setting"}
SWITCHED: Final = {"Enabled": True, "Disabled": False, "Yes": True, "No": False, "Active": True, "Not Active": False}
ABSENT: Final = frozenset({"", "n/a", "none", "not found", "unknown error", "not supported", "not available", "err!"})

Path: TypeAlias = tuple[str, ...]
Values: TypeAlias = Mapping[Path, str]


@dataclass(frozen=True, slots=True)
class Places:
    """
    Where one of the two forms keeps each fact: places of newer versions first.
    """

    product: tuple[Path, ...]
    """Name of the model."""
    serial: tuple[Path, ...]
    """Serial number of the board."""
    uuid: tuple[Path, ...]
    """The driver's id of the GPU."""
    bus_id: tuple[Path, ...]
    """PCI address."""
    persistence: tuple[Path, ...]
    """Whether the driver stays loaded."""
    memory: tuple[Path, ...]
    """Total of its memory."""
    ecc_mode: tuple[Path, ...]
    """Whether memory errors are corrected."""
    volatile: Path
    """Section of the errors since the driver was loaded."""
    aggregate: Path
    """Section of the errors over the GPU's life."""
    uncorrected: str
    """Part of the name of every count of errors that were not corrected."""
    double_bit: Path
    """Where older versions keep the total of those, below the section."""
    remapped_corrected: tuple[Path, ...]
    """Rows replaced for corrected errors."""
    remapped_uncorrected: tuple[Path, ...]
    """Rows replaced for uncorrected errors."""
    remap_pending: tuple[Path, ...]
    """Whether a row waits for a reset."""
    remap_failed: tuple[Path, ...]
    """Whether a row could not be replaced."""
    retired_single: tuple[Path, ...]
    """Pages retired for repeated single errors."""
    retired_double: tuple[Path, ...]
    """Pages retired for double errors."""
    retired_pending: tuple[Path, ...]
    """Whether a page waits for a reset."""
    temperature: tuple[Path, ...]
    """Of the chip, now."""
    power_limit: tuple[Path, ...]
    """In force now."""
    reasons: tuple[Path, ...]
    """Sections of what holds the clocks back."""
    reason_prefixes: tuple[str, ...]
    """What stands before each reason's name."""
    fabric: tuple[Path, ...]
    """State of the registration with the NVLink fabric."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """
    One GPU; whatever it does not have or could not say is None.
    """

    index: int
    """Place in the output, which is the tool's index."""
    product_name: str | None
    """Model."""
    serial: str | None
    """Serial number of the board."""
    uuid: str | None
    """The driver's id, `GPU-…`."""
    pci_bus_id: str | None
    """Domain, bus, device and function."""
    persistence_mode: bool | None
    """The driver stays loaded without users."""
    memory_bytes: int | None
    """Total."""
    ecc_enabled: bool | None
    """Now; a change waits for a reset."""
    ecc_volatile_uncorrected: int | None
    """Errors since the driver was loaded, all places together."""
    ecc_aggregate_uncorrected: int | None
    """Errors over the GPU's life, all places together."""
    remapped_rows_corrected: int | None
    """Rows replaced for corrected errors."""
    remapped_rows_uncorrected: int | None
    """Rows replaced for uncorrected errors."""
    remap_pending: bool | None
    """A row waits for a reset."""
    remap_failed: bool | None
    """A row could not be replaced."""
    retired_pages_single_bit: int | None
    """Pages retired for repeated single errors, before rows were remapped."""
    retired_pages_double_bit: int | None
    """Pages retired for double errors."""
    retired_pages_pending: bool | None
    """A page waits for a reset."""
    temperature_c: int | None
    """Of the chip, now."""
    power_limit_w: float | None
    """In force now."""
    clock_reasons: tuple[str, ...] | None
    """What holds the clocks back now, such as `sw_power_cap`; None when some reason is unreadable."""
    fabric_state: str | None
    """Registration with the NVLink fabric, `Completed` when done; None without a fabric."""

    @property
    def slowdowns(self) -> int | None:
        """
        Reasons among them that mean heat or lack of power, not idling or a cap somebody set.
        """
        return None if self.clock_reasons is None else len(SLOWDOWNS.intersection(self.clock_reasons))


@dataclass(frozen=True, slots=True)
class SmiResult:
    """
    All GPUs of a node.
    """

    driver_version: str | None
    """Version of the driver."""
    cuda_version: str | None
    """Highest CUDA version the driver serves."""
    gpus: tuple[GpuFacts, ...]
    """In the order of the tool's index, as many as are attached."""

    def figures(self, whole: Subject = NODE) -> tuple[Measurement, ...]:
        """
        Of each GPU everything that is a number or a yes; the number of GPUs goes to `whole`.
        """
        found = [Measurement("gpus", len(self.gpus), "count", whole)]
        for one in self.gpus:
            values: dict[str, tuple[float | None, Unit]] = {
                "gpu_memory": (one.memory_bytes, "bytes"),
                "gpu_persistence_mode": (yes(one.persistence_mode), "yes"),
                "gpu_ecc_enabled": (yes(one.ecc_enabled), "yes"),
                "gpu_ecc_volatile_uncorrected": (one.ecc_volatile_uncorrected, "count"),
                "gpu_ecc_aggregate_uncorrected": (one.ecc_aggregate_uncorrected, "count"),
                "gpu_remapped_rows_corrected": (one.remapped_rows_corrected, "count"),
                "gpu_remapped_rows_uncorrected": (one.remapped_rows_uncorrected, "count"),
                "gpu_remap_pending": (yes(one.remap_pending), "yes"),
                "gpu_remap_failed": (yes(one.remap_failed), "yes"),
                "gpu_retired_pages_single_bit": (one.retired_pages_single_bit, "count"),
                "gpu_retired_pages_double_bit": (one.retired_pages_double_bit, "count"),
                "gpu_retired_pages_pending": (yes(one.retired_pages_pending), "yes"),
                "gpu_temperature": (one.temperature_c, "C"),
                "gpu_power_limit": (one.power_limit_w, "W"),
                "gpu_clock_slowdowns": (one.slowdowns, "count"),
            }
            found += [Measurement(name, value, unit, gpu(one.index)) for name, (value, unit) in values.items()]
        return tuple(found)


def facts(index: int, values: Values, places: Places) -> GpuFacts:
    """
    The facts that the values of one GPU tell.
    """
    return GpuFacts(
        index=index,
        product_name=said(values, places.product),
        serial=said(values, places.serial),
        uuid=said(values, places.uuid),
        pci_bus_id=said(values, places.bus_id),
        persistence_mode=_switch(values, places.persistence),
        memory_bytes=_bytes(values, places.memory),
        ecc_enabled=_switch(values, places.ecc_mode),
        ecc_volatile_uncorrected=_uncorrected(values, places.volatile, places),
        ecc_aggregate_uncorrected=_uncorrected(values, places.aggregate, places),
        remapped_rows_corrected=_count(values, places.remapped_corrected),
        remapped_rows_uncorrected=_count(values, places.remapped_uncorrected),
        remap_pending=_switch(values, places.remap_pending),
        remap_failed=_switch(values, places.remap_failed),
        retired_pages_single_bit=_count(values, places.retired_single),
        retired_pages_double_bit=_count(values, places.retired_double),
        retired_pages_pending=_switch(values, places.retired_pending),
        temperature_c=_temperature(values, places.temperature),
        power_limit_w=_with_unit(values, places.power_limit, "W"),
        clock_reasons=_reasons(values, places),
        fabric_state=said(values, places.fabric),
    )


def said(values: Values, paths: tuple[Path, ...]) -> str | None:
    """
    The words at the first of the places that has any; None for the tool's many ways to say that there is nothing.
    """
    for path in paths:
        words = values.get(path, "").strip()
        if words.strip("[]").lower() not in ABSENT and not words.startswith("["):
            return short(words)
    return None


def _switch(values: Values, paths: tuple[Path, ...]) -> bool | None:
    return SWITCHED.get(said(values, paths) or "")


def _count(values: Values, paths: tuple[Path, ...]) -> int | None:
    value = whole(said(values, paths) or "")
    return value if value is not None and value >= 0 else None


def _with_unit(values: Values, paths: tuple[Path, ...], unit: str) -> float | None:
    word, _, rest = (said(values, paths) or "").partition(" ")
    return number(word) if rest == unit else None


def _bytes(values: Values, paths: tuple[Path, ...]) -> int | None:
    mib = _with_unit(values, paths, "MiB")
    return int(mib * MIB) if mib is not None and 0 <= mib < MIB * MIB else None


def _temperature(values: Values, paths: tuple[Path, ...]) -> int | None:
    value = _with_unit(values, paths, "C")
    return int(value) if value is not None and abs(value) < 1000 else None  # noqa: PLR2004 - no chip is hotter


def _uncorrected(values: Values, section: Path, places: Places) -> int | None:
    depth = len(section)
    paths = [path for path in values if path[:depth] == section and len(path) == depth + 1 and places.uncorrected in path[-1]]
    if not paths:
        return _count(values, (section + places.double_bit,))
    # one unknown count makes the sum unknown
    counts = [_count(values, (path,)) for path in paths]
    known = [one for one in counts if one is not None]
    return sum(known) if len(known) == len(counts) else None


def _reasons(values: Values, places: Places) -> tuple[str, ...] | None:
    for section in places.reasons:
        depth = len(section)
        found = {
            _reason(path[-1], places): words for path, words in values.items() if path[:depth] == section and len(path) > depth
        }
        if found:
            switches = {name: SWITCHED.get(words.strip()) for name, words in found.items()}
            return None if None in switches.values() else tuple(sorted(name for name, active in switches.items() if active))
    return None


def _reason(name: str, places: Places) -> str:
    for prefix in places.reason_prefixes:
        name = name.removeprefix(prefix)
    plain = name.lower().replace(" ", "_")
    return REASON_NAMES.get(plain, plain)
