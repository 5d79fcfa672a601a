"""
A service's replicas become what was asked for.
"""

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.services import ServiceView, SupportsServices
from controlplane.providers.toolbox import Toolbox
from controlplane.services.states import ServiceSnapshot
from controlplane.services.steps.looking import counted, facts_of, held_up, rolled_out, spec_of, words_of


def roll_out(service: ServiceSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster was told the whole service, and it runs once enough replicas of its version are ready and no others are there; past its
    time it is degraded, and what was there before stays as far as it is.
    """
    held = held_up(service)
    if held is not None:
        return held
    assert service.provider is not None
    peer = tools.services(service.provider)
    if service.step != "told":
        gone = next((one.name for one in service.secrets if not one.id), None)
        if gone is not None:
            return Fail("service_secret_unknown", f"The project has no secret {gone} any more: write it, or change the service.")
        values = {one.name: tools.open_job_secret(one.id, one.sealed) for one in service.secrets}
        peer.apply_service(spec_of(service, values))
        return Wait(f"The cluster was told of version {service.version}.", 1.0, step="told")
    try:
        view = peer.observe_service(service.cluster_id, service.id)
    except NotFound:
        return Wait("The cluster does not show it yet; it is told again.", 2.0, step="")
    if view.turn < service.turn or view.going:
        return Wait("The cluster shows an older state; it is told again.", 2.0, step="")
    return _judge(service, view, peer)


def _judge(service: ServiceSnapshot, view: ServiceView, peer: SupportsServices) -> Outcome:
    if rolled_out(service, view):
        if service.suspended:
            return Advance("suspended", "It has no replicas until it is resumed.", facts_of(service, view, peer))
        return Advance("running", counted(service, view), facts_of(service, view, peer, "ready"))
    words = words_of(service, view)
    if service.state_age_s >= service.rollout["timeout_s"]:
        late = f"It was not rolled out within {service.rollout['timeout_s']} s. {words}"
        return Advance("degraded", late, facts_of(service, view, peer, "failed"))
    return Wait(words, min(10.0, max(1.0, service.state_age_s / 20)), facts=facts_of(service, view, peer))
