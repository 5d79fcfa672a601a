"""
Values of a controller's answers in one form. A placeholder or an odd type is nothing, and only what says so is healthy.

Source: DSP0268 (Redfish data model), `Resource.Status`; DSP0266 section "Null", for null as "not known now".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from controlplane.providers.hardware import Health

Json = Mapping[str, Any]
"""One JSON object."""

TEXT_LENGTH = 256
"""Characters kept of any text of a controller."""
_PLACEHOLDERS = frozenset(
    {"", "na", "n/a", "null", "none", "unknown", "not available", "not specified", "to be filled by o.e.m.", "default string"}
)
_PATH = re.compile(r"/redfish/v1(?:/[^\s/?#\\]+)*(?:\?[^\s#\\]*)?")
_PATH_LENGTH = 1024
_MAC_DIGITS = 12
_EXACT = 2**53
_BADNESS: dict[Health, int] = {"ok": 0, "unknown": 1, "warning": 2, "critical": 3}
_SEVERITIES: dict[str, Health] = {"ok": "ok", "warning": "warning", "critical": "critical"}
_WORKING = frozenset({"enabled", "standbyspare"})
_IMPAIRED = frozenset({"degraded", "unavailableoffline"})


def text(value: object, *, most: int = TEXT_LENGTH) -> str:
    """
    The words without the blanks around them, cut to `most`; empty for placeholders and for all that is no text or whole number.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**18 else ""
    if not isinstance(value, str):
        return ""
    plain = " ".join("".join(char if char.isprintable() else " " for char in value[: 4 * most]).split())
    return "" if plain.lower() in _PLACEHOLDERS else plain[:most]


def number(value: object) -> float | None:
    """
    A finite number; None for everything else, booleans and numbers in quotes among it.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: object) -> int | None:
    """
    A count that is not negative and not absurd (2^53); None for everything else.
    """
    found = number(value)
    return int(found) if found is not None and 0 <= found <= _EXACT and found == int(found) else None


def record(value: object) -> Json:
    """
    A JSON object; an empty one for everything else.
    """
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Any]:
    """
    A JSON list; an empty one for everything else.
    """
    return value if isinstance(value, list) else []


def path_in(value: object) -> str:
    """
    The path that a link or a text names, without fragment and trailing slash; empty unless it stays in this controller's tree.

    A controller may name any address in a link, and we would follow it with credentials: only `/redfish/v1/…` is accepted.
    """
    raw = value.get("@odata.id") if isinstance(value, Mapping) else value
    if not isinstance(raw, str) or len(raw) > _PATH_LENGTH:
        return ""
    path = raw.strip().partition("#")[0]
    path = path if "?" in path else path.rstrip("/")
    if not _PATH.fullmatch(path) or any(step in {".", ".."} for step in unquote(path.partition("?")[0]).split("/")):
        return ""
    return path


def last_step(path: str) -> str:
    """
    The last part of a path: a part's name, unique among its siblings and stable.
    """
    return unquote(path.rsplit("/", 1)[-1])


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """
    A sort key by which `GPU_2` comes before `GPU_10`.
    """
    return tuple(
        (0, int(piece), "") if piece.isdecimal() else (1, 0, piece.lower()) for piece in re.split(r"(\d{1,18})", name) if piece
    )


def mac_address(value: object) -> str:
    """
    Lower case with colons; empty for what is none, for all zeros and for all ones.
    """
    digits = re.sub(r"[^0-9a-f]", "", text(value).lower())
    if len(digits) != _MAC_DIGITS or not re.fullmatch(r"[0-9a-f:.\-]+", text(value).lower()) or set(digits) in ({"0"}, {"f"}):
        return ""
    return ":".join(digits[at : at + 2] for at in range(0, _MAC_DIGITS, 2))


def identity(value: object) -> str:
    """
    A UUID or serial number by which two views of one part are told to be the same; empty for none and for a row of one digit.
    """
    found = text(value).lower().strip("{}")
    return "" if len(set(found) - {"-", ":"}) <= 1 else found


def severity(value: object) -> Health:
    """
    The health a word of Redfish stands for; null and all that is no such word are unknown.
    """
    return _SEVERITIES.get(text(value).lower(), "unknown")


def worst(healths: Iterable[Health]) -> Health:
    """
    The worst of them, where not to know is worse than ok; unknown when there are none.
    """
    return max(healths, key=_BADNESS.__getitem__, default="unknown")


def health_of(part: Json) -> Health:
    """
    What the part's `Status` says: the worst of its own health, its roll-up and its conditions.

    It is ok only when health says OK and the state is one of work. A roll-up or conditions that are null or odd are unknown.
    """
    status = record(part.get("Status"))
    said = [severity(status.get("Health"))]
    if "HealthRollup" in status:
        said.append(severity(status["HealthRollup"]))
    if "Conditions" in status:
        conditions = status["Conditions"]
        said.extend(severity(record(one).get("Severity")) for one in items(conditions))
        if not isinstance(conditions, list):
            said.append("unknown")
    state = state_of(part)
    if state not in _WORKING:
        said.append("warning" if state in _IMPAIRED else "unknown")
    return worst(said)


def state_of(part: Json) -> str:
    """
    `Status.State` in lower case; empty when it is not told.
    """
    return text(record(part.get("Status")).get("State")).lower()


def absent(part: Json) -> bool:
    """
    Whether the controller says outright that the place is empty.
    """
    return state_of(part) == "absent"


def complaint(part: Json) -> str:
    """
    The messages of the part's conditions, and its state when that is not plain work; empty when it has nothing to say.
    """
    status = record(part.get("Status"))
    told = [text(record(one).get("Message")) or text(record(one).get("MessageId")) for one in items(status.get("Conditions"))]
    state = text(status.get("State"))
    if state and state.lower() != "enabled":
        told.insert(0, f"state {state}")
    return "; ".join(dict.fromkeys(one for one in told if one))
