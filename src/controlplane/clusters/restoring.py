"""
A change that is given up: the cluster holds what it held before, charged and billed as before, and its order is what it holds.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.clusters import founding, repository
from controlplane.clusters.models import ClusterRow, NodeSetRow
from controlplane.clusters.refusals import CHANGE_REFUSED
from controlplane.clusters.states import BARE, ClusterFacts
from controlplane.kit.errors import QuotaExceeded
from controlplane.kit.lifecycle import Result
from controlplane.nodes import service as nodes
from controlplane.quotas import service as quotas

PLACING = "placing"


def restore(session: Session, result: Result) -> None:
    """
    Who was to leave stays, who came for the change and was never in use is given back. While it is not known what the provider has made of
    the change, all members stay where they are, and only the quota for nodes that nobody holds is back.
    """
    claim, facts = result.claim, result.outcome.facts
    row = session.execute(select(ClusterRow).where(ClusterRow.id == claim.id).with_for_update()).scalar_one()
    # hosts that fetch their files follow what rows say, and to a peer nothing is told before nodes are chosen
    untold = row.peer_id is not None or row.kind == BARE or claim.step == PLACING
    sets = repository.sets_of(session, [row.id])[row.id]
    if untold or (isinstance(facts, ClusterFacts) and facts.undone):
        _give_back_new(session, row.id)
        members = [one[0] for one in repository.members_of(session, [row.id])[row.id]]
        for one in sets:
            _restore_set(session, row, one, [member for member in members if member.node_set_id == one.id])
    unplaced = [quotas.Need("gpus", one.unplaced * one.gpus, one.gpu_model, row.site) for one in sets if one.unplaced]
    for one in sets:
        one.unplaced = 0
    session.flush()
    if unplaced:
        quotas.give_back(session, _chain(row), unplaced)
    if row.peer_id is not None:
        with suppress(*founding.BAD_PLANS):
            founding.renew(session, claim.row, "members")


def _give_back_new(session: Session, cluster_id: str) -> None:
    billed = repository.billed_of(session, [cluster_id])
    members = [one[0] for one in repository.members_of(session, [cluster_id])[cluster_id]]
    new = [one.id for one in members if one.state in {"held", "active"} and one.id not in billed]
    nodes.give_back(session, new, reason=CHANGE_REFUSED)


def _restore_set(session: Session, row: Any, one: NodeSetRow, members: Sequence[Any]) -> None:
    """
    Those that stay are charged: by what is not placed, by those that are on their way back, or anew. Where others have taken the quota
    meanwhile they stay uncharged, for nothing is taken from who had it.
    """
    held = [member for member in members if member.state in {"held", "active"}]
    owed = nodes.keep(session, [member.id for member in held if member.leaving])
    spare = min(one.unplaced, len(owed))
    one.unplaced -= spare
    back = [member.id for member in members if member.state == "releasing" and member.charged]
    covered = spare + nodes.transfer_charge(session, back[: len(owed) - spare])
    if covered < len(owed):
        need = quotas.Need("gpus", (len(owed) - covered) * one.gpus, one.gpu_model, row.site)
        with suppress(QuotaExceeded), session.begin_nested():
            quotas.take(session, _chain(row), [need])
            covered = len(owed)
    nodes.recharge(session, owed[:covered])
    one.count = len(held)


def _chain(row: Any) -> quotas.Chain:
    return quotas.Chain(row.reseller_id, row.tenant_id, row.project_id)
