"""
Limits and counters of one transaction at a time.
"""

from __future__ import annotations

from collections import Counter as Tally

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, Wall, raise_wall
from controlplane.kit.errors import Invalid, NotFound, QuotaExceeded, VersionStale
from controlplane.kit.paging import PageAsk
from controlplane.quotas import service as quotas
from controlplane.quotas.errors import LimitAboveCeiling
from controlplane.quotas.service import Chain, Limit, Need, ScopeRef
from tests.conftest import Database
from tests.factories.quotas import chain


def used(session: Session, scope_id: str) -> dict[tuple[str, str, str], int]:
    """
    What the scope holds by counter.
    """
    held = quotas.get_scoped(session, scope_id)
    return {(one.resource, one.gpu_model, one.site): one.used for one in held.counters}


def test_taking_counts_at_every_level(session: Session) -> None:
    """Platform, reseller, tenant and project each count the total and the model in its site."""
    path = chain()
    quotas.take(session, path, [Need("gpus", 16, "H100", "osl1"), Need("clusters", 1)])
    for scope in path.scopes():
        assert used(session, scope.id)["gpus", "", ""] == 16
        assert used(session, scope.id)["gpus", "H100", "osl1"] == 16
        assert used(session, scope.id)["clusters", "", ""] == 1
    quotas.give_back(session, path, [Need("gpus", 16, "H100", "osl1"), Need("clusters", 1)])
    assert quotas.recount(session, []) == []


def test_opening_twice_keeps_limits_and_counts(session: Session) -> None:
    """A repeat of a scope's creation changes nothing."""
    path = chain()
    tenant = path.scopes()[2]
    quotas.open_counters(session, tenant, {"gpus": 64})
    quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
    quotas.open_counters(session, tenant, {"gpus": 1, "keys": 1})
    held = {one.resource: one for one in quotas.get_quotas(session, tenant).counters if not one.gpu_model}
    assert (held["gpus"].ceiling, held["gpus"].used, held["keys"].ceiling) == (64, 8, None)


def test_a_refusal_leaves_every_counter_alone(session: Session) -> None:
    """A caller that catches the refusal and goes on has taken nothing at any level."""
    path = chain()
    quotas.open_counters(session, path.scopes()[3], {"gpus": 7})
    with pytest.raises(QuotaExceeded):
        quotas.take(session, path, [Need("clusters", 1), Need("gpus", 8, "H100", "osl1")])
    assert quotas.recount(session, []) == []


def test_a_limit_of_one_model_in_one_site_binds_only_there(session: Session) -> None:
    """The most special counter refuses; other sites and models are free."""
    path = chain()
    quotas.set_limit(session, path.scopes()[2], "gpus", 8, gpu_model="H100", site="osl1")
    quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
    quotas.take(session, path, [Need("gpus", 8, "H100", "hel1"), Need("gpus", 8, "A100", "osl1")])
    with pytest.raises(QuotaExceeded) as refused:
        quotas.take(session, path, [Need("gpus", 1, "H100", "osl1")])
    fields = refused.value.fields
    assert (fields["scope"], fields["limit"], fields["used"], fields["requested"]) == ("tenant", 8, 8, 1)
    assert (fields["gpu_model"], fields["site"]) == ("H100", "osl1")
    assert "release 1" in fields["alternative"]


@pytest.mark.parametrize("level", [0, 1])
def test_a_tenant_learns_no_number_of_its_provider(session: Session, level: int) -> None:
    """A limit of the reseller or the platform is named `provider`, without limit or use."""
    path = chain()
    quotas.open_counters(session, path.scopes()[level], {"gpus": 12345})
    quotas.take(session, path, [Need("gpus", 12340, "H100", "osl1")])
    with pytest.raises(QuotaExceeded) as refused:
        quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
    fields = refused.value.fields
    assert (fields["scope"], fields["limit"], fields["used"], fields["requested"]) == ("provider", None, None, 8)
    assert not {"1234", "reseller", "platform"} & set(refused.value.detail.replace("12345", "1234").split())
    assert "1234" not in refused.value.detail + fields["alternative"]


def test_a_reseller_sees_its_own_numbers(session: Session) -> None:
    """The viewer's own level is shown with numbers."""
    path = chain()
    quotas.open_counters(session, path.scopes()[1], {"keys": 3})
    with pytest.raises(QuotaExceeded) as refused:
        quotas.take(session, path, [Need("keys", 4)], viewer="reseller")
    assert (refused.value.fields["scope"], refused.value.fields["limit"]) == ("reseller", 3)


