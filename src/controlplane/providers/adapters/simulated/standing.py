"""
Clusters that somebody else has on simulated machines: seen, taken over as they are, and let go again.

Their owner leaves no canary on the machines: whoever takes a cluster over has the same people on it as before.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from controlplane.providers.adapters.simulated import groups
from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.faults import CANARY_HOST
from controlplane.providers.adoption import Adoption, Remark, Standing, StandingHost, StandingSet
from controlplane.providers.errors import Refused

PRODUCT = "kubernetes"
SET = "workers"


def stand(db: sqlite3.Connection, ref: str, refs: tuple[str, ...], version: str) -> None:
    """
    Somebody else has a cluster of that name on the machines.
    """
    db.execute(
        "INSERT INTO standing_clusters (ref, uid, version, refs, cluster_id, deployment) VALUES (?, ?, ?, ?, '', '')",
        (ref, f"uid-{ref}", version, json.dumps(sorted(refs))),
    )


def list_all(act: Act, site: str) -> tuple[Standing, ...]:
    """
    Every cluster that is nobody's of ours, of the site's machines; an empty site is all.
    """
    rows = act.db.execute("SELECT * FROM standing_clusters WHERE cluster_id = '' ORDER BY ref").fetchall()
    return tuple(_seen(act, row) for row in rows if not site or _sites(act, row) == {site})


def adopt(act: Act, adoption: Adoption) -> None:
    """
    The cluster and its machines are ours from now on; a repeat changes nothing. Raises Refused.
    """
    row = act.db.execute("SELECT * FROM standing_clusters WHERE uid = ? AND ref = ?", (adoption.uid, adoption.ref)).fetchone()
    spec = adoption.spec
    mine = row is not None and (row["cluster_id"], row["deployment"]) in {("", ""), (spec.cluster_id, act.deployment)}
    if not mine or json.loads(row["refs"]) != sorted(one.ref for one in spec.members):
        raise Refused(f"{adoption.ref} is not there as it was seen [{CANARY_HOST}]", code="provider_cluster_changed")
    for one in spec.members:
        known = act.db.execute("SELECT * FROM tenancies WHERE ref = ? AND token = ?", (one.ref, one.token)).fetchone()
        if known is not None and known["release_requested_at"] is not None:
            raise Refused(f"{one.ref}: tenancy {one.token} is over", code="tenancy_over")
        if known is None:
            _begin(act, one.ref, one.token, spec.tenant_id, spec.cluster_id)
    given = (spec.cluster_id, act.deployment, adoption.uid)
    act.db.execute("UPDATE standing_clusters SET cluster_id = ?, deployment = ? WHERE uid = ?", given)
    groups.apply(act, spec)


def let_go(act: Act, cluster_id: str) -> None:
    """
    It is its owner's again; what comes late does not take it over. Absence is success.
    """
    given = (cluster_id, act.deployment)
    row = act.db.execute("SELECT * FROM standing_clusters WHERE cluster_id = ? AND deployment = ?", given).fetchone()
    if row is None:
        return
    groups.delete(act, cluster_id)
    act.db.execute(
        "UPDATE tenancies SET release_requested_at = ?, release_accepted_at = ?, detached_at = ?, powered_off_at = ?, hidden = 1"
        " WHERE cluster_id = ? AND release_requested_at IS NULL",
        (act.start, act.start, act.start, act.start, cluster_id),
    )
    act.db.execute("UPDATE standing_clusters SET cluster_id = '', deployment = '' WHERE uid = ?", (row["uid"],))
    act.changed = True


def forget(act: Act, cluster_id: str) -> None:
    """
    It was ours and is deleted: nobody has it any more.
    """
    act.db.execute("DELETE FROM standing_clusters WHERE cluster_id = ? AND deployment = ?", (cluster_id, act.deployment))


def refuse_used(act: Act, ref: str) -> None:
    """
    Raises Refused for a machine that somebody else's cluster runs on.
    """
    for row in act.db.execute("SELECT ref, refs FROM standing_clusters WHERE cluster_id = ''"):
        if ref in json.loads(row["refs"]):
            raise Refused(f"{ref} is in use by {row['ref']} [{CANARY_HOST}]", code="machine_held")


def _begin(act: Act, ref: str, token: str, tenant_id: str, cluster_id: str) -> None:
    """
    A line of the ledger for each tenancy: their numbers tell the order.
    """
    call = "INSERT INTO calls (at, operation, target, token, tenant_id, reads, effect) VALUES (?, 'adopt_machine', ?, ?, ?, 0, 1)"
    number = act.db.execute(call, (act.now, ref, token, tenant_id)).lastrowid
    gpus = act.db.execute("SELECT gpus FROM machines WHERE ref = ?", (ref,)).fetchone()["gpus"]
    act.db.execute(
        "INSERT INTO tenancies (id, ref, token, tenant_id, cluster_id, network, deployment, gpus, requested_at, reachable_from, ready_at)"
        " VALUES (?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?)",
        (number, ref, token, tenant_id, cluster_id, act.deployment, gpus, act.start, act.start, act.start),
    )
    act.changed = True


def _sites(act: Act, row: Any) -> set[str]:
    return {found["site"] for found in _machines(act, json.loads(row["refs"]))}


def _machines(act: Act, refs: list[str]) -> list[sqlite3.Row]:
    marks = ",".join("?" * len(refs))
    return act.db.execute(f"SELECT site, instance_type FROM machines WHERE ref IN ({marks})", refs).fetchall()


def _seen(act: Act, row: Any) -> Standing:
    refs = json.loads(row["refs"])
    types = tuple(sorted({found["instance_type"] for found in _machines(act, refs)}))
    hosts = tuple(StandingHost(one, SET, ready=True) for one in refs)
    told = (Remark("simulated", "Its owner is simulated, too."),)
    return Standing(row["ref"], row["uid"], PRODUCT, row["version"], (StandingSet(SET, types),), hosts, notices=told)
