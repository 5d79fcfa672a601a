"""
The values of all slurmrestd versions folded into one form. What has no known form raises ShapeError, never a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

NO_VAL = (0xFFFFFFFE, 0xFFFE, 0xFFFFFFFFFFFFFFFE)
"""Slurm's "not set" in 32, 16 and 64 bits; 22.05 lets some through."""
INFINITE = (-1, 0xFFFFFFFF, 0xFFFF, 0xFFFFFFFFFFFFFFFF)
"""Slurm's "without limit" in the same widths; -1 in partitions of 22.05."""
LATEST_S = 253_402_300_799
"""9999-12-31: later than that is not a time."""
_GPU = re.compile(r"(?:gres[/:])?gpu(?::(?P<type>[^:()=,]+))?[:=](?P<count>\d+)(?:\([^)]*\))?")


class ShapeError(Exception):
    """
    An answer of slurmrestd is of a form this adapter does not know.
    """


def number(value: Any) -> float | None:
    """
    An int, None for unset, or infinity. 22.05 says null for both unset and infinite; later ones `{set, infinite, number}`.
    """
    if isinstance(value, Mapping):
        if value.get("infinite") is True:
            return math.inf
        if value.get("set") is False:
            return None
        value = value.get("number")
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ShapeError(f"not a number: {value!r:.80}")
    try:
        plain: float = float(value) if isinstance(value, float) or "." in str(value) else int(value)
    except ValueError as error:
        raise ShapeError(f"not a number: {value!r:.80}") from error
    if plain in INFINITE or plain == math.inf:
        return math.inf
    return None if plain in NO_VAL or math.isnan(plain) else plain


def whole(value: Any, *, default: int = 0) -> int:
    """
    The number as an int; the default for unset and infinite.
    """
    folded = number(value)
    return default if folded is None or math.isinf(folded) else int(folded)


def moment(value: Any) -> datetime | None:
    """
    Seconds since 1970 as UTC; None for 0, unset and infinite.
    """
    seconds = number(value)
    if seconds is None or not 0 < seconds <= LATEST_S:
        return None
    return datetime.fromtimestamp(int(seconds), UTC)


def words(value: Any) -> tuple[str, ...]:
    """
    Upper-case words from `"a"`, `"a,b"`, `["a", "b"]` or null.
    """
    return tuple(word.upper() for word in names(value))


def names(value: Any) -> tuple[str, ...]:
    """
    The same, with the case they came in.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ShapeError(f"not words: {value!r:.80}")
    return tuple(word.strip() for word in value if word.strip())


def text(value: Any) -> str:
    """
    The text; empty for null and for Slurm's ways to say nothing.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ShapeError(f"not text: {value!r:.80}")
    return "" if value in {"(null)", "N/A"} else value


def needed(record: Mapping[str, Any], key: str) -> Any:
    """
    The record's value. Raises ShapeError when it is missing or null.
    """
    value = record.get(key)
    if value is None:
        raise ShapeError(f"{key} is missing")
    return value


def exit_status(value: Any) -> tuple[int, int]:
    """
    (return code, signal). 22.05 packs both into one number as wait() does; later ones spell them out.
    """
    if isinstance(value, Mapping) and ("return_code" in value or "signal" in value):
        signal = value.get("signal")
        if isinstance(signal, Mapping):
            signal = signal.get("id", signal.get("signal_id"))
        return whole(value.get("return_code")), whole(signal)
    packed = whole(value)
    signal = packed & 0x7F
    return (0, signal) if signal else (packed >> 8 & 0xFF, 0)


def gpus(gres: str) -> tuple[int, tuple[str, ...]]:
    """
    How many GPUs a GRES text names, and their types: `gpu:h100:8(S:0-1),nic:1` is 8 of h100.
    """
    found = list(_GPU.finditer(gres))
    return sum(int(match["count"]) for match in found), tuple(sorted({match["type"] for match in found if match["type"]}))
