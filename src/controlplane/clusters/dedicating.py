"""
A tenant's own Slurm: what is fixed when it is ordered, and the files of its hosts, which follow from who is a member.
"""

import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.clusters import repository
from controlplane.clusters.states import Options
from controlplane.kit.errors import NoCapacity
from controlplane.kit.ids import new_id
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.states import host_name
from controlplane.rendering.shell import Script as RenderedScript
from controlplane.rendering.slurm import offer as offers
from controlplane.rendering.slurm.changes import UNITS, renewal
from controlplane.rendering.slurm.files import COMMANDS, Bundle, RenderedFile, Role
from controlplane.rendering.slurm.inplace import program_path as upgrade_path
from controlplane.rendering.slurm.keys import ClusterKeys, new_keys
from controlplane.rendering.slurm.leaving import leaving_files, list_path, program_path
from controlplane.rendering.slurm.plan import Host, Install, Position, SlurmPlan, Worker
from controlplane.rendering.slurm.roles import key_files, plain_files
from controlplane.rendering.slurm.scripts import head_script, login_script, worker_script
from controlplane.rendering.slurm.settings import adapter_settings
from controlplane.rendering.slurm.words import KINDS, BadPlan

Stage = Literal["members", "drain", "final"]
"""members: all that are held are in; drain: those that leave are drained besides; final: those that leave are out."""
ADAPTER = "slurm"
JOBS_RUN_AS = offers.TENANT.name
SCRIPT_TIMEOUT_S = 1800.0
SOMEWHERE = Host("head", "192.0.2.1")
"""Stands for the head in scripts, which do not depend on where it is."""


@dataclass(frozen=True, slots=True)
class Founding:
    """
    What an order of a dedicated Slurm has fixed.
    """

    pool_id: str
    """The provider whose machines it takes."""
    peer_id: str | None
    """Its own scheduler, as a provider; None where the first makes it, and runs its jobs too."""
    facts: dict[str, Any]
    """What is kept with the cluster: the offer as it was, and the parts that were asked for."""
    blueprints: Mapping[str, str]
    """By node set name: what its machines boot with."""


def bare_pools(pools: Sequence[Any], tenant_id: str, site: str) -> Iterator[Any]:
    """
    The providers of bare machines in the site that the tenant may be given.
    """
    for pool in pools:
        if pool.site == site and "baremetal" in pool.capabilities.get("products", []) and not set(pool.tenants) - {tenant_id}:
            yield pool


def find_pool(pools: Sequence[Any], tenant_id: str, site: str, worker_types: Iterable[str], wanted: Options) -> Any:
    """
    The first provider of bare machines in the site that offers such clusters with these workers; None where none does.
    """
    for pool in bare_pools(pools, tenant_id, site):
        try:
            offer = offers.read_offer(pool.config)
        except BadPlan:
            continue
        if offer is None or not set(worker_types) <= set(offer.shapes):
            continue
        if (offer.accounting or not wanted.accounting) and (offer.containers is not None or not wanted.containers):
            return pool
    return None


def establish(
    session: Session,
    sealer: Sealer,
    *,
    tenant_id: str,
    cluster_id: str,
    site: str,
    roles: Mapping[str, tuple[Role, str]],
    login: tuple[Sequence[str], str],
    wanted: Options,
    image_formats: Collection[str] = (),
) -> Founding:
    """
    The cluster has keys of its own, sealed, a scheduler that only it uses, and for each node set what its machines boot with.

    Args:
        roles: by node set name: the role, and the instance type.
        login: SSH keys and user-data of its owner.
        image_formats: of images of its owner's choice that are written to disks.

    Raises NoCapacity where nobody offers it.
    """
    worker_types = {kind for role, kind in roles.values() if role == "worker"}
    pools = [one for one in nodes.read_pools(session, [site]) if nodes.installs_images(one, image_formats)]
    pool = find_pool(pools, tenant_id, site, worker_types, wanted)
    if pool is None:
        words = f"No provider in {site} makes Slurm clusters of their own of {' and '.join(sorted(worker_types))}."
        raise NoCapacity(words, code="product_not_available")
    facts = {"offer": pool.config[offers.SETTING], "accounting": wanted.accounting, "containers": wanted.containers}
    plan = _plan(facts, cluster_id, worker_types, SOMEWHERE, ())
    keys = new_keys(_text_key)
    peer_id = new_id("prv")
    nodes.appoint(session, sealer, peer_id, cluster_id=cluster_id, adapter=ADAPTER, site=site, secrets=keys.secrets())
    made = {}
    for name, (role, _) in roles.items():
        made[name] = boots.make_blueprint(session, sealer, _blueprint(plan, keys, role, tenant_id, cluster_id, login))
    return Founding(pool.id, peer_id, facts, made)


def _text_key(size: int) -> bytes:
    """
    Six random bits a byte: what lays files down on machines carries text.
    """
    return secrets.token_urlsafe(size)[:size].encode("ascii")


def _blueprint(
    plan: SlurmPlan, keys: ClusterKeys, role: Role, tenant_id: str, cluster_id: str, login: tuple[Sequence[str], str]
) -> boots.NewBlueprint:
    script = {"head": head_script(plan, SOMEWHERE), "login": login_script(plan), "worker": worker_script(plan)}[role]
    return boots.NewBlueprint(
        tenant_id=tenant_id,
        cluster_id=cluster_id,
        ssh_keys=tuple(login[0]),
        user_data=login[1],
        secret_files=tuple(_file(one) for one in key_files(plan, keys, role)),
        scripts=(_script(script),),
    )


def _script(script: RenderedScript) -> boots.Script:
    return boots.Script(script.name, script.content, SCRIPT_TIMEOUT_S)


