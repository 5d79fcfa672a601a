"""
Verdicts of `dcgmi diag`: which test passed for which GPU, from JSON (`-j`) of DCGM 3 and 4; the table is read next door.

Source: NVIDIA DCGM user guide, DCGM Diagnostics, and the names in https://github.com/NVIDIA/DCGM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from controlplane.measurements.figures import NODE, Measurement, Subject, gpu, yes
from controlplane.measurements.reading import UnreadableOutput, refuse_unlikely, short, whole

TOOL: Final = "dcgmi diag"
ROOTS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
VERSIONS: Final = ("version", "DCGM Version")
DRIVER: Final = "Driver Version Detected"
OVERALL: Final = ("Overall Result", "result")
NOT_A_WORD = re.compile(r"[^a-z0-9]+")

DiagVerdict: TypeAlias = Literal["pass", "fail", "warn", "skip", "not_run"]
VERDICTS: Final[dict[str, DiagVerdict]] = {"Pass": "pass", "Fail": "fail", "Warn": "warn", "Skip": "skip", "Not Run": "not_run"}
TELLING: Final[dict[DiagVerdict, bool | None]] = {"pass": True, "fail": False, "warn": False, "skip": None, "not_run": None}
WORST_FIRST: Final[tuple[DiagVerdict, ...]] = ("fail", "warn", "not_run", "skip", "pass")


@dataclass(frozen=True, slots=True)
class DiagTest:
    """
    One verdict of one test.
    """

    category: str
    """Group of the test, such as `Hardware`."""
    name: str
    """As the version calls it."""
    gpu_index: int | None
    """The GPU it is about; None when it is about the node, another part of it, or all GPUs at once."""
    part: str | None
    """Another part of the node it is about, such as `CPU0`; None for GPUs and for the node."""
    verdict: DiagVerdict
    """A warning is no pass."""
    messages: tuple[str, ...] = ()
    """Warnings in the tool's words."""


@dataclass(frozen=True, slots=True)
class DiagResult:
    """
    A diagnostic that ran to its end.
    """

    dcgm_version: str | None
    """Version of DCGM; None when not printed."""
    driver_version: str | None
    """Version of the driver; None when not printed."""
    tests: tuple[DiagTest, ...]
    """In the order printed, at least one."""
    aborted: str | None = None
    """Why repeated runs ended early; None otherwise."""

    @property
    def failed(self) -> bool:
        """
        Some test failed or warned, or the runs were aborted.
        """
        return self.aborted is not None or any(TELLING[one.verdict] is False for one in self.tests)

    def figures(self, whole: Subject = NODE) -> tuple[Measurement, ...]:
        """
        Each test as passed or not, for the subject it is about; skipped ones are missing. Then the counts and the verdict for `whole`.
        """
        worst: dict[tuple[str, Subject], DiagVerdict] = {}
        for one in self.tests:
            subject = whole if one.gpu_index is None else gpu(one.gpu_index)
            key = (f"dcgm_{_name(one.name)}_passed", subject)
            worst[key] = min(worst.get(key, "pass"), one.verdict, key=WORST_FIRST.index)
        verdicts = [one.verdict for one in self.tests]
        wrong = verdicts.count("fail") + verdicts.count("warn")
        missing = verdicts.count("skip") + verdicts.count("not_run")
        return (
            *(Measurement(name, yes(TELLING[verdict]), "yes", subject) for (name, subject), verdict in worst.items()),
            Measurement("dcgm_verdicts_wrong", wrong, "count", whole),
            Measurement("dcgm_verdicts_missing", missing, "count", whole),
            Measurement("dcgm_failed", yes(self.failed), "yes", whole),
        )


