"""
Making a node ready for its tenant.
"""

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import NodeSnapshot
from controlplane.providers.errors import Refused
from controlplane.providers.machines import Deployment
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0


def deploy(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The node is deployed under its allocation's token, or it failed and is taken back.
    """
    if node.cancel or node.tenancy is None:
        return Advance("releasing", "The order was withdrawn.")
    machines = tools.machines(node.provider)
    tenancy = node.tenancy
    view = machines.observe(node.ref)
    if view.token == tenancy.allocation_id:
        if view.phase == "deployed":
            return Advance("active", "Deployed.")
        if view.phase == "failed":
            return Fail("deploy_failed", "The node could not be deployed.", detail=view.failure)
        if view.phase == "deploying":
            return Wait("Being deployed.", POLL_S)
    deployment = Deployment(
        ref=node.ref,
        token=tenancy.allocation_id,
        tenant_id=tenancy.tenant_id,
        cluster_id=tenancy.cluster_id,
        network=tenancy.network,
    )
    try:
        machines.deploy(deployment)
    except Refused as error:
        return Fail("deploy_refused", "The provider refused to deploy the node.", detail=error.detail)
    return Wait("Being deployed.", 0.0 if node.step != "asked" else POLL_S, step="asked")
