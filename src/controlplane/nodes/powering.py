"""
The power that machines say they have, beside the power that their states want.

One look proves nothing: controllers were seen to show the old power for 11 s, and a machine may be on its way. What lasts from one look to
the next, within one state, is reported. A machine that its tenant switched off through us is in another state and not amiss. Whether one
that should be on was shut down from within or lost its power, nobody can tell from here: the report is for people to know, and moves
nothing.
"""

import json
from collections.abc import Mapping

from sqlalchemy import bindparam, text
from sqlalchemy.orm import Session

from controlplane.health.classes import HealthClass
from controlplane.nodes.reporting import Report, report
from controlplane.nodes.states import LIT

SOURCE = "bmc"
CHECK = "power_state"
AMISS: HealthClass = "info"
"""A tenant may halt its own system, which keeps nobody from the machine and is no reason to replace it."""
WORDS = "It is off, and nobody asked us to switch it off."
SAID = text(
    """
    WITH told AS (SELECT * FROM jsonb_to_recordset(CAST(:told AS jsonb)) AS t(id text, power text)),
    old AS (
      SELECT n.id, t.power, n.power AS before, (n.state = ANY(:lit) AND t.power = 'off') AS amiss, n.power_amiss_at > n.state_since AS lasts
      FROM nodes n JOIN told t ON t.id = n.id
      WHERE n.power <> t.power OR n.power_amiss_at IS NOT NULL OR (n.state = ANY(:lit) AND t.power = 'off')
      ORDER BY n.id FOR UPDATE OF n)
    UPDATE nodes n SET power = old.power,
      power_at = CASE WHEN old.before = old.power THEN n.power_at ELSE cp_clock() END,
      power_amiss_at = CASE WHEN NOT old.amiss THEN NULL WHEN old.lasts THEN n.power_amiss_at ELSE cp_clock() END
    FROM old WHERE n.id = old.id
    RETURNING n.id, old.amiss, coalesce(old.lasts, false) AS lasts
    """
)
KNOWN = text(
    "SELECT node_id, class FROM health_reports WHERE source = :source AND check_name = :check AND node_id IN :nodes"
).bindparams(bindparam("nodes", expanding=True))


def store_power(session: Session, told: Mapping[str, str]) -> int:
    """
    What each node (by id) said of its power stands in its row, and a difference that lasts, or has ended, is reported; how many were.

    `unknown` changes nothing. Only what is news is written.
    """
    rows = [{"id": node_id, "power": power} for node_id, power in sorted(told.items()) if power != "unknown"]
    if not rows:
        return 0
    changed = session.execute(SAID, {"told": json.dumps(rows), "lit": sorted(LIT)}).all()
    if not changed:
        return 0
    given = {"source": SOURCE, "check": CHECK, "nodes": [row.id for row in changed]}
    known = {row.node_id: row[1] for row in session.execute(KNOWN, given)}
    news = [
        Report(row.id, SOURCE, CHECK, AMISS, WORDS) for row in changed if row.amiss and row.lasts and known.get(row.id) != AMISS
    ]
    news += [Report(row.id, SOURCE, CHECK, "ok") for row in changed if not row.amiss and known.get(row.id, "ok") != "ok"]
    report(session, news)
    return len(news)
