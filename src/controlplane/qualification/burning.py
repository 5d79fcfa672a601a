"""
The burn-in of one node and runs between nodes: what a machine is to run, what was printed into the ledger, and what is not good enough.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy.orm import Session

from controlplane.qualification import repository
from controlplane.qualification.errors import UnreadableMeasurement
from controlplane.qualification.recording import (
    LONGEST_DETAIL,
    VALUES,
    Figure,
    Output,
    Reading,
    record_output,
    record_readings,
)
from controlplane.qualification.states import BURN_KINDS, FABRIC_CHECK, RUN_PASSED, BurnName, BurnTest, Subject


@dataclass(frozen=True, slots=True)
class BurnRead:
    """
    What became of the output of one test.
    """

    figures: int
    """How many figures of it are in the ledger."""
    failure: str = ""
    """Why nothing in it may be used; empty when it was read."""


def tests_of(session: Session, instance_types: Collection[str]) -> dict[str, tuple[BurnTest, ...]]:
    """
    What machines of these types run in their check, by type; one query.
    """
    return {name: policy.tests for name, policy in repository.policies(session, instance_types).items()}


def record_test(session: Session, node_id: str, run_id: str, name: BurnName, part: str, text: str) -> BurnRead:
    """
    The figures in the output are in the ledger as the node's; an output of which nothing may be used is the failure of the test.

    `part` names the device where a test runs once for each. Raises RunRecorded, and Invalid for a node that has left the fleet.
    """
    kind = BURN_KINDS[name]
    return _read(session, Output(kind.tool, text, Subject("node", node_id), kind.collective, run_id, part=part))


def record_run(session: Session, output: Output, result: str, detail: str) -> str:
    """
    How a run between nodes ended is in the ledger (`fabric_run_passed`), with the figures of its output where it passed; what it came to,
    `failed` for an output of which nothing may be used, is returned.

    Raises RunRecorded, and Invalid for subjects that do not exist.
    """
    if result == "passed":
        failure = _read(session, output).failure
        result, detail = ("failed", failure) if failure else (result, detail)
    figure = Figure(RUN_PASSED, VALUES[result], "yes", output.part, detail[:LONGEST_DETAIL])
    digest = sha256(output.text.encode("utf-8", "surrogatepass")).hexdigest()
    record_readings(session, [Reading(output.subject, FABRIC_CHECK, output.run_id, digest, None, (figure,))])
    return result


def _read(session: Session, output: Output) -> BurnRead:
    try:
        done = record_output(session, output)
    except UnreadableMeasurement as error:
        return BurnRead(0, str(error.detail))
    return BurnRead(len(done.rows))


def failures_of(session: Session, run_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """
    What tools measured in these runs that is not good enough, in words, by run; one query. Checks of a provider are its own affair.
    """
    found: dict[str, list[str]] = {}
    for row in repository.failures_of(session, run_ids):
        whose = f" of {row.part}" if row.part else ""
        asked = (
            f"its baseline is {row.comparison.replace('_', ' ')} {row.limit:g}" if row.limit is not None else f"so says {row.tool}"
        )
        figure = "no" if row.unit == "yes" and not row.value else "yes" if row.unit == "yes" else f"{row.value:g} {row.unit}"
        found.setdefault(row.run_id, []).append(f"{row.metric}{whose} is {figure}; {asked}")
    return {run_id: tuple(words) for run_id, words in found.items()}
