"""
Every query of the nodes room.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, select, text
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.catalog import service as catalog
from controlplane.catalog.service import InstanceType, Parts
from controlplane.kit.clock import CpClock
from controlplane.nodes.models import AllocationRow, NetworkRow, NodePortRow, NodeRow, ProviderRow
from controlplane.nodes.states import Access, Boot, Expected, NodeSnapshot, ProviderRef, Rotation, Tenancy, Update, Wire
from controlplane.qualification import service as qualification

OPEN = ("held", "active", "releasing")
EVERYBODYS_FORMATS = ("raw",)
"""What is taken by a provider that was last looked at before it could say so."""


def provider_ref(row: Any) -> ProviderRef:
    """
    The frozen value of a provider's row.
    """
    features = None if row.job_features is None else tuple(row.job_features)
    return ProviderRef(
        row.id,
        row.adapter,
        row.config,
        row.sealed,
        row.version,
        features,
        tuple(row.volumes or ()),
        row.mig or {},
        tuple(row.managed_work or ()),
        row.only_in or {},
    )


def read_providers(session: Session, ids: Sequence[str]) -> dict[str, ProviderRef]:
    """
    The providers by id.
    """
    said = ProviderRow.capabilities["job_features"].label("job_features")
    named = ProviderRow.capabilities["volumes"].label("volumes")
    parts = ProviderRow.capabilities["mig"].label("mig")
    kept = ProviderRow.capabilities["managed_work"].label("managed_work")
    plain = (ProviderRow.id, ProviderRow.adapter, ProviderRow.config, ProviderRow.sealed, ProviderRow.version)
    limits = ProviderRow.capabilities["only_in"].label("only_in")
    query = select(*plain, said, named, parts, kept, limits)
    rows = session.execute(query.where(ProviderRow.id.in_(set(ids))))
    return {row.id: provider_ref(row) for row in rows}


TENANCIES = select(
    AllocationRow.id,
    AllocationRow.tenant_id,
    AllocationRow.project_id,
    AllocationRow.cluster_id,
    AllocationRow.network,
    NetworkRow.segment,
    AllocationRow.state,
    AllocationRow.release_accepted_at,
).join(NetworkRow, NetworkRow.name == AllocationRow.network)


def read_snapshots(session: Session, rows: Sequence[Any], facts: dict[str, InstanceType]) -> dict[str, NodeSnapshot]:
    """
    What steps need of these nodes (mappings of all their columns), in two queries.
    """
    held = [row["allocation_id"] for row in rows if row["allocation_id"] is not None]
    found = session.execute(TENANCIES.where(AllocationRow.id.in_(held))) if held else ()
    tenancies = {row.id: Tenancy(*row) for row in found}
    bare = [row["id"] for row in rows if row["access"]]
    ports = session.execute(select(NodePortRow).where(NodePortRow.node_id.in_(bare))).scalars().all() if bare else ()
    providers = read_providers(session, [*(row["provider_id"] for row in rows), *(port.provider_id for port in ports)])
    wires: dict[str, list[Wire]] = {}
    for port in sorted(ports, key=lambda one: one.name):
        wires.setdefault(port.node_id, []).append(Wire(port.name, providers[port.provider_id], port.switch, port.port))
    turn = turn_now(session) if ports else 0
    begun = _read_boots(session, [row["boot_id"] for row in rows if row["boot_id"]])
    urls = _shared_urls(session, [row["access"]["url"] for row in rows if row["access"] and row["rotation"] == "due"])
    now = session.execute(select(CpClock())).scalar_one() if any(row["restarted_at"] for row in rows) else None
    parts = catalog.expected_parts(session) if any(row["state"] in {"inspecting", "updating"} for row in rows) else {}
    return {
        row["id"]: _snapshot(
            row,
            tenancies.get(row["allocation_id"]),
            providers[row["provider_id"]],
            _expected(row, facts[row["instance_type"]], parts.get(row["instance_type"], Parts())),
            wires.get(row["id"], ()),
            begun.get(row["boot_id"]),
            turn,
            Rotation(row["rotation"], row["refusals"], bool(row["access"]) and row["access"]["url"] in urls),
            (now - row["restarted_at"]).total_seconds() if now is not None and row["restarted_at"] is not None else None,
        )
        for row in rows
    }


TURN = text("SELECT (extract(epoch FROM cp_clock()) * 1000000)::bigint")


def turn_now(session: Session) -> int:
    """
    This instant of the database's clock, in microseconds, as switches order what they are told of a port: read under the lock of the node's
    row, it is later than every turn that was decided under an earlier one. A database restored from a backup does not fall back behind it.
    """
    return int(session.execute(TURN).scalar_one())


SHARED = text(
    """
    SELECT access->>'url' FROM nodes WHERE access->>'url' = ANY(:urls) AND state <> 'retired' GROUP BY 1 HAVING count(*) > 1
    """
)


def _shared_urls(session: Session, urls: Sequence[str]) -> frozenset[str]:
    """
    Those of these controllers that several nodes are reached through.
    """
    return frozenset(session.execute(SHARED, {"urls": list(urls)}).scalars()) if urls else frozenset()


def _read_boots(session: Session, boot_ids: Sequence[str]) -> dict[str, Boot]:
    """
    The boots as steps see them, by id.
    """
    if not boot_ids:
        return {}
    now = session.execute(select(CpClock())).scalar_one()
    found = boots.views(session, boot_ids)
    measured = [one.id for one in found.values() if one.outputs and one.state == "ready"]
    under = qualification.failures_of(session, measured) if measured else {}
    return {
        one.id: Boot(
            id=one.id,
            state=one.state,
            age_s=(now - one.made_at).total_seconds(),
            ready_at=one.ready_at,
            ready_for_s=(now - one.ready_at).total_seconds() if one.ready_at else 0.0,
            failure=f"{one.failure_code}: {one.failure}" if one.failure_code else "",
            checks=tuple({key: str(value) for key, value in check.items()} for check in one.checks),
            burn_in={str(test["name"]): bool(test["required"]) for test in one.burn_in},
            outputs=tuple((output.name.partition(".")[0], output.failure) for output in one.outputs),
            under=under.get(one.id, ()),
            purpose=one.purpose,
            image=one.image,
            allocation_id=one.allocation_id,
        )
        for one in found.values()
    }


def _expected(node: Any, facts: InstanceType, parts: Parts) -> Expected:
    return Expected(facts.gpu_model, node["gpus"], facts.memory_gib, parts, node["serial"])


def _snapshot(
    node: Any,
    tenancy: Tenancy | None,
    provider: ProviderRef,
    expected: Expected,
    wires: Sequence[Wire],
    boot: Boot | None,
    turn: int,
    rotation: Rotation,
    restarted_for_s: float | None,
) -> NodeSnapshot:
    return NodeSnapshot(
        id=node["id"],
        state=node["state"],
        step=node["step"],
        ref=node["ref"],
        provider=provider,
        expected=expected,
        task_id=node["task_id"],
        tenancy=tenancy,
        cancel=tenancy is not None and tenancy.state == "releasing",
        health=node["health"],
        state_for_s=node.get("state_for_s", 0.0),
        access=access_of(node["access"], node["sealed"], node["sealed_next"]) if node["access"] else None,
        boot=boot,
        wires=tuple(wires),
        turn=turn,
        inventory=node["inventory"],
        rotation=rotation,
        door=node["door"],
        restarted_for_s=restarted_for_s,
        update=Update(**node["updating"]),
    )


def access_of(access: Any, sealed: bytes | None, sealed_next: bytes | None = None) -> Access:
    """
    How the controller is reached, from the columns of a node that has one.
    """
    return Access(access["url"], access.get("system", ""), access.get("username", ""), sealed, sealed_next)


FLEET = text(
    f"""
    SELECT n.id, n.site || '/' || n.provider_id AS pool, n.block, n.leaf, n.rack, n.nvlink_domain, n.instance_type, n.gpus,
      CASE WHEN n.allocation_id IS NULL THEN n.gpus ELSE 0 END AS free_gpus,
      n.state = 'available' AND n.health IN ('ok', 'info') AND h.node_id IS NULL AND n.attention = ''
        AND ({qualification.REFUSAL}) IS NULL AS available,
      CASE WHEN n.state <> 'available' THEN n.state WHEN h.node_id IS NOT NULL THEN 'held'
           WHEN n.health NOT IN ('ok', 'info') THEN 'unhealthy' WHEN n.attention <> '' THEN 'attention'
           ELSE {qualification.REFUSAL} END AS blocked_reason
    FROM nodes n JOIN providers p ON p.id = n.provider_id AND p.state = 'active'
    LEFT JOIN (SELECT DISTINCT node_id FROM node_holds WHERE lifted_at IS NULL AND (until IS NULL OR until > cp_clock())) h
      ON h.node_id = n.id
    {qualification.REFUSAL_JOINS}
    WHERE n.site IN :sites AND n.state <> 'retired'
    """
).bindparams(bindparam("sites", expanding=True))

POOLS = text(
    """
    SELECT p.id, p.site, p.site || '/' || p.id AS pool, p.shared, p.capabilities, p.config,
      ARRAY(SELECT DISTINCT a.tenant_id FROM allocations a JOIN nodes n ON n.id = a.node_id
            WHERE n.provider_id = p.id AND a.state <> 'ended' AND NOT p.shared) AS tenants
    FROM providers p WHERE p.state = 'active' AND p.cluster_id IS NULL AND p.site IN :sites ORDER BY p.id
    """
).bindparams(bindparam("sites", expanding=True))


def read_fleet(session: Session, sites: Sequence[str]) -> Sequence[Row[Any]]:
    """
    One row per node of the sites, in the order of `scheduling.fleet.NodeRow`.
    """
    return session.execute(FLEET, {"sites": sorted(set(sites))}).all()


def read_pools(session: Session, sites: Sequence[str]) -> Sequence[Row[Any]]:
    """
    The active providers of the sites, with the tenants on those that cannot be shared.
    """
    return session.execute(POOLS, {"sites": sorted(set(sites))}).all()


def installs_images(pool: Any, formats: Collection[str]) -> bool:
    """
    Whether tenants' images of all these formats can be installed on the machines of the pool: they must be started from something else for
    that. Any pool does where there are none.
    """
    if not formats:
        return True
    able = pool.capabilities.get("images") is True and pool.config.get("boot", "network") != "disk"
    return able and set(formats) <= set(pool.capabilities.get("image_formats", EVERYBODYS_FORMATS))


SEATS = text(
    """
    SELECT a.id, a.instance_id, a.node_set_id, a.state, a.leaving, a.instance_type, a.blueprint_id, n.address, n.block, n.leaf, n.rack,
      coalesce(n.nvlink_domain, '') AS nvlink_domain
    FROM allocations a JOIN nodes n ON n.id = a.node_id
    WHERE a.cluster_id = :cluster AND a.state IN ('held', 'active') ORDER BY a.id
    """
)


def read_seats(session: Session, cluster_id: str) -> Sequence[Row[Any]]:
    """
    The machines that a cluster holds: (id, instance_id, node_set_id, state, leaving, instance_type, blueprint_id, address, block, leaf,
    rack, nvlink_domain), oldest first.
    """
    return session.execute(SEATS, {"cluster": cluster_id}).all()


LOST = text(
    """
    SELECT a.instance_id, a.node_set_id, n.address FROM allocations a JOIN nodes n ON n.id = a.node_id
    WHERE a.cluster_id = :cluster AND a.state NOT IN ('held', 'active') AND a.end_reason = 'deploy_failed'
    ORDER BY a.id DESC LIMIT :most
    """
)


def read_lost(session: Session, cluster_id: str, most: int) -> Sequence[Row[Any]]:
    """
    The latest machines that were given to a cluster and never became its own, as (instance_id, node_set_id, address), latest first. What
    they have begun may be found in the product.
    """
    return session.execute(LOST, {"cluster": cluster_id, "most": most}).all()


IS_FREE = f"""
    n.state = 'available' AND n.health IN ('ok', 'info') AND n.attention = '' AND p.capabilities ? 'products'
    AND ({qualification.REFUSAL}) IS NULL AND NOT EXISTS (
      SELECT 1 FROM node_holds h WHERE h.node_id = n.id AND h.lifted_at IS NULL AND (h.until IS NULL OR h.until > cp_clock()))
