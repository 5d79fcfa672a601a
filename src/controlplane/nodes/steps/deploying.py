"""
Making a node ready for its tenant.
"""

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import Boot, NodeSnapshot, Tenancy
from controlplane.providers.errors import Refused
from controlplane.providers.machines import Deployment, OwnImage
from controlplane.providers.toolbox import Toolbox

SHARE, OFTEN_S, RARELY_S = 0.01, 0.5, 5.0
"""How soon a deployment is looked at again: after a hundredth of the time it has taken so far, within these bounds."""
REPORT_POLL_S = 15.0
"""Each report wakes the node; this is for reports that never come."""
FIRST_CALL_S = 3600.0
"""How long a machine may take from the beginning of its deployment to its own first call, unless the provider's settings know better
(`first_call_s`)."""


def deploy(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The node is deployed under its allocation's token and, where it was told to, has itself reported every stage good; or it failed and is
    taken back.
    """
    if node.cancel or node.tenancy is None:
        return Advance("releasing", "The order was withdrawn.")
    machines = tools.machines(node.provider)
    tenancy = node.tenancy
    if node.step == "asked":  # until then there is nothing to see, and to ask again changes nothing
        view = machines.observe(node.ref)
        if view.token == tenancy.allocation_id:
            if view.phase == "deployed":
                return _reported(node, tenancy)
            if view.phase == "failed":
                return Fail("deploy_failed", "The node could not be deployed.", detail=view.failure)
            if view.phase == "deploying":
                return Wait("Being deployed.", _pause_s(node))
    try:
        machines.deploy(_wanted(node, tenancy, tools))
    except Refused as error:
        return Fail("deploy_refused", "The provider refused to deploy the node.", detail=error.detail)
    return Wait("Being deployed.", 0.0 if node.step != "asked" else OFTEN_S, step="asked")


def _pause_s(node: NodeSnapshot) -> float:
    return min(max(SHARE * node.state_for_s, OFTEN_S), RARELY_S)


def _wanted(node: NodeSnapshot, tenancy: Tenancy, tools: Toolbox) -> Deployment:
    boot = _boot_of(node, tenancy)
    image = None if boot is None else boot.image
    return Deployment(
        ref=node.ref,
        token=tenancy.allocation_id,
        tenant_id=tenancy.tenant_id,
        cluster_id=tenancy.cluster_id,
        network=tenancy.network,
        own_image=None
        if boot is None or image is None
        else OwnImage(tools.image_url(boot.id), image.format, image.size_bytes, image.sha256),
        config_drive_url="" if boot is None else tools.config_drive_url(boot.id),
    )


def _boot_of(node: NodeSnapshot, tenancy: Tenancy) -> Boot | None:
    """
    The boot of this tenancy; None where the machine is not told to report.
    """
    return node.boot if node.boot is not None and node.boot.allocation_id == tenancy.allocation_id else None


def _reported(node: NodeSnapshot, tenancy: Tenancy) -> Outcome:
    boot = _boot_of(node, tenancy)
    if boot is None or boot.state == "ready":
        return Advance("active", "Deployed.")
    if boot.state in {"failed", "ended"}:
        return Fail("deploy_failed", "The machine reported that it did not come up as it should.", detail=boot.failure)
    patience_s = float(node.provider.config.get("first_call_s", FIRST_CALL_S))
    if boot.state != "reporting" and boot.age_s > patience_s:
        return Fail("deploy_failed_silent", "The machine was deployed and never called.")
    return Wait("Deployed; waits for the machine's own report.", REPORT_POLL_S)
