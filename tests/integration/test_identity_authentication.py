"""
Who is let in: keys, suspended ancestors, removed people, the cache, and the database's own walls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session

from controlplane.identity import service
from controlplane.identity.errors import NotAllowedNow
from controlplane.identity.keytext import mint
from controlplane.identity.service import (
    Changes,
    Filters,
    FreshKey,
    KeyAuthenticator,
    KeyLimits,
    KeyView,
    MemberChanges,
    NewKey,
    NewMember,
    RoleAsk,
)
from controlplane.kit.access import Principal
from controlplane.kit.db import Wall, in_transaction, make_engine
from controlplane.kit.errors import Unauthenticated
from controlplane.kit.guard import PowerfulRole, refuse_powerful_role
from controlplane.kit.ids import new_id
from controlplane.kit.paging import PageAsk
from controlplane.quotas import service as quotas
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree, principal_of, work

Ask = Callable[..., Any]
LONGEST_CACHE_S = 5.0


class Ticks:
    """
    A clock that a test turns.
    """

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def tree(database: Database) -> Tree:
    """
    Two resellers with a tenant each.
    """
    return make_tree(database.engine)


@pytest.fixture
def accepts(database: Database) -> Ask:
    """
    Whether a key is accepted, asked of the database each time.
    """
    authenticator = KeyAuthenticator(database.engine, cache_s=0)

    def ask(key: str, **options: Any) -> Any:
        try:
            return authenticator.authenticate(f"Bearer {key}", options.pop("client", None), **options)
        except Unauthenticated:
            return None

    return ask


def ignore(_version: int) -> None:
    """
    The version is not checked.
    """


def counting(engine: Engine) -> list[str]:
    """
    The list that every statement of the engine's will be appended to.
    """
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    return seen


def test_a_key_has_the_rights_of_its_level(tree: Tree, accepts: Ask) -> None:
    """
    Each key stands at its own level and sees no higher.
    """
    operator, seller, owner = accepts(tree.operator_key), accepts(tree.left.reseller_key), accepts(tree.left.owner_key)
    assert operator.wall.everything
    assert seller.wall == Wall(reseller_id=tree.left.reseller_id)
    assert owner.wall == Wall(tenant_id=tree.left.tenant_id)
    assert owner.permissions < seller.permissions < operator.permissions
    assert "nodes:write" not in seller.permissions


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic {key}",
        "{key}",
        "Bearer {key}x",
        "Bearer  {key} {key}",
        "Bearer {other}",
        "Bearer ✓",
        "B" * 900,
    ],
)
def test_every_refusal_reads_the_same(database: Database, tree: Tree, header: str | None) -> None:
    """
    A missing, malformed, unknown or cut key is refused in the same words.
    """
    other, _ = mint(new_id("key"), "tenant")
    given = header and header.replace("{key}", tree.operator_key).replace("{other}", other)
    with pytest.raises(Unauthenticated) as caught:
        KeyAuthenticator(database.engine).authenticate(given, None)
    with pytest.raises(Unauthenticated) as unknown:
        KeyAuthenticator(database.engine).authenticate(f"Bearer {other}", None)
    assert str(caught.value) == str(unknown.value)


def test_a_wrong_checksum_costs_no_query(database: Database, tree: Tree) -> None:
    """
    A mistyped key is refused before the database is asked.
    """
    authenticator, seen = KeyAuthenticator(database.engine), counting(database.engine)
    text_ = tree.operator_key
    for place in range(0, len(text_), 7):
        wrong = text_[:place] + ("0" if text_[place] != "0" else "1") + text_[place + 1 :]
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(f"Bearer {wrong}", None)
    assert seen == []


def test_the_right_id_with_another_secret_is_refused(tree: Tree, accepts: Ask) -> None:
    """
    A well-formed key of an existing id with a secret of its own is not accepted.
    """
    forged, _ = mint(accepts(tree.operator_key).key_id, "platform")
    assert accepts(forged) is None


def test_suspended_ancestors_stop_the_key_but_leave_deletes(database: Database, tree: Tree, accepts: Ask) -> None:
    """
    Suspending the tenant or its reseller marks every key below as suspended, and resuming lifts it.
    """
    operator = accepts(tree.operator_key)
    work(database.engine, lambda s: service.suspend_tenant(s, operator, tree.left.tenant_id))
    assert accepts(tree.left.owner_key).suspended
    assert not accepts(tree.left.reseller_key).suspended
    work(database.engine, lambda s: service.resume_tenant(s, operator, tree.left.tenant_id))
    work(database.engine, lambda s: service.suspend_reseller(s, tree.left.reseller_id))
    assert accepts(tree.left.owner_key).suspended
    assert accepts(tree.left.reseller_key).suspended
    assert not accepts(tree.right.owner_key).suspended
    work(database.engine, lambda s: service.resume_reseller(s, tree.left.reseller_id))
    assert not accepts(tree.left.owner_key).suspended


def test_removing_a_user_kills_personal_keys_only(database: Database, tree: Tree, accepts: Ask) -> None:
    """
    A removed user's key is dead at once and stays dead when the user comes back; a service account's key made by the user lives.
    """
    owner = accepts(tree.left.owner_key)
    roles = (RoleAsk("tenant_admin"),)

    def hire(session: Session) -> tuple[str, str, str]:
        row, made = service.create_owner(
            session, accepts(tree.left.reseller_key), tree.left.tenant_id, name="Bo", email="bo@acme.example"
        )
        robot = service.create_member(session, owner, NewMember("service_account", "ci", "", roles))
        return row.id, made.text, robot.row.id

    user_id, personal, robot_id = work(database.engine, hire)
    user = accepts(personal)
    new = NewKey("robot", KeyLimits(), principal_id=robot_id)
    made = work(database.engine, lambda s: service.create_key(s, user, new), user.wall)
    work(database.engine, lambda s: service.remove_member(s, owner, user_id), owner.wall)
    assert accepts(personal) is None
    robot = accepts(made.text)
    assert robot.id == robot_id
    assert made.view.row.created_by == user_id
    again = NewMember("user", "Bo", "bo@acme.example", (RoleAsk("tenant_owner"),))
    drift = work(database.engine, lambda s: quotas.recount(s, service.held_keys(s)))
    shown = {one.row.principal_id: one.state for one in _keys(database, owner)}
    assert [one for one in drift if one.resource == "keys"] == []
    assert (shown[user_id], shown[robot_id]) == ("revoked", "active")
    back = work(database.engine, lambda s: service.create_member(s, owner, again), owner.wall)
    assert back.row.id != user_id
    assert accepts(personal) is None


def _keys(database: Database, caller: Principal) -> tuple[KeyView, ...]:
    page = work(database.engine, lambda s: service.list_keys(s, caller, PageAsk(), Filters()), caller.wall)
    return tuple(page.items)


def test_a_disabled_member_is_refused_until_enabled(database: Database, tree: Tree, accepts: Ask) -> None:
    """
    Disabling refuses the keys, enabling accepts them again.
    """
    seller = accepts(tree.left.reseller_key)
    row, made = work(
        database.engine,
        lambda s: service.create_owner(s, seller, tree.left.tenant_id, name="Cy", email="cy@acme.example"),
        seller.wall,
    )
    owner = accepts(tree.left.owner_key)
    for state, expected in (("disabled", False), ("active", True)):
        change = MemberChanges(state=state)
        work(database.engine, partial(service.update_member, principal=owner, member_id=row.id, changes=change), owner.wall)
        assert (accepts(made.text) is not None) is expected


def test_losing_a_role_takes_its_rights_at_once(database: Database, tree: Tree, accepts: Ask) -> None:
    """
    Rights are computed at use: a key whose holder lost the role may do nothing.
    """
    seller, owner = accepts(tree.left.reseller_key), accepts(tree.left.owner_key)
    row, made = work(
        database.engine,
        lambda s: service.create_owner(s, seller, tree.left.tenant_id, name="Di", email="di@acme.example"),
        seller.wall,
    )
    change = MemberChanges(roles=(RoleAsk("project_viewer", tree.left.project_id),))
    work(database.engine, lambda s: service.update_member(s, owner, row.id, change), owner.wall)
    assert accepts(made.text).permissions == frozenset()


@pytest.mark.parametrize("what", ["key", "tenant", "project"])
def test_what_is_gone_opens_nothing(database: Database, tree: Tree, accepts: Ask, what: str) -> None:
    """
    A revoked key, and keys of a deleted project or tenant, are unknown; and the counters of keys are where they began.
    """
    owner, seller = accepts(tree.left.owner_key), accepts(tree.left.reseller_key)

    def narrow(session: Session) -> FreshKey:
        scope = service.hold_project(session, owner, tree.left.project_id)
        return service.create_key(session, owner, NewKey("p", KeyLimits(), scope=scope))

    made = work(database.engine, narrow, owner.wall)
    assert accepts(made.text).project_id == tree.left.project_id
    endings = {
        "key": lambda s: service.revoke_key(s, owner, made.view.row.id),
        "project": lambda s: service.delete_project(s, owner, tree.left.project_id, ignore),
        "tenant": lambda s: service.delete_tenant(s, seller, tree.left.tenant_id, ignore),
    }
    work(database.engine, endings[what])
    assert accepts(made.text) is None
    assert (accepts(tree.left.owner_key) is None) is (what == "tenant")
    assert work(database.engine, lambda s: [d for d in quotas.recount(s, service.held_keys(s)) if d.resource == "keys"]) == []


def test_a_key_expires_by_the_databases_clock(database: Database, tree: Tree) -> None:
    """
    A key is refused from its last second on, even where it was remembered a moment before.
    """
    ticks, virtual = Ticks(), database.virtual_clock()
    try:
        owner = principal_of(database.engine, tree.left.owner_key)
        now = cast("datetime", virtual.now())
        ends = now.replace(minute=now.minute + 1)
        new = NewKey("short", KeyLimits(expires_at=ends))
        made = work(database.engine, lambda s: service.create_key(s, owner, new), owner.wall)
        authenticator = KeyAuthenticator(database.engine, cache_s=1000.0, clock=ticks)
        authenticator.authenticate(f"Bearer {made.text}", None)
        ticks.now_s += 59.0
        authenticator.authenticate(f"Bearer {made.text}", None)
        ticks.now_s += 1.5
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(f"Bearer {made.text}", None)
        virtual.advance(61)
        with pytest.raises(Unauthenticated):
            principal_of(database.engine, made.text)
    finally:
        virtual.stop()


def test_a_key_bound_to_networks_is_refused_elsewhere(database: Database, tree: Tree, accepts: Ask) -> None:
    """
    Only addresses inside the networks are let in, mapped ones too; without an address none.
    """
    owner = accepts(tree.left.owner_key)
    new = NewKey("office", KeyLimits(networks=("192.0.2.0/24", "2001:db8::/32")))
    made = work(database.engine, lambda s: service.create_key(s, owner, new), owner.wall)
    inside = ["192.0.2.9", "::ffff:192.0.2.9", "2001:db8::1"]
    outside = ["192.0.3.1", "2001:db9::1", "::ffff:192.0.3.1"]
    assert all(accepts(made.text, client=ip_address(one)) for one in inside)
    assert not any(accepts(made.text, client=ip_address(one)) for one in outside)
    assert accepts(made.text) is None


def test_a_resellers_domain_knows_only_its_own(tree: Tree, accepts: Ask) -> None:
    """
    On a reseller's domain its own keys and its tenants' are accepted; others', and the operator's, are unknown.
    """
    here = {"reseller_id": tree.left.reseller_id}
    assert accepts(tree.left.owner_key, **here)
    assert accepts(tree.left.reseller_key, **here)
    for foreign in (tree.right.owner_key, tree.right.reseller_key, tree.operator_key):
        assert accepts(foreign, **here) is None


def test_brands_are_found_by_host(database: Database, tree: Tree) -> None:
    """
    The host's brand is found whatever its letter case and port; other hosts have none, and a deleted reseller's is gone.
    """

    def brand(host: str) -> Any:
        return work(database.engine, lambda s: service.brand_for_host(s, host))

    assert brand("Cloud.Fjord.example:8080").name == "Fjord"
    assert brand("cloud.fjord.example.").reseller_id == tree.left.reseller_id
    for host in ("", "localhost", "fjord.example", "x" * 400, "a\x00b", "[::1]:80", "ünï.example"):
        assert brand(host) is None
    changes = Changes(domains=[])
    work(database.engine, lambda s: service.update_reseller(s, tree.left.reseller_id, changes, ignore))
    assert brand("cloud.fjord.example") is None


def test_a_revocation_holds_within_the_cache_period(database: Database, tree: Tree, accepts: Ask) -> None:
    """
    A remembered key is refused when the cache period is over, which is shorter than the promise.
    """
    ticks = Ticks()
    authenticator = KeyAuthenticator(database.engine, clock=ticks)
    header = f"Bearer {tree.left.owner_key}"
    owner = authenticator.authenticate(header, None)
    work(database.engine, lambda s: service.revoke_key(s, owner, owner.key_id), owner.wall)
    authenticator.authenticate(header, None)
    ticks.now_s += 2.0
    assert ticks.now_s - 100.0 <= LONGEST_CACHE_S
    with pytest.raises(Unauthenticated):
        authenticator.authenticate(header, None)


def test_the_cache_is_bounded_and_remembers_no_strangers(database: Database, tree: Tree) -> None:
    """
    A remembered key costs no query; more keys than fit push out the oldest; unknown keys push out none.
    """
    authenticator = KeyAuthenticator(database.engine, cached_keys=2, clock=Ticks())
    keys = [tree.operator_key, tree.left.owner_key, tree.right.owner_key]
    for key in keys:
        authenticator.authenticate(f"Bearer {key}", None)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(f"Bearer {mint(new_id('key'), 'tenant')[0]}", None)
    seen = counting(database.engine)
    for key in keys[1:]:
        authenticator.authenticate(f"Bearer {key}", None)
    assert seen == []
    authenticator.authenticate(f"Bearer {keys[0]}", None)
    assert seen


def test_many_threads_ask_once(database: Database, tree: Tree) -> None:
    """
    Forty requests with one key at the same instant make one look at the database.
    """
    authenticator = KeyAuthenticator(database.engine, clock=Ticks())
    seen, barrier = counting(database.engine), threading.Barrier(40)

    def ask(_number: int) -> Principal:
        barrier.wait()
        return authenticator.authenticate(f"Bearer {tree.left.owner_key}", None)

    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(ask, range(40)))
    assert len({one.key_id for one in found}) == 1
    assert len([one for one in seen if "FROM api_keys k" in one]) == 1


def test_the_last_use_is_noted_at_most_once_a_minute(database: Database) -> None:
    """
    The note is written by the first use of a minute, and never waits for whoever holds the row.
    """
    virtual = database.virtual_clock()
    try:
        tree = make_tree(database.engine)
        virtual.advance(61)
        seen = counting(database.engine)
        for _ in range(3):
            key_id = principal_of(database.engine, tree.left.owner_key).key_id
        writes = [one for one in seen if "UPDATE api_keys" in one]
        virtual.advance(61)
        with Session(database.owner) as holder:
            holder.execute(text("SELECT 1 FROM api_keys WHERE id = :id FOR UPDATE"), {"id": key_id})
            principal_of(database.engine, tree.left.owner_key)
        principal_of(database.engine, tree.left.owner_key)
        with database.owner.connect() as connection:
            noted = connection.execute(text("SELECT last_used_at FROM api_keys WHERE id = :id"), {"id": key_id}).scalar_one()
        assert len(writes) == 1
        assert noted == virtual.now()
    finally:
        virtual.stop()


def test_the_first_operator_is_made_once(database: Database) -> None:
    """
    A second first operator is refused while the first one's key is accepted, unless forced.
    """
    first = work(database.engine, lambda s: service.first_operator(s, "Root@Cloud.example"))
    with pytest.raises(NotAllowedNow):
        work(database.engine, lambda s: service.first_operator(s, "eve@cloud.example"))
    second = work(database.engine, lambda s: service.first_operator(s, "root@cloud.example", force=True))
    one, two = principal_of(database.engine, first), principal_of(database.engine, second)
    assert one.id == two.id
    assert one.key_id != two.key_id


TABLES = ("tenants", "projects", "principals", "role_bindings", "api_keys", "resellers", "reseller_domains")


def test_the_database_shows_no_other_branch(database: Database, tree: Tree) -> None:
    """
    A plain SELECT as the application's role returns one's own rows only, and without a wall none at all.
    """
    walls = {
        "tenant": (Wall(tenant_id=tree.left.tenant_id), Wall(tenant_id=tree.right.tenant_id)),
        "reseller": (Wall(reseller_id=tree.left.reseller_id), Wall(reseller_id=tree.right.reseller_id)),
    }
    for table in TABLES:
        column = "domain" if table == "reseller_domains" else "id"

        def ids(wall: Wall, table: str = table, column: str = column) -> set[str]:
            return set(
                in_transaction(database.engine, wall, lambda s: s.execute(text(f"SELECT {column} FROM {table}")).scalars().all())
            )

        assert ids(Wall()) == set(), table
        for level, (left, right) in walls.items():
            assert ids(left) & ids(right) == set(), (table, level)
        assert ids(walls["reseller"][0]), table
        with database.engine.connect() as connection:
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0


def test_the_wall_does_not_stay_on_a_connection(database: Database, tree: Tree) -> None:
    """
    On one pooled connection each transaction sees what its own wall shows, also after one that failed.
    """
    engine = make_engine(database.app_url, pool_size=1)
    count = text("SELECT count(*) FROM projects")
    try:
        for number in range(60):
            branch = tree.left if number % 2 else tree.right
            seen = in_transaction(
                engine, Wall(tenant_id=branch.tenant_id), lambda s: s.execute(text("SELECT id FROM projects")).scalars().all()
            )
            assert seen == [branch.project_id]
            if number % 3 == 0:
                with pytest.raises(ZeroDivisionError):
                    in_transaction(engine, Wall(everything=True), lambda s: (s.execute(count), 1 // 0))
            with Session(engine) as session:
                assert session.execute(count).scalar_one() == 0
    finally:
        engine.dispose()


@pytest.mark.parametrize("power", ["SUPERUSER", "BYPASSRLS", "owner", "through a group", "policy off"])
def test_a_powerful_role_is_refused(database: Database, power: str) -> None:
    """
    The application does not run as superuser, as owner, past row-level security, or over a policy that is not forced.
    """
    refuse_powerful_role(database.engine)
    role = f"strong_{database.name}"
    base, host = database.owner_url.split("@")[0].split("//")[0], database.owner_url.split("@")[1]
    engine = make_engine(f"{base}//{role}:pw@{host}", pool_size=1)
    flag = power if power.isupper() else ""
    with database.owner.begin() as owner:
        owner.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'pw' {flag}")
        owner.exec_driver_sql(f"GRANT cp_application TO {role}")
    try:
        with database.owner.begin() as owner:
            if power == "owner":
                owner.exec_driver_sql(f"CREATE TABLE kept_by_{role} (id int)")
                owner.exec_driver_sql(f"GRANT CREATE ON SCHEMA public TO {role}")
                owner.exec_driver_sql(f"ALTER TABLE kept_by_{role} OWNER TO {role}")
            if power == "through a group":
                owner.exec_driver_sql(f"GRANT controlplane_owner TO {role}" if _owner(owner) else "SELECT 1")
            if power == "policy off":
                owner.exec_driver_sql("ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY")
        with pytest.raises(PowerfulRole, match="Refusing to run"):
            refuse_powerful_role(engine)
    finally:
        engine.dispose()
        with database.owner.begin() as owner:
            owner.exec_driver_sql("ALTER TABLE tenants FORCE ROW LEVEL SECURITY")
            owner.exec_driver_sql(f"DROP OWNED BY {role} CASCADE")
            owner.exec_driver_sql(f"DROP ROLE {role}")


def _owner(connection: Connection) -> object:
    return connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = 'controlplane_owner'")).first()
