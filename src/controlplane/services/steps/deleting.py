"""
A service is taken down.
"""

from controlplane.kit.outcome import Gone, Outcome, Wait
from controlplane.providers.errors import NotFound, Unsupported
from controlplane.providers.toolbox import Toolbox
from controlplane.services.states import ServiceFacts, ServiceSnapshot

GAP_S = 2.0
"""Between two looks that both must find nothing: one may be old."""
WORDS = "Being taken down; it is gone once its cluster was seen without it."


def remove(service: ServiceSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster was told to remove all of it, and was seen without it twice; only then is it gone.
    """
    if service.provider is None:
        return _gone()
    try:
        peer = tools.services(service.provider)
    except Unsupported:
        return _gone()
    if service.step not in {"told", "absent"}:
        peer.delete_service(service.cluster_id, service.id)
        return Wait(WORDS, GAP_S, step="told")
    try:
        peer.observe_service(service.cluster_id, service.id)
    except NotFound:
        return _gone() if service.step == "absent" else Wait(WORDS, GAP_S, step="absent")
    return Wait(WORDS, GAP_S, step="")


def _gone() -> Gone:
    return Gone(ServiceFacts(observed=True))
