"""
Who may be let into a cluster, and with what: decided and on record before anybody is asked for it.
"""

from sqlalchemy.orm import Session

from controlplane.clusters import repository
from controlplane.clusters.errors import NoKubeconfig, NotChangeable
from controlplane.clusters.states import HOME_READY, KubeconfigAsk
from controlplane.kit.access import Principal
from controlplane.nodes import service as nodes


def allow_kubeconfig(session: Session, principal: Principal, project_id: str, cluster_id: str, lifetime_s: int) -> KubeconfigAsk:
    """
    What the cluster's provider is to be asked for once this transaction has ended. Raises NotFound, NoKubeconfig for a cluster of another
    kind, NotChangeable for one that does not run.
    """
    principal.check_project(project_id)
    row = repository.get_cluster(session, project_id, cluster_id)
    if row.kind != "kubernetes":
        raise NoKubeconfig(f"A {row.kind} cluster has no kubeconfig.", kind=row.kind)
    peer = row.peer_id or row.provider_id
    if row.state not in HOME_READY or peer is None:
        raise NotChangeable(f"A cluster in state {row.state} has nothing to let you into.", state=row.state)
    provider = nodes.read_providers(session, [peer])[peer]
    return KubeconfigAsk(row.id, row.tenant_id, provider, lifetime_s)
