"""
What may stand in a JSON body, decided before any room sees it.

Limits that a parser cannot keep by itself are checked on the bytes first, so that a hostile body costs no more than a scan.
"""

import json
import math
import re
from typing import Any

from controlplane.kit.errors import FieldError, Invalid

MOST_DEPTH = 32
MOST_VALUES = 20_000
LARGEST_INTEGER = 2**63 - 1
LONGEST_INTEGER = 19
LONGEST_FLOAT = 64
STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
BRACKETS = re.compile(rb"[\[\]{}]")


class _Refused(ValueError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_json(body: bytes) -> None:
    """
    Returns when the body is JSON that every room can store: UTF-8, not too deep, not too many values, no key twice, no number or
    character without a place in the database. Raises Invalid with a stable code.
    """
    try:
        many = _check_size(body)
        value = DECODER.decode(body.decode("utf-8"))
        if many:
            _check_count(value)
        if b"\\u" in body:
            _check_escapes(value)
    except UnicodeDecodeError:
        raise _invalid("invalid_utf8", "The body is not valid UTF-8.") from None
    except json.JSONDecodeError as error:
        raise _invalid("invalid_json", f"The body is not valid JSON: {error.msg} at character {error.pos}.") from None
    except _Refused as error:
        raise _invalid(error.code, str(error)) from None


def _invalid(code: str, message: str) -> Invalid:
    return Invalid(message, errors=[FieldError("body", code, message)])


def _check_size(body: bytes) -> bool:
    """
    Whether the values must be counted; most bodies are cleared by counting brackets and commas.
    """
    opened = body.count(b"[") + body.count(b"{")
    many = opened + body.count(b",") >= MOST_VALUES
    if opened <= MOST_DEPTH and not many:
        return False
    bare = STRINGS.sub(b"", body)
    if bare.count(b"[") + bare.count(b"{") > MOST_VALUES or bare.count(b",") >= MOST_VALUES:
        raise _Refused("too_many_values", f"The body holds more than {MOST_VALUES} values.")
    depth = 0
    for found in BRACKETS.finditer(bare):
        depth += 1 if found.group() in b"[{" else -1
        if depth > MOST_DEPTH:
            raise _Refused("too_deep", f"The body is nested deeper than {MOST_DEPTH} levels.")
    return many


def _check_count(value: Any) -> None:
    waiting, count = [value], 0
    while waiting:
        one = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise _Refused("too_many_values", f"The body holds more than {MOST_VALUES} values.")
        waiting.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())


def _check_escapes(value: Any) -> None:
    try:
        again = json.dumps(value, ensure_ascii=False, check_circular=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _Refused("lone_surrogate", "The body holds half of a surrogate pair.") from None
    # A backslash that is itself escaped does not start an escape.
    if b"\\u0000" in again.replace(b"\\\\", b""):
        raise _Refused("nul_character", "The body holds a NUL character.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        shown = twice[:60].encode("ascii", "backslashreplace").decode()
        raise _Refused("duplicate_key", f"The key {shown!r} stands twice in one object.")
    return made


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER + 1 or abs(value := int(digits)) > LARGEST_INTEGER:
        raise _Refused("integer_too_large", "An integer does not fit into 64 bits.")
    return value


def _float(digits: str) -> float:
    if len(digits) > LONGEST_FLOAT or not math.isfinite(value := float(digits)):
        raise _Refused("number_out_of_range", "A number is longer or larger than can be kept.")
    return value


def _constant(word: str) -> Any:
    raise _Refused("not_a_number", f"{word} is not JSON.")


DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant)