def test_the_nearest_full_level_is_named(session: Session) -> None:
    """When project and tenant are both full the caller hears of the one it can do most about."""
    path = chain()
    quotas.open_counters(session, path.scopes()[2], {"gpus": 1})
    quotas.open_counters(session, path.scopes()[3], {"gpus": 2})
    with pytest.raises(QuotaExceeded) as refused:
        quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
    assert refused.value.fields["scope"] == "project"


def test_giving_back_more_than_is_held_is_a_fault(session: Session) -> None:
    """The database refuses a counter below zero, and a counter that was never taken from is missed."""
    path = chain()
    quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
    with pytest.raises(AssertionError), session.begin_nested():
        quotas.give_back(session, path, [Need("gpus", 8, "H100", "hel1")])
    with pytest.raises(IntegrityError), session.begin_nested():
        quotas.give_back(session, path, [Need("gpus", 9, "H100", "osl1")])
    assert used(session, path.project_id or "")["gpus", "", ""] == 8


def test_a_limit_set_late_starts_at_what_is_held(session: Session) -> None:
    """A new counter of a model or a site counts what was taken before it existed."""
    path = chain()
    tenant = path.scopes()[2]
    quotas.take(session, path, [Need("gpus", 16, "H100", "osl1"), Need("gpus", 8, "H100", "hel1"), Need("gpus", 4, "A100", "osl1")])
    quotas.set_limit(session, tenant, "gpus", 100, gpu_model="H100")
    quotas.set_limit(session, tenant, "gpus", 100, site="osl1")
    assert used(session, tenant.id)["gpus", "H100", ""] == 24
    assert used(session, tenant.id)["gpus", "", "osl1"] == 20
    held = [
        (path, Need("gpus", 16, "H100", "osl1")),
        (path, Need("gpus", 8, "H100", "hel1")),
        (path, Need("gpus", 4, "A100", "osl1")),
    ]
    assert quotas.recount(session, held) == []
    assert {one.scope_id for one in quotas.recount(session, held[1:])} == {scope.id for scope in path.scopes()}


def test_the_version_rises_with_limits_only(session: Session) -> None:
    """Use leaves the version alone; a stale version changes nothing."""
    path = chain()
    tenant = path.scopes()[2]
    quotas.open_counters(session, tenant, {"gpus": 64})
    before = quotas.get_quotas(session, tenant).version
    quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
    assert quotas.get_quotas(session, tenant).version == before
    after = quotas.set_limit(session, tenant, "gpus", 32, version=before).version
    assert after > before
    with pytest.raises(VersionStale):
        quotas.set_limit(session, tenant, "gpus", 16, version=before)
    assert quotas.set_limit(session, tenant, "gpus", 32, version=after).version == after


def test_replacing_limits_drops_those_not_named(session: Session) -> None:
    """What is not named has no limit of its own, and keeps counting."""
    path = chain()
    tenant = path.scopes()[2]
    quotas.open_counters(session, tenant, {"gpus": 8, "keys": 2})
    quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
    held = quotas.replace_limits(session, tenant, [Limit("gpus", 4, "H100"), Limit("clusters", 0)])
    ceilings = {(one.resource, one.gpu_model): (one.ceiling, one.used) for one in held.counters if not one.site}
    assert ceilings == {
        ("clusters", ""): (0, 0),
        ("gpus", ""): (None, 8),
        ("gpus", "H100"): (4, 8),
        ("image_bytes", ""): (None, 0),
        ("keys", ""): (None, 0),
        ("operations", ""): (None, 0),
    }
    with pytest.raises(Invalid):
        quotas.replace_limits(session, tenant, [Limit("gpus", 4), Limit("gpus", 5)])
    with pytest.raises(Invalid):
        quotas.replace_limits(session, tenant, [Limit("keys", 4, "H100")])


def test_a_seller_cannot_promise_one_customer_more_than_it_has(session: Session) -> None:
    """Its ceiling bounds each customer's limit, wherever the ceiling covers it; several may add up to more."""
    path = chain()
    seller, tenant, other = path.scopes()[1], path.scopes()[2], chain(path.reseller_id).scopes()[2]
    quotas.open_counters(session, seller, {"gpus": 64})
    quotas.set_limit(session, seller, "gpus", 16, gpu_model="H100")
    for limit in (Limit("gpus", 65), Limit("gpus", 17, "H100"), Limit("gpus", 17, "H100", "osl1")):
        with pytest.raises(LimitAboveCeiling):
            quotas.replace_limits(session, tenant, [limit], within=seller)
    for scope in (tenant, other):
        quotas.replace_limits(session, scope, [Limit("gpus", 64), Limit("gpus", 16, "H100")], within=seller)
    quotas.take(session, path, [Need("gpus", 16, "H100", "osl1")])
    with pytest.raises(QuotaExceeded):
        quotas.take(session, Chain(path.reseller_id, other.id), [Need("gpus", 1, "H100", "osl1")])


