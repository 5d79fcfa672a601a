"""
YAML as text with line numbers: no types are guessed, no aliases are followed, nothing nests deeper than a list of machines needs. Pure.

Source: YAML 1.1 as libyaml's event stream tells it; an event is read at a time, so a hostile document costs no recursion.
"""

from dataclasses import dataclass, field
from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 6
NOTHING = frozenset({"", "~", "null"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    One thing that is wrong with a file.
    """

    line: int
    """Counted from 1."""
    column: str
    """Which column; empty for the line as a whole."""
    code: str
    """Stable code."""
    message: str
    """In words; never a secret."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """
    One value as it was written.
    """

    line: int
    """Counted from 1."""
    text: str = field(repr=False)
    """Empty where nothing was said."""


@dataclass(slots=True)
class Listed:
    """
    A list or a mapping; one of `items` and `pairs` is None.
    """

    line: int
    """Counted from 1."""
    items: "list[Scalar | Listed] | None" = None
    """Of a list."""
    pairs: "dict[str, Scalar | Listed] | None" = None
    """Of a mapping."""
    key: str | None = None
    """While it is read: the key whose value comes next."""


class _Stopped(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def read_document(text: str, refusals: list[Refusal]) -> Listed | None:
    """
    The mapping that the document is; None with a refusal noted when it is none.
    """
    try:
        top = _compose(text)
    except _Stopped as stopped:
        refusals.append(stopped.refusal)
        return None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        # The parser's own words could repeat what was written, and that may be a secret.
        refusals.append(Refusal(line, "", "invalid_yaml", "From here on this is not YAML."))
        return None
    if top is None or top.pairs is None:
        refusals.append(Refusal(1 if top is None else top.line, "", "wrong_kind", "The document is a mapping with `machines`."))
        return None
    return top


def _compose(text: str) -> Listed | None:
    stack: list[Listed] = []
    top: Listed | None = None
    documents = 0
    for event in yaml.parse(text, Loader=LOADER):
        assert event.start_mark is not None
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _Stopped(Refusal(line, "", "several_documents", "A file holds one document."))
        elif isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent | yaml.AliasEvent):
            _refuse_references(event, line)
            value = _value(event, line)
            if stack:
                _put(stack[-1], value)
            elif isinstance(value, Listed):
                top = value
            if isinstance(value, Listed):
                stack.append(value)
                if len(stack) > DEEPEST:
                    raise _Stopped(Refusal(line, "", "too_deep", f"Nothing here is nested deeper than {DEEPEST} levels."))
        elif isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
    return top


def _refuse_references(event: Any, line: int) -> None:
    if event.anchor is not None:
        raise _Stopped(Refusal(line, "", "anchor", "Anchors and aliases are not read; use `defaults`."))
    if event.tag is not None and event.tag != "!":
        raise _Stopped(Refusal(line, "", "tag", "Tags of YAML are not read."))


def _value(event: Any, line: int) -> Scalar | Listed:
    if isinstance(event, yaml.SequenceStartEvent):
        return Listed(line, items=[])
    if isinstance(event, yaml.MappingStartEvent):
        return Listed(line, pairs={})
    plain = event.style is None or event.style == ""
    return Scalar(line, "" if plain and event.value.lower() in NOTHING else event.value)


def _put(into: Listed, value: Scalar | Listed) -> None:
    if into.items is not None:
        into.items.append(value)
        return
    assert into.pairs is not None
    if into.key is None:
        if not isinstance(value, Scalar):
            raise _Stopped(Refusal(value.line, "", "wrong_kind", "A key is one value."))
        if value.text in into.pairs:
            raise _Stopped(Refusal(value.line, value.text[:60], "doubled_column", f"{value.text[:60]!r} stands twice."))
        into.key = value.text
        return
    into.pairs[into.key] = value
    into.key = None
