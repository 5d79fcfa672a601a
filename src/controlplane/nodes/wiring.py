"""
Which switches are looked at next, what their ports should carry, and what becomes of what was seen.

A look is old when it arrives. So nothing is done by what the rows said when it was asked for: the node's row is locked, its lease taken as
a driver takes it, and only then is decided. Whatever the node does next waits for the lease and carries a later turn (`providers.fabrics`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from controlplane.kit.events import Event, record
from controlplane.kit.orphans import FEW, SHARE
from controlplane.nodes import repository
from controlplane.nodes.cabling import Mend, Network, SeenPort, SwitchLook, WatchedSwitch, ports_carry
from controlplane.nodes.models import HealthReportRow, NetworkRow
from controlplane.nodes.reporting import Report, report
from controlplane.nodes.states import ProviderRef, Wire

EVERY_S = 60.0
SPREAD = 0.2
"""The next look comes this share earlier or later, so that switches do not stay in step."""
SOON_S = 10.0
"""Until the next look at a switch with a port that was just told, or just went wrong."""
LONG_S = 300.0
"""After this a port that is still not as it should be, or not told of, keeps new orders from its node."""
LEASE_S = 60.0
GRACE_S = 5.0
SOURCE = "fabric"
NO_RECORD = "there is no record of that network, so it stays for a person."
TOO_MANY = "too many ports of the switch are so at once, so it stays for a person."
SILENT = "Its switch does not tell of it"
"""How the trouble begins that is none of the port's own."""

DUE = text(
    """
    WITH due AS MATERIALIZED (
      SELECT provider_id, switch, :every * (1 - :spread + 2 * :spread * random()) AS pause FROM (
        SELECT p.provider_id, p.switch, min(p.look_at) AS since FROM node_ports p JOIN nodes n ON n.id = p.node_id
        WHERE p.look_at <= (SELECT cp_clock()) AND n.state <> 'retired' AND n.access <> '{}'::jsonb
        GROUP BY p.provider_id, p.switch ORDER BY since, p.switch LIMIT :limit) oldest),
    mine AS MATERIALIZED (
      SELECT p.node_id, p.name, d.pause FROM node_ports p JOIN due d ON d.provider_id = p.provider_id AND d.switch = p.switch
      ORDER BY p.node_id, p.name FOR UPDATE OF p SKIP LOCKED),
    noted AS (
      UPDATE node_ports p SET look_at = cp_clock() + make_interval(secs => mine.pause)
      FROM mine WHERE p.node_id = mine.node_id AND p.name = mine.name RETURNING p.provider_id, p.switch)
    SELECT DISTINCT provider_id, switch, (SELECT cp_clock()) AS since FROM noted ORDER BY provider_id, switch
    """
)
PORTS = text(
    """
    SELECT p.node_id, p.name, p.port, n.state, n.step, n.updated_at > :since AS moved, net.name AS network, net.tenant_id, net.segment
    FROM node_ports p JOIN nodes n ON n.id = p.node_id
    LEFT JOIN allocations a ON a.id = n.allocation_id LEFT JOIN networks net ON net.name = a.network
    WHERE p.provider_id = :provider AND p.switch = :switch AND n.state <> 'retired' AND n.access <> '{}'::jsonb
    ORDER BY p.node_id, p.name
    """
)
TAKE = text(
    """
    UPDATE nodes SET fence = fence + 1, lease_until = cp_clock() + make_interval(secs => :lease) WHERE id IN (
      SELECT id FROM nodes WHERE id = ANY(:ids) AND (lease_until IS NULL OR lease_until + make_interval(secs => :grace) < cp_clock())
      ORDER BY id FOR UPDATE SKIP LOCKED)
    RETURNING id, fence
    """
)
GIVE_BACK = text(
    """
    UPDATE nodes SET lease_until = NULL WHERE id IN (
      SELECT n.id FROM nodes n JOIN unnest(CAST(:ids AS text[]), CAST(:fences AS bigint[])) AS held (id, fence)
        ON held.id = n.id AND held.fence = n.fence
      ORDER BY n.id FOR UPDATE OF n)
    RETURNING id
    """
)
STORE = text(
    """
    WITH found AS (
      SELECT p.node_id, p.name, p.trouble AS before,
        CASE WHEN starts_with(f.trouble, :silent) AND p.trouble <> '' THEN p.trouble ELSE f.trouble END AS now, f.told
      FROM node_ports p JOIN jsonb_to_recordset(:found) AS f (node_id text, name text, trouble text, told boolean)
        ON f.node_id = p.node_id AND f.name = p.name
      WHERE p.trouble <> '' OR f.trouble <> '' ORDER BY p.node_id, p.name FOR UPDATE OF p)
    UPDATE node_ports p SET trouble = found.now,
      trouble_since = CASE WHEN found.now = '' THEN NULL ELSE coalesce(p.trouble_since, cp_clock()) END,
      look_at = CASE WHEN found.now <> ''
          AND (found.told OR coalesce(p.trouble_since > cp_clock() - make_interval(secs => :every), true))
        THEN least(p.look_at, cp_clock() + make_interval(secs => :soon)) ELSE p.look_at END
    FROM found WHERE p.node_id = found.node_id AND p.name = found.name
    RETURNING p.node_id, p.name, p.switch, p.port, found.before, p.trouble,
      coalesce(p.trouble_since < cp_clock() - make_interval(secs => :long), false) AS long
    """
).bindparams(bindparam("found", type_=JSONB()))


