"""
The rules by which rights go down the tree and never grow.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from controlplane.identity.errors import ExceedsMaker
from controlplane.identity.states import (
    PERMISSIONS,
    ROLE_LEVEL,
    ROLES,
    TOP_RIGHTS,
    Grant,
    KeyLimits,
    Scope,
    check_grant,
    limits_for,
    scope_of,
    tenant_verbs,
)
from controlplane.kit.access import Principal, ScopeKind, narrowed

PLATFORM = Scope("platform", "platform")
RESELLERS = [Scope("reseller", f"rsl_{n}", f"rsl_{n}") for n in range(2)]
TENANTS = [Scope("tenant", f"ten_{n}", f"rsl_{n % 2}", f"ten_{n}") for n in range(3)]
PROJECTS = [Scope("project", f"prj_{n}", f"rsl_{n % 3 % 2}", f"ten_{n % 3}", f"prj_{n}") for n in range(4)]
PLACES = [PLATFORM, *RESELLERS, *TENANTS, *PROJECTS]
START = datetime(2026, 3, 1, tzinfo=UTC)
LEVELS: tuple[ScopeKind, ...] = ("platform", "reseller")
NETWORKS = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "192.0.2.0/24", "2001:db8::/32", "2001:db8:1::/48"]


def principal(scope: Scope, permissions: frozenset[str], name: str = "prn_a") -> Principal:
    """
    Somebody with a key at the scope.
    """
    return Principal(name, "key_a", scope.kind, scope.id, permissions, scope.reseller_id, scope.tenant_id, scope.project_id)


def test_roles_only_hold_known_permissions() -> None:
    """
    No role holds a permission that no route could ask for, and operators hold all.
    """
    assert set().union(*ROLES.values()) <= PERMISSIONS
    assert ROLES["operator"] == PERMISSIONS


def test_rights_go_down_the_tree() -> None:
    """
    The highest role of each level holds all that roles of lower levels do.
    """
    assert TOP_RIGHTS["platform"] > TOP_RIGHTS["reseller"] > TOP_RIGHTS["tenant"] > TOP_RIGHTS["project"]
    for role, rights in ROLES.items():
        assert rights <= TOP_RIGHTS[ROLE_LEVEL[role]]


@pytest.mark.parametrize("role", [role for role, level in ROLE_LEVEL.items() if level in {"tenant", "project"}])
def test_tenant_roles_never_touch_the_fleet(role: str) -> None:
    """
    No role in a tenant reaches nodes, providers or resellers.
    """
    assert not {one for one in ROLES[role] if one.split(":")[0] in {"nodes", "providers", "resellers"}}


@pytest.mark.parametrize("role", [role for role in ROLES if role.endswith("viewer")])
def test_viewers_change_nothing(role: str) -> None:
    """
    A viewer's permissions are reads and logs.
    """
    assert {one.split(":")[1] for one in ROLES[role]} <= {"read", "logs"}


@given(st.sampled_from(sorted(ROLES)), st.sampled_from(PLACES), st.sampled_from(sorted(ROLES)), st.sampled_from(PLACES))
def test_a_grant_needs_the_rights_and_the_place(held: str, at: Scope, role: str, where: Scope) -> None:
    """
    A role is given exactly where it belongs, at or below the giver, by somebody who holds all of it.
    """
    giver = principal(at, ROLES[held])
    allowed = ROLE_LEVEL[role] == where.kind and at.covers(where) and ROLES[role] <= ROLES[held]
    try:
        check_grant(giver, Grant(role, where))
    except ExceedsMaker:
        assert not allowed
    else:
        assert allowed


def test_a_key_that_only_writes_members_appoints_nobody() -> None:
    """
    With members:write alone no role can be given, the owner's least of all.
    """
    giver = principal(TENANTS[0], frozenset({"members:write"}))
    for role in ("tenant_owner", "tenant_admin", "tenant_billing"):
        with pytest.raises(ExceedsMaker):
            check_grant(giver, Grant(role, TENANTS[0]))


limits = st.builds(
    KeyLimits,
    st.none() | st.frozensets(st.sampled_from(sorted(PERMISSIONS)), max_size=6),
    st.none() | st.lists(st.sampled_from(NETWORKS), min_size=1, max_size=3).map(tuple),
    st.none() | st.integers(0, 400).map(lambda days: START + timedelta(days=days)),
)


@given(limits, limits, st.sampled_from(sorted(ROLES)), st.booleans())
@settings(max_examples=150)
def test_a_key_is_never_wider_than_its_maker(own: KeyLimits, asked: KeyLimits, role: str, follows: bool) -> None:  # noqa: FBT001 - hypothesis passes it
    """
    Whatever is asked, what comes out holds no right, network or day that the maker's key does not, or it is refused.
    """
    maker = principal(TENANTS[0], narrowed(ROLES[role], own.permissions))
    try:
        made = limits_for(maker, own, asked, follows_roles=follows)
    except ExceedsMaker:
        return
    assert narrowed(ROLES[role], made.permissions) <= maker.permissions
    if own.expires_at is not None:
        assert made.expires_at is not None
        assert made.expires_at <= own.expires_at
    if own.networks is not None:
        assert made.networks is not None


def test_a_network_inside_is_allowed_and_one_outside_is_not() -> None:
    """
    A narrowed key hands down parts of its networks only.
    """
    maker = principal(TENANTS[0], ROLES["tenant_owner"])
    own = KeyLimits(networks=("10.0.0.0/8",))
    assert limits_for(maker, own, KeyLimits(networks=("10.1.2.0/24",)), follows_roles=True).networks == ("10.1.2.0/24",)
    for outside in ("0.0.0.0/0", "11.0.0.0/8", "2001:db8::/32"):
        with pytest.raises(ExceedsMaker):
            limits_for(maker, own, KeyLimits(networks=(outside,)), follows_roles=True)


class Growing(RuleBasedStateMachine):
    """
    Somebody with a role at a place appoints people and makes keys for them in any order, and those go on from there.
    """

    callers: Bundle[Any] = Bundle("callers")

    def __init__(self) -> None:
        super().__init__()
        self.at = PLATFORM
        self.first: frozenset[str] = frozenset()
        self.reached: list[tuple[Scope, frozenset[str]]] = []

    @initialize(target=callers, role=st.sampled_from(sorted(ROLES)), at=st.sampled_from(PLACES), only=limits)
    def begin(self, role: str, at: Scope, only: KeyLimits) -> tuple[Principal, KeyLimits]:
        self.at, self.first = at, narrowed(ROLES[role], only.permissions)
        self.reached.append((at, self.first))
        return principal(at, self.first), only

    @rule(target=callers, caller=callers, role=st.sampled_from(sorted(ROLES)), at=st.sampled_from(PLACES), asked=limits)
    def appoint(self, caller: Any, role: str, at: Scope, asked: KeyLimits) -> tuple[Principal, KeyLimits]:
        """
        A new service account with the role, and a key for it at the same place.
        """
        was: tuple[Principal, KeyLimits] = caller
        giver, own = was
        try:
            check_grant(giver, Grant(role, at))
            made = limits_for(giver, own, asked, follows_roles=giver.permissions >= TOP_RIGHTS[at.kind])
        except ExceedsMaker:
            return was
        rights = narrowed(ROLES[role], made.permissions)
        self.reached.append((at, rights))
        return principal(at, rights, "prn_b"), made

    @rule(target=callers, caller=consumes(callers), at=st.sampled_from(PLACES), asked=limits)
    def make_key(self, caller: Any, at: Scope, asked: KeyLimits) -> tuple[Principal, KeyLimits]:
        """
        Another key of one's own, at the same place or below.
        """
        was: tuple[Principal, KeyLimits] = caller
        maker, own = was
        if not scope_of(maker).covers(at):
            return was
        try:
            made = limits_for(maker, own, asked, follows_roles=True)
        except ExceedsMaker:
            return was
        rights = narrowed(maker.permissions, made.permissions)
        self.reached.append((at, rights))
        return principal(at, rights, maker.id), made

    @invariant()
    def nothing_grew(self) -> None:
        """
        Everything that was ever reached lies below the beginning and holds no more.
        """
        for at, rights in self.reached:
            assert self.at.covers(at)
            assert rights <= self.first


Growing.TestCase.settings = settings(max_examples=80, stateful_step_count=12, deadline=None)
TestGrowing = Growing.TestCase


@pytest.mark.parametrize(
    ("state", "allowed"),
    [("active", {"suspend", "delete"}), ("suspended", {"resume", "delete"}), ("deleted", set())],
)
def test_verbs_say_why_not(state: str, allowed: set[str]) -> None:
    """
    Each verb that is not allowed has a reason, and only those.
    """
    verbs = tenant_verbs(state, suspended_by="", caller="reseller", live_clusters=0)
    assert {one.name for one in verbs if one.allowed} == allowed
    assert all(bool(one.reason) != one.allowed for one in verbs)


def test_what_the_platform_suspended_no_reseller_resumes() -> None:
    """
    A lower level cannot loosen what a higher one tightened.
    """
    names = {
        caller: {
            one.name for one in tenant_verbs("suspended", suspended_by="platform", caller=caller, live_clusters=2) if one.allowed
        }
        for caller in LEVELS
    }
    assert names == {"platform": {"resume"}, "reseller": set()}
