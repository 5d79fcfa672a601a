"""
Every route is guarded by a rule, and every table of tenants by the database.
"""

from collections import Counter
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.routing import APIRoute
from sqlalchemy import text

from controlplane.app import ROUTERS
from controlplane.boots.machine_routes import LANES as BOOT_LANES
from controlplane.fabric_checks.machine_routes import LANES as FABRIC_LANES
from controlplane.identity.states import PERMISSIONS
from controlplane.jobs.machine_routes import LANES as JOB_LANES
from controlplane.web.endpoint import LEVELS, Rule
from tests.conftest import Database

ANY_CREDENTIAL = {
    "get_whoami": "anybody may ask who a key belongs to",
    "list_roles": "the names of roles are no secret",
}
"""Routes that every accepted credential may call, and why."""
CALCULATE = frozenset(
    {"checkpoint", "training_memory", "training_time", "kv_cache", "inference_fit", "rack_power"},
)
ONLY_READ = {f"calculate_{name}": "arithmetic over the catalog: the body is only too large for a query" for name in CALCULATE} | {
    "propose_engine": "renders arguments and starts nothing"
}
"""Routes that take a body and change nothing, and why; they are not audited."""
SHOWN_TO_SUSPENDED = {
    *("get_whoami", "list_projects", "get_project"),
    *("list_clusters", "get_cluster", "list_instances", "get_cluster_actions", "get_instance_actions"),
    *("list_jobs", "get_job", "list_job_actions", "list_job_arrays", "get_job_array"),
    *("list_services", "get_service", "list_service_actions", "list_service_versions"),
    *("list_checkpoints", "list_job_checkpoints", "get_checkpoint", "get_checkpoint_policy"),
    *("list_operations", "get_operation"),
    *("get_usage", "list_usage_intervals", "list_work"),
    *("list_quotas", "get_project_quotas"),
    *("list_images", "get_image"),
}
"""What a suspended caller may read: its own resources, to find what it may stop and delete."""
OWN_RIGHTS = {"operator": "/v1/admin/", "reseller": "/v1/reseller"}
WALLS_ELSEWHERE = {
    "audit_heads": "a chain's head is named by its chain: the walls are those of audit_entries",
}
OF_MACHINES = {
    "/v1/boot/{token}/": {"boot_token"},
    "/v1/job-output/{token}/": {"boot_token"},
    "/v1/fabric-runs/{token}": {"boot_token"},
    "/latest/": {"address", "address_and_token"},
}
"""Where machines call, which have no key and no role: what lets them in instead."""
TABLES = text(
    """
    SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity AS walled,
      EXISTS (SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND pg_get_expr(p.polqual, p.polrelid) LIKE '%tenant_id%') AS named
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND a.attname = 'tenant_id' AND NOT a.attisdropped
    ORDER BY 1
    """
)


def served(router: APIRouter) -> Iterator[APIRoute]:
    """Every route of the router and of those it includes."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from served(route.original_router)  # type: ignore[attr-defined]


ROUTES = [route for router in ROUTERS for route in served(router)]
LANES = (*BOOT_LANES, *JOB_LANES, *FABRIC_LANES)
RULES = [rule for lane in LANES for rule in lane.routes.rules]


def rule_of(route: APIRoute) -> Rule:
    """How the route is guarded."""
    rule = getattr(route.endpoint, "rule", None)
    assert isinstance(rule, Rule), f"{route.path} is not made with web.endpoint"
    return rule


def test_every_route_has_a_rule_with_a_permission() -> None:
    """No route is served without a permission that roles can hold, but for the few that are listed with their reason."""
    assert len(ROUTES) > 50
    for route in ROUTES:
        permission = rule_of(route).permission
        assert permission in PERMISSIONS if permission else route.operation_id in ANY_CREDENTIAL, f"{route.path} {permission!r}"


def test_routes_of_machines_say_what_lets_them_in() -> None:
    """They lie where no other route does, and each is guarded by token or address, and says what body it takes."""
    assert {lane.prefix for lane in LANES} == {"/v1/boot/", "/v1/job-output/", "/v1/fabric-runs/", "/latest/"}
    assert len({(rule.method, rule.path) for rule in RULES}) == 19
    for rule in RULES:
        where = next(start for start in OF_MACHINES if rule.path.startswith(start))
        assert rule.credential in OF_MACHINES[where], rule.path
        assert bool(rule.takes) is (rule.method == "POST"), rule.path
    assert not [route.path for route in ROUTES if route.path.startswith(tuple(lane.prefix for lane in LANES))]


def test_a_suspended_caller_reads_stops_and_deletes_and_nothing_else() -> None:
    """Its own resources are shown; deletes and cancels are served; no other change is."""
    reads = {route.operation_id for route in ROUTES if rule_of(route).works_suspended and "GET" in (route.methods or ())}
    assert reads == SHOWN_TO_SUSPENDED
    changes = {route.path for route in ROUTES if rule_of(route).works_suspended and "POST" in (route.methods or ())}
    assert all(path.endswith(("/actions/cancel", "/services/{service_id}/actions/suspend")) for path in changes)
    for route in ROUTES:
        assert not rule_of(route).works_suspended or set(route.methods or ()) <= {"GET", "DELETE", "POST"}, route.path
        assert (route.openapi_extra or {})["x-works-suspended"] is rule_of(route).works_suspended


def test_paths_and_audiences_agree() -> None:
    """What lies under /v1/admin is for operators, under /v1/reseller for resellers, and nothing else is for them alone."""
    for route in ROUTES:
        audience = rule_of(route).audience
        assert audience in LEVELS
        expected = next((name for name, start in OWN_RIGHTS.items() if f"{route.path}/".startswith(start)), None)
        assert audience == expected if expected else audience in {"tenant", "any"}, f"{route.path} is for {audience}"


def test_reading_changes_nothing_and_changing_is_audited() -> None:
    """A GET is never marked as a change; every other method is, unless it says why it only reads."""
    for route in ROUTES:
        if "GET" in (route.methods or ()):
            assert not rule_of(route).mutates, route.path
        else:
            assert rule_of(route).mutates is (route.operation_id not in ONLY_READ), route.path
        assert rule_of(route).repeatable is ("POST" in (route.methods or ())), route.path


def test_no_two_routes_are_alike() -> None:
    """Operation ids and (method, path) pairs are unique."""
    ids = Counter(route.operation_id for route in ROUTES)
    places = Counter((method, route.path) for route in ROUTES for method in route.methods or ())
    assert [name for name, count in ids.items() if count > 1] == []
    assert [place for place, count in places.items() if count > 1] == []


def test_every_table_of_tenants_has_a_wall(migrated: Database) -> None:
    """Each table with a tenant_id has row-level security, forced for its owner too, by a policy that names the tenant."""
    with migrated.owner.connect() as connection:
        tables = connection.execute(TABLES).all()
    assert len(tables) > 10
    bare = [row.relname for row in tables if not (row.walled and row.named) and row.relname not in WALLS_ELSEWHERE]
    assert bare == []
