"""
What can be done with services; the only writer of their rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.clusters import service as clusters
from controlplane.clusters.states import HOME_LOST, Home
from controlplane.identity import service as identity
from controlplane.jobs import service as jobs
from controlplane.jobs.errors import GangTooLarge
from controlplane.jobs.states import FEATURE_HINTS, gpu_features
from controlplane.kit.access import Principal
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import FieldError, Invalid, NameTaken, NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.operations import NewOperation, active_on, find_active, start_operation, supersede
from controlplane.kit.paging import Page, PageAsk
from controlplane.services import repository
from controlplane.services.driving import apply
from controlplane.services.errors import (
    ClusterRunsNoServices,
    ClusterUnusable,
    ServiceFeatureMissing,
    ServiceNotChangeable,
    ServiceTooLarge,
    UnknownVersion,
)
from controlplane.services.models import ServiceLogRow, ServiceRow, ServiceVersionRow
from controlplane.services.states import CHANGEABLE, SERVICE_STATES, ServiceFilter

__all__ = ["apply"]

PRODUCT = "kubernetes"
"""The kind of cluster that keeps services up."""
VERBS = ("rollback", "scale", "suspend", "resume", "delete")
Check = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ServiceOrder:
    """
    A service as it was asked for, defaults filled in.
    """

    name: str
    """Unique in the project."""
    labels: Mapping[str, str]
    """Free key-value pairs."""
    cluster_id: str
    """Where it shall run."""
    replicas: int
    """How many, or how many to begin with."""
    scaling: Mapping[str, Any] | None
    """By which metric; none: the number is fixed."""
    rollout: Mapping[str, Any]
    """How versions follow each other."""
    template: Mapping[str, Any]
    """What a replica is."""
    proposal: Mapping[str, Any] | None = None
    """How an engine's GPUs and parallelism were found."""


@dataclass(frozen=True, slots=True)
class Change:
    """
    What is to be different; None: as it is.
    """

    labels: Mapping[str, str] | None = None
    """All labels."""
    template: Mapping[str, Any] | None = None
    """What a replica is: makes a version."""
    proposal: Mapping[str, Any] | None = None
    """Of the template's engine."""
    replicas: int | None = None
    """How many."""
    scaling: Mapping[str, Any] | None = None
    """By which metric."""
    fixed: bool = False
    """Whether no metric is to decide any more."""
    rollout: Mapping[str, Any] | None = None
    """How versions follow each other."""


@dataclass(frozen=True, slots=True)
class ServiceView:
    """
    A service with its present version and its operation.
    """

    row: ServiceRow
    """The service."""
    version: ServiceVersionRow
    """What its replicas are to be."""
    operation_id: str | None
    """What is under way; None where nothing is."""


def home_of(session: Session, principal: Principal, project_id: str, cluster_id: str) -> Home:
    """
    The cluster, which can keep services up. Raises NotFound for one of another project, ClusterRunsNoServices, ClusterUnusable.
    """
    principal.check_project(project_id)
    home = clusters.homes(session, [cluster_id]).get(cluster_id)
    if home is None or home.project_id != project_id or home.tenant_id != principal.tenant_id:
        raise NotFound
    if home.kind != PRODUCT:
        raise ClusterRunsNoServices(
            f"{cluster_id} is a {home.kind} cluster; services run on clusters of the kind {PRODUCT}.",
            hint=f"Order a cluster with kind {PRODUCT}. On this one, run the server as a job or start it yourself on its nodes.",
        )
    if home.runs is not None and "services" not in home.runs:
        raise ClusterRunsNoServices(
            f"{cluster_id} is kept by its provider, who keeps no services up for us in it.",
            hint="Get a kubeconfig (POST …/kubeconfigs) and start the server with kubectl.",
        )
    if home.state in HOME_LOST:
        raise ClusterUnusable(f"{cluster_id} is {home.state}; name a cluster that runs or is being made.", cluster_state=home.state)
    return home


