"""
Random requests made from the OpenAPI document, and what is wrong with their answers.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks
from sqlalchemy import Engine, event

from controlplane.app import create_app
from controlplane.web import openapi
from controlplane.web.streams import StreamTempo
from tests.conftest import Database
from tests.factories.serving import settings_for
from tests.fuzz.population import Population, populate

EDGE = frozenset({400, 405, 408, 413, 414, 415, 431})
"""What the edge may answer to any request: the document says so once, under `default`."""
FORM = [
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
STRANGER = 0.12
KNOWN_IDS = 0.75
WITH_VERSION = 0.7
FRESH_KEY = 0.8
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
SHORTEST = StreamTempo(poll_s=0.01, lifetime_s=0.03, per_principal=1000)
REFUSED = {400, 401, 403, 404, 406, 409, 412, 413, 414, 415, 422, 428, 431}


@dataclass
class Report:
    """
    What a campaign found.
    """

    cases: int = 0
    """Requests sent."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Answers by status."""
    reached: set[str] = field(default_factory=set)
    """Operations that answered with a 2xx at least once."""
    operations: int = 0
    """Operations of the document."""
    wrong: dict[tuple[str, str], str] = field(default_factory=dict)
    """The first of each fault, by operation and kind."""
    strict: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that fit the document and were called malformed: by operation and first field."""
    resown: int = 0
    """How often the cloud was made anew, because a request had taken a key's rights away."""
    took_s: float = 0.0
    """Seconds in all."""

    def note(self, label: str, kind: str, words: str) -> None:
        """
        The fault is known.
        """
        self.wrong.setdefault((label, kind), words[:1500])

    def told(self) -> str:
        """
        The report in a few lines.
        """
        counted = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        lines = [
            f"{self.cases} requests to {self.operations} operations in {self.took_s:.0f} s, {len(self.reached)} of them succeeded",
            f"answers {counted}; sown anew {self.resown} times",
        ]
        return "\n".join(lines + [f"{label} [{kind}]\n{words}" for (label, kind), words in self.wrong.items()])