@dataclass(frozen=True, slots=True)
class Judged:
    """
    What is thought of one switch's ports.
    """

    switch: WatchedSwitch
    """Which switch."""
    troubles: Mapping[tuple[str, str], str]
    """By node and port: what is not as it should be; empty for nothing. A port that a step of its node is changing is not in it."""
    mends: tuple[Mend, ...]
    """What the switch has to be told now."""
    leases: Mapping[str, int]
    """The fences of the nodes that are held for it."""


def due_switches(session: Session, limit: int) -> list[WatchedSwitch]:
    """
    Up to `limit` switches with ports of bare machines that were not looked at lately; their next looks are planned.
    """
    rows = session.execute(DUE, {"every": EVERY_S, "spread": SPREAD, "limit": limit}).all()
    providers = repository.read_providers(session, [row.provider_id for row in rows])
    return [WatchedSwitch(providers[row.provider_id], row.switch, row.since) for row in rows]


def judge(session: Session, switch: WatchedSwitch, look: SwitchLook) -> Judged:
    """
    What the rows of this instant make of a look that was made before it.

    Every node whose ports have to be told anything is leased for `LEASE_S`; one that somebody else has a claim on is left to the next look.
    """
    given = {"provider": switch.provider.id, "switch": switch.name, "since": switch.since}
    rows = session.execute(PORTS, given).all()
    if look.ports is None:
        why = f"{SILENT}: {look.problem}."
        silent = {(row.node_id, row.name): why for row in rows if ports_carry(row.state, row.step) != "changing"}
        return Judged(switch, silent, (), {})
    views = {one.port: one for one in look.ports}
    wrong = sorted({row.node_id for row in rows if _trouble(row, views.get(row.port))})
    leases: dict[str, int] = {}
    turn = 0
    if wrong:
        taken = session.execute(TAKE, {"ids": wrong, "lease": LEASE_S, "grace": GRACE_S}).all()
        leases = {row.id: row.fence for row in taken}
        turn = repository.turn_now(session)
        rows = session.execute(PORTS, given).all()
    troubles = {(row.node_id, row.name): words for row in rows if (words := _trouble(row, views.get(row.port))) is not None}
    wrong_ones = [(row, views[row.port]) for row in rows if row.port in views and troubles.get((row.node_id, row.name))]
    stays = _left_alone(session, wrong_ones, len(rows))
    troubles |= {key: f"{troubles[key].removesuffix('.')}; {why}" for key, why in stays.items()}
    mends = [
        _mend(row, seen, switch.provider, switch.name, turn)
        for row, seen in wrong_ones
        if row.node_id in leases and (row.node_id, row.name) not in stays
    ]
    return Judged(switch, troubles, tuple(mends), leases)


def _left_alone(session: Session, wrong: Sequence[tuple[Any, SeenPort]], ports: int) -> dict[tuple[str, str], str]:
    """
    Those of the wrong ports that keep the network they should not carry, with the reason, by node and port: our rows may be what is wrong.
    """
    carry = {
        (row.node_id, row.name): seen.segment
        for row, seen in wrong
        if seen.segment is not None and ports_carry(row.state, row.step) == "nothing"
    }
    if not carry:
        return {}
    known = set(session.execute(select(NetworkRow.segment).where(NetworkRow.segment.in_(set(carry.values())))).scalars())
    stays = {key: NO_RECORD for key, segment in carry.items() if segment not in known}
    off = carry.keys() - stays.keys()
    return stays | dict.fromkeys(off, TOO_MANY) if len(off) > max(FEW, int(SHARE * ports)) else stays


