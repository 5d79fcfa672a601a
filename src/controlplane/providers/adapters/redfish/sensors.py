"""
What a chassis measures and complains about: temperatures, power, fans, voltages, power supplies and what is redundant.

A controller shows the same things twice, as subsystems with sensors and as the older Thermal and Power. The newer is taken where it
is offered and not empty, never both, so that names stay the same from look to look.

Source: DMTF `Sensor`, `ThermalSubsystem`, `PowerSubsystem`, `Thermal`, `Power`.
"""

from __future__ import annotations

from controlplane.providers.adapters.redfish.reading import Part, Tree
from controlplane.providers.adapters.redfish.values import (
    Json,
    absent,
    complaint,
    health_of,
    items,
    number,
    record,
    state_of,
    text,
    worst,
)
from controlplane.providers.hardware import Fact, Health

_UNITS = {"cel": "C", "c": "C", "w": "W", "watts": "W", "rpm": "RPM", "{rev}/min": "RPM", "v": "V", "volts": "V"}
_UNITS_OF_TYPE = {"temperature": "Cel", "power": "W", "rotational": "RPM", "voltage": "V"}
_KINDS = {"C": "temperature", "W": "power", "RPM": "fan", "V": "voltage"}
_INPUTS: dict[str, Health] = {"normal": "ok", "outofrange": "warning", "lossofinput": "critical"}
_OFF = frozenset({"absent", "disabled", "standbyoffline"})


def list_chassis_facts(tree: Tree, chassis: Part) -> list[Fact]:
    """
    Readings in C, W, RPM or V, all that is not ok, the power supplies and the fans. A sensor without its reading is not ok.
    """
    sensors = tree.members(chassis, "Sensors")
    found = [fact for sensor in sensors if (fact := _sensor_fact(sensor))]
    old_sensors = not sensors and not ("Sensors" in chassis.body and tree.is_partial(chassis, "Sensors"))
    thermal = tree.linked(chassis, "Thermal") if "Thermal" in chassis.body else None
    power = tree.linked(chassis, "Power") if "Power" in chassis.body else None
    if old_sensors and thermal:
        found.extend(_old_facts(thermal, "Temperatures", "ReadingCelsius", "Cel"))
    if old_sensors and power:
        found.extend(_old_facts(power, "Voltages", "ReadingVolts", "V"))
    found.extend(_fan_facts(tree, chassis, thermal, old_sensors=old_sensors))
    found.extend(_supply_facts(tree, chassis, power))
    return found


def _sensor_fact(sensor: Part) -> Fact | None:
    units = sensor.body.get("ReadingUnits")
    said = text(units) if units is not None else _UNITS_OF_TYPE.get(text(sensor.body.get("ReadingType")).lower(), "")
    return _reading_fact(sensor.name, sensor.body, sensor.body.get("Reading"), said)


def _reading_fact(name: str, part: Json, reading: object, units: str) -> Fact | None:
    unit, value, health = _UNITS.get(units.lower(), ""), number(reading), health_of(part)
    if value is None and state_of(part) in _OFF and record(part.get("Status")).get("Health") is None:
        return None
    if not unit and health == "ok":
        return None
    if unit and value is None:
        health = worst([health, "unknown"])
    label = text(part.get("Name"))
    message = "; ".join(filter(None, ("" if label == name else label, complaint(part))))
    shown = value if unit else None
    return Fact(f"{_KINDS.get(unit, 'sensor')}:{name}", health, message, shown, unit if shown is not None else "")


def _old_facts(parent: Part, key: str, reading: str, units: str) -> list[Fact]:
    found = []
    for at, one in enumerate(items(parent.body.get(key))):
        part = record(one)
        name = text(part.get("Name")) or text(part.get("FanName")) or text(part.get("MemberId")) or str(at)
        value = part.get(reading)
        if fact := _reading_fact(name, part, value, text(part.get("ReadingUnits")) or units):
            found.append(fact)
    return found


def _fan_facts(tree: Tree, chassis: Part, thermal: Part | None, *, old_sensors: bool) -> list[Fact]:
    subsystem = tree.linked(chassis, "ThermalSubsystem", optional=True) if "ThermalSubsystem" in chassis.body else None
    fans = tree.members(subsystem, "Fans") if subsystem else ()
    found = []
    for fan in fans:
        if not absent(fan.body):
            speed = number(record(fan.body.get("SpeedPercent")).get("SpeedRPM"))
            unit = "" if speed is None else "RPM"
            found.append(Fact(f"fan:{fan.name}", health_of(fan.body), complaint(fan.body), speed, unit))
    if not fans and old_sensors and thermal:
        found.extend(_old_facts(thermal, "Fans", "Reading", "RPM"))
    redundancy = subsystem.body.get("FanRedundancy") if subsystem else thermal.body.get("Redundancy") if thermal else None
    return found + _redundancy_facts("fan_redundancy", chassis, redundancy)


def _supply_facts(tree: Tree, chassis: Part, power: Part | None) -> list[Fact]:
    subsystem = tree.linked(chassis, "PowerSubsystem", optional=True) if "PowerSubsystem" in chassis.body else None
    supplies = [(part.name, part.body) for part in (tree.members(subsystem, "PowerSupplies") if subsystem else ())]
    redundancy = subsystem.body.get("PowerSupplyRedundancy") if subsystem else None
    if (
        not supplies
        and power
        and not (subsystem and "PowerSupplies" in subsystem.body and tree.is_partial(subsystem, "PowerSupplies"))
    ):
        old = [record(one) for one in items(power.body.get("PowerSupplies"))]
        supplies = [(text(one.get("Name")) or text(one.get("MemberId")) or str(at), one) for at, one in enumerate(old)]
    if not redundancy and power:
        redundancy = power.body.get("Redundancy")
    found = []
    for name, supply in supplies:
        if not absent(supply):
            watts = next(
                (one for key in ("PowerInputWatts", "LastPowerOutputWatts") if (one := number(supply.get(key))) is not None), None
            )
            found.append(Fact(f"power_supply:{name}", health_of(supply), complaint(supply), watts, "" if watts is None else "W"))
            if (line := supply.get("LineInputStatus")) is not None:
                found.append(Fact(f"power_input:{name}", _INPUTS.get(text(line).lower(), "unknown"), text(line)))
    return found + _redundancy_facts("power_redundancy", chassis, redundancy)


def _redundancy_facts(kind: str, chassis: Part, groups: object) -> list[Fact]:
    found = []
    for at, one in enumerate(items(groups)):
        group = record(one)
        name = text(group.get("Name")) or str(at)
        found.append(Fact(f"{kind}:{chassis.name}/{name}", health_of(group), complaint(group)))
    return found
