"""
Filling in templates: a job with places for values, and the values. Pure.

A place is `{{ name }}` inside a text. A text that is nothing but one place becomes the value itself, so that a number stays a number. What
a shell would read, the script and a launcher's setup lines, has no places: a value could end a word there and begin a command. Values come
to scripts as variables.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.kit.errors import FieldError, Invalid

Value = str | int | bool
PLACE = re.compile(r"\{\{ ?([a-z][a-z0-9_]{0,62}) ?\}\}")
SHELL = frozenset({("script",), ("launch", "setup")})
"""Where a shell reads."""
SAMPLES: Mapping[str, Value] = {"text": "x", "integer": 1, "boolean": False}
"""Stands for a value that nobody has given yet, when a template is checked."""
KINDS: Mapping[str, type] = {"text": str, "integer": int, "boolean": bool}


def places_of(part: Any, path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """
    Every name that has a place in the document, with where one of its places is.
    """
    found: dict[str, tuple[str, ...]] = {}
    if isinstance(part, str):
        found = dict.fromkeys(PLACE.findall(part), path)
    elif isinstance(part, Mapping):
        for key, one in part.items():
            found |= places_of(one, (*path, str(key)))
    elif isinstance(part, list):
        for number, one in enumerate(part):
            found |= places_of(one, (*path, str(number)))
    return found


def in_shell(spec: Mapping[str, Any]) -> str | None:
    """
    A name that has a place where a shell reads; None where there is none.
    """
    read = [spec.get("script"), (spec.get("launch") or {}).get("setup") if isinstance(spec.get("launch"), Mapping) else None]
    names = [name for one in read if isinstance(one, str) for name in PLACE.findall(one)]
    return names[0] if names else None


def fill(part: Any, values: Mapping[str, Value], path: tuple[str, ...] = ()) -> Any:
    """
    The document with its places filled in. Raises KeyError for a name without a value.
    """
    if isinstance(part, str):
        if path in SHELL:
            return part
        whole = PLACE.fullmatch(part)
        return values[whole[1]] if whole else PLACE.sub(lambda found: _word(values[found[1]]), part)
    if isinstance(part, Mapping):
        return {key: fill(one, values, (*path, str(key))) for key, one in part.items()}
    if isinstance(part, list):
        return [fill(one, values, (*path, str(number))) for number, one in enumerate(part)]
    return part


def fits(parameter: Mapping[str, Any], value: object) -> str:
    """
    Why the parameter cannot have the value; empty where it can.
    """
    wanted = KINDS[parameter["kind"]]
    if type(value) is not wanted:
        return f"{parameter['name']} is of the kind {parameter['kind']}"
    if parameter["choices"] and value not in parameter["choices"]:
        return f"{parameter['name']} is one of {', '.join(map(str, parameter['choices']))}"
    return ""


def values_of(parameters: Sequence[Mapping[str, Any]], given: Mapping[str, Value]) -> dict[str, Value]:
    """
    The value of every parameter: as given, else its default. Raises Invalid for what is missing, unknown or does not fit.
    """
    known = {one["name"]: one for one in parameters}
    wrong = [_error(name, "unknown_parameter", "The template has no such parameter.") for name in given if name not in known]
    wrong += [
        _error(name, "invalid_value", f"{why}.") for name, one in known.items() if name in given and (why := fits(one, given[name]))
    ]
    values = {name: given.get(name, one["default"]) for name, one in known.items()}
    wrong += [_error(name, "missing", "It has no default: give it a value.") for name, value in values.items() if value is None]
    if wrong:
        raise Invalid(f"{wrong[0].field}: {wrong[0].message}", errors=wrong)
    return values


def sample_of(parameters: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """
    A value for every parameter: its default, else its first choice, else some value of its kind.
    """
    return {one["name"]: _sample(one) for one in parameters}


def _sample(one: Mapping[str, Any]) -> Value:
    if one["default"] is not None:
        default: Value = one["default"]
        return default
    choices: list[Value] = one["choices"]
    return choices[0] if choices else SAMPLES[one["kind"]]


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(name: str, code: str, message: str) -> FieldError:
    return FieldError(f"body.parameters.{name}"[:300], code, message)