def settle(session: Session, judged: Judged, told: Mapping[tuple[str, str], str]) -> list[Mend]:
    """
    What was found is stored, operators hear of what is new, and the nodes are free again. `told` has what came of each mend, by node and
    port: empty, or why it failed. Returned are mends made under a lease that was lost meanwhile: they may have come too late.
    """
    kept = set()
    if judged.leases:
        held = {"ids": list(judged.leases), "fences": list(judged.leases.values())}
        kept = set(session.execute(GIVE_BACK, held).scalars())
    found = [
        {"node_id": key[0], "name": key[1], "trouble": _with_failure(words, told.get(key, "")), "told": told.get(key) == ""}
        for key, words in sorted(judged.troubles.items())
    ]
    given = {"found": found, "silent": SILENT, "every": EVERY_S, "soon": SOON_S, "long": LONG_S}
    changed = session.execute(STORE, given).all()
    record(session, [event for row in changed if (event := _event(row)) is not None])
    _report(session, judged, {(row.node_id, row.name): row for row in changed})
    return [one for one in judged.mends if one.node_id not in kept]


def _trouble(row: Any, seen: SeenPort | None) -> str | None:
    """
    What is not as it should be with the port, in words; None while a step of its node is changing it, or when one may have since the look.
    """
    rule = ports_carry(row.state, row.step)
    if rule == "changing" or row.moved:
        return None
    if seen is None:
        return "The fabric has no such port."
    segment = row.segment if rule == "network" else None
    if seen.segment == segment:
        return f"It {_carries(segment)}, and {seen.strange}." if seen.strange else ""
    words = f"It {_carries(seen.segment)} where it should {_carries(segment, should=True)}"
    return f"{words}; {seen.strange}." if seen.strange else f"{words}."


def _carries(segment: int | None, *, should: bool = False) -> str:
    verb = "carry" if should else "carries"
    return f"{verb} no network" if segment is None else f"{verb} segment {segment}"


def _mend(row: Any, seen: SeenPort, provider: ProviderRef, switch: str, turn: int) -> Mend:
    """
    How the port gets what it should carry; a network it must not carry is taken off by its number, so that no other ever is.
    """
    joins = ports_carry(row.state, row.step) == "network" and row.segment is not None
    onto = Network(row.network, row.tenant_id, row.segment) if joins else None
    off = seen.segment if seen.segment is not None and (onto is None or seen.segment != onto.segment) else None
    return Mend(
        node_id=row.node_id,
        wire=Wire(row.name, provider, switch, row.port),
        off=off,
        onto=onto,
        turn=turn,
    )


def _with_failure(words: str, code: str) -> str:
    return f"{words} Telling it failed: {code}." if code else words


def _event(row: Any) -> Event | None:
    """
    A port went wrong, or is right again. That a switch did not answer is no news of a port until it lasts.
    """
    was, is_now = (words != "" and not words.startswith(SILENT) for words in (row.before, row.trouble))
    if was == is_now:
        return None
    place = {"port": row.name, "switch": row.switch, "switch_port": row.port}
    kind = "node.port_wrong" if is_now else "node.port_right"
    return Event(kind, "node", row.node_id, data={**place, "trouble": row.trouble or row.before})


def _report(session: Session, judged: Judged, changed: Mapping[tuple[str, str], Any]) -> None:
    """
    A port that stays wrong keeps new orders from its node, and one that is right again does not.
    """
    nodes = sorted({node_id for node_id, _ in judged.troubles})
    query = select(HealthReportRow.node_id, HealthReportRow.check_name, HealthReportRow.class_).where(
        HealthReportRow.source == SOURCE, HealthReportRow.node_id.in_(nodes)
    )
    known = {(row.node_id, row.check_name): row.class_ for row in session.execute(query)} if nodes else {}
    news = []
    for (node_id, name), words in judged.troubles.items():
        check, row = f"port:{name}", changed.get((node_id, name))
        before = known.get((node_id, check), "ok")
        if not words and before != "ok":
            news.append(Report(node_id, SOURCE, check, "ok", ""))
        if row is not None and row.long and before != "block_allocation":
            news.append(Report(node_id, SOURCE, check, "block_allocation", f"{row.switch}/{row.port}: {row.trouble}"))
    report(session, news)
