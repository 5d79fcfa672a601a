"""
What the room opens: recording measurements, setting baselines and policies, and reading how everything stands.
"""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from controlplane.kit.errors import NotFound
from controlplane.kit.paging import Page, PageAsk
from controlplane.qualification import repository
from controlplane.qualification.burning import BurnRead, failures_of, record_run, record_test, tests_of
from controlplane.qualification.models import MeasurementRow, NodeQualificationRow, StandingRow
from controlplane.qualification.recording import Change, NodeChecks, Output, Recorded, record_checks, record_output
from controlplane.qualification.repository import REFUSAL, REFUSAL_JOINS
from controlplane.qualification.ruling import (
    Impact,
    change_baseline,
    get_baseline,
    get_policy,
    put_policy,
    set_baseline,
    withdraw_baseline,
)
from controlplane.qualification.states import Baseline, BaselineFilter, BurnTest, MeasurementFilter, Policy, Subject

__all__ = [
    "REFUSAL",
    "REFUSAL_JOINS",
    "Baseline",
    "BaselineFilter",
    "BurnRead",
    "BurnTest",
    "Change",
    "Impact",
    "MeasurementFilter",
    "NodeChecks",
    "Output",
    "Policy",
    "Recorded",
    "Subject",
    "change_baseline",
    "failures_of",
    "get_baseline",
    "get_measurement",
    "get_node_qualification",
    "get_policy",
    "get_standing",
    "list_baselines",
    "list_measurements",
    "list_node_qualifications",
    "list_policies",
    "list_standings",
    "list_versions",
    "measured_in",
    "measurements_of",
    "put_policy",
    "record_checks",
    "record_output",
    "record_run",
    "record_test",
    "refusals",
    "set_baseline",
    "tests_of",
    "withdraw_baseline",
]


def list_measurements(session: Session, which: MeasurementFilter, ask: PageAsk) -> Page[MeasurementRow]:
    """
    A page of measurements, oldest first.
    """
    return repository.measurements(session, which, ask)


def get_measurement(session: Session, measurement_id: str) -> MeasurementRow:
    """
    The measurement. Raises NotFound.
    """
    row = session.get(MeasurementRow, measurement_id)
    if row is None:
        raise NotFound
    return row


def measured_in(session: Session, run_id: str) -> Sequence[MeasurementRow]:
    """
    Every figure of the run, oldest first, with the verdict of then.
    """
    return repository.measured_in(session, run_id)


def list_standings(session: Session, which: MeasurementFilter, ask: PageAsk) -> Page[StandingRow]:
    """
    A page of the latest verdicts, oldest first.
    """
    return repository.standings(session, which, ask)


def get_standing(session: Session, standing_id: str) -> StandingRow:
    """
    The standing. Raises NotFound.
    """
    row = session.get(StandingRow, standing_id)
    if row is None:
        raise NotFound
    return row


def measurements_of(session: Session, standing_id: str, ask: PageAsk) -> Page[MeasurementRow]:
    """
    A page of the measurements behind the standing. Raises NotFound.
    """
    return repository.measurements_of(session, get_standing(session, standing_id), ask)


def list_baselines(session: Session, which: BaselineFilter, ask: PageAsk) -> Page[Baseline]:
    """
    A page of baselines, each in its newest version.
    """
    return repository.baselines(session, which, ask)


def list_versions(session: Session, baseline_id: str, ask: PageAsk) -> Page[Baseline]:
    """
    A page of the baseline's versions, oldest first. Raises NotFound.
    """
    get_baseline(session, baseline_id)
    return repository.versions(session, baseline_id, ask)


def list_policies(session: Session, ask: PageAsk) -> Page[Policy]:
    """
    A page of the policies that somebody set, by instance type.
    """
    return repository.list_policies(session, ask)


def list_node_qualifications(session: Session, ask: PageAsk, *, below: bool | None = None) -> Page[NodeQualificationRow]:
    """
    A page of nodes as they stand, by id; only those under a baseline, or only the others, when asked.
    """
    return repository.node_qualifications(session, ask, below=below)


def refusals(session: Session, node_ids: Sequence[str]) -> dict[str, str]:
    """
    Those of the nodes that placement leaves out now because of what was measured, each with why.
    """
    return repository.refusals(session, node_ids)


def get_node_qualification(session: Session, node_id: str) -> NodeQualificationRow:
    """
    How the node stands. Raises NotFound for nodes of which nothing was ever recorded.
    """
    row = session.get(NodeQualificationRow, node_id)
    if row is None:
        raise NotFound
    return row
