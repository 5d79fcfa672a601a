"""
Whatever anybody does with the keys they reach, over the real rows, their rights do not grow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from controlplane.identity import service
from controlplane.identity.service import KeyLimits, MemberChanges, NewKey, NewMember, RoleAsk
from controlplane.identity.states import PERMISSIONS, ROLE_LEVEL, ROLES, scope_of
from controlplane.kit.access import Principal
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.errors import DomainError
from controlplane.quotas.service import ScopeRef, set_limit
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree, principal_of

ROLE_NAMES = sorted(ROLES)
SOME = st.none() | st.frozensets(st.sampled_from(sorted(PERMISSIONS)), min_size=1, max_size=4)
OWNERS = st.none() | st.frozensets(st.sampled_from(sorted(ROLES["tenant_owner"])), min_size=1, max_size=8)
BEGINNERS = [one for one in ROLE_NAMES if ROLE_LEVEL[one] in {"tenant", "project"}]


@dataclass
class Reach:
    """
    What one beginning has led to.
    """

    database: Database
    """Where."""
    project_ids: list[str]
    """Two projects of the tenant."""
    keys: list[str] = field(default_factory=list)
    """Every key that was ever shown."""
    members: list[str] = field(default_factory=list)
    """Every member that was ever made."""

    def attempt(self, key: str, job: Callable[[Session, Principal], Any]) -> Any:
        """
        What the job returned with the key's rights and wall, or None where it was refused.
        """
        caller = principal_of(self.database.engine, key)
        try:
            return in_transaction(self.database.engine, caller.wall, lambda session: job(session, caller))
        except DomainError:
            return None


def role(data: st.DataObject, reach: Reach, names: list[str] = ROLE_NAMES) -> RoleAsk:
    """
    Any role, with a project where it needs one.
    """
    name = data.draw(st.sampled_from(names))
    return RoleAsk(name, data.draw(st.sampled_from(reach.project_ids)) if ROLE_LEVEL[name] == "project" else None)


def step(data: st.DataObject, reach: Reach) -> None:
    """
    One attempt with one of the keys that were reached.
    """
    key = data.draw(st.sampled_from(reach.keys))
    match data.draw(st.sampled_from(["hire", "change", "key", "rotate"])):
        case "hire":
            new = NewMember("service_account", "x", "", [role(data, reach)])
            if view := reach.attempt(key, lambda session, caller: service.create_member(session, caller, new)):
                reach.members.append(view.row.id)
        case "change":
            member, change = data.draw(st.sampled_from(reach.members)), MemberChanges(roles=[role(data, reach), role(data, reach)])
            reach.attempt(key, lambda session, caller: service.update_member(session, caller, member, change))
        case "key":
            whose = data.draw(st.none() | st.sampled_from(reach.members))
            project_id = data.draw(st.none() | st.sampled_from(reach.project_ids))
            expires_at = data.draw(st.none() | st.just(datetime(2199, 1, 1, tzinfo=UTC)))
            limits = KeyLimits(data.draw(SOME), None, expires_at)

            def make(session: Session, caller: Principal) -> Any:
                scope = service.hold_project(session, caller, project_id) if project_id else None
                return service.create_key(session, caller, NewKey("x", limits, whose, scope))

            if made := reach.attempt(key, make):
                reach.keys.append(made.text)
        case _:
            other = data.draw(st.sampled_from(reach.keys))
            key_id = principal_of(reach.database.engine, other).key_id
            if made := reach.attempt(key, lambda s, caller: service.rotate_key(s, caller, key_id, overlap_s=3600)):
                reach.keys.append(made.text)


def begin(data: st.DataObject, database: Database, tree: Tree, project_ids: list[str]) -> tuple[Reach, Principal]:
    """
    Somebody new with a random role and a random key, made by the owner.
    """
    reach, owner = Reach(database, project_ids), principal_of(database.engine, tree.left.owner_key)
    first = role(data, reach, BEGINNERS)
    limits = KeyLimits(data.draw(OWNERS))

    def start(session: Session) -> tuple[str, str]:
        view = service.create_member(session, owner, NewMember("service_account", "first", "", [first]))
        scope = service.hold_project(session, owner, first.project_id) if first.project_id else None
        return view.row.id, service.create_key(session, owner, NewKey("first", limits, view.row.id, scope)).text

    member_id, key = in_transaction(database.engine, owner.wall, start)
    reach.members.append(member_id)
    reach.keys.append(key)
    return reach, principal_of(database.engine, key)


def test_reachable_rights_never_grow(database: Database) -> None:
    """
    From any role and key, any sequence of hires, role changes, new keys and rotations leads to no right and no place beyond.
    """
    tree = make_tree(database.engine)
    owner = principal_of(database.engine, tree.left.owner_key)
    place = ScopeRef("tenant", tree.left.tenant_id, tree.left.reseller_id, tree.left.tenant_id)
    in_transaction(database.engine, EVERYTHING, lambda s: set_limit(s, place, "keys", None))
    second = in_transaction(database.engine, owner.wall, lambda s: service.create_project(s, owner, service.Described("two")).id)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def grow(data: st.DataObject) -> None:
        reach, first = begin(data, database, tree, [tree.left.project_id, second])
        for _ in range(data.draw(st.integers(1, 8))):
            step(data, reach)
        for key in reach.keys:
            now = principal_of(database.engine, key)
            assert now.permissions <= first.permissions
            assert scope_of(first).covers(scope_of(now))

    grow()
