"""
Upgrading a Kubernetes of one's own to another version: which ones Kubernetes itself lets it become, and how its hosts get the programs.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from sqlalchemy.orm import Session

from controlplane.clusters import repository
from controlplane.clusters.models import ClusterRow
from controlplane.kit.errors import FieldError, Invalid
from controlplane.nodes import service as nodes
from controlplane.rendering.kubernetes import offer as offers
from controlplane.rendering.kubernetes.laws import same, upgrade_refusal


def way_to(session: Session, row: ClusterRow, version: str | None) -> dict[str, str]:
    """
    How hosts get the version: {version, fetch, install}. Raises Invalid for one that is not offered, or that cannot follow on the present
    one; an upgrade that is not complete is gone on with first.
    """
    facts = row.kubernetes
    assert facts is not None
    offer = _offer(session, row)
    offered = () if offer is None else offers.offered_versions(offer, facts["distribution"])
    if version is None:
        known = f"offered: {', '.join(offered)}" if offered else "none is offered"
        _refuse("version_missing", f"Say which version of Kubernetes it shall have; {known}.")
    current, begun = repository.kubernetes_version(facts), unfinished(facts)
    if begun and not same(begun, version):
        _refuse(
            "kubernetes_upgrade_unfinished", f"Some hosts have {begun} and others {current}: the upgrade to {begun} comes first."
        )
    refused = upgrade_refusal(current, version)
    if refused is not None:
        on_the_way = [one for one in offered if upgrade_refusal(current, one) is None]
        hint = f" Offered from here: {', '.join(on_the_way)}." if on_the_way else ""
        _refuse("kubernetes_upgrade_impossible", f"Kubernetes does not do this: {refused}.{hint}")
    if offer is None or version not in offered:
        _refuse("version_not_offered", f"The cluster's provider does not offer Kubernetes {version} by {facts['distribution']}.")
    how = offer.upgrades[facts["distribution"]]
    return {"version": version, "fetch": how.fetch, "install": how.install}


def unfinished(facts: Mapping[str, Any]) -> str:
    """
    The version that some hosts have already and others have not; empty where all have the same.
    """
    return str(facts["install"]["version"]) if facts.get("ahead") else ""


def _offer(session: Session, row: ClusterRow) -> offers.Offer | None:
    pool = next((one for one in nodes.read_pools(session, [row.site]) if one.id == row.provider_id), None)
    return None if pool is None else offers.read_offer(pool.config)


def _refuse(code: str, words: str) -> NoReturn:
    raise Invalid(words, errors=[FieldError("body.version", code, words)])
