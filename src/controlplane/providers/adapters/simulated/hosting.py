"""
Services on simulated clusters: replicas with a place, a start and an end, replayed from event to event up to the present.

What befalls a replica is told by its image and command, so that people can rehearse it: an image whose name ends in `:missing` cannot be
pulled, the program `false` and `sh -c 'exit 3'` end at once, again and again. Everything else comes up and listens.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from controlplane.providers.adapters.simulated import queue
from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.clock import from_us
from controlplane.providers.adapters.simulated.faults import CANARY_HOST, FORGOTTEN
from controlplane.providers.adapters.simulated.groups import standing
from controlplane.providers.adapters.simulated.members import MemberRow, all_members
from controlplane.providers.adapters.simulated.slices import Device, could, give, held_on
from controlplane.providers.errors import NoCapacity, NotFound, Refused, Unsupported
from controlplane.providers.gpus import slices_of
from controlplane.providers.services import ReplicaView, Scaling, ServiceSpec, ServiceView, Trouble

_EXIT = re.compile(r"exit ([1-9][0-9]{0,2})")
_TROUBLES: dict[str, Trouble] = {
    "image_pull": "image_pull",
    "crash_loop": "crash_loop",
    "out_of_memory": "out_of_memory",
    "never_ready": "not_ready",
}
_OOM_CODE = 137
RESTART_EVERY_US = 60_000_000
"""How often a replica that ends at once is started again."""


def apply(act: Act, spec: ServiceSpec) -> None:
    """
    The service is as told, unless a newer turn, or its end, was told before. Raises NotFound, Refused, NoCapacity.
    """
    if spec.gpu is not None:
        raise Unsupported("the simulator's GPUs have no attributes", code="service_feature_unsupported")
    known = _row(act.db, spec.cluster_id, spec.service_id)
    if known is not None and known["delete_requested_at"] is not None:
        if act.fault != FORGOTTEN or _replicas_at(act.db, known["id"], act.now):
            raise Refused(f"{spec.service_id} is being removed [{CANARY_HOST}]", code="service_removed")
        act.db.execute("UPDATE services SET delete_requested_at = NULL, turn = 0 WHERE id = ?", (known["id"],))
        known = _known(act.db, spec.cluster_id, spec.service_id)
    cluster = standing(act, spec.cluster_id, act.now)
    if cluster["tenant_id"] != spec.tenant_id or cluster["delete_requested_at"] is not None:
        raise Refused(f"{spec.tenant_id} may not run on {spec.cluster_id} [{CANARY_HOST}]", code="not_allowed_on_cluster")
    if known is not None and known["turn"] >= spec.turn:
        return
    _refuse_impossible(act, cluster["id"], spec)
    fate = _fate(act, spec)
    wanted = spec.replicas if known is None or spec.scaling is None else known["wanted"]
    values = (json.dumps(asdict(spec)), spec.turn, fate, wanted)
    if known is None:
        act.db.execute(
            "INSERT INTO services (spec, turn, fate, wanted, object_id, cluster_id, service_id, tenant_id, created_at, settled_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, cluster["id"], spec.cluster_id, spec.service_id, spec.tenant_id, act.start, act.start),
        )
    else:
        settle(act, known)
        act.db.execute("UPDATE services SET spec = ?, turn = ?, fate = ?, wanted = ? WHERE id = ?", (*values, known["id"]))
    act.changed = True
    settle(act, _known(act.db, spec.cluster_id, spec.service_id))


def delete(act: Act, cluster_id: str, service_id: str) -> None:
    """
    Its replicas end and what comes late does not begin it again; one that never was is remembered too.
    """
    known = _row(act.db, cluster_id, service_id)
    if known is None:
        act.db.execute(
            "INSERT INTO services (object_id, cluster_id, service_id, tenant_id, spec, turn, fate, wanted, created_at, settled_at,"
            " delete_requested_at) VALUES (0, ?, ?, '', '', 0, '', 0, ?, ?, ?)",
            (cluster_id, service_id, act.now, act.now, act.now),
        )
        return
    if known["delete_requested_at"] is not None:
        return
    settle(act, known)
    act.db.execute("UPDATE services SET delete_requested_at = ? WHERE id = ?", (act.start, known["id"]))
    for row in _standing(act.db, known["id"]):
        _end(act, row, act.start)
    act.changed = True
    queue.wake(act, known["object_id"])


def view(act: Act, cluster_id: str, service_id: str, at: int) -> ServiceView:
    """
    The service at the instant. Raises NotFound.
    """
    row = _seen(act, cluster_id, service_id, at)
    spec = spec_of(row["spec"])
    return ServiceView(
        service_id=service_id,
        version=spec.version,
        turn=row["turn"],
        wanted=row["wanted"],
        replicas=tuple(_view(one, at) for one in _replicas_at(act.db, row["id"], at)),
        address=f"{service_id.replace('_', '-')}.{cluster_id.replace('_', '-')}.svc:{spec.port}",
        going=row["delete_requested_at"] is not None,
    )


def names(act: Act, cluster_id: str, at: int) -> tuple[str, ...]:
    """
    The services of the cluster at the instant. Raises NotFound where there is no such cluster.
    """
    cluster = standing(act, cluster_id, at)
    rows = act.db.execute(
        "SELECT * FROM services WHERE object_id = ? AND created_at <= ? AND delete_requested_at IS NULL ORDER BY id",
        (cluster["id"], at),
    ).fetchall()
    return tuple(row["service_id"] for row in rows)


def output(act: Act, cluster_id: str, service_id: str, name: str, at: int, *, limit: int) -> bytes:
    """
    What the replica printed last. Raises NotFound.
    """
    row = _seen(act, cluster_id, service_id, at)
    found = next((one for one in _replicas_at(act.db, row["id"], at) if _name(one) == name), None)
    if found is None or found["placed_at"] is None or found["fate"] == "image_pull":
        raise NotFound(f"{name} has printed nothing [{CANARY_HOST}]")
    spec = spec_of(found["spec"])
    lines = [f"{from_us(found['placed_at']).isoformat()} starting {' '.join(spec.command) or spec.image}"]
    if found["fate"].startswith("crash_loop"):
        lines.append(f"ended with exit code {_exit_code(found)}")
    elif found["fate"] == "out_of_memory":
        lines.append("Killed")
    elif found["ready_at"] is not None and found["ready_at"] <= at:
        lines.append(f"version {found['version']} listens on port {spec.port}")
    return ("\n".join(lines) + "\n").encode()[-limit:]


def load(db: sqlite3.Connection, service_id: str, amount: float) -> None:
    """
    From now on the metric that the service is scaled by sums up to the amount over its replicas. Raises NotFound.
    """
    if db.execute("UPDATE services SET load = ? WHERE service_id = ?", (amount, service_id)).rowcount == 0:
        raise NotFound(f"no service {service_id}")


def settle(act: Act, row: sqlite3.Row) -> None:
    """
    The service stands as it is now: what could be placed is, what was ready by then is, and versions have followed each other as far.
    """
    if row["delete_requested_at"] is not None:
        return
    gone = act.db.execute("SELECT delete_requested_at FROM clusters WHERE id = ?", (row["object_id"],)).fetchone()[0]
    if gone is not None:
        for one in _standing(act.db, row["id"]):
            _end(act, one, gone)
        act.db.execute("UPDATE services SET delete_requested_at = ? WHERE id = ?", (gone, row["id"]))
        return
    at = max(row["settled_at"], min(act.start, act.now))
    while True:
        _Round(act, row["id"], at).play()
        edges = [edge for edge in _edges(act, row) if at < edge <= act.now]
        if not edges:
            break
        at = min(edges)
    if at < act.now:
        _Round(act, row["id"], act.now).play()
    act.db.execute("UPDATE services SET settled_at = ? WHERE id = ?", (max(act.now, row["settled_at"]), row["id"]))
    queue.wake(act, row["object_id"])


@dataclass(slots=True)
class _Round:
    """
    One instant in a service's life.
    """

    act: Act
    service: int
    at: int

    def play(self) -> None:
        """
        Replicas that lost a machine have ended, the metric was heard, and replicas were made, placed and ended towards what is wanted.
        """
        row = self._row()
        members = all_members(self.act.db, row["object_id"], need_deployment=self.act.need_deployment)
        alive = {one.ref for one in members if one.answers(self.at) and (one.removed_at is None or one.removed_at > self.at)}
        for one in _standing(self.act.db, self.service):
            if any(ref not in alive for ref, _ in queue.nodes_of(one["nodes"])):
                _end(self.act, one, self.at)
        self._scale(spec_of(row["spec"]))
        moved = True
        while moved:
            moved = self._place(members) or self._follow()

    def _row(self) -> sqlite3.Row:
        row: sqlite3.Row = self.act.db.execute("SELECT * FROM services WHERE id = ?", (self.service,)).fetchone()
        return row

    def _scale(self, spec: ServiceSpec) -> None:
        if spec.scaling is None:
            return
        row = self._row()
        needed = math.ceil(row["load"] / spec.scaling.target) if row["load"] else row["wanted"]
        bounded = min(max(needed, spec.scaling.least), spec.scaling.most)
        self.act.db.execute("UPDATE services SET wanted = ? WHERE id = ?", (bounded, self.service))

    def _follow(self) -> bool:
        """
        One replica was made or ended towards what is wanted; whether one was.
        """
        row = self._row()
        spec, wanted = spec_of(row["spec"]), row["wanted"]
        there = [one for one in _standing(self.act.db, self.service) if one["ending_at"] is None]
        mine = [one for one in there if one["version"] == spec.version]
        old = [one for one in there if one["version"] != spec.version]
        ready = [one for one in there if _ready(one, self.at)]
        if len(mine) > wanted:
            _end(self.act, min(mine, key=lambda one: (_ready(one, self.at), -one["id"])), self.at)
            return True
        broken = [one for one in old if not _ready(one, self.at)]
        if broken or (old and (len(ready) - 1 >= wanted - spec.unavailable or (len(mine) >= wanted and len(ready) > wanted))):
            _end(self.act, (broken or old)[0], self.at)
            return True
        if len(mine) < wanted and len(there) < wanted + (spec.surge if old else 0):
            self._make(row, spec)
            return True
        return False

    def _make(self, row: sqlite3.Row, spec: ServiceSpec) -> None:
        self.act.db.execute(
            "INSERT INTO replicas (service, object_id, version, spec, fate, nodes, made_at) VALUES (?, ?, ?, ?, ?, '[]', ?)",
            (self.service, row["object_id"], spec.version, row["spec"], row["fate"], self.at),
        )

    def _place(self, members: list[MemberRow]) -> bool:
        placed = False
        for one in _standing(self.act.db, self.service):
            if one["placed_at"] is not None:
                continue
            spec = spec_of(one["spec"])
            held = _held(self.act, one["object_id"], members, self.at)
            fitting = [
                (each.ref, devices)
                for each in sorted(members, key=lambda member: member.ref)
                if each.takes_jobs(self.at) and (devices := give(each, held[each.ref], spec.gpus_per_node, spec.mig)) is not None
            ]
            if len(fitting) < spec.nodes:
                continue
            ready = None if one["fate"] else self.at + self.act.takes("job_run", spec.service_id, str(one["id"]))
            self.act.db.execute(
                "UPDATE replicas SET nodes = ?, placed_at = ?, ready_at = ? WHERE id = ?",
                (json.dumps(fitting[: spec.nodes]), self.at, ready, one["id"]),
            )
            placed = True
        return placed


def spec_of(kept: str) -> ServiceSpec:
    """
    The service as it was told.
    """
    return spec_from(json.loads(kept))


def spec_from(given: Mapping[str, Any]) -> ServiceSpec:
    """
    The service as it travelled.
    """
    from_lists: dict[str, Any] = {name: tuple(given[name]) for name in ("command", "worker_command")}
    scaling = None if given["scaling"] is None else Scaling(**given["scaling"])
    plain = {name: value for name, value in given.items() if name not in {"files", "readiness"}}
    return ServiceSpec(**{**plain, **from_lists, "scaling": scaling, "mig": slices_of(given.get("mig"))})


def _refuse_impossible(act: Act, object_id: int, spec: ServiceSpec) -> None:
    members = all_members(act.db, object_id, need_deployment=act.need_deployment)
    able = [one for one in members if one.removed_at is None and not one.leads and could(one, spec.gpus_per_node, spec.mig)]
    if len([one for one in able if spec.gpu_model in {"", one.gpu_model}]) < spec.nodes:
        raise NoCapacity(
            f"a replica of {spec.service_id} wants {spec.nodes} x {spec.mig or f'{spec.gpus_per_node} GPUs'} [{CANARY_HOST}]",
            code="service_never_fits",
        )


def _fate(act: Act, spec: ServiceSpec) -> str:
    if act.fault.startswith("service_"):
        return act.fault.removeprefix("service_")
    if spec.image.endswith(":missing"):
        return "image_pull"
    ends = _EXIT.search(spec.command[-1]) if spec.command else None
    if spec.command and (spec.command[0].rsplit("/", 1)[-1] == "false" or ends):
        return f"crash_loop:{ends[1] if ends else 1}"
    return ""


def _held(act: Act, object_id: int, members: list[MemberRow], at: int) -> dict[str, set[Device]]:
    runs = act.db.execute(
        "SELECT nodes FROM runs WHERE object_id = ? AND (ended_at IS NULL OR freed_at > ?)", (object_id, at)
    ).fetchall()
    used = [
        *(queue.nodes_of(row["nodes"]) for row in runs),
        *queue.replicas_on(act.db, object_id),
        *queue.replicas_ending(act.db, object_id, at),
    ]
    return held_on((one.ref for one in members if one.takes_jobs(at)), used)


def _row(db: sqlite3.Connection, cluster_id: str, service_id: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM services WHERE cluster_id = ? AND service_id = ?", (cluster_id, service_id)
    ).fetchone()
    return row


def _known(db: sqlite3.Connection, cluster_id: str, service_id: str) -> sqlite3.Row:
    row = _row(db, cluster_id, service_id)
    assert row is not None
    return row


def _seen(act: Act, cluster_id: str, service_id: str, at: int) -> sqlite3.Row:
    """
    Once it is settled. Raises NotFound where nothing of it is there at the instant.
    """
    row = _row(act.db, cluster_id, service_id)
    if row is not None:
        settle(act, row)
        row = _row(act.db, cluster_id, service_id)
    gone = row is None or row["created_at"] > at or not row["spec"]
    if row is not None and row["delete_requested_at"] is not None and row["delete_requested_at"] <= at:
        gone = gone or not _replicas_at(act.db, row["id"], at)
    if gone or row is None:
        raise NotFound(f"no service {service_id} in {cluster_id} [{CANARY_HOST}]")
    return row


def _standing(db: sqlite3.Connection, service: int) -> list[sqlite3.Row]:
    return db.execute("SELECT * FROM replicas WHERE service = ? AND ended_at IS NULL ORDER BY id", (service,)).fetchall()


def _replicas_at(db: sqlite3.Connection, service: int, at: int) -> list[sqlite3.Row]:
    return db.execute(
        "SELECT * FROM replicas WHERE service = ? AND made_at <= ? AND (ended_at IS NULL OR ended_at > ?) ORDER BY id",
        (service, at, at),
    ).fetchall()


def _end(act: Act, row: sqlite3.Row, at: int) -> None:
    takes = act.takes("job_epilog", str(row["service"]), str(row["id"])) if row["placed_at"] is not None else 0
    act.db.execute("UPDATE replicas SET ending_at = ?, ended_at = ? WHERE id = ?", (at, at + takes, row["id"]))


def _edges(act: Act, row: sqlite3.Row) -> list[int]:
    edges: list[int] = []
    for one in act.db.execute("SELECT ready_at, ended_at FROM replicas WHERE service = ?", (row["id"],)):
        edges += [edge for edge in (one["ready_at"], one["ended_at"]) if edge is not None]
    for member in all_members(act.db, row["object_id"], need_deployment=act.need_deployment):
        edges += member.edges()
    return edges


def _ready(row: sqlite3.Row, at: int) -> bool:
    return row["ready_at"] is not None and row["ready_at"] <= at


def _name(row: sqlite3.Row) -> str:
    return f"replica-{row['id']}"


def _exit_code(row: sqlite3.Row) -> int:
    return int(row["fate"].partition(":")[2] or 1)


def _view(row: sqlite3.Row, at: int) -> ReplicaView:
    nodes = queue.nodes_of(row["nodes"])
    placed = row["placed_at"] is not None and row["placed_at"] <= at
    fate = row["fate"].partition(":")[0]
    crashes = fate in {"crash_loop", "out_of_memory"} and placed
    phase: Any = "starting" if placed else "pending"
    trouble: Trouble = "" if placed else "no_room"
    if _ready(row, at):
        phase = "ready"
    elif placed and fate:
        phase, trouble = "starting" if fate == "never_ready" else "failing", _TROUBLES[fate]
    if row["ending_at"] is not None and row["ending_at"] <= at:
        phase, trouble = "ending", ""
    mig = spec_of(row["spec"]).mig
    return ReplicaView(
        name=_name(row),
        version=row["version"],
        phase=phase,
        trouble=trouble,
        exit_code=(_OOM_CODE if fate == "out_of_memory" else _exit_code(row)) if crashes else None,
        restarts=1 + (at - row["placed_at"]) // RESTART_EVERY_US if crashes else 0,
        refs=tuple(ref for ref, _ in nodes) if placed else (),
        gpus=sum(len(devices) for _, devices in nodes) if placed else 0,
        profile=mig.profile if mig is not None and placed else "",
    )