"""
COUNT_FREE = text(
    f"""
    SELECT n.site, n.instance_type, count(*) AS total, count(*) FILTER (WHERE {IS_FREE}) AS free,
      min(coalesce(p.seen_at, p.created_at)) AS as_of
    FROM nodes n JOIN providers p ON p.id = n.provider_id {qualification.REFUSAL_JOINS}
    WHERE n.state <> 'retired' AND p.state = 'active'
      AND n.site = coalesce(:site, n.site) AND n.instance_type = coalesce(:kind, n.instance_type)
    GROUP BY n.site, n.instance_type ORDER BY n.site, n.instance_type
    """
)


def count_free(session: Session, site: str | None, instance_type: str | None) -> Sequence[Any]:
    """
    (site, instance_type, total, free, as_of) over nodes of active providers; `as_of` is when the one longest silent last answered.
    """
    return session.execute(COUNT_FREE, {"site": site, "kind": instance_type}).all()


ARE_FREE = text(
    f"""
    SELECT count(*) >= :wanted FROM (
      SELECT 1 FROM nodes n JOIN providers p ON p.id = n.provider_id {qualification.REFUSAL_JOINS}
      WHERE n.site = :site AND n.instance_type = :kind AND p.state = 'active' AND {IS_FREE}
      LIMIT :wanted) free
    """
)


def are_free(session: Session, site: str, instance_type: str, wanted: int) -> bool:
    """
    Whether so many nodes are free, as `count_free` counts them; no more nodes are looked at than are wanted.
    """
    return bool(session.execute(ARE_FREE, {"site": site, "kind": instance_type, "wanted": wanted}).scalar_one())


# Clusters are a higher room's rows; the foreign key to providers is what this asks about, not what a cluster is.
DEPENDENTS = text(
    """
    SELECT (SELECT count(*) FROM nodes WHERE provider_id = :provider AND state <> 'retired'),
           (SELECT count(*) FROM clusters WHERE :provider IN (provider_id, peer_id) AND state <> 'deleted')
    """
)


def count_dependents(session: Session, provider_id: str) -> tuple[int, int]:
    """
    How many nodes that are not retired and clusters that are not deleted stand on the provider.
    """
    nodes, clusters = session.execute(DEPENDENTS, {"provider": provider_id}).one()
    return nodes, clusters


def allocations_of(cluster_ids: Sequence[str]) -> Any:
    """
    The allocations of clusters that are not ended, with their nodes.
    """
    return (
        select(
            AllocationRow,
            NodeRow.ref,
            NodeRow.state.label("node_state"),
            NodeRow.provider_id,
            NodeRow.health.label("node_health"),
            NodeRow.address,
        )
        .join(NodeRow, NodeRow.id == AllocationRow.node_id)
        .where(AllocationRow.cluster_id.in_(cluster_ids), AllocationRow.state != "ended")
        .order_by(AllocationRow.id)
    )


UNKNOWN_CLUSTERS = text(
    "SELECT s.id FROM unnest(CAST(:seen AS text[])) AS s(id) WHERE NOT EXISTS (SELECT 1 FROM clusters c WHERE c.id = s.id)"
)


def unknown_clusters(session: Session, seen: Sequence[str]) -> list[str]:
    """
    Those of these clusters that have no row, by name.
    """
    return sorted(session.execute(UNKNOWN_CLUSTERS, {"seen": list(seen)}).scalars()) if seen else []