def _plan(
    facts: Mapping[str, Any],
    cluster_id: str,
    worker_types: Iterable[str],
    head: Host,
    workers: tuple[Worker, ...],
    logins: tuple[Host, ...] = (),
) -> SlurmPlan:
    offer = offers.read_offer({offers.SETTING: facts["offer"]})
    assert offer is not None
    return offers.plan_of(
        offer,
        cluster_id,
        worker_types,
        (head,),
        workers,
        logins,
        accounting=facts["accounting"],
        containers=facts["containers"],
        install=Install(**facts["install"]) if facts.get("install") else None,
    )


def renew(session: Session, row: Any, stage: Stage, drain: Sequence[str] = ()) -> None:
    """
    The files of all hosts are those of the present members, running hosts will fetch what changed, and the scheduler is reached where the
    head is. `drain` are allocations that stay and get no new jobs. The same members again change nothing. Raises BadPlan.
    """
    sets = repository.sets_of(session, [row["id"]])[row["id"]]
    roles: dict[str, Role] = {one.id: one.role for one in sets}  # type: ignore[misc]
    seats = nodes.read_seats(session, row["id"])
    going = [one for one in seats if one.leaving and roles[one.node_set_id] == "worker"]
    there = [one for one in seats if stage != "final" or not one.leaving]
    by_role = {role: [one for one in there if roles[one.node_set_id] == role] for role in ("head", "login", "worker")}
    if not by_role["head"] or not by_role["worker"]:
        raise BadPlan("workers: a cluster needs a head and a worker")
    plan = _plan(
        row["slurm"],
        row["id"],
        {one.instance_type for one in sets if one.role == "worker"},
        _host(by_role["head"][0]),
        tuple(_worker(one) for one in by_role["worker"]),
        tuple(_host(one) for one in by_role["login"]),
    )
    out = {one.id for one in going} if stage == "drain" else set()
    drained = [host_name(one.instance_id) for one in seats if one.id in out.union(drain)]
    known = boots.plain_files(session, [one.blueprint_id for one in sets if one.blueprint_id])
    for one in sets:
        first = next((seat for seat in there if seat.node_set_id == one.id), None)
        if first is None or one.blueprint_id is None:
            continue
        before = known[one.blueprint_id]
        role, name = roles[one.id], host_name(first.instance_id)
        if role == "head":
            files = _head(plan, name, before, drained)
        else:
            told = plain_files(plan, role, name)
            on_change = _upgraded(plan, told, {each.path: each for each in before})
            files = tuple(_file(each, on_change=on_change) for each in told)
        boots.rewrite_files(session, one.blueprint_id, files)
    nodes.direct(session, row["peer_id"], json.loads(json.dumps(adapter_settings(plan, dedicated=True).config)))


def _head(plan: SlurmPlan, name: str, before: Sequence[boots.NodeFile], drained: Sequence[str]) -> tuple[boots.NodeFile, ...]:
    """
    The head's files, each with what a running head must do when it changes: a change of members is one, however many files tell it.
    """
    after = Bundle("head", name, plain_files(plan, "head", name), ())
    old = {one.path: one for one in before}
    files = {one.path: _file(one) for one in after.files}
    if any(path in old for path in files):
        was = tuple(_as_rendered(old[one.path], one) for one in after.files if one.path in old)
        change = renewal(Bundle("head", name, was, ()), after, plan.words)
        if change.on_workers:
            raise BadPlan("a change of members never restarts workers", code="slurm_change_impossible")
        told = _upgraded(plan, after.files, old) or " && ".join(change.commands)
        changed = {one.path for one in change.write}
        files = {
            path: boots.NodeFile(path, one.content, one.mode, one.owner, told) if path in changed else old[path]
            for path, one in files.items()
        }
    listed, program = leaving_files(plan, drained)
    files[list_path(plan)] = _file(listed, on_change=program_path(plan))
    files[program_path(plan)] = _file(program)
    return tuple(files[path] for path in sorted(files))


def _upgraded(plan: SlurmPlan, files: Sequence[RenderedFile], old: Mapping[str, boots.NodeFile]) -> str | None:
    """
    What a running host does instead of all else when the files bring it to another release; None where they do not.
    """
    path = upgrade_path(plan)
    fresh = next((one for one in files if one.path == path), None)
    if fresh is None or not old or (path in old and old[path].content == fresh.content.decode()):
        return None
    return path


def _as_rendered(stored: boots.NodeFile, now: RenderedFile) -> RenderedFile:
    return RenderedFile(stored.path, stored.content.encode(), int(stored.mode, 8), stored.owner, on_change=now.on_change)


def _file(file: RenderedFile, *, on_change: str | None = None) -> boots.NodeFile:
    commands = (*(COMMANDS["units"] if file.path.startswith(UNITS) else ()), *COMMANDS[file.on_change])
    told = " && ".join(commands) if on_change is None else on_change
    return boots.NodeFile(file.path, file.content.decode(), f"{file.mode:04o}", file.owner, told)


def _host(seat: Any) -> Host:
    return Host(host_name(seat.instance_id), seat.address or "")


def _worker(seat: Any) -> Worker:
    position = Position(*(_label(getattr(seat, part)) for part in ("block", "leaf", "rack", "nvlink_domain")))
    return Worker(host_name(seat.instance_id), seat.address or "", seat.instance_type, position)


def _label(text: str) -> str:
    """
    The operator's name of a place as Slurm can read it: itself where it can be, else a word that is the same for the same name.
    """
    return text if not text or KINDS["label"][0].fullmatch(text) else f"x{sha256(text.encode()).hexdigest()[:12]}"