class Campaign:
    """
    One cloud, one application, and random requests at it.
    """

    def __init__(self, database: Database, folder: Path, seed: int) -> None:
        self.report = Report()
        self._database = database
        self._folder = folder
        self._chance = random.Random(seed)
        self._seed = seed
        self._sow()
        with _quiet_logging():
            self.app = create_app(settings_for(database, data_dir=folder))
        self.app.state.stream_tempo = SHORTEST
        self._writes = count_writes(self.app.state.runtime.engine)
        load_all_checks()
        document = openapi.build(self.app)
        document.pop("security")  # credentials are ours to choose
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.config.checks.negative_data_rejection.expected_statuses = sorted(map(str, REFUSED))

    def close(self) -> None:
        """
        The application is gone.
        """
        self.app.state.runtime.close()

    def run(self, cases: int, *, part: int = 0, parts: int = 1) -> Report:
        """
        About so many requests were sent, spread evenly over the operations of this part, half of them malformed on purpose.
        """
        began = time.monotonic()
        operations: list[Any] = [cast("Any", found).ok() for found in self.schema.get_all_operations()][part::parts]
        self.report.operations = len(operations)
        waiting = [(one, GenerationMode.POSITIVE) for one in operations]
        waiting += [(one, GenerationMode.NEGATIVE) for one in operations if _can_be_malformed(one)]
        while waiting and self.report.cases < cases:
            share = max(1, round((cases - self.report.cases) / len(waiting)))
            waiting = [(one, mode) for one, mode in waiting if self._many(one, mode, share)]
        self.report.took_s = time.monotonic() - began
        return self.report

    def _many(self, operation: Any, mode: GenerationMode, count: int) -> bool:
        """
        So many requests were sent, or as many as there are; False when there are no others.
        """
        before = self.report.cases
        self._seed += 1
        strategy = operation.as_strategy(generation_mode=mode)

        @hypothesis.seed(self._seed)
        @hypothesis.settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=QUIET)
        @hypothesis.given(case=strategy)
        def one(case: Any) -> None:
            self._one(case, mode)

        try:
            one()
        except hypothesis.errors.Unsatisfiable:
            return False
        return self.report.cases - before >= count

    def _one(self, case: Any, mode: GenerationMode) -> None:
        label = case.operation.label
        definition = case.operation.definition.raw
        swapped = self._name_what_exists(case)
        for name in [one for one in case.headers or {} if one.lower() in {"authorization", "idempotency-key"}]:
            if name.lower() == "authorization" or self._chance.random() < FRESH_KEY:
                del case.headers[name]  # our own credential, and mostly a key that was not used before
        headers = self._credential(definition.get("x-audience", "any"))
        if "If-Match" not in (case.headers or {}) and "428" in definition["responses"] and self._chance.random() < WITH_VERSION:
            headers["If-Match"] = "*"
        _shorten_wait(case)
        before = self._writes()
        response = case.call(app=self.app, base_url="http://testserver", headers=headers)
        self.report.cases += 1
        self.report.statuses[response.status_code] += 1
        self._judge(case, mode, response, swapped=swapped)
        if response.status_code < 400:
            self.report.reached.add(label)
        elif 400 <= response.status_code < 500 and response.status_code not in {403, 404}:
            after = self._writes()
            if after != before:
                self.report.note(label, f"wrote and answered {response.status_code}", f"{response.request.url}")
        if case.method != "GET" and response.status_code < 400:
            self._mend()

    def _name_what_exists(self, case: Any) -> bool:
        """
        Ids in the path are mostly such as exist; True when there are any.
        """
        if not case.path_parameters or self._chance.random() > KNOWN_IDS:
            return False
        harmless = case.method == "GET" or case.path.startswith("/v1/projects/{project_id}/")
        for name in list(case.path_parameters):
            found = self.population.pick(name, self._chance, harmless=harmless)
            if found is not None:
                case.path_parameters[name] = found
        return True

    def _credential(self, audience: str) -> dict[str, str]:
        keys = self.population.keys
        drawn = self._chance.random()
        if drawn < STRANGER / 4:
            return {}
        key = keys.get(audience) if drawn > STRANGER else None
        return {"Authorization": f"Bearer {key or self._chance.choice(list(keys.values()))}"}

    def _judge(self, case: Any, mode: GenerationMode, response: Any, *, swapped: bool) -> None:
        label, status, report = case.operation.label, response.status_code, self.report
        text = f"{case.as_curl_command()[:700]}\n{status} {response.content[:500].decode('utf-8', 'replace')}"
        if status >= 500:
            report.note(label, f"answered {status}", text)
            return
        if str(status) not in case.operation.definition.raw["responses"] and status not in EDGE:
            report.note(label, f"undeclared {status}", text)
        wanted = [one for one in FORM if one is not checks.response_schema_conformance or not _is_stream(response)]
        if mode.is_negative and not swapped and case.operation.definition.raw.get("x-audience"):
            wanted.append(checks.negative_data_rejection)
        try:
            case.validate_response(response, checks=wanted)
        except FailureGroup as group:
            for failure in group.exceptions:
                report.note(label, type(failure).__name__, f"{failure.title}: {failure.message}\n{text}")
        if mode.is_positive and status == 422:
            errors = response.json().get("errors") or [{"field": response.json()["code"], "code": ""}]
            report.strict[(label, f"{errors[0]['field']} {errors[0]['code']}")] += 1

    def _mend(self) -> None:
        if self._chance.random() < 0.1:
            self.population.look()
        if not self.population.works():
            self.report.resown += 1
            self._sow()

    def _sow(self) -> None:
        self._database.reset()
        for old in self._folder.glob("region.sqlite*"):
            old.unlink()
        self.population: Population = populate(self._database, self._folder)


def count_writes(engine: Engine) -> Callable[[], int]:
    """
    How many committed transactions of the application have written rows so far.
    """
    count = [0]
    dirty: set[int] = set()

    def executed(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        del cursor
        if statement.lstrip()[:6].upper() in {"INSERT", "UPDATE", "DELETE"} and "last_used_at" not in statement:
            dirty.add(id(conn))

    def ended(conn: Any) -> None:
        if id(conn) in dirty:
            dirty.discard(id(conn))
            count[0] += 1

    event.listen(engine, "after_cursor_execute", executed)
    event.listen(engine, "commit", ended)
    event.listen(engine, "rollback", lambda conn: dirty.discard(id(conn)))
    return lambda: count[0]


def _can_be_malformed(operation: Any) -> bool:
    definition = operation.definition.raw
    return "requestBody" in definition or any(one.get("in") != "path" for one in definition.get("parameters", ()))


def _is_stream(response: Any) -> bool:
    return any(
        one.startswith(("text/event-stream", "application/octet-stream")) for one in response.headers.get("content-type", ())
    )


def _shorten_wait(case: Any) -> None:
    waits: Mapping[str, Any] = case.query or {}
    if isinstance(waits.get("wait_s"), int | float) and 0 < waits["wait_s"] <= 60:
        case.query["wait_s"] = 0


@contextmanager
def _quiet_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