def parse_dcgm_json(text: str) -> DiagResult:
    """
    The diagnostic that the text is the whole JSON of, repeated runs included.

    Raises: UnreadableOutput when it is cut off, says that the diagnostic did not run, or has an unknown form or verdict.
    """
    refuse_unlikely(TOOL, text)
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableOutput(TOOL, "it is not one whole JSON document") from None
    document = _object(document)
    if "iterations" not in document:
        return _result(document, None)
    runs = [_result(_object(one), None) for one in _list(document["iterations"])]
    overall = next((document[key] for key in OVERALL if key in document), None)
    if not runs or overall not in {"Pass", "Fail"}:
        raise UnreadableOutput(TOOL, "the repeated runs have no overall result")
    why = str(document.get("warning") or document.get("Warning") or "it gives no reason")
    tests = tuple(test for one in runs for test in one.tests)
    return DiagResult(runs[0].dcgm_version, runs[0].driver_version, tests, short(why) if overall == "Fail" else None)


def verdict_of(word: object) -> DiagVerdict:
    """
    The verdict a word of the tool stands for, `Skip - All` included.

    Raises: UnreadableOutput for unknown words.
    """
    found = VERDICTS.get(word.removesuffix(" - All").strip()) if isinstance(word, str) else None
    if found is None:
        raise UnreadableOutput(TOOL, "a verdict has an unknown word")
    return found


def _result(document: dict[str, Any], aborted: str | None) -> DiagResult:
    root = next((_object(document[key]) for key in ROOTS if key in document), None)
    if root is None:
        raise UnreadableOutput(TOOL, "it is not a diagnostic")
    if root.get("runtime_error"):
        raise UnreadableOutput(TOOL, f"the diagnostic did not run: {short(str(root['runtime_error']))}")
    tests = tuple(_tests(_list(root.get("test_categories"))))
    if not tests:
        raise UnreadableOutput(TOOL, "it has no verdict")
    facts = {**root, **document, **_object(document.get("metadata", {}))}
    version = next((facts[key] for key in VERSIONS if isinstance(facts.get(key), str)), None)
    driver = facts.get(DRIVER)
    return DiagResult(version or None, driver if isinstance(driver, str) and driver else None, tests, aborted)


def _tests(categories: list[Any]) -> Iterator[DiagTest]:
    for category in map(_object, categories):
        group = _text(category.get("category"))
        for test in map(_object, _list(category.get("tests"))):
            name = _text(test.get("name"))
            results = [*_list(test.get("results", [])), *([test["test_summary"]] if "test_summary" in test else [])]
            if not results:
                raise UnreadableOutput(TOOL, "a test has no verdict")
            for result in map(_object, results):
                verdict = verdict_of(result.get("status"))
                messages = tuple(_messages(result.get("warnings", [])))
                for index, part in _about(result):
                    yield DiagTest(group, name, index, part, verdict, messages)


def _about(result: dict[str, Any]) -> list[tuple[int | None, str | None]]:
    """
    GPU indexes and other parts that a result is about: DCGM 4 names any entity, DCGM 3 one GPU, older ones a list.
    """
    if "entity_group" in result:
        kind, entity = _text(result["entity_group"]), _index(result.get("entity_id"))
        if kind == "GPU" and entity is None:
            raise UnreadableOutput(TOOL, "a verdict is about no known GPU")
        return [(entity, None) if kind == "GPU" else (None, f"{kind}{'' if entity is None else entity}")]
    if "gpu_ids" in result:
        indexes = [_index(one) for one in str(result["gpu_ids"]).split(",")]
        if None in indexes:
            raise UnreadableOutput(TOOL, "a verdict is about no known GPU")
        return [(index, None) for index in indexes]
    if "cpu_id" in result:
        return [(None, f"CPU{short(str(result['cpu_id']))}")]
    return [(_index(result.get("gpu_id")), None)]


def _index(value: object) -> int | None:
    number = whole(str(value).strip())
    return number if number is not None and number >= 0 else None


def _messages(warnings: object) -> Iterator[str]:
    for one in warnings if isinstance(warnings, list) else [warnings]:
        words = next((one[key] for key in ("warning", "warnings") if key in one), None) if isinstance(one, dict) else one
        if words:
            yield short(str(words))


def _name(name: str) -> str:
    return NOT_A_WORD.sub("_", name.lower()).strip("_")


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableOutput(TOOL, "it has an unknown form")
    return cast("dict[str, Any]", value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UnreadableOutput(TOOL, "it has an unknown form")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UnreadableOutput(TOOL, "it has an unknown form")
    return short(value)
