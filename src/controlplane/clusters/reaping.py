"""
Clusters that a provider still has, or has again, after we saw it without them.

A call of ours may take effect long after we gave it up. What is reaped is only what our own rows say is deleted, and only some time
after: an object without any row is a finding of its provider and never touched, because our database may be the one that is wrong.
"""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.kit.events import Event, record
from controlplane.nodes import service as nodes
from controlplane.nodes.states import ProviderRef

OLD_ENOUGH_S = 120
CAP = 20
RETURNED = text(
    """
    SELECT id FROM clusters WHERE id = ANY(:seen) AND state = 'deleted' AND provider_id = :provider
      AND state_since < cp_clock() - make_interval(secs => :age) ORDER BY id LIMIT :cap
    """
)
PROVIDERS = text("SELECT DISTINCT provider_id FROM clusters WHERE provider_id IS NOT NULL AND state <> 'failed'")


def watched_providers(session: Session) -> list[ProviderRef]:
    """
    The providers that made clusters for us.
    """
    ids = list(session.execute(PROVIDERS).scalars())
    return list(nodes.read_providers(session, ids).values())


def returned(session: Session, provider_id: str, seen: Sequence[str]) -> list[str]:
    """
    Those of the provider's clusters that we saw gone a while ago; at most a few at a time.
    """
    given = {"seen": list(seen), "provider": provider_id, "age": OLD_ENOUGH_S, "cap": CAP}
    return list(session.execute(RETURNED, given).scalars())


def note(session: Session, provider_id: str, cluster_ids: Sequence[str]) -> None:
    """
    Operators can read that these were removed again.
    """
    record(session, [Event("cluster.reaped", "cluster", one, data={"provider_id": provider_id}) for one in cluster_ids])