def check_size(home: Home, template: Mapping[str, Any], most_replicas: int) -> None:
    """
    Returns when so many replicas could stand on the cluster with nothing else on it. Raises ServiceTooLarge, ServiceFeatureMissing.
    """
    _check_kind(home, template.get("gpu"), template.get("mig"))
    gpus, nodes = template["gpus_per_node"], template["nodes_per_replica"]
    if gpus > home.gpus_per_node:
        words = f"{gpus} GPUs per node asked; the nodes of {home.cluster_id} have {home.gpus_per_node}."
        raise ServiceTooLarge(words, resource="gpus_per_node", limit=home.gpus_per_node, requested=gpus)
    if nodes > home.nodes:
        words = f"{nodes} nodes per replica asked; {home.cluster_id} has {home.nodes}."
        raise ServiceTooLarge(words, resource="nodes", limit=home.nodes, requested=nodes)
    mig = template.get("mig")
    on_a_node = _slices_on_a_node(home, mig) // mig["per_node"] if mig else home.gpus_per_node // gpus if gpus else None
    room = most_replicas if on_a_node is None else home.nodes * on_a_node // nodes
    if most_replicas > room:
        each = f"{mig['per_node']} {mig['profile']}" if mig else f"{gpus} GPUs"
        words = f"{most_replicas} replicas of {nodes} x {each} asked; {home.cluster_id} has room for {room}."
        raise ServiceTooLarge(words, resource="replicas", limit=room, requested=most_replicas)


def _slices_on_a_node(home: Home, mig: Mapping[str, Any]) -> int:
    """
    The most slices of the profile that a node has, as it is partitioned now, or can have where nobody has said yet. Raises ServiceTooLarge,
    MigProfileUnknown.
    """
    could: int = home.gpus_per_node * mig["of_slices"] // mig["slices"]
    if home.offers.features is None:
        return could
    refusal = jobs.refused_slices(home, mig)
    if isinstance(refusal, GangTooLarge):
        raise ServiceTooLarge(refusal.detail, **refusal.fields)
    if refusal is not None:
        raise refusal
    return min(could, home.offers.mig[mig["profile"]])


