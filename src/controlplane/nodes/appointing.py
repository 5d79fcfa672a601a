"""
Schedulers that belong to one cluster: registered when it is ordered, told their address when it is placed, forgotten with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import cast, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from controlplane.kit.clock import CpClock
from controlplane.kit.secrets import Sealer
from controlplane.nodes.models import ProviderRow
from controlplane.nodes.registering import seal_secrets


def appoint(
    session: Session, sealer: Sealer, provider_id: str, *, cluster_id: str, adapter: str, site: str, secrets: Mapping[str, str]
) -> None:
    """
    The cluster has a scheduler of its own, which is not asked anything before it has an address.
    """
    row = ProviderRow(
        id=provider_id,
        name=provider_id,
        adapter=adapter,
        site=site,
        state="disabled",
        config={},
        sealed=seal_secrets(sealer, provider_id, secrets),
        capabilities={},
        shared=False,
        seen_at=None,
        cluster_id=cluster_id,
    )
    session.add(row)
    session.flush()


def direct(session: Session, provider_id: str, config: Mapping[str, Any]) -> None:
    """
    The scheduler is reached by these settings from now on; the same again changes nothing.
    """
    row = session.execute(select(ProviderRow).where(ProviderRow.id == provider_id).with_for_update()).scalar_one()
    if row.config != config or row.state != "active":
        row.config, row.state = dict(config), "active"
        row.version += 1
        row.updated_at = session.execute(select(CpClock())).scalar_one()
        session.flush()


def note_features(
    session: Session, provider_id: str, features: Sequence[str], volumes: Sequence[str], mig: Mapping[str, int]
) -> None:
    """
    What jobs may ask of a cluster's own scheduler is known, with the volumes and slices that it has.
    """
    told = {"job_features": list(features), "volumes": list(volumes), "mig": dict(mig)}
    said = ProviderRow.capabilities.op("||")(cast(told, JSONB))
    statement = update(ProviderRow).where(ProviderRow.id == provider_id, ProviderRow.state != "deleted")
    session.execute(statement.values(capabilities=said))


def dismiss(session: Session, cluster_ids: Sequence[str]) -> None:
    """
    The schedulers of these clusters, where they had one of their own, and their keys are forgotten.
    """
    if not cluster_ids:
        return
    statement = update(ProviderRow).where(ProviderRow.cluster_id.in_(cluster_ids), ProviderRow.state != "deleted")
    session.execute(statement.values(state="deleted", sealed=None, version=ProviderRow.version + 1, updated_at=CpClock()))
