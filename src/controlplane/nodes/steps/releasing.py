"""
Taking a node back from its tenant: networks detached, then powered off.
"""

from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.nodes.states import NodeSnapshot
from controlplane.providers.errors import Permanent
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0
REFUSED_S = 30.0
RELEASED = {"released", "wiping", "wiped"}


def release(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The provider was asked to end the tenancy and has been seen to have ended it.
    """
    machines = tools.machines(node.provider)
    tenancy = node.tenancy
    if tenancy is None:
        return Advance("cleaning", "Nobody holds it.")
    if node.step != "asked":
        assert tenancy.release_accepted_at is not None
        try:
            machines.release(node.ref, tenancy.allocation_id, accepted_at=tenancy.release_accepted_at)
        except Permanent as error:
            # The tenant may still reach it. Only seeing it released lets it go on; the state's deadline brings a person.
            return Wait("The provider refuses to take it back; it is tried again.", REFUSED_S, detail=error.detail)
        return Wait("Being taken back.", 0.0, step="asked")
    view = machines.observe(node.ref)
    mine = view.token == tenancy.allocation_id
    if mine and view.phase in RELEASED:
        return Advance("cleaning", "Taken back.")
    if mine and view.phase == "releasing":
        return Wait("Being powered off.", POLL_S)
    # Anything else, an old look at the machine among it, is no proof: ask again under the same token.
    return Wait("Being taken back.", POLL_S, step="")
