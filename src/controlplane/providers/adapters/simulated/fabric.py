"""
The simulated fabric: what calls do to ports, and what the switches say of them at one instant.

Every leaf is a switch. A machine's data cables are bundled into one port, `REF.p1`; beside it end those of its management controller,
`REF.bmc`, and of the provisioning network, `REF.pxe`, which no tenant may ever have. Changes take effect at once or, under a delay,
later. A switch that is silent answers nobody, and what it carries goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.faults import CANARY_HOST
from controlplane.providers.errors import Busy, NotFound, NotSent, Refused
from controlplane.providers.fabrics import FabricView, NetworkSpec, PortRef, PortView

LARGEST_SEGMENT = (1 << 24) - 1
RESERVED_ENDS = ("bmc", "pxe")
"""How the names of ports that belong to the operator end."""
_TENANT_END = "p1"
_STANDING = "from_at <= :at AND (until_at IS NULL OR until_at > :at)"


def port_of(ref: str) -> PortRef:
    """
    Where the machine's data cables end.
    """
    return PortRef(_leaf_of(ref), f"{ref}.{_TENANT_END}")


def attach(act: Act, wanted: PortRef, network: NetworkSpec, *, turn: int) -> None:
    """
    The port carries the network, or will when the call was delayed; a half-made attachment is completed by a repeat.
    """
    ref = _changeable(act, wanted)
    if _is_over(act, wanted, turn):
        raise Busy(f"a later turn of {wanted.port} was told ({CANARY_HOST})", code="fabric_turn_over")
    _note_turn(act, wanted, turn)
    if not 1 <= network.segment <= LARGEST_SEGMENT:
        raise Refused(f"segment {network.segment} is outside 1 to {LARGEST_SEGMENT}", code="fabric_segment_invalid")
    held = _held(act, wanted)
    for one in held:
        if (one["segment"], one["network"], one["deployment"]) != (network.segment, network.name, act.deployment):
            raise Refused(f"{wanted.port} of {wanted.switch} ({CANARY_HOST}) carries {one['network']}", code="fabric_port_taken")
    other = act.db.execute(
        f"SELECT network FROM links WHERE switch = :switch AND segment = :segment AND {_STANDING}"
        " AND (network != :network OR deployment != :deployment)",
        {"switch": wanted.switch, "at": act.now, "deployment": act.deployment, "segment": network.segment, "network": network.name},
    ).fetchone()
    if other is not None:
        raise Refused(f"segment {network.segment} is in use by {other['network']} ({CANARY_HOST})", code="fabric_segment_taken")
    half = act.fault == "attach_half_made"
    if act.fault == "attach_lies" or (held and (half or not held[0]["shut"])):
        return
    for one in held:
        act.db.execute("DELETE FROM links WHERE id = ?", (one["id"],))
    act.db.execute(
        "INSERT INTO links (switch, port, ref, network, tenant_id, segment, deployment, from_at, shut) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(wanted.switch, wanted.port, ref, network.name, network.tenant_id, network.segment),
            *(act.deployment, act.start, int(half)),
        ),
    )
    act.changed = True


def detach(act: Act, wanted: PortRef, *, only: int | None, turn: int) -> None:
    """
    The port carries nothing, or not the segment of `only`, or will when the call was delayed.
    """
    _changeable(act, wanted)
    if only is not None and _is_over(act, wanted, turn):
        return
    _note_turn(act, wanted, turn)
    held = [one for one in _held(act, wanted) if only in {None, one["segment"]}]
    foreign = [one["network"] for one in held if one["deployment"] != act.deployment]
    if foreign:
        raise Refused(
            f"{wanted.port} of {wanted.switch} ({CANARY_HOST}) is in {foreign[0]}, not ours", code="fabric_device_foreign"
        )
    for one in [] if act.fault == "detach_lies" else held:
        # A planned attachment that is taken back before its time was never there.
        act.db.execute("UPDATE links SET until_at = ? WHERE id = ?", (max(act.start, one["from_at"]), one["id"]))
        act.changed = True


def forget(db: sqlite3.Connection, switch: str, at: int) -> None:
    """
    The switch has started anew: no port of it carries anything, and neither turns nor what was on its way in it are left.
    """
    db.execute(
        "UPDATE links SET until_at = max(?, from_at) WHERE switch = ? AND (until_at IS NULL OR until_at > ?)", (at, switch, at)
    )
    db.execute("DELETE FROM turns WHERE switch = ?", (switch,))
    db.execute("DELETE FROM late_effects WHERE operation IN ('attach', 'detach') AND target GLOB ? || '/*'", (switch,))


def rewire(db: sqlite3.Connection, wanted: PortRef, segment: int | None, tenant_id: str, at: int) -> None:
    """
    Somebody has put the port into a segment, or into none, by hand. Raises NotFound for a port that is not there.
    """
    ref, _, end = wanted.port.rpartition(".")
    if end not in {_TENANT_END, *RESERVED_ENDS} or not _stands_there(db, ref, wanted.switch):
        raise NotFound(f"there is no port {wanted.port} of {wanted.switch}", code="fabric_port_unlisted")
    db.execute(
        "UPDATE links SET until_at = max(?, from_at) WHERE switch = ? AND port = ? AND (until_at IS NULL OR until_at > ?)",
        (at, wanted.switch, wanted.port, at),
    )
    if segment is not None:
        db.execute(
            "INSERT INTO links (switch, port, ref, network, tenant_id, segment, deployment, from_at)"
            " VALUES (?, ?, ?, 'by hand', ?, ?, '', ?)",
            (wanted.switch, wanted.port, ref, tenant_id, segment, at),
        )


def fabric_view(db: sqlite3.Connection, at: int, *, site: str, mute: Sequence[str] = ()) -> FabricView:
    """
    Every tenant port of the site at that time, without those of silent switches and of the ones named as mute.
    """
    refs = [row["ref"] for row in db.execute("SELECT ref FROM machines WHERE :site IN ('', site) ORDER BY ref", {"site": site})]
    leaves = {_leaf_of(ref) for ref in refs}
    silent = {one for one in leaves if _is_silent(db, one, at)} | (set(mute) & leaves)
    carried: dict[str, list[sqlite3.Row]] = {}
    for row in db.execute(f"SELECT * FROM links WHERE {_STANDING} ORDER BY id", {"at": at}):
        carried.setdefault(row["port"], []).append(row)
    views = [_view(one, carried.get(one.port, [])) for one in map(port_of, refs) if one.switch not in silent]
    views.sort(key=lambda one: (one.ref.switch, one.ref.port))
    return FabricView(tuple(views), complete=not silent, silent=tuple(sorted(silent)))


def leaves_of(db: sqlite3.Connection, site: str) -> list[str]:
    """
    The site's switches, sorted.
    """
    rows = db.execute("SELECT ref FROM machines WHERE :site IN ('', site)", {"site": site})
    return sorted({_leaf_of(row["ref"]) for row in rows})


def port_view(db: sqlite3.Connection, at: int, wanted: PortRef) -> PortView:
    """
    One port at that time. Raises NotFound for one that is no tenant's to have, NotSent while its switch is silent.
    """
    ref, _, end = wanted.port.rpartition(".")
    if end != _TENANT_END or not _stands_there(db, ref, wanted.switch):
        raise NotFound(f"the fabric's list has no port {wanted.port} of {wanted.switch}", code="fabric_port_unlisted")
    _hear(db, wanted.switch, at)
    rows = db.execute(
        f"SELECT * FROM links WHERE switch = :switch AND port = :port AND {_STANDING} ORDER BY id",
        {"switch": wanted.switch, "port": wanted.port, "at": at},
    ).fetchall()
    return _view(wanted, rows)


def ports_view(db: sqlite3.Connection, at: int, switch: str) -> tuple[PortView, ...]:
    """
    Every tenant port of one switch at that time. Raises NotFound for no such switch, NotSent while it is silent.
    """
    rows = db.execute("SELECT ref FROM machines WHERE ref > ? || '-' AND ref < ? || '.' ORDER BY ref", (switch, switch))
    refs = [row["ref"] for row in rows if _leaf_of(row["ref"]) == switch]
    if not refs:
        raise NotFound(f"the fabric's list has no switch {switch}", code="fabric_port_unlisted")
    _hear(db, switch, at)
    carried: dict[str, list[sqlite3.Row]] = {}
    found = db.execute(f"SELECT * FROM links WHERE switch = :switch AND {_STANDING} ORDER BY id", {"switch": switch, "at": at})
    for row in found:
        carried.setdefault(row["port"], []).append(row)
    return tuple(_view(one, carried.get(one.port, [])) for one in map(port_of, refs))


def _view(ref: PortRef, rows: Sequence[Any]) -> PortView:
    segments = sorted({row["segment"] for row in rows})
    wrong = []
    if len(segments) > 1:
        wrong.append(f"it carries the segments {', '.join(map(str, segments))}")
    if any(row["shut"] for row in rows):
        wrong.append("it is in its network and switched off")
    if any(not row["deployment"] for row in rows):
        wrong.append("it is in a network that was not made by us")
    ours = [row["segment"] for row in rows if row["deployment"]]
    return PortView(ref, ours[0] if ours else None, bool(rows) and not any(row["shut"] for row in rows), "; ".join(wrong))


def _changeable(act: Act, wanted: PortRef) -> str:
    """
    The machine at the port. Raises Refused for a port that no tenant may have, NotSent while its switch is silent.
    """
    ref, _, end = wanted.port.rpartition(".")
    if not _stands_there(act.db, ref, wanted.switch) or end not in {_TENANT_END, *RESERVED_ENDS}:
        raise Refused(f"the fabric's list has no port {wanted.port} of {wanted.switch}", code="fabric_port_unlisted")
    if end in RESERVED_ENDS:
        raise Refused(f"{wanted.port} of {wanted.switch} ({CANARY_HOST}) is reserved", code="fabric_port_reserved")
    _hear(act.db, wanted.switch, act.now)
    return ref


def _held(act: Act, wanted: PortRef) -> list[Any]:
    """
    What the port carries now or is planned to.
    """
    return act.db.execute(
        "SELECT * FROM links WHERE switch = ? AND port = ? AND (until_at IS NULL OR until_at > ?) AND (until_at IS NULL OR"
        " until_at > from_at) ORDER BY id",
        (wanted.switch, wanted.port, act.now),
    ).fetchall()


def _is_over(act: Act, wanted: PortRef, turn: int) -> bool:
    """
    Whether something was decided about the port after what is asked now.
    """
    found = act.db.execute("SELECT turn FROM turns WHERE switch = ? AND port = ?", (wanted.switch, wanted.port)).fetchone()
    return turn != 0 and found is not None and turn < found["turn"]


def _note_turn(act: Act, wanted: PortRef, turn: int) -> None:
    if turn:
        act.db.execute(
            "INSERT INTO turns VALUES (?, ?, ?) ON CONFLICT (switch, port) DO UPDATE SET turn = max(turn, excluded.turn)",
            (wanted.switch, wanted.port, turn),
        )


def _stands_there(db: sqlite3.Connection, ref: str, switch: str) -> bool:
    found = db.execute("SELECT 1 FROM machines WHERE ref = ?", (ref,)).fetchone()
    return found is not None and _leaf_of(ref) == switch


def _hear(db: sqlite3.Connection, switch: str, at: int) -> None:
    if _is_silent(db, switch, at):
        raise NotSent(f"{switch} ({CANARY_HOST}): connection refused")


def _is_silent(db: sqlite3.Connection, switch: str, at: int) -> bool:
    found = db.execute(
        "SELECT 1 FROM outages WHERE ref = ? AND from_at <= ? AND (until_at IS NULL OR until_at > ?)", (switch, at, at)
    ).fetchone()
    return found is not None


def _leaf_of(ref: str) -> str:
    """
    A machine's name is its leaf's with rack and position behind it.
    """
    return ref.rsplit("-", 2)[0]