def _settled(session: Session, home: Home, template: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    The template with the share of a GPU that each slice is, by the catalog. Raises MigProfileUnknown, ServiceTooLarge.
    """
    mig = template.get("mig")
    if not mig:
        return template
    try:
        return {**template, "mig": jobs.settled_slices(home, mig, catalog.mig_profiles(session, home.gpu_model))}
    except GangTooLarge as error:
        raise ServiceTooLarge(error.detail, **error.fields) from None


def _check_kind(home: Home, wanted: Mapping[str, Any] | None, mig: Mapping[str, Any] | None) -> None:
    """
    GPUs of the kind, or slices, can be asked for, where the provider has said yet. Raises ServiceFeatureMissing, ServiceTooLarge.
    """
    model = (wanted or {}).get("model")
    if model and home.gpu_model and model != home.gpu_model:
        words = f"GPUs of the model {model} asked; those of {home.cluster_id} are {home.gpu_model}."
        raise ServiceTooLarge(words, resource="gpu_model", limit=home.gpu_model, requested=model)
    offered = home.offers.features
    asked = [name for name, is_asked in {**gpu_features(wanted), "mig": bool(mig)}.items() if is_asked]
    missing = [] if offered is None else [name for name in asked if name not in offered]
    if missing:
        what, hint = FEATURE_HINTS[missing[0]]
        raise ServiceFeatureMissing(f"{home.cluster_id} cannot run it: {what} {hint}", feature=missing[0], hint=hint)


def create_service(session: Session, principal: Principal, project_id: str, order: ServiceOrder) -> ServiceView:
    """
    The service is on its way. Raises NotFound, NameTaken, ClusterRunsNoServices, ClusterUnusable, ServiceTooLarge, MigProfileUnknown,
    SecretUnknown.
    """
    home = home_of(session, principal, project_id, order.cluster_id)
    template = _settled(session, home, order.template)
    check_size(home, template, _most(order.replicas, order.scaling))
    jobs.check_named(session, project_id, template["secrets"])
    if repository.find_named(session, project_id, order.name) is not None:
        raise NameTaken(f"There is a service {order.name} in this project already.")
    initial = SERVICE_STATES.by_name[SERVICE_STATES.initial]
    row = ServiceRow(
        id=new_id("svc"),
        tenant_id=home.tenant_id,
        project_id=project_id,
        cluster_id=order.cluster_id,
        name=order.name,
        labels=dict(order.labels),
        replicas=order.replicas,
        scaling=None if order.scaling is None else dict(order.scaling),
        rollout=dict(order.rollout),
        state=initial.name,
        reason=initial.says,
        deadline_at=CpClock() + timedelta(seconds=initial.longest_stay_s or 0),
        created_by=principal.id,
    )
    repository.add(session, row, _version(row, 1, template, order.proposal, None, principal))
    new = NewOperation("service.create", "service", row.id, principal.id, row.tenant_id, project_id)
    start_operation(session, new, first=row.state, reason=row.reason)
    _tell(session, row, "", row.state, row.reason)
    return view_of(session, row)


def get_service(session: Session, principal: Principal, project_id: str, service_id: str, *, lock: bool = False) -> ServiceView:
    """
    The service. Raises NotFound.
    """
    principal.check_project(project_id)
    row = repository.find(session, principal.tenant_id, project_id, service_id, lock=lock)
    if row is None:
        raise NotFound
    return view_of(session, row)


def list_services(
    session: Session, principal: Principal, project_id: str, wanted: ServiceFilter, ask: PageAsk
) -> Page[ServiceView]:
    """
    A page of the project's services. Raises NotFound for an unknown project, Invalid for a state that does not exist.
    """
    identity.get_project(session, principal, project_id)
    if wanted.state is not None and wanted.state not in SERVICE_STATES.by_name:
        known = ", ".join(SERVICE_STATES.by_name)
        raise Invalid("There is no such state.", errors=[FieldError("query.state", "unknown_state", f"One of {known}.")])
    found = repository.page(session, principal.tenant_id, project_id, wanted, ask)
    return Page(tuple(_views(session, found.items)), found.next_page_token)


def list_versions(session: Session, row: ServiceRow, ask: PageAsk) -> Page[ServiceVersionRow]:
    """
    A page of the service's versions, oldest first.
    """
    return repository.page_versions(session, row, ask)


def read_tails(session: Session, row: ServiceRow, replica: str | None) -> Sequence[ServiceLogRow]:
    """
    What the replicas printed last, as far as it was read. Raises NotFound for a replica of which nothing is known.
    """
    found = repository.tails_of(session, row, replica)
    if replica is not None and not found:
        raise NotFound("Nothing is known that this replica printed.")
    return found


def change_service(
    session: Session, principal: Principal, project_id: str, service_id: str, check: Check, change: Change
) -> ServiceView:
    """
    Labels are changed at once; anything else is being rolled out, a changed template as a version of its own. `check` judges If-Match.

    Raises ServiceNotChangeable, ServiceTooLarge, MigProfileUnknown, ClusterUnusable, SecretUnknown, OperationActive, VersionRequired,
    VersionStale.
    """
    view = _changeable(session, principal, project_id, service_id, check)
    row = view.row
    if change.labels is not None:
        repository.put_labels(session, row, change.labels)
    template = view.version.template if change.template is None else change.template
    values = _wanted(row, change)
    if not values and change.template is None:
        return view_of(session, row)
    home = home_of(session, principal, project_id, row.cluster_id)
    template = _settled(session, home, template)
    renewed = _said(template) != _said(view.version.template)
    if not values and not renewed:
        return view_of(session, row)
    check_size(home, template, _most(values.get("replicas", row.replicas), values.get("scaling", row.scaling)))
    words = f"Version {row.current_version + 1} is rolled out." if renewed else "What was asked for has changed."
    if renewed:
        jobs.check_named(session, project_id, template["secrets"])
        number = row.current_version + 1
        repository.add_version(session, _version(row, number, template, change.proposal, None, principal))
        values["current_version"] = number
    return _begin(session, principal, row, "service.update", words, values)


def _said(template: Mapping[str, Any]) -> dict[str, Any]:
    """
    What the template says; versions that are older than a field do not have it.
    """
    return {name: value for name, value in template.items() if value is not None}


def roll_back(session: Session, principal: Principal, project_id: str, service_id: str, number: int | None) -> ServiceView:
    """
    A new version that repeats the named one, or the last that was ready, is being rolled out; what was under way is given up for it.

    Raises UnknownVersion, ServiceNotChangeable, ServiceTooLarge, ClusterUnusable, SecretUnknown.
    """
    view = _changeable(session, principal, project_id, service_id, None)
    row = view.row
    back = repository.last_ready(session, row) if number is None else number
    found = None if back is None else repository.versions_of(session, [(row.id, back)]).get(row.id)
    if found is None:
        raise UnknownVersion(
            "No earlier version was ever ready." if number is None else f"The service has had no version {number}.", version=number
        )
    if found.number == row.current_version:
        raise ServiceNotChangeable(f"Version {found.number} is the present one.", state=row.state)
    check_size(home_of(session, principal, project_id, row.cluster_id), found.template, _most(row.replicas, row.scaling))
    jobs.check_named(session, project_id, found.template.get("secrets") or ())
    new = row.current_version + 1
    repository.add_version(session, _version(row, new, found.template, found.proposal, found.number, principal))
    supersede(session, row.id, f"Rolled back to version {found.number}.")
    words = f"Version {new}, which repeats version {found.number}, is rolled out."
    return _begin(session, principal, row, "service.rollback", words, {"current_version": new})


def scale_service(session: Session, principal: Principal, project_id: str, service_id: str, replicas: int) -> ServiceView:
    """
    So many replicas are wanted. Raises ServiceNotChangeable where a metric decides, ServiceTooLarge, OperationActive.
    """
    view = _changeable(session, principal, project_id, service_id, None)
    row = view.row
    if row.scaling is not None:
        words = "A metric decides how many replicas it has: change its bounds, or set scaling to null first."
        raise ServiceNotChangeable(words, state=row.state)
    if replicas == row.replicas:
        return view
    check_size(home_of(session, principal, project_id, row.cluster_id), view.version.template, replicas)
    words = f"It goes from {row.replicas} to {replicas} replicas."
    return _begin(session, principal, row, "service.scale", words, {"replicas": replicas})


def suspend_service(session: Session, principal: Principal, project_id: str, service_id: str, *, resume: bool) -> ServiceView:
    """
    The service gives up all replicas and keeps everything else, or takes them up again. Raises ServiceNotChangeable, OperationActive.
    """
    view = _changeable(session, principal, project_id, service_id, None)
    row = view.row
    if row.suspended != resume:
        raise ServiceNotChangeable("It is not suspended." if resume else "It is suspended already.", state=row.state)
    if resume:
        home_of(session, principal, project_id, row.cluster_id)
    words = "It is resumed." if resume else "It gives up its replicas."
    return _begin(session, principal, row, f"service.{'resume' if resume else 'suspend'}", words, {"suspended": not resume})


def delete_service(session: Session, principal: Principal, project_id: str, service_id: str, check: Check) -> ServiceView:
    """
    Deletion is accepted in every state, and what was under way is given up for it; one that is deleted stays as it is.
    """
    view = get_service(session, principal, project_id, service_id, lock=True)
    row = view.row
    check(row.version)
    if row.state in {"deleting", "deleted"}:
        return view
    supersede(session, row.id, "The service is being deleted.")
    start_operation(session, NewOperation("service.delete", "service", row.id, principal.id, row.tenant_id, project_id))
    return _move(session, row, "deleting", "Being taken down.", {})


def refusals(view: ServiceView) -> dict[str, str]:
    """
    Every verb with the reason why it is not allowed now; an empty reason where it is.
    """
    row = view.row
    fixed = "" if row.state in CHANGEABLE else f"A service in state {row.state} cannot be changed."
    busy = fixed or (f"Operation {view.operation_id} is active." if view.operation_id else "")
    return {
        "rollback": fixed or ("" if row.current_version > 1 else "It has had one version only."),
        "scale": busy or ("A metric decides how many replicas it has." if row.scaling is not None else ""),
        "suspend": busy or ("It is suspended already." if row.suspended else ""),
        "resume": busy or ("" if row.suspended else "It is not suspended."),
        "delete": "It is deleted." if row.state == "deleted" else "",
    }


def view_of(session: Session, row: ServiceRow) -> ServiceView:
    """
    The service with what stands beside it.
    """
    return _views(session, [row])[0]


def _views(session: Session, rows: Sequence[ServiceRow]) -> list[ServiceView]:
    versions = repository.versions_of(session, [(row.id, row.current_version) for row in rows])
    active = active_on(session, [row.id for row in rows])
    return [ServiceView(row, versions[row.id], active.get(row.id)) for row in rows]


def _changeable(session: Session, principal: Principal, project_id: str, service_id: str, check: Check | None) -> ServiceView:
    view = get_service(session, principal, project_id, service_id, lock=True)
    if check is not None:
        check(view.row.version)
    if view.row.state not in CHANGEABLE:
        raise ServiceNotChangeable(f"A service in state {view.row.state} cannot be changed.", state=view.row.state)
    return view


def _wanted(row: ServiceRow, change: Change) -> dict[str, Any]:
    """
    The columns that change.
    """
    values: dict[str, Any] = {}
    if change.replicas is not None and change.replicas != row.replicas:
        values["replicas"] = change.replicas
    if change.fixed and row.scaling is not None:
        values["scaling"] = None
    if change.scaling is not None and dict(change.scaling) != row.scaling:
        values["scaling"] = dict(change.scaling)
    if change.rollout is not None and dict(change.rollout) != row.rollout:
        values["rollout"] = dict(change.rollout)
    return values


def _begin(
    session: Session, principal: Principal, row: ServiceRow, kind: str, words: str, values: Mapping[str, Any]
) -> ServiceView:
    """
    An operation brings the change about: at once, or, while the cluster is not there yet, with the first rollout.
    """
    waiting = row.state == "pending"
    if not waiting or find_active(session, row.id) is None:
        start_operation(session, NewOperation(kind, "service", row.id, principal.id, row.tenant_id, row.project_id))
    return _move(session, row, "pending" if waiting else "rolling_out", words, {"turn": row.turn + 1, **values})


def _move(session: Session, row: ServiceRow, state: str, reason: str, values: Mapping[str, Any]) -> ServiceView:
    before = row.state
    if before != state:
        SERVICE_STATES.check_move(before, state)
    repository.enter(session, row, state, reason, values)
    _tell(session, row, before, state, reason)
    return view_of(session, row)


def _tell(session: Session, row: ServiceRow, before: str, after: str, reason: str) -> None:
    data = {"state": after, "before": before, "reason": reason, "version": row.current_version}
    verb = after if before != after else "changed"
    moves = [Move("service", row.id, before, after, reason, row.tenant_id)] if before != after else []
    record(session, [Event(f"service.{verb}", "service", row.id, row.tenant_id, row.project_id, data)], moves)


def _version(
    row: ServiceRow,
    number: int,
    template: Mapping[str, Any],
    proposal: Mapping[str, Any] | None,
    restored: int | None,
    principal: Principal,
) -> ServiceVersionRow:
    return ServiceVersionRow(
        service_id=row.id,
        number=number,
        tenant_id=row.tenant_id,
        template=dict(template),
        proposal=None if proposal is None else dict(proposal),
        restored=restored,
        created_by=principal.id,
    )


def _most(replicas: int, scaling: Mapping[str, Any] | None) -> int:
    return replicas if scaling is None else int(scaling["most"])
