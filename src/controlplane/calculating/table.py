"""
An answer as text for people at a terminal.
"""

from collections.abc import Iterator
from typing import Any

from controlplane.calculating.answers import Answer

BYTE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
STEP = 1024
NARROW = 34
DAY_S, HOUR_S = 86_400, 3600


def table_of(answer: Answer) -> str:
    """
    The answer as lines: results first, then all that they rest on.
    """
    result: dict[str, Any] = answer.model_dump(mode="json")["result"]
    lines = [answer.calculator, ""]
    lines += [f"  {name:<{NARROW}}{value}" for name, value in _rows(result)]
    for file in result.get("files", ()):
        lines += ["", f"  {file['path']}:", *(f"    {line}" for line in file["content"].splitlines())]
    lines += _section("unknown", answer.unknown)
    lines += _section("formulas", answer.formulas)
    lines += _section("assumptions", [f"{one.name} = {one.value}: {one.why}" for one in answer.assumptions])
    lines += _section("sources", [f"{one.title}, {one.section}" + (f" <{one.url}>" if one.url else "") for one in answer.sources])
    return "\n".join(lines)


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in result.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", shown) for inner, shown in _rows(value))
        elif name != "files":
            yield name, shown_value(name, value)


def shown_value(name: str, value: Any) -> str:
    """
    The value in the unit that its name tells, and in one that reads easily.
    """
    if value is None:
        return "not told"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(str(one) for one in value) or "none"
    return _number(name, value) if isinstance(value, int | float) else str(value)


def _number(name: str, value: float) -> str:
    plain = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if "bytes" in name.split("_"):
        return f"{plain} bytes ({_scaled(value)})"
    if name.endswith("_s") and not name.endswith("_gb_s") and "tokens" not in name:
        return f"{plain} s ({_duration(value)})"
    return plain


def _scaled(amount: float) -> str:
    unit = 0
    while amount >= STEP and unit < len(BYTE_UNITS) - 1:
        amount, unit = amount / STEP, unit + 1
    return f"{amount:,.2f} {BYTE_UNITS[unit]}"


def _duration(seconds: float) -> str:
    if seconds >= DAY_S:
        return f"{seconds / DAY_S:,.1f} days"
    return f"{seconds / HOUR_S:,.1f} h" if seconds >= HOUR_S else f"{seconds / 60:,.1f} min"
