"""
Measurements into the ledger: figures are judged and added, standings follow, and nodes are sold or kept out accordingly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.kit.errors import FieldError, Invalid
from controlplane.kit.events import Event, record
from controlplane.kit.ids import new_id
from controlplane.measurements.figures import Unit
from controlplane.measurements.reading import UnreadableOutput
from controlplane.measurements.suspects import suspects
from controlplane.measurements.tools import TOOLS, ToolName, read_output
from controlplane.measurements.trends import Point, trend_of, with_point
from controlplane.qualification import repository
from controlplane.qualification.errors import RunRecorded, UnreadableMeasurement
from controlplane.qualification.models import MeasurementRow
from controlplane.qualification.repository import Place
from controlplane.qualification.states import (
    ACCEPTANCE,
    Baseline,
    Baselines,
    Hardware,
    Judgement,
    NodeFact,
    Policy,
    Qualification,
    Refusal,
    Subject,
    judgement_of,
    qualification_of,
    refusal_of,
)

EARLY = timedelta(minutes=5)
"""How far a clock that took a measurement may be ahead of the database's."""
LONGEST_DETAIL = 500
VALUES: Mapping[str, float | None] = {"passed": 1.0, "failed": 0.0, "not_measured": None}


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One figure to be recorded.
    """

    metric: str
    """Which one."""
    value: float | None
    """In `unit`; None when it was not measured."""
    unit: Unit
    """Of the value."""
    part: str = ""
    """The GPU, as `gpu3`; empty for the whole."""
    detail: str = ""
    """What was seen, for operators."""


@dataclass(frozen=True, slots=True)
class Reading:
    """
    The figures of one run of one tool on one subject.
    """

    subject: Subject
    """Whose."""
    tool: str
    """What measured them."""
    run_id: str
    """Which run."""
    digest: str
    """SHA-256 of the raw output, in hex."""
    taken_at: datetime | None
    """When; None: now."""
    figures: tuple[Figure, ...]
    """At least one."""


@dataclass(frozen=True, slots=True)
class NodeChecks:
    """
    The acceptance checks of one node, as its provider reported them.
    """

    node_id: str
    """Which node."""
    run_id: str
    """Token of the qualification."""
    checks: Sequence[Mapping[str, str]]
    """[{name, result, detail}]."""


@dataclass(frozen=True, slots=True)
class Output:
    """
    What a tool printed about a subject.
    """

    tool: ToolName
    """Which tool."""
    text: str
    """All that it printed."""
    subject: Subject
    """Of what."""
    collective: str = ""
    """Which collective, for nccl-tests."""
    run_id: str = ""
    """The caller's name of the run; empty: a new one."""
    taken_at: datetime | None = None
    """When it was taken; None: now."""
    part: str = ""
    """The device that the figures of the whole are of, where a run has an output for each; else empty."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """
    What stands in the ledger after an output was recorded.
    """

    run_id: str
    """Of the run."""
    new: int
    """How many figures were not there before."""
    rows: tuple[MeasurementRow, ...]
    """All of the output, by figure."""


@dataclass(frozen=True, slots=True)
class Change:
    """
    A node that placement sees otherwise now.
    """

    node_id: str
    """Which one."""
    before: Refusal
    """Why it was left out; empty when it was not."""
    after: Refusal
    """Why it is; empty when it is not."""


def record_output(session: Session, output: Output) -> Recorded:
    """
    The output's figures are judged and in the ledger; the same output of the same run again changes nothing.

    Raises: UnreadableMeasurement, RunRecorded, and Invalid for subjects that do not exist or that the tool cannot speak of.
    """
    tool = TOOLS[output.tool]
    if output.subject.kind not in tool.kinds:
        words = f"The figures of {output.tool} are of: {', '.join(sorted(tool.kinds))}."
        raise _invalid("body.subject.kind", "wrong_subject", words)
    if tool.collective != bool(output.collective):
        words = "Name the collective." if tool.collective else f"{output.tool} has no collectives."
        raise _invalid("body.collective", "wrong_collective", words)
    try:
        found = read_output(output.tool, output.text, output.collective)
    except UnreadableOutput as error:
        where = FieldError("body.output", "unreadable_output", str(error))
        raise UnreadableMeasurement(f"{error}.", errors=[where], line=error.line) from None
    figures = tuple(
        Figure(one.name, one.value, one.unit, output.part if one.subject.gpu_index is None else f"gpu{one.subject.gpu_index}")
        for one in found
    )
    digest = sha256(output.text.encode("utf-8", "surrogatepass")).hexdigest()
    run_id = output.run_id or new_id("run")
    added = record_readings(session, [Reading(output.subject, output.tool, run_id, digest, output.taken_at, figures)])
    rows = repository.of_run(session, run_id, output.tool, output.subject.key, (one.metric for one in figures))
    if output.part:
        rows = [row for row in rows if row.part == output.part]
    if any(row.digest != digest for row in rows):
        raise RunRecorded(f"Run {run_id} has other figures of this subject; name a new run.", run_id=run_id)
    return Recorded(run_id, len(added), tuple(rows))


def record_checks(session: Session, batch: Iterable[NodeChecks]) -> None:
    """
    The acceptance checks of these nodes are in the ledger under their provider's verdicts; the same number of statements for any batch.
    """
    readings = []
    for one in batch:
        figures = tuple(
            Figure(check["name"], VALUES[check["result"]], "yes", "", check.get("detail", "")[:LONGEST_DETAIL])
            for check in {check["name"]: check for check in one.checks}.values()
        )
        digest = sha256(repr([sorted(check.items()) for check in one.checks]).encode("utf-8", "surrogatepass")).hexdigest()
        if figures:
            readings.append(Reading(Subject("node", one.node_id), ACCEPTANCE, one.run_id, digest, None, figures))
    if readings:
        record_readings(session, readings)


def record_readings(session: Session, readings: Sequence[Reading]) -> set[str]:
    """
    All figures are judged and added, and what follows from them holds; the ids of the new measurements are returned.

    Raises: Invalid for subjects that do not exist and for times to come.
    """
    now = repository.hold_rules(session)
    made_of = _check_subjects(session, [one.subject for one in readings])
    if any(one.taken_at is not None and one.taken_at > now + EARLY for one in readings):
        raise _invalid("body.taken_at", "in_the_future", "A measurement is taken before it is recorded.")
    touched = sorted({node.id for one in readings for node in made_of[one.subject]})
    repository.lock_qualifications(session, touched)
    in_force = Baselines(repository.newest_baselines(session, {figure.metric for one in readings for figure in one.figures}))
    hardware = hardware_of(session, made_of)
    rows: list[dict[str, Any]] = []
    judged: dict[str, Judgement] = {}
    for reading in readings:
        for figure in reading.figures:
            baseline = in_force.find(reading.subject.kind, figure.metric, hardware[reading.subject])
            verdict = judgement_of(reading.tool, figure.metric, figure.value, figure.unit, baseline)
            rows.append(_measurement(reading, figure, verdict, now))
            judged[rows[-1]["id"]] = verdict
    added = repository.add_measurements(session, rows)
    _follow(session, [row for row in rows if row["id"] in added], judged, now)
    pairs = {node.id for one in readings if one.subject.kind == "pair" for node in made_of[one.subject]}
    requalify(session, touched, now, pairs=pairs)
    return added


def _check_subjects(session: Session, subjects: Iterable[Subject]) -> dict[Subject, list[NodeFact]]:
    """
    The nodes of every subject. Raises Invalid where there are none.
    """
    made_of = members_of(session, subjects)
    for subject, members in made_of.items():
        if subject.leaf is not None and not members:
            words = f"No node stands on leaf {subject.leaf[:60]} in {f'{subject.site}'[:60]}."
            raise _invalid("body.subject.leaf", "unknown_leaf", words)
        missing = [one for one in (subject.node_id, subject.peer_node_id) if one and one not in {node.id for node in members}]
        if missing:
            raise _invalid("body.subject", "unknown_node", f"There is no node {missing[0][:60]} that could be measured.")
    return made_of


def members_of(session: Session, subjects: Iterable[Subject]) -> dict[Subject, list[NodeFact]]:
    """
    The nodes of every subject that are in the fleet.
    """
    wanted = set(subjects)
    ids = {one for subject in wanted for one in (subject.node_id, subject.peer_node_id) if one is not None}
    known = repository.nodes(session, ids)
    on_leaf: dict[tuple[str | None, str | None], list[NodeFact]] = {}
    for node in repository.nodes_on(session, {(f"{one.site}", f"{one.leaf}") for one in wanted if one.leaf is not None}):
        on_leaf.setdefault((node.site, node.leaf), []).append(node)
    return {
        one: on_leaf.get((one.site, one.leaf), [])
        if one.leaf is not None
        else [known[node_id] for node_id in (one.node_id, one.peer_node_id) if node_id in known]
        for one in wanted
    }


def hardware_of(session: Session, made_of: Mapping[Subject, Sequence[NodeFact]]) -> dict[Subject, Hardware]:
    """
    What every subject is made of, where all its nodes agree.
    """
    facts = catalog.instance_facts(session)
    found = {}
    for subject, members in made_of.items():
        types = {node.instance_type for node in members}
        models = {facts[name].gpu_model for name in types}
        found[subject] = Hardware(next(iter(types)) if len(types) == 1 else None, next(iter(models)) if len(models) == 1 else None)
    return found


def _measurement(reading: Reading, figure: Figure, verdict: Judgement, now: datetime) -> dict[str, Any]:
    subject, baseline = reading.subject, verdict.baseline
    return {
        "id": new_id("msr"),
        "run_id": reading.run_id,
        "subject_kind": subject.kind,
        "subject_key": subject.key,
        "part": figure.part,
        "node_id": subject.node_id,
        "peer_node_id": subject.peer_node_id,
        "site": subject.site,
        "leaf": subject.leaf,
        "rail": subject.rail,
        "tool": reading.tool,
        "metric": figure.metric,
        "value": figure.value,
        "unit": figure.unit,
        "detail": figure.detail,
        "verdict": verdict.verdict,
        "judged_by": verdict.judged_by,
        "baseline_id": baseline.id if baseline else None,
        "baseline_version": baseline.version if baseline else None,
        "digest": reading.digest,
        "taken_at": min(reading.taken_at or now, now),
    }


def _follow(session: Session, rows: Sequence[dict[str, Any]], judged: Mapping[str, Judgement], now: datetime) -> None:
    """
    The standings of what was measured are those of the latest figure.
    """
    before = repository.standings_at(session, map(_place, rows))
    present: dict[Place, dict[str, Any]] = {place: repository.stood(row) for place, row in before.items()}
    for row in rows:
        old = present.get(_place(row))
        present[_place(row)] = _moved(old, row, judged[row["id"]], now)
    repository.put_standings(session, [{name: row[name] for name in repository.STOOD_NAMES} for row in present.values()])
    record(session, [event for place, row in present.items() for event in tell(before.get(place), row)])


def _place(row: Mapping[str, Any]) -> Place:
    return row["subject_kind"], row["subject_key"], row["part"], row["metric"]


def _moved(old: dict[str, Any] | None, row: Mapping[str, Any], verdict: Judgement, now: datetime) -> dict[str, Any]:
    """
    The standing after one more measurement: an older one than stands counts in the trend alone.
    """
    if old is not None and row["taken_at"] < old["taken_at"]:
        moved = dict(old)
    else:
        since = old["since"] if old is not None and old["verdict"] == row["verdict"] else now
        moved = {**row, "id": old["id"] if old else new_id("std"), "measurement_id": row["id"], "since": since}
    if row["unit"] != moved["unit"]:
        return moved
    points = tuple(Point(*one) for one in old["recent"]) if old is not None and old["unit"] == moved["unit"] else ()
    if row["value"] is not None:
        points = with_point(points, Point(row["taken_at"].timestamp(), row["value"]))
    return moved | {"recent": [[one.at_s, one.value] for one in points]} | trend_columns(points, verdict.baseline)


def trend_columns(points: Sequence[Point], baseline: Baseline | None) -> dict[str, Any]:
    """
    What a standing says of where its figure is going.
    """
    trend = asdict(trend_of(points, baseline.limit if baseline else None))
    return {"drifting": trend.pop("drifting"), "trend": trend}


def tell(old: Any, new: Mapping[str, Any]) -> list[Event]:
    """
    The events of a standing that became another; a first one is news only when it is bad.
    """
    before = old.verdict if old is not None else None
    data = {
        name: new[name] for name in ("subject_kind", "subject_key", "part", "metric", "verdict", "value", "unit", "baseline_id")
    }
    events = []
    if new["verdict"] != (before or new["verdict"]) or (before is None and new["verdict"] == "failed"):
        events.append(Event(f"standing.{new['verdict']}", "standing", new["id"], data=data | {"before": before}))
    if new["drifting"] and not (old is not None and old.drifting):
        events.append(Event("standing.drifting", "standing", new["id"], data=data | {"trend": new["trend"]}))
    return events


def requalify(
    session: Session,
    node_ids: Iterable[str],
    now: datetime,
    *,
    pairs: Iterable[str] = (),
    before: Mapping[str, Policy] | None = None,
) -> list[Change]:
    """
    Placement sees these nodes as the ledger has them now; those that it sees otherwise than before are returned.

    `pairs` are nodes whose pairs were judged anew: the blame is laid anew on all that failures join to them. `before` are the policies
    that held before, by instance type, where they change in this transaction.
    """
    blamed: dict[str, frozenset[str]] = {}
    around: set[str] = set()
    if pairs:
        results = repository.pairs_around(session, pairs)
        blamed = suspects(results)
        around = {*pairs} | {node for one in results if not one.passed for node in (one.one, one.other)}
    old = repository.lock_qualifications(session, {*node_ids, *around})
    facts = repository.nodes(session, old)
    policies = repository.policies(session, {node.instance_type for node in facts.values()})
    stands = repository.stands(session, sorted(facts))
    rows, changes = [], []
    for node_id, node in facts.items():
        row, policy = old[node_id], policies[node.instance_type]
        was = Qualification(row.below, row.missing, row.good_until)
        partners = sorted(blamed.get(node_id, ())) if node_id in around else list(row.fails_with)
        now_is = qualification_of(policy, stands.get(node_id, []), partners)
        reasons = [asdict(one) for one in now_is.reasons]
        if (replace(now_is, reasons=()), reasons, partners) != (was, row.reasons, row.fails_with):
            rows.append({"node_id": node_id, **asdict(now_is), "reasons": reasons, "fails_with": partners})
        change = Change(
            node_id, refusal_of(was, (before or {}).get(node.instance_type, policy), now), refusal_of(now_is, policy, now)
        )
        if change.before != change.after:
            changes.append(change)
    repository.put_qualifications(session, rows)
    reasons_of = {row["node_id"]: row["reasons"] for row in rows}
    record(session, [_node_event(one, reasons_of.get(one.node_id, [])) for one in changes])
    return changes


def _node_event(change: Change, reasons: Sequence[Any]) -> Event:
    data = {"refusal": change.after, "before": change.before, "reasons": list(reasons[:10])}
    return Event("node.qualification", "node", change.node_id, data=data)


def _invalid(field: str, code: str, message: str) -> Invalid:
    return Invalid(message, errors=[FieldError(field, code, message)])
