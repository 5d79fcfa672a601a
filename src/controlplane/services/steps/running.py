"""
Watching a service that was rolled out.
"""

from dataclasses import replace

from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox
from controlplane.services.states import ServiceSnapshot
from controlplane.services.steps.looking import counted, facts_of, floor_of, held_up, rolled_out, words_of

LOOK_S = 15.0


def watch(service: ServiceSnapshot, tools: Toolbox) -> Outcome:
    """
    It is well while enough replicas are ready, and degraded while not; what was taken from the cluster by others is brought back.
    """
    held = held_up(service)
    if held is not None:
        return held
    assert service.provider is not None
    peer = tools.services(service.provider)
    try:
        view = peer.observe_service(service.cluster_id, service.id)
    except NotFound:
        return Advance("rolling_out", "It was not there any more; it is made again.")
    if (view.version, view.turn) != (service.version, service.turn) or view.going:
        return Advance("rolling_out", "The cluster showed another state of it; it is told again.")
    facts = facts_of(service, view, peer)
    ready = sum(1 for one in view.replicas if one.phase == "ready")
    if service.state == "running" and ready < floor_of(service):
        return Advance("degraded", words_of(service, view), facts)
    if service.state == "degraded" and rolled_out(service, view):
        return Advance("running", counted(service, view), replace(facts, outcome="ready"))
    return Wait(words_of(service, view) if service.state == "degraded" else counted(service, view), LOOK_S, facts=facts)