def test_foreign_scopes_are_unknown_scopes(session: Session) -> None:
    """The kind and the ancestors are checked, not only the id."""
    path, foreign = chain(), chain()
    for one in (*path.scopes(), *foreign.scopes()):
        quotas.open_counters(session, one)
    assert quotas.get_scoped(session, path.tenant_id or "", "tenant", reseller_id=path.reseller_id).version == 1
    for scope_id, kind, reseller_id in (
        (foreign.tenant_id, "tenant", path.reseller_id),
        (path.reseller_id, "tenant", path.reseller_id),
        ("ten_none", "tenant", path.reseller_id),
    ):
        with pytest.raises(NotFound):
            quotas.get_scoped(session, scope_id or "", kind, reseller_id=reseller_id)  # type: ignore[arg-type]


def test_pages_cover_each_scope_once(session: Session) -> None:
    """The tenant comes first, then its projects, over any page size."""
    path = chain()
    projects = [chain(path.reseller_id, path.tenant_id) for _ in range(5)]
    for one in projects:
        quotas.take(session, one, [Need("gpus", 1, "H100", "osl1")])
    for limit in (1, 2, 6, 50):
        seen, token = [], None
        while True:
            page = quotas.list_quotas(session, path.tenant_id, PageAsk(limit, token))
            seen += [one.scope.id for one in page.items]
            token = page.next_page_token
            if token is None:
                break
        assert seen == [path.tenant_id, *sorted(one.project_id or "" for one in projects)]


def test_takes_work_behind_a_tenants_wall(database: Database) -> None:
    """The wall shows a tenant the levels above it, as far as counting needs, and no other tenant."""
    path, foreign = chain(), chain()
    with Session(database.engine) as session:
        raise_wall(session, EVERYTHING)
        quotas.take(session, foreign, [Need("gpus", 8, "H100", "osl1")])
        session.commit()
        raise_wall(session, Wall(tenant_id=path.tenant_id or ""))
        quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
        assert quotas.find_scope(session, foreign.tenant_id or "") is None
        session.commit()
        raise_wall(session, EVERYTHING)
        assert used(session, "platform")["gpus", "", ""] == 16


PLACES = st.sampled_from([("H100", "osl1"), ("H100", "hel1"), ("A100", "osl1"), ("", "")])
ACTS = st.lists(
    st.tuples(st.sampled_from(["take", "give", "limit"]), st.integers(0, 2), PLACES, st.integers(0, 12), st.integers(0, 3)),
    max_size=12,
)


@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking over a database outlasts the test's time limit
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(acts=ACTS)
def test_counters_agree_with_what_is_held_after_any_history(
    session: Session, acts: list[tuple[str, int, tuple[str, str], int, int]]
) -> None:
    """Takes, returns and limits in any order: no limit is passed by a take, and a recount finds no drift."""
    with session.begin_nested() as savepoint:
        seller = chain().reseller_id
        paths = [chain(seller, tenant) for tenant in (None, None, "ten_fixed")]
        held: Tally[tuple[int, str, str]] = Tally()
        for verb, which, (model, site), amount, level in acts:
            path, need = paths[which], Need("gpus", amount, model, site)
            if verb == "limit":
                scope: ScopeRef = path.scopes()[level]
                quotas.set_limit(session, scope, "gpus", amount * 2, gpu_model=model, site=site if amount % 2 else "")
            elif verb == "give":
                back = min(amount, held[which, model, site])
                quotas.give_back(session, path, [Need("gpus", back, model, site)])
                held[which, model, site] -= back
            else:
                try:
                    quotas.take(session, path, [need])
                    held[which, model, site] += amount
                except QuotaExceeded:
                    continue
                else:
                    for scope in path.scopes() if amount else ():
                        for one in quotas.get_quotas(session, scope).counters:
                            if one.gpu_model in {"", model} and one.site in {"", site}:
                                assert one.ceiling is None or one.used <= one.ceiling
        claims = [(paths[which], Need("gpus", amount, model, site)) for (which, model, site), amount in held.items()]
        assert quotas.recount(session, claims) == []
        savepoint.rollback()
