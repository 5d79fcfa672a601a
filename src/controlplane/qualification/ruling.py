"""
What is good enough, and what may be sold: baselines by version and policies, each with what changes for the fleet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.events import Event, record
from controlplane.kit.ids import new_id
from controlplane.measurements.trends import Point
from controlplane.qualification import repository
from controlplane.qualification.errors import BaselineExists, BaselineWithdrawn
from controlplane.qualification.recording import Change, hardware_of, members_of, requalify, tell, trend_columns
from controlplane.qualification.states import Baseline, Baselines, Judgement, Policy, Subject, judgement_of

CheckVersion = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Impact:
    """
    What a change of the rules does to the fleet.
    """

    judged: int
    """Standings that were held against the new rule."""
    falls_out: tuple[str, ...]
    """Nodes that placement leaves out from now on."""
    comes_back: tuple[str, ...]
    """Nodes that it did leave out and does not any more."""

    @classmethod
    def of(cls, changes: Sequence[Change], judged: int = 0) -> "Impact":
        """
        The impact of these changes.
        """
        out = tuple(one.node_id for one in changes if one.after and not one.before)
        back = tuple(one.node_id for one in changes if one.before and not one.after)
        return cls(judged, out, back)


def set_baseline(session: Session, new: Baseline) -> tuple[Baseline, Impact]:
    """
    The baseline is in force, and every standing is judged by it. `new.id` and `new.version` are given here: a withdrawn one goes on.

    Raises: BaselineExists while one for the same figure is in force; Invalid for unknown hardware and another unit than is measured.
    """
    now = repository.hold_rules(session, alone=True)
    known = catalog.instance_type_names(session)
    if new.scope_kind == "instance_type" and new.scope_name not in known:
        raise _invalid("body.instance_type", "unknown_instance_type", f"There is no instance type {new.scope_name[:60]}.")
    if new.scope_kind == "gpu_model" and new.scope_name not in {one.gpu_model for one in catalog.instance_facts(session).values()}:
        raise _invalid("body.gpu_model", "unknown_gpu_model", f"Nothing is made of GPU model {new.scope_name[:60]}.")
    present = repository.find_place(session, new)
    if present is not None and not present.withdrawn:
        raise BaselineExists("Change the one there is by a new version of it.", baseline_id=present.id)
    identity = (present.id, present.version + 1) if present is not None else (new_id("bsl"), 1)
    return _add(session, replace(new, id=identity[0], version=identity[1]), now)


def change_baseline(
    session: Session, baseline_id: str, change: Callable[[Baseline], Baseline], check: CheckVersion
) -> tuple[Baseline, Impact]:
    """
    A new version is in force, and every standing is judged by it.

    Raises: NotFound, BaselineWithdrawn, what `check` raises of the present version, Invalid for another unit than is measured.
    """
    now = repository.hold_rules(session, alone=True)
    present = get_baseline(session, baseline_id)
    check(present.version)
    if present.withdrawn:
        raise BaselineWithdrawn("Set it anew with POST; it then goes on under the same id.")
    return _add(session, replace(change(present), id=present.id, version=present.version + 1), now)


def withdraw_baseline(session: Session, baseline_id: str, by: str, check: CheckVersion) -> tuple[Baseline, Impact]:
    """
    The baseline judges nothing any more; its versions stay readable. Raises as `change_baseline` does.
    """
    return change_baseline(session, baseline_id, lambda one: replace(one, withdrawn=True, created_by=by), check)


def get_baseline(session: Session, baseline_id: str) -> Baseline:
    """
    The newest version. Raises NotFound.
    """
    found = repository.find_baseline(session, baseline_id)
    if found is None:
        raise NotFound
    return found


def put_policy(session: Session, new: Policy, check: CheckVersion) -> tuple[Policy, Impact]:
    """
    The policy is in force for all nodes of its type. Raises NotFound for unknown types and what `check` raises of the present version.
    """
    now = repository.hold_rules(session, alone=True)
    present = get_policy(session, new.instance_type)
    check(present.version)
    repository.put_policy(session, replace(new, version=present.version + 1))
    ids = repository.nodes_of_type(session, new.instance_type)
    changes = requalify(session, ids, now, before={new.instance_type: present})
    changed = get_policy(session, new.instance_type)
    data = {"required": list(changed.required), "sell_not_measured": changed.sell_not_measured, "version": changed.version}
    record(session, [Event("qualification_policy.changed", "qualification_policy", new.instance_type, data=data)])
    return changed, Impact.of(changes)


def get_policy(session: Session, instance_type: str) -> Policy:
    """
    The policy; one that nobody set asks for nothing and has version 0. Raises NotFound for unknown types.
    """
    catalog.get_instance_type(session, instance_type)
    return repository.policies(session, [instance_type])[instance_type]


def _add(session: Session, new: Baseline, now: datetime) -> tuple[Baseline, Impact]:
    units = repository.units_of(session, new.metric, new.subject_kind)
    if not new.withdrawn and units and new.unit not in units:
        raise _invalid("body.unit", "wrong_unit", f"{new.metric} is measured in {', '.join(sorted(units))}.")
    stored = repository.add_version(session, new)
    verb = "withdrawn" if stored.withdrawn else "changed" if stored.version > 1 else "set"
    data = {"metric": stored.metric, "version": stored.version, stored.scope_kind: stored.scope_name}
    record(session, [Event(f"baseline.{verb}", "baseline", stored.id, data=data)])
    return stored, _judge_again(session, stored, now)


def _judge_again(session: Session, rule: Baseline, now: datetime) -> Impact:
    """
    Every standing of the figure has the verdict that the rules now in force give it.
    """
    found = repository.standings_of(session, rule.metric, rule.subject_kind)
    subjects = {row.id: _subject(row) for row in found}
    made_of = members_of(session, subjects.values())
    hardware = hardware_of(session, made_of)
    in_force = Baselines(repository.newest_baselines(session, [rule.metric]))
    changed, events, touched = [], [], set()
    judged = 0
    for row in found:
        subject = subjects[row.id]
        baseline = in_force.find(subject.kind, rule.metric, hardware[subject])
        judged += baseline is not None and baseline.id == rule.id
        verdict = judgement_of(row.tool, row.metric, row.value, row.unit, baseline)
        given = (verdict.verdict, verdict.judged_by, _named(verdict.baseline))
        if given == (row.verdict, row.judged_by, (row.baseline_id, row.baseline_version)):
            continue
        moved = _judged(repository.stood(row), verdict, now)
        changed.append(moved)
        events += tell(row, moved)
        touched |= {node.id for node in made_of[subject]}
    repository.lock_qualifications(session, touched)
    repository.put_standings(session, changed)
    record(session, events)
    changes = requalify(session, touched, now, pairs=touched if rule.subject_kind == "pair" else ())
    return Impact.of(changes, judged)


def _named(baseline: Baseline | None) -> tuple[str | None, int | None]:
    return (None, None) if baseline is None else (baseline.id, baseline.version)


def _judged(row: dict[str, Any], verdict: Judgement, now: datetime) -> dict[str, Any]:
    baseline_id, version = _named(verdict.baseline)
    given = {"verdict": verdict.verdict, "judged_by": verdict.judged_by, "baseline_id": baseline_id, "baseline_version": version}
    since = row["since"] if row["verdict"] == verdict.verdict else now
    return row | given | {"since": since} | trend_columns([Point(*one) for one in row["recent"]], verdict.baseline)


def _subject(row: Any) -> Subject:
    return Subject(row.subject_kind, row.node_id, row.peer_node_id, row.site, row.leaf, row.rail)


def _invalid(field: str, code: str, message: str) -> Invalid:
    return Invalid(message, errors=[FieldError(field, code, message)])
