"""
What calls do to clusters, and what the simulated peer says of them.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

from controlplane.providers.adapters.simulated import queue
from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.clock import from_us, instant_or_none
from controlplane.providers.adapters.simulated.members import MemberRow, current_members, first_complete, our_reason
from controlplane.providers.clusters import ClusterSpec, ClusterView, Member, MemberState, MemberView
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.machines import Check


def apply(act: Act, spec: ClusterSpec) -> None:
    """
    The cluster is, or becomes, exactly what is wanted. Busy, after everything else was done, while a member to remove runs a job.
    """
    known = newest(act, spec.cluster_id)
    if known is not None and known["delete_requested_at"] is not None:
        if known["deleted_at"] > act.now:
            raise Busy(f"cluster {spec.cluster_id} is being deleted")
        known = None
    _check_members(act, spec, known)
    if known is None:
        object_id = act.db.execute(
            "INSERT INTO clusters (cluster_id, deployment, tenant_id, project_id, run_as, created_at, changed_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (spec.cluster_id, act.deployment, spec.tenant_id, spec.project_id, spec.user, act.start, act.start),
        ).lastrowid
        act.changed = True
    else:
        object_id = known["id"]
        if known["tenant_id"] != spec.tenant_id:
            raise Refused(f"cluster {spec.cluster_id} belongs to {known['tenant_id']}", code="cluster_of_another_tenant")
        if (known["run_as"], known["project_id"]) != (spec.user, spec.project_id):
            act.db.execute("UPDATE clusters SET run_as = ?, project_id = ? WHERE id = ?", (spec.user, spec.project_id, object_id))
            act.changed = True
        queue.settle(act, object_id)
        _note_verified(act, known)
    _converge(act, int(object_id or 0), spec)


def _check_members(act: Act, spec: ClusterSpec, known: Any) -> None:
    refs = [one.ref for one in spec.members]
    if len(set(refs)) != len(refs):
        raise Refused(f"cluster {spec.cluster_id}: a member is named twice", code="member_twice")
    for member in spec.members:
        if act.db.execute("SELECT 1 FROM machines WHERE ref = ?", (member.ref,)).fetchone() is None:
            raise Refused(f"cluster {spec.cluster_id}: no machine is called {member.ref!r}", code="machine_not_found")
        other = act.db.execute(
            "SELECT c.id, c.cluster_id, c.delete_requested_at FROM members m JOIN clusters c ON c.id = m.object_id"
            " WHERE m.ref = ? AND (m.removed_at IS NULL OR m.removed_at > ?)",
            (member.ref, act.now),
        ).fetchone()
        if other is not None and (known is None or other["id"] != known["id"]):
            raise Busy(f"{member.ref} is a member of {other['cluster_id']}", code="machine_held")
        holder = act.db.execute(
            "SELECT token, tenant_id FROM tenancies WHERE ref = ? AND hidden = 0 AND release_requested_at IS NULL", (member.ref,)
        ).fetchone()
        if holder is not None and (holder["token"] != member.token or holder["tenant_id"] != spec.tenant_id):
            raise Refused(f"{member.ref} is held by {holder['token']} of {holder['tenant_id']}", code="machine_held")


def _converge(act: Act, object_id: int, spec: ClusterSpec) -> None:
    wanted = {(one.ref, one.token): one for one in spec.members}
    rows = act.db.execute("SELECT * FROM members WHERE object_id = ? AND removed_at IS NULL ORDER BY id", (object_id,)).fetchall()
    busy = _jobs_per_ref(act.db, object_id, act.now)
    kept, changed, waiting = set(), False, []
    # nobody joins a Kubernetes before its first control plane has made it
    founds = not rows and any(one.leads for one in spec.members)
    found_us = act.takes("found", spec.cluster_id, str(object_id)) if founds else 0
    for row in rows:
        key = (row["ref"], row["token"])
        if key in wanted:
            kept.add(key)
            if row["leaving_at"] is not None or row["gpus"] != wanted[key].gpus:
                act.db.execute("UPDATE members SET leaving_at = NULL, gpus = ? WHERE id = ?", (wanted[key].gpus, row["id"]))
                changed = True
        elif busy[row["ref"]]:
            waiting.append(row["ref"])
            if row["leaving_at"] is None:
                act.db.execute("UPDATE members SET leaving_at = ? WHERE id = ?", (act.now, row["id"]))
                act.changed = True
        else:
            _remove(act, row)
            changed = True
    for key, member in wanted.items():
        if key not in kept and member.ref not in waiting:
            _add(act, object_id, member, found_us)
            changed = True
    if changed:
        act.db.execute("UPDATE clusters SET changed_at = ? WHERE id = ?", (act.start, object_id))
        act.changed = True
    queue.wake(act, object_id)
    if waiting:
        raise Busy(f"cluster {spec.cluster_id}: jobs still run on {', '.join(waiting)}", code="member_busy")


def _add(act: Act, object_id: int, member: Member, found_us: int) -> None:
    joins = None if act.fault == "join_never" else act.takes("join", member.ref, member.token) + found_us
    made = act.db.execute(
        "INSERT INTO members (object_id, ref, token, gpus, added_at, join_us) VALUES (?, ?, ?, ?, ?, ?)",
        (object_id, member.ref, member.token, member.gpus, act.start, joins),
    )
    if member.leads:
        act.db.execute("INSERT INTO leads (member) VALUES (?)", (made.lastrowid,))


def _remove(act: Act, row: sqlite3.Row) -> None:
    act.db.execute("UPDATE members SET removed_at = max(?, added_at) WHERE id = ?", (act.start, row["id"]))
    act.db.execute("UPDATE drains SET until_at = ? WHERE ref = ? AND ours = 1 AND until_at IS NULL", (act.start, row["ref"]))


def delete(act: Act, cluster_id: str) -> None:
    """
    The cluster's jobs are cancelled and its objects are going; a cluster that is not there is a success.
    """
    known = newest(act, cluster_id)
    if known is None or known["delete_requested_at"] is not None:
        return
    queue.settle(act, known["id"])
    queue.cancel_all(act, known["id"])
    gone = act.start + act.takes("teardown", cluster_id, str(known["id"]))
    refs = act.db.execute("SELECT id, ref FROM members WHERE object_id = ? AND removed_at IS NULL", (known["id"],)).fetchall()
    for row in refs:
        act.db.execute("UPDATE drains SET until_at = ? WHERE ref = ? AND ours = 1 AND until_at IS NULL", (gone, row["ref"]))
    act.db.execute("UPDATE members SET removed_at = ? WHERE object_id = ? AND removed_at IS NULL", (gone, known["id"]))
    act.db.execute("UPDATE clusters SET delete_requested_at = ?, deleted_at = ? WHERE id = ?", (act.start, gone, known["id"]))
    act.changed = True


def drain(act: Act, cluster_id: str, refs: tuple[str, ...], reason: str) -> None:
    """
    No new job starts on the members; a drain that is there already, whoever made it, stays as it is.
    """
    for ref in _own_members(act, cluster_id, refs):
        if act.db.execute("SELECT 1 FROM drains WHERE ref = ? AND until_at IS NULL", (ref,)).fetchone() is None:
            act.db.execute(
                "INSERT INTO drains (ref, reason, ours, from_at) VALUES (?, ?, 1, ?)", (ref, our_reason(reason), act.start)
            )
            act.changed = True


def undrain(act: Act, cluster_id: str, refs: tuple[str, ...]) -> None:
    """
    Our drains of the members are lifted; an administrator's stay.
    """
    for ref in _own_members(act, cluster_id, refs):
        lifted = act.db.execute(
            "UPDATE drains SET until_at = max(?, from_at) WHERE ref = ? AND ours = 1 AND until_at IS NULL", (act.start, ref)
        )
        act.changed = act.changed or lifted.rowcount > 0
    queue.wake(act, newest(act, cluster_id)["id"])


def _own_members(act: Act, cluster_id: str, refs: tuple[str, ...]) -> tuple[str, ...]:
    found = standing(act, cluster_id, act.now)
    queue.settle(act, found["id"])
    rows = act.db.execute("SELECT ref FROM members WHERE object_id = ? AND removed_at IS NULL", (found["id"],))
    own = {row["ref"] for row in rows}
    for ref in refs:
        if ref not in own:
            raise Refused(f"{ref} is no member of {cluster_id}", code="member_unknown")
    return refs


def newest(act: Act, cluster_id: str) -> Any:
    """
    The last object made under the name by this installation, or None.
    """
    return act.db.execute(
        "SELECT * FROM clusters WHERE cluster_id = ? AND deployment = ? ORDER BY id DESC LIMIT 1", (cluster_id, act.deployment)
    ).fetchone()


def standing(act: Act, cluster_id: str, at: int) -> sqlite3.Row:
    """
    The cluster's object at that time. Raises NotFound.
    """
    row: sqlite3.Row | None = act.db.execute(
        "SELECT * FROM clusters WHERE cluster_id = ? AND deployment = ? AND created_at <= ?"
        " AND (deleted_at IS NULL OR deleted_at > ?) ORDER BY id DESC LIMIT 1",
        (cluster_id, act.deployment, at, at),
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no cluster {cluster_id!r}", code="cluster_not_found")
    return row


def view(act: Act, cluster_id: str, at: int) -> ClusterView:
    """
    The cluster at that time. Raises NotFound.
    """
    row = standing(act, cluster_id, at)
    queue.settle(act, row["id"])
    members = current_members(act.db, row["id"], at, need_deployment=act.need_deployment)
    if row["verified_at"] is None:  # however old what a reader is shown is, it is noted by what is true now
        _note_verified(act, row, members if at == act.now else None)
        row = act.db.execute("SELECT * FROM clusters WHERE id = ?", (row["id"],)).fetchone()
    jobs = _jobs_per_ref(act.db, row["id"], at)
    verified = row["verified_at"]
    return ClusterView(
        cluster_id=row["cluster_id"],
        members=tuple(_member_view(one, jobs[one.ref], at) for one in members),
        verified_at=from_us(verified) if verified is not None and verified <= at else None,
        checks=_checks(members, at),
    )


def names(act: Act, at: int) -> tuple[str, ...]:
    """
    The clusters that carry our marks at that time.
    """
    return tuple(
        row["cluster_id"]
        for row in act.db.execute(
            "SELECT cluster_id FROM clusters WHERE deployment = ? AND created_at <= ? AND (deleted_at IS NULL OR deleted_at > ?)"
            " ORDER BY id",
            (act.deployment, at, at),
        )
    )


def _note_verified(act: Act, row: sqlite3.Row, members: list[MemberRow] | None = None) -> None:
    """
    The instant at which the cluster was first complete is kept for ever once it has passed.
    """
    if row["verified_at"] is not None:
        return
    if members is None:
        members = current_members(act.db, row["id"], act.now, need_deployment=act.need_deployment)
    complete = first_complete(members, row["changed_at"], act.now)
    if complete is not None:
        act.db.execute("UPDATE clusters SET verified_at = ? WHERE id = ?", (complete, row["id"]))


def _member_view(member: MemberRow, jobs: int, at: int) -> MemberView:
    drained = next((one for one in member.drains if one.holds(at)), None)
    dead = next((one for one in member.outages if one.holds(at)), None)
    state: MemberState = "up"
    if member.gone_at is not None and member.gone_at <= at:
        state = "down"
    elif member.base_at is None or member.base_at > at:
        state = "joining"
    elif dead is not None:
        state = "down"
    elif drained is not None or (member.leaving_at is not None and member.leaving_at <= at):
        state = "draining" if jobs else "drained"
    first = member.next_answer(member.added_at)
    return MemberView(
        ref=member.ref,
        state=state,
        gpus=None if state == "joining" else 0 if member.leads else member.gpus,
        jobs=jobs,
        reason=drained.reason if drained is not None else (dead.reason if dead is not None else ""),
        drained_by_us=drained is not None and drained.ours,
        up_since=instant_or_none(first if first is not None and first <= at else None),
    )


def _checks(members: list[MemberRow], at: int) -> tuple[Check, ...]:
    silent = [one.ref for one in members if not one.answers(at)]
    short = [one.ref for one in members if one.gpus < one.wanted_gpus]
    return (
        Check("nodes_answer", "failed" if silent or not members else "passed", ", ".join(silent[:10])),
        Check("gpu_count", "failed" if short else "passed", ", ".join(short[:10])),
        Check("fabric", "not_measured", "a simulated fabric has no figure"),
    )


def _jobs_per_ref(db: sqlite3.Connection, object_id: int, at: int) -> Counter[str]:
    counted: Counter[str] = Counter()
    for row in db.execute(
        "SELECT nodes FROM runs WHERE object_id = ? AND started_at <= ? AND (freed_at IS NULL OR freed_at > ?)", (object_id, at, at)
    ):
        counted.update(ref for ref, _ in queue.nodes_of(row["nodes"]))
    return counted
