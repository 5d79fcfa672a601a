"""
What the steps of a service have in common: its spec for the cluster, and what a look at the cluster tells.
"""

from collections import Counter
from collections.abc import Mapping

from controlplane.clusters.states import HOME_LOST, HOME_READY
from controlplane.kit.outcome import Advance, Wait
from controlplane.providers.errors import ProviderError
from controlplane.providers.gpus import kind_of, slices_of
from controlplane.providers.services import (
    Readiness,
    ReplicaView,
    Scaling,
    ServiceFile,
    ServiceSpec,
    ServiceView,
    SupportsServices,
)
from controlplane.services.states import (
    LOGS_AT_ONCE,
    TAIL_BYTES,
    TROUBLES,
    UNKNOWN_TROUBLE,
    Seen,
    ServiceFacts,
    ServiceSnapshot,
    Tail,
)


def spec_of(service: ServiceSnapshot, values: Mapping[str, str]) -> ServiceSpec:
    """
    The whole service as its cluster is told of it, with the values of the secrets that it names.
    """
    template, rollout = service.template, service.rollout
    scaling = None if service.scaling is None or service.suspended else Scaling(**service.scaling)
    wanted = service.replicas if scaling is None else min(max(service.replicas, scaling.least), scaling.most)
    return ServiceSpec(
        service_id=service.id,
        cluster_id=service.cluster_id,
        tenant_id=service.tenant_id,
        version=service.version,
        turn=service.turn,
        image=template["image"],
        port=template["port"],
        replicas=0 if service.suspended else wanted,
        command=tuple(template["command"]),
        worker_command=tuple(template["worker_command"]),
        env=dict(template["env"]),
        files=tuple(ServiceFile(**one) for one in template["files"]),
        secret_env={one.env: values[one.name] for one in service.secrets if one.env},
        secret_files={one.file: values[one.name] for one in service.secrets if one.file},
        gpus_per_node=template["gpus_per_node"],
        nodes=template["nodes_per_replica"],
        gpu_model=service.gpu_model if template["gpus_per_node"] else "",
        gpu=kind_of(template.get("gpu")),
        mig=slices_of(template.get("mig")),
        readiness=Readiness(**template["readiness"]),
        scaling=scaling,
        surge=rollout["surge"],
        unavailable=rollout["unavailable"],
    )


def held_up(service: ServiceSnapshot) -> Advance | Wait | None:
    """
    What becomes of a service whose cluster cannot be asked; None where it can.
    """
    if service.cluster_state in HOME_LOST:
        return Advance("deleting", f"Its cluster is {service.cluster_state}; it goes with it.")
    if service.cluster_state not in HOME_READY or service.provider is None:
        return Wait(f"Waits for its cluster, which is {service.cluster_state}.", 5.0)
    return None


def floor_of(service: ServiceSnapshot) -> int:
    """
    So many ready replicas it must have to be well.
    """
    if service.suspended:
        return 0
    return service.replicas if service.scaling is None else int(service.scaling["least"])


def rolled_out(service: ServiceSnapshot, view: ServiceView) -> bool:
    """
    Whether the cluster has brought about what it was told last: enough replicas of this version are ready, and no others are there.
    """
    if (view.version, view.turn) != (service.version, service.turn):
        return False
    there = [one for one in view.replicas if one.phase != "ending"] if not service.suspended else list(view.replicas)
    ready = sum(1 for one in there if one.phase == "ready" and one.version == service.version)
    floor = floor_of(service)
    return ready >= floor and all(one.version == service.version for one in there) and len(there) <= max(view.wanted, floor)


def facts_of(service: ServiceSnapshot, view: ServiceView, peer: SupportsServices, outcome: str = "") -> ServiceFacts:
    """
    What the view tells, in the tenant's names, with what some of the replicas printed last.
    """
    tails, following = _tails(service, view, peer)
    return ServiceFacts(
        observed=True,
        replicas=tuple(_seen(service, one) for one in view.replicas),
        wanted=view.wanted,
        address=view.address,
        trouble=trouble_of(view),
        outcome=outcome,
        tails=tails,
        next_tail=following,
    )


def trouble_of(view: ServiceView) -> str:
    """
    The code of what most of the replicas that are not ready suffer from; empty where nothing is told.
    """
    if view.trouble:
        return view.trouble
    told = Counter(one.trouble for one in view.replicas if one.trouble and one.phase not in {"ready", "ending"})
    return told.most_common(1)[0][0] if told else ""


def counted(service: ServiceSnapshot, view: ServiceView) -> str:
    """
    How many replicas are ready, for people.
    """
    ready = [one for one in view.replicas if one.phase == "ready"]
    of_version = sum(1 for one in ready if one.version == service.version)
    old = len(ready) - of_version
    more = f" and {old} of earlier versions" if old else ""
    return f"{of_version} of {max(view.wanted, floor_of(service))} replicas of version {service.version} are ready{more}."


def words_of(service: ServiceSnapshot, view: ServiceView) -> str:
    """
    How many are ready and what keeps the others.
    """
    trouble = trouble_of(view)
    return f"{counted(service, view)} {TROUBLES.get(trouble, UNKNOWN_TROUBLE)}" if trouble else counted(service, view)


def _seen(service: ServiceSnapshot, one: ReplicaView) -> Seen:
    return Seen(
        name=one.name,
        version=one.version,
        phase=one.phase,
        trouble=one.trouble,
        exit_code=one.exit_code,
        restarts=one.restarts,
        instances=tuple(service.instances[ref] for ref in one.refs if ref in service.instances),
        gpus=one.gpus,
        profile=one.profile,
    )


def _tails(service: ServiceSnapshot, view: ServiceView, peer: SupportsServices) -> tuple[tuple[Tail, ...], int]:
    """
    Those that fail come first, then the others in turn. Output is a convenience: what cannot be read now is read later.
    """
    printing = [one for one in view.replicas if one.phase != "pending"]
    if not printing:
        return (), 0
    begin = service.next_tail % len(printing)
    turned = [*printing[begin:], *printing[:begin]]
    chosen = sorted(turned, key=lambda one: one.phase != "failing")[:LOGS_AT_ONCE]
    tails = []
    for one in chosen:
        try:
            data = peer.read_replica(service.cluster_id, service.id, one.name, limit=TAIL_BYTES)
        except ProviderError:
            continue
        tails.append(Tail(one.name, one.version, data[-TAIL_BYTES:]))
    return tuple(tails), (begin + LOGS_AT_ONCE) % len(printing)
