"""
The state tables as people read them are the ones the code and the database go by.
"""

from __future__ import annotations

from sqlalchemy import text

from controlplane.clusters.states import CLUSTER_STATES
from controlplane.fabric_checks.states import FABRIC_CHECK_STATES
from controlplane.images.states import IMAGE_STATES
from controlplane.jobs.states import CHECKPOINT_STATES, JOB_STATES
from controlplane.kit.states import StateTable
from controlplane.nodes.states import NODE_STATES
from controlplane.services.states import SERVICE_STATES
from tests.conftest import ROOT, Database

TABLES = (NODE_STATES, CLUSTER_STATES, JOB_STATES, CHECKPOINT_STATES, IMAGE_STATES, FABRIC_CHECK_STATES, SERVICE_STATES)
PAGE = ROOT / "docs" / "states.md"


def section(table: StateTable) -> str:
    """
    One table as Markdown: what each state means, how long it may last, where it leads; then the diagram.
    """
    lines = [f"## {table.kind.capitalize()}", "", "| state | nature | longest stay | fails to | says |", "|---|---|---|---|---|"]
    for state in table.states:
        stay = "" if state.longest_stay_s is None else f"{state.longest_stay_s:g} s"
        lines.append(f"| `{state.name}` | {state.nature} | {stay} | {state.fails_to or ''} | {state.says} |")
    return "\n".join([*lines, "", "```mermaid", table.mermaid(), "```", ""])


def page() -> str:
    """
    The whole page.
    """
    head = (
        "# States\n\nMade from the code's state tables (`make states`); a test compares them, the database refuses other moves.\n"
    )
    return "\n".join([head, *(section(table) for table in TABLES)])


def test_the_page_is_made_from_the_tables() -> None:
    """docs/states.md says what the tables say; `make states` renews it."""
    assert PAGE.read_text("utf-8") == page()


def test_every_moving_state_has_an_end_by_time() -> None:
    """No state that we drive can last for ever unseen."""
    for table in TABLES:
        for state in table.states:
            assert state.nature != "moving" or state.longest_stay_s is not None, f"{table.kind} {state.name}"


def test_the_database_knows_exactly_these_moves(migrated: Database) -> None:
    """The table that a trigger checks moves against holds the moves of the code and no other."""
    with migrated.owner.connect() as connection:
        rows = connection.execute(text("SELECT kind, before, after FROM state_moves")).all()
    assert {tuple(row) for row in rows} == {(table.kind, before, after) for table in TABLES for before, after in table.moves()}


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
