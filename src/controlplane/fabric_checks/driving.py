"""
What the lifecycle engine asks of this room: snapshots, the judgement, and what an outcome means beyond the move itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from controlplane.fabric_checks import repository
from controlplane.fabric_checks.models import FabricCheckRow
from controlplane.fabric_checks.states import (
    COLLECTIVES,
    ENDS,
    CheckFacts,
    CheckSnapshot,
    Ran,
    Seen,
    blamed_by,
    verdict_of,
)
from controlplane.kit.lifecycle import Claim, Result
from controlplane.kit.outcome import Advance, Fail, Outcome
from controlplane.nodes import service as nodes
from controlplane.qualification import service as qualification
from controlplane.qualification.errors import RunRecorded

OPERATION_ENDS: Mapping[str, str] = {"done": "succeeded", "failed": "failed", "cancelled": "cancelled"}
LONGEST_DETAIL = 300
SAYS: Mapping[str, str] = {
    "passed": "All links are good enough.",
    "failed": "Something is not good enough; its nodes and figures are told beside it.",
    "not_measured": "A tool or its hardware is not there, so not everything was measured.",
    "not_judged": "All was measured; no baseline says what is good enough.",
}


def snapshots(session: Session, claims: Sequence[Claim]) -> Mapping[str, CheckSnapshot]:
    """
    What the steps of these checks need.
    """
    return repository.read_snapshots(session, [claim.row for claim in claims])


def judge(session: Session, claims: Sequence[Claim]) -> Mapping[str, Sequence[Outcome]]:
    """
    Each check is on its way back with the verdict of the ledger on what it measured, and with whom its pairs point at.
    """
    paths: dict[str, Sequence[Outcome]] = {}
    for claim in claims:
        seen = [
            Seen(
                (one.node_id, one.peer_node_id) if one.subject_kind == "pair" and one.node_id and one.peer_node_id else None,
                one.metric,
                one.verdict,
                one.judged_by,
            )
            for one in qualification.measured_in(session, claim.id)
        ]
        verdict = verdict_of(seen)
        facts = CheckFacts(end="done", verdict=verdict, blamed=blamed_by(seen))
        paths[claim.id] = (Advance("returning", SAYS[verdict], facts),)
    return paths


def apply(session: Session, results: Sequence[Result]) -> None:
    """
    Figures are in the ledger, verdicts and ends are stored, and nodes of checks that have ended are free.
    """
    for result in results:
        facts = result.outcome.facts
        if isinstance(result.outcome, Fail):
            facts = CheckFacts(end="failed", failure=result.outcome.code)
        if isinstance(facts, CheckFacts):
            _store(session, result.claim, facts)
    _send_home(session, results)
    ended = [one.claim.id for one in results if isinstance(one.outcome, Advance) and one.outcome.to in ENDS]
    if ended:
        nodes.take_back(session, ended)
        repository.put_returned(session, ended)


def _send_home(session: Session, results: Sequence[Result]) -> None:
    """
    Of checks that go no further: their machines that boot through us are let go, and no run of theirs is open.
    """
    going = [
        one.claim.id
        for one in results
        if isinstance(one.outcome, Fail) or (isinstance(one.outcome, Advance) and one.outcome.to == "returning")
    ]
    nodes.recall(session, going)
    repository.close_all(session, going)


def _store(session: Session, claim: Claim, facts: CheckFacts) -> None:
    values: dict[str, Any] = {}
    repository.open_runs(session, claim.id, facts.opened)
    if facts.ran:
        repository.close_runs(session, claim.id, [one.run.name for one in facts.ran])
        known = {one["name"]: one for one in claim.row["results"]}
        told = {one.run.name: _record(session, claim, one) for one in facts.ran}
        values["results"] = list((known | told).values())
    # An end that is known already stands: a later failure of giving the nodes back is another matter.
    if facts.end and not claim.row["ending"]:
        values |= {"ending": facts.end, "failure": facts.failure, "verdict": facts.verdict}
        values["blamed"] = {node_id: list(partners) for node_id, partners in facts.blamed.items()}
    if values:
        session.execute(update(FabricCheckRow).where(FabricCheckRow.id == claim.id).values(values))


def _record(session: Session, claim: Claim, ran: Ran) -> dict[str, str]:
    tool = claim.row["tool"]
    output = qualification.Output(tool, ran.output, ran.run.subject, COLLECTIVES[tool], claim.id, part=ran.run.part)
    try:
        result = qualification.record_run(session, output, ran.result, ran.detail)
    except RunRecorded:
        # Somebody posted figures under this check's name first; theirs stand, and what this run measured is not believed.
        return {"name": ran.run.name, "result": "failed", "detail": "Other figures are recorded under this check's name."}
    return {"name": ran.run.name, "result": result, "detail": ran.detail[:LONGEST_DETAIL]}
