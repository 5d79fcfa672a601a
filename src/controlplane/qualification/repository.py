"""
Every statement on the ledger. Nodes are a higher room's rows; the foreign keys to them are what is asked about here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, and_, func, null, or_, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.measurements.suspects import PairResult
from controlplane.qualification.models import BaselineRow, MeasurementRow, NodeQualificationRow, PolicyRow, StandingRow
from controlplane.qualification.states import (
    RUN_PASSED,
    Baseline,
    BaselineFilter,
    BurnTest,
    MeasurementFilter,
    NodeFact,
    Policy,
    Stand,
)

REFUSAL_JOINS: Final = """
    LEFT JOIN node_qualifications q ON q.node_id = n.id
    LEFT JOIN qualification_policies y
      ON y.instance_type = n.instance_type AND NOT y.sell_not_measured AND cardinality(y.required) > 0
"""
REFUSAL: Final = """
    CASE WHEN q.below THEN 'below_baseline'
         WHEN y.instance_type IS NOT NULL AND (q.node_id IS NULL OR q.missing OR q.good_until <= cp_clock()) THEN 'not_measured' END
"""
MOST_AT_ONCE: Final = 2000  # standings in one statement: each carries its last values
RULES_LOCK: Final = 5203117749  # any constant: the name of the one lock on baselines and policies
SHARED = text("SELECT cp_clock() FROM pg_advisory_xact_lock_shared(:lock)")
ALONE = text("SELECT cp_clock() FROM pg_advisory_xact_lock(:lock)")


def hold_rules(session: Session, *, alone: bool = False) -> datetime:
    """
    Baselines and policies stay as they are until this transaction ends, or are this transaction's alone to change; the time is returned.
    """
    now: datetime = session.execute(ALONE if alone else SHARED, {"lock": RULES_LOCK}).scalar_one()
    return now


# The lock keeps the order nodes, node_qualifications, standings, which is also that of the lifecycle engine.
NODES = text(
    """
    SELECT id, site, leaf, instance_type FROM nodes WHERE id = ANY(CAST(:ids AS text[])) AND state <> 'retired'
    ORDER BY id FOR KEY SHARE
    """
)
ON_LEAVES = text(
    """
    SELECT n.id, n.site, n.leaf, n.instance_type
    FROM nodes n JOIN unnest(CAST(:sites AS text[]), CAST(:leaves AS text[])) AS w(site, leaf) USING (site, leaf)
    WHERE n.state <> 'retired' ORDER BY n.id FOR KEY SHARE OF n
    """
)
OF_TYPE = text("SELECT id FROM nodes WHERE instance_type = :type AND state <> 'retired' ORDER BY id")


def nodes(session: Session, ids: Iterable[str]) -> dict[str, NodeFact]:
    """
    The nodes that are not retired, by id; they stay until the transaction ends.
    """
    wanted = sorted(set(ids))
    rows = session.execute(NODES, {"ids": wanted}) if wanted else ()
    return {row.id: NodeFact(*row) for row in rows}


def nodes_on(session: Session, leaves: Iterable[tuple[str, str]]) -> list[NodeFact]:
    """
    The nodes that stand on these leaves, each a site and its leaf's name.
    """
    wanted = sorted(set(leaves))
    if not wanted:
        return []
    given = {"sites": [site for site, _ in wanted], "leaves": [leaf for _, leaf in wanted]}
    return [NodeFact(*row) for row in session.execute(ON_LEAVES, given)]


def nodes_of_type(session: Session, instance_type: str) -> list[str]:
    """
    The ids of the type's nodes that are not retired.
    """
    return list(session.execute(OF_TYPE, {"type": instance_type}).scalars())


def baseline_of(row: BaselineRow) -> Baseline:
    """
    The plain value of a row.
    """
    return Baseline(**{name: getattr(row, name) for name in Baseline.__dataclass_fields__})


def _newest() -> Any:
    newest = select(BaselineRow.id, func.max(BaselineRow.version).label("version")).group_by(BaselineRow.id).subquery()
    return select(BaselineRow).join(newest, and_(newest.c.id == BaselineRow.id, newest.c.version == BaselineRow.version))


def newest_baselines(session: Session, metrics: Iterable[str]) -> list[Baseline]:
    """
    The newest version of every baseline of these figures, the withdrawn ones too.
    """
    query = _newest().where(BaselineRow.metric.in_(set(metrics)))
    return [baseline_of(row) for row in session.scalars(query)]


def find_baseline(session: Session, baseline_id: str) -> Baseline | None:
    """
    The newest version, or None.
    """
    row = session.scalars(_newest().where(BaselineRow.id == baseline_id)).one_or_none()
    return None if row is None else baseline_of(row)


def find_place(session: Session, new: Baseline) -> Baseline | None:
    """
    The newest version of the baseline for the same figure of the same subjects, or None.
    """
    same = [getattr(BaselineRow, name) == getattr(new, name) for name in ("scope_kind", "scope_name", "subject_kind", "metric")]
    row = session.scalars(_newest().where(*same)).one_or_none()
    return None if row is None else baseline_of(row)


def add_version(session: Session, new: Baseline) -> Baseline:
    """
    The version is stored.
    """
    values = {name: getattr(new, name) for name in Baseline.__dataclass_fields__ if name != "created_at"}
    row = BaselineRow(**values)
    session.add(row)
    session.flush()
    session.refresh(row)
    return baseline_of(row)


def baselines(session: Session, which: BaselineFilter, ask: PageAsk) -> Page[Baseline]:
    """
    A page of baselines, each in its newest version.
    """
    query = _newest()
    for kind, name in (("gpu_model", which.gpu_model), ("instance_type", which.instance_type)):
        if name is not None:
            query = query.where(BaselineRow.scope_kind == kind, BaselineRow.scope_name == name)
    for column, value in ((BaselineRow.subject_kind, which.subject_kind), (BaselineRow.metric, which.metric)):
        if value is not None:
            query = query.where(column == value)
    query = query.where(BaselineRow.withdrawn.is_(which.withdrawn))
    return fetch_page(session, query, BaselineRow.id, ask).map(baseline_of)


def versions(session: Session, baseline_id: str, ask: PageAsk) -> Page[Baseline]:
    """
    A page of the baseline's versions, oldest first.
    """
    query = select(BaselineRow).where(BaselineRow.id == baseline_id)
    return fetch_page(session, query, BaselineRow.version, ask).map(baseline_of)


def units_of(session: Session, metric: str, subject_kind: str) -> set[str]:
    """
    The units in which the figure is known of such subjects.
    """
    query = select(StandingRow.unit).where(StandingRow.metric == metric, StandingRow.subject_kind == subject_kind).distinct()
    return set(session.scalars(query))


MEASURED: Final = (
    "id text, run_id text, subject_kind text, subject_key text, part text, node_id text, peer_node_id text, site text, leaf text, rail"
    " bigint, tool text, metric text, value double precision, unit text, detail text, verdict text, judged_by text, baseline_id text,"
    " baseline_version bigint, digest text, taken_at timestamptz"
)
MEASURED_NAMES: Final = ", ".join(one.split()[0] for one in MEASURED.split(", "))
ADD_MEASUREMENTS = text(
    f"""
    INSERT INTO measurements ({MEASURED_NAMES}) SELECT {MEASURED_NAMES} FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r ({MEASURED})
    ON CONFLICT ON CONSTRAINT uq_measurements_once DO NOTHING RETURNING id
    """
)


def add_measurements(session: Session, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """
    The rows are in the ledger; the ids of those that were not there yet are returned.
    """
    return set(session.execute(ADD_MEASUREMENTS, {"rows": json.dumps(rows, default=str)}).scalars()) if rows else set()


def of_run(session: Session, run_id: str, tool: str, subject_key: str, metrics: Iterable[str]) -> list[MeasurementRow]:
    """
    What the run has of these figures of the subject.
    """
    query = select(MeasurementRow).where(
        MeasurementRow.run_id == run_id,
        MeasurementRow.tool == tool,
        MeasurementRow.subject_key == subject_key,
        MeasurementRow.metric.in_(set(metrics)),
    )
    return list(session.scalars(query.order_by(MeasurementRow.metric, MeasurementRow.part)))


FAILURES = text(
    """
    SELECT m.run_id, m.tool, m.metric, m.part, m.value, m.unit, b.comparison, b.value AS limit
    FROM measurements m LEFT JOIN baselines b ON b.id = m.baseline_id AND b.version = m.baseline_version
    WHERE m.run_id = ANY(CAST(:runs AS text[])) AND m.verdict = 'failed' AND m.judged_by <> 'provider'
    ORDER BY m.run_id, m.metric, m.part
    """
)


def failures_of(session: Session, run_ids: Iterable[str]) -> Sequence[Row[Any]]:
    """
    (run_id, tool, metric, part, value, unit, comparison, limit) of all that failed in these runs by a baseline or a tool's own word.
    """
    return session.execute(FAILURES, {"runs": sorted(set(run_ids))}).all()


def measured_in(session: Session, run_id: str) -> Sequence[MeasurementRow]:
    """
    Every figure of the run, oldest first.
    """
    query = select(MeasurementRow).where(MeasurementRow.run_id == run_id).order_by(MeasurementRow.id)
    return session.execute(query).scalars().all()


Place = tuple[str, str, str, str]
"""Subject kind and key, part and metric."""
STANDINGS = text(
    """
    SELECT s.* FROM standings s
    JOIN unnest(CAST(:kinds AS text[]), CAST(:keys AS text[]), CAST(:parts AS text[]), CAST(:metrics AS text[]))
      AS w(subject_kind, subject_key, part, metric) USING (subject_kind, subject_key, part, metric)
    ORDER BY s.id FOR UPDATE OF s
    """
)


def standings_at(session: Session, places: Iterable[Place]) -> dict[Place, Row[Any]]:
    """
    The standings at these places, locked.
    """
    wanted = sorted(set(places))
    columns = list(zip(*wanted, strict=True)) or [(), (), (), ()]
    given = {name: list(column) for name, column in zip(("kinds", "keys", "parts", "metrics"), columns, strict=True)}
    rows = session.execute(STANDINGS, given).all() if wanted else []
    return {(row.subject_kind, row.subject_key, row.part, row.metric): row for row in rows}


OF_METRIC = text("SELECT s.* FROM standings s WHERE metric = :metric AND subject_kind = :kind ORDER BY s.id FOR UPDATE")


def standings_of(session: Session, metric: str, subject_kind: str) -> Sequence[Row[Any]]:
    """
    Every standing of the figure for such subjects, locked.
    """
    return session.execute(OF_METRIC, {"metric": metric, "kind": subject_kind}).all()


STOOD: Final = (
    "id text, subject_kind text, subject_key text, part text, metric text, node_id text, peer_node_id text, site text, leaf text, rail"
    " bigint, tool text, value double precision, unit text, verdict text, judged_by text, baseline_id text, baseline_version bigint,"
    " since timestamptz, measurement_id text, taken_at timestamptz, recent jsonb, trend jsonb, drifting boolean"
)
STOOD_NAMES: Final = tuple(one.split()[0] for one in STOOD.split(", "))
CHANGING: Final = STOOD_NAMES[STOOD_NAMES.index("tool") :]
PUT_STANDINGS = text(
    f"""
    INSERT INTO standings ({", ".join(STOOD_NAMES)})
    SELECT {", ".join(STOOD_NAMES)} FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r ({STOOD}) ORDER BY id
    ON CONFLICT (subject_kind, subject_key, part, metric) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in CHANGING)}
    """
)


def stood(row: Any) -> dict[str, Any]:
    """
    The row's columns by name.
    """
    return {name: getattr(row, name) for name in STOOD_NAMES}


def put_standings(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """
    The standings are as given.
    """
    for start in range(0, len(rows), MOST_AT_ONCE):
        session.execute(PUT_STANDINGS, {"rows": json.dumps(rows[start : start + MOST_AT_ONCE], default=str)})


LOCK_NODES = text("SELECT * FROM node_qualifications WHERE node_id = ANY(CAST(:ids AS text[])) ORDER BY node_id FOR UPDATE")


def lock_qualifications(session: Session, node_ids: Iterable[str]) -> dict[str, Row[Any]]:
    """
    The rows of these nodes, there and locked, as they were.
    """
    wanted = sorted(set(node_ids))
    if not wanted:
        return {}
    session.execute(
        text("INSERT INTO node_qualifications (node_id) SELECT unnest(CAST(:ids AS text[])) ON CONFLICT DO NOTHING"),
        {"ids": wanted},
    )
    return {row.node_id: row for row in session.execute(LOCK_NODES, {"ids": wanted})}


STANDS = text(
    """
    SELECT n.id AS of_node, s.subject_kind, s.subject_key, s.part, s.metric, s.verdict, s.judged_by, s.taken_at
    FROM nodes n LEFT JOIN qualification_policies y ON y.instance_type = n.instance_type
    JOIN standings s ON s.node_id = n.id AND s.subject_kind = 'node' AND (s.verdict = 'failed' OR s.metric = ANY(y.required))
    WHERE n.id = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT n.id, s.subject_kind, s.subject_key, s.part, s.metric, s.verdict, s.judged_by, s.taken_at
    FROM nodes n LEFT JOIN qualification_policies y ON y.instance_type = n.instance_type
    JOIN standings s ON s.site = n.site AND s.leaf = n.leaf AND s.subject_kind IN ('leaf', 'rail')
      AND (s.verdict = 'failed' OR s.metric = :run AND s.metric = ANY(y.required))
    WHERE n.id = ANY(CAST(:ids AS text[]))
    ORDER BY 1, 2, 3, 5, 4
    """
)


def stands(session: Session, node_ids: Sequence[str]) -> dict[str, list[Stand]]:
    """
    By node: what of it, its leaf or its rails failed, and how it stands in what its policy requires.
    """
    found: dict[str, list[Stand]] = {}
    for row in session.execute(STANDS, {"ids": list(node_ids), "run": RUN_PASSED}):
        found.setdefault(row.of_node, []).append(Stand(*row[1:]))
    return found


AROUND = text(
    """
    WITH RECURSIVE fails(one, other) AS (
      SELECT node_id, peer_node_id FROM standings WHERE subject_kind = 'pair' AND verdict = 'failed'
      UNION SELECT peer_node_id, node_id FROM standings WHERE subject_kind = 'pair' AND verdict = 'failed'),
    around(node) AS (
      SELECT unnest(CAST(:ids AS text[])) UNION SELECT f.other FROM around a JOIN fails f ON f.one = a.node)
    SELECT s.node_id, s.peer_node_id, bool_or(s.verdict = 'failed') AS failed
    FROM standings s
    WHERE s.subject_kind = 'pair' AND s.verdict IN ('passed', 'failed')
      AND (s.node_id IN (SELECT node FROM around) OR s.peer_node_id IN (SELECT node FROM around))
    GROUP BY s.node_id, s.peer_node_id
    """
)


def pairs_around(session: Session, node_ids: Iterable[str]) -> list[PairResult]:
    """
    How every pair did that has an end among these nodes or among those that failures join to them.
    """
    rows = session.execute(AROUND, {"ids": sorted(set(node_ids))})
    return [PairResult(row.node_id, row.peer_node_id, passed=not row.failed) for row in rows]


PUT_QUALIFICATIONS = text(
    """
    UPDATE node_qualifications q SET below = r.below, missing = r.missing, good_until = r.good_until, reasons = r.reasons,
      fails_with = r.fails_with, changed_at = cp_clock()
    FROM jsonb_to_recordset(CAST(:rows AS jsonb))
      AS r (node_id text, below boolean, missing boolean, good_until timestamptz, reasons jsonb, fails_with text[])
    WHERE q.node_id = r.node_id
    """
)


def put_qualifications(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """
    These nodes stand as given.
    """
    if rows:
        session.execute(PUT_QUALIFICATIONS, {"rows": json.dumps(rows, default=str)})


def policies(session: Session, instance_types: Iterable[str]) -> dict[str, Policy]:
    """
    The policies of these types, by type; one that nobody set asks for nothing.
    """
    wanted = set(instance_types)
    rows = session.scalars(select(PolicyRow).where(PolicyRow.instance_type.in_(wanted)).execution_options(populate_existing=True))
    return {name: Policy(name) for name in wanted} | {row.instance_type: policy_of(row) for row in rows}


def policy_of(row: PolicyRow) -> Policy:
    """
    The plain value of a row.
    """
    return Policy(
        row.instance_type,
        tuple(row.required),
        row.sell_not_measured,
        row.max_age_s,
        row.version,
        row.updated_by,
        row.updated_at,
        None if row.burn_in is None else tuple(BurnTest(**one) for one in row.burn_in),
    )


def list_policies(session: Session, ask: PageAsk) -> Page[Policy]:
    """
    A page of the policies that somebody set, by instance type.
    """
    return fetch_page(session, select(PolicyRow), PolicyRow.instance_type, ask).map(policy_of)


def put_policy(session: Session, new: Policy) -> None:
    """
    The policy is as given.
    """
    values = {
        "instance_type": new.instance_type,
        "required": list(new.required),
        "sell_not_measured": new.sell_not_measured,
        "max_age_s": new.max_age_s,
        "burn_in": null() if new.burn_in is None else [asdict(one) for one in new.burn_in],
        "version": new.version,
        "updated_by": new.updated_by,
        "updated_at": CpClock(),
    }
    query = insert(PolicyRow).values(values)
    session.execute(query.on_conflict_do_update(index_elements=["instance_type"], set_=values))


def _narrowed(query: Any, row: type[MeasurementRow | StandingRow], which: MeasurementFilter) -> Any:
    for name in ("site", "leaf", "subject_kind", "metric", "tool", "verdict"):
        value = getattr(which, name)
        if value is not None:
            query = query.where(getattr(row, name) == value)
    if which.node_id is not None:
        query = query.where(or_(row.node_id == which.node_id, row.peer_node_id == which.node_id))
    return query


def measurements(session: Session, which: MeasurementFilter, ask: PageAsk) -> Page[MeasurementRow]:
    """
    A page of measurements, oldest first.
    """
    query = _narrowed(select(MeasurementRow), MeasurementRow, which)
    if which.run_id is not None:
        query = query.where(MeasurementRow.run_id == which.run_id)
    return fetch_page(session, query, MeasurementRow.id, ask)


def standings(session: Session, which: MeasurementFilter, ask: PageAsk) -> Page[StandingRow]:
    """
    A page of standings, oldest first.
    """
    query = _narrowed(select(StandingRow), StandingRow, which)
    if which.drifting is not None:
        query = query.where(StandingRow.drifting.is_(which.drifting))
    return fetch_page(session, query, StandingRow.id, ask)


def measurements_of(session: Session, standing: StandingRow, ask: PageAsk) -> Page[MeasurementRow]:
    """
    A page of the measurements behind a standing, in the order in which they were recorded.
    """
    same = [getattr(MeasurementRow, name) == getattr(standing, name) for name in ("subject_kind", "subject_key", "part", "metric")]
    return fetch_page(session, select(MeasurementRow).where(*same), MeasurementRow.id, ask)


REFUSED = text(
    f"""
    SELECT id, refusal FROM (
      SELECT n.id, {REFUSAL} AS refusal FROM nodes n {REFUSAL_JOINS} WHERE n.id = ANY(CAST(:ids AS text[]))) asked
    WHERE refusal IS NOT NULL
    """
)


def refusals(session: Session, node_ids: Sequence[str]) -> dict[str, str]:
    """
    Those of the nodes that placement leaves out now, each with why.
    """
    return {row.id: row.refusal for row in session.execute(REFUSED, {"ids": list(node_ids)})}


def node_qualifications(session: Session, ask: PageAsk, *, below: bool | None) -> Page[NodeQualificationRow]:
    """
    A page of nodes as they stand, by id.
    """
    query = select(NodeQualificationRow)
    if below is not None:
        query = query.where(NodeQualificationRow.below.is_(below))
    return fetch_page(session, query, NodeQualificationRow.node_id, ask)
