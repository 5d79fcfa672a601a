"""
The promises, checked after everything was healed and has settled: the simulator's ledger is the judge.
"""

from __future__ import annotations

from typing import Any

from controlplane.identity import service as identity
from controlplane.kit import audit
from controlplane.providers.adapters.simulated import judge
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.quotas import service as quotas
from tests.factories.world import World

METERED = """
    SELECT allocation_id, lower(during) AS since, upper(during) AS until FROM meter_intervals WHERE NOT isempty(during)
"""
HELD_GPUS = """
    SELECT reseller_id, tenant_id, project_id, gpu_model, site, sum(gpus)::bigint AS gpus FROM (
      SELECT a.reseller_id, a.tenant_id, a.project_id, t.gpu_model, a.site, a.gpus FROM allocations a
        JOIN instance_types t ON t.name = a.instance_type WHERE a.charged AND a.state <> 'ended'
      UNION ALL
      SELECT c.reseller_id, c.tenant_id, c.project_id, s.gpu_model, c.site, s.unplaced * s.gpus FROM node_sets s
        JOIN clusters c ON c.id = s.cluster_id WHERE s.unplaced > 0) held
    GROUP BY 1, 2, 3, 4, 5
"""
HELD_CLUSTERS = "SELECT reseller_id, tenant_id, project_id, count(*) AS clusters FROM clusters WHERE charged GROUP BY 1, 2, 3"
STUCK = """
    SELECT kind, id, state, reason, attention FROM (
      SELECT 'node' AS kind, id, state, reason, attention, deadline_at FROM nodes
      UNION ALL SELECT 'cluster', id, state, reason, attention, deadline_at FROM clusters
      UNION ALL SELECT 'job', id, state, reason, attention, deadline_at FROM jobs
      UNION ALL SELECT 'service', id, state, reason, attention, deadline_at FROM services) r
    WHERE attention = '' AND deadline_at < cp_clock()
"""
RESTING = """
    SELECT s.id, s.turn FROM services s JOIN clusters c ON c.id = s.cluster_id
    WHERE s.state = 'running' OR (s.state = 'suspended' AND c.state <> 'deleted')
"""


def broken_promises(world: World) -> list[str]:
    """
    Every promise that does not hold, in words.
    """
    control = SimControl(world.region.world, now=world.clock)
    ledger = control.ledger()
    found = [f"{one.promise} {one.subject}: {one.words}" for one in judge.overlapping_reach(ledger)]
    found += [f"{one.promise} {one.subject}: {one.words}" for one in judge.double_objects(ledger)]
    found += [f"{one.promise} {one.subject}: {one.words}" for one in judge.crowded_gpus(ledger)]
    found += [f"{one.promise} {one.subject}: {one.words}" for one in judge.unwiped_reuse(ledger)]
    found += _ownership(world, ledger)
    metered = {row.allocation_id: (row.since, row.until) for row in world.rows(METERED)}
    found += [f"{one.promise} {one.subject}: {one.words}" for one in judge.meter_differences(ledger, metered)]
    control.close()
    return found + promises_of_rows(world)


def promises_of_rows(world: World) -> list[str]:
    """
    Those that rows alone can break, whoever the peer is: quotas, deadlines, the audit.
    """
    found = _quota_drift(world)
    found += [f"I6 {row.kind} {row.id}: {row.state} past its deadline unseen" for row in world.rows(STUCK)]
    return found + _audit(world)


def _ownership(world: World, ledger: Any) -> list[str]:
    live = judge.live_objects(ledger)
    tokens = {row.id for row in world.rows("SELECT id FROM allocations WHERE state <> 'ended'")}
    clusters = {row.id for row in world.rows("SELECT id FROM clusters WHERE state NOT IN ('deleted')")}
    jobs = {
        f"{row.id}-{row.attempt}"
        for row in world.rows("SELECT id, attempt FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')")
    }
    found = [f"I2 deployment {one} has no owner" for one in sorted(live.deployments - tokens)]
    found += [f"I2 cluster {one} has no owner" for one in sorted(live.clusters - clusters)]
    found += [f"I2 job {one} has no owner" for one in sorted(live.jobs - jobs)]
    services = {row.id for row in world.rows("SELECT id FROM services WHERE state <> 'deleted'")}
    found += [f"I2 service {one} has no owner" for one in sorted(live.services - services)]
    found += _untold(world, ledger)
    running = {row.id for row in world.rows("SELECT id FROM clusters WHERE state IN ('running', 'degraded')")}
    return found + [f"I2 cluster {one} is gone at the provider" for one in sorted(running - live.clusters)]


def _untold(world: World, ledger: Any) -> list[str]:
    """
    Services that came to rest and stand at the provider in another state than the one they were told last. What was suspended when its
    cluster went stands nowhere any more, and is not looked at until its owner resumes or deletes it.
    """
    told = {one.service_id: one.turn for one in ledger.services if one.ended_at is None}
    resting = world.rows(RESTING)
    return [f"I2 service {one.id} is at turn {told.get(one.id)}, not {one.turn}" for one in resting if told.get(one.id) != one.turn]


def _quota_drift(world: World) -> list[str]:
    gpus = [
        (quotas.Chain(row.reseller_id, row.tenant_id, row.project_id), quotas.Need("gpus", row.gpus, row.gpu_model, row.site))
        for row in world.rows(HELD_GPUS)
    ]
    clusters = [
        (quotas.Chain(row.reseller_id, row.tenant_id, row.project_id), quotas.Need("clusters", row.clusters))
        for row in world.rows(HELD_CLUSTERS)
    ]
    drifts = world.do(lambda session: quotas.recount(session, [*gpus, *clusters, *identity.held_keys(session)]))
    return [f"I4 {one}" for one in drifts]


def _audit(world: World) -> list[str]:
    chains = [row.tenant_id for row in world.rows("SELECT tenant_id FROM audit_heads")]
    return [f"I8 {one}" for chain in chains for one in world.do(lambda session, name=chain: list(audit.verify(session, name)))]
