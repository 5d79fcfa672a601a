"""
What travels to and from a tenant: projects, members, keys.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from controlplane.identity.service import FreshKey, KeyView, MemberView
from controlplane.identity.states import PERMISSIONS
from controlplane.identity.wire import LONGEST_OVERLAP_S, Email, Instant, Network, Permission, Role
from controlplane.web.schemas import Body, Labels, Moment, Name, Out, Title


class TreeStatus(Out):
    """
    Where a part of the tree stands.
    """

    state: str = Field(description="active, suspended, disabled, deleting or deleted.", examples=["active"])
    reason: str = Field(default="", description="Why, when it is not active.", examples=["Suspended by your provider."])


class TenantOut(Out):
    """
    A customer organisation.
    """

    id: str = Field(description="Never changes.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Unique per seller.", examples=["acme"])
    labels: dict[str, str] = Field(description="Free key-value pairs.", examples=[{"plan": "gold"}])
    status: TreeStatus = Field(description="Where it stands.")
    created_at: Moment = Field(description="When it was created.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it was last changed.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Rises with every change; shown as ETag.", examples=[1])

    @classmethod
    def of(cls, row: Any) -> "TenantOut":
        """
        The tenant as it is shown.
        """
        return cls(**described(row), status=tenant_status(row))


class ProjectOut(Out):
    """
    A tenant's unit that owns resources.
    """

    id: str = Field(description="Never changes.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Unique per tenant.", examples=["vision"])
    labels: dict[str, str] = Field(description="Free key-value pairs.", examples=[{"team": "vision"}])
    status: TreeStatus = Field(description="Where it stands.")
    created_at: Moment = Field(description="When it was created.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it was last changed.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Rises with every change; shown as ETag.", examples=[1])

    @classmethod
    def of(cls, row: Any) -> "ProjectOut":
        """
        The project as it is shown.
        """
        return cls(**described(row), status=TreeStatus(state=row.state))


class ProjectCreate(Body):
    """
    A project to be created.
    """

    name: Name
    labels: Labels = Field(default_factory=dict)


class Renamed(Body):
    """
    A change of name or labels; what is left out stays as it is.
    """

    name: Name | None = Field(default=None, description="The new name.", examples=["vision"])
    labels: Labels | None = Field(default=None, description="The new labels, all of them.", examples=[{"team": "vision"}])


class Relabelled(Body):
    """
    A change of labels.
    """

    labels: Labels


class RoleIn(Body):
    """
    A role to be held.
    """

    role: Role = Field(description="Which role.", examples=["project_member"])
    project_id: str | None = Field(
        default=None,
        max_length=40,
        description="In which project, for roles of projects.",
        examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )


class RoleOut(Out):
    """
    A role that is held.
    """

    role: str = Field(description="Which role.", examples=["project_member"])
    scope_kind: str = Field(description="Level: platform, reseller, tenant or project.", examples=["project"])
    scope_id: str = Field(description="Where it holds.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])


class RoleDescription(Out):
    """
    A role that can be given.
    """

    name: str = Field(description="The role.", examples=["project_member"])
    level: str = Field(description="Where it is given: platform, reseller, tenant or project.", examples=["project"])
    permissions: list[str] = Field(description="What it may do there and below.", examples=[["clusters:read"]])


class RolesOut(Out):
    """
    The roles there are.
    """

    items: list[RoleDescription] = Field(description="From the highest level down.")


class MemberCreate(Body):
    """
    Somebody who shall act in the tenant, for the reseller or for the platform.
    """

    kind: Literal["user", "service_account"] = Field(default="user", description="A person or a program.", examples=["user"])
    name: Title = Field(description="For people.", examples=["Ada Lovelace"])
    email: Email | None = Field(
        default=None, description="E-mail address of a user; service accounts have none.", examples=["ada@example.com"]
    )
    roles: list[RoleIn] = Field(default=[], max_length=100, description="What it may do; nothing that the caller may not.")

    @model_validator(mode="after")
    def check_email(self) -> "MemberCreate":
        """
        Users have an address, service accounts none.
        """
        if (self.kind == "user") != (self.email is not None):
            raise ValueError("a user needs an email, a service account has none")
        return self


class MemberChange(Body):
    """
    A change of a member; what is left out stays as it is.
    """

    name: Title | None = Field(default=None, description="The new name.", examples=["Ada King"])
    state: Literal["active", "disabled"] | None = Field(
        default=None, description="A disabled member's keys are refused.", examples=["disabled"]
    )
    roles: list[RoleIn] | None = Field(
        default=None, max_length=100, description="The new roles, all of them; with a project's key those in that project."
    )


class MemberOut(Out):
    """
    A user or a service account with its roles.
    """

    id: str = Field(description="Never changes.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    kind: str = Field(description="user or service_account.", examples=["user"])
    name: str = Field(description="For people.", examples=["Ada Lovelace"])
    email: str | None = Field(description="Address of a user.", examples=["ada@example.com"])
    roles: list[RoleOut] = Field(description="What it may do, and where.")
    status: TreeStatus = Field(description="Where it stands.")
    created_at: Moment = Field(description="When it was created.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it was last changed.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Rises with every change; shown as ETag.", examples=[1])

    @classmethod
    def of(cls, view: MemberView) -> "MemberOut":
        """
        The member as it is shown.
        """
        row = view.row
        return cls(
            id=row.id,
            kind=row.kind,
            name=row.name,
            email=row.email if row.kind == "user" else None,
            roles=[RoleOut.model_validate(one) for one in view.grants],
            status=TreeStatus(state=row.state),
            created_at=row.created_at,
            updated_at=row.updated_at,
            version=row.version,
        )


class KeyCreate(Body):
    """
    An API key to be made. What is left out is as in the key that makes it.
    """

    name: Title = Field(description="For people.", examples=["ci"])
    permissions: list[Permission] | None = Field(
        default=None, min_length=1, max_length=len(PERMISSIONS), description="The most it may do.", examples=[["clusters:read"]]
    )
    networks: list[Network] | None = Field(
        default=None, min_length=1, max_length=50, description="The only networks it may be used from.", examples=[["192.0.2.0/24"]]
    )
    expires_at: Instant | None = Field(default=None, description="Until when it is accepted.", examples=["2027-01-01T00:00:00Z"])
    principal_id: str | None = Field(
        default=None,
        max_length=40,
        description="The service account that will act with it; left out: the caller.",
        examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )


class TenantKeyCreate(KeyCreate):
    """
    An API key in a tenant to be made.
    """

    project_id: str | None = Field(
        default=None, max_length=40, description="Only for this project.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )


class KeyRotate(Body):
    """
    How a key is replaced.
    """

    overlap_s: int = Field(default=3600, ge=0, le=LONGEST_OVERLAP_S, description="For how long both are accepted.", examples=[3600])
    expires_at: Instant | None = Field(
        default=None, description="Until when the new one is accepted; left out: as the old one.", examples=["2027-01-01T00:00:00Z"]
    )


class KeyOut(Out):
    """
    An API key, without its secret.
    """

    id: str = Field(description="Never changes; part of the key's text.", examples=["key_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="For people.", examples=["ci"])
    principal_id: str = Field(description="Who acts with it.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    scope_kind: str = Field(description="platform, reseller, tenant or project.", examples=["tenant"])
    scope_id: str = Field(description="Where it stands.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    permissions: list[str] | None = Field(
        description="The most it may do; null: whatever its holder may.", examples=[["clusters:read"]]
    )
    networks: list[str] | None = Field(description="Where it may be used from; null: anywhere.", examples=[["192.0.2.0/24"]])
    status: TreeStatus = Field(description="active, expired or revoked.")
    created_by: str = Field(description="Who made it.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    created_at: Moment = Field(description="When it was made.", examples=["2026-03-01T10:00:00Z"])
    expires_at: Moment | None = Field(description="Until when it is accepted; null: no end.", examples=["2027-01-01T00:00:00Z"])
    revoked_at: Moment | None = Field(description="Since when it is refused.", examples=[None])
    last_used_at: Moment | None = Field(description="Last use, to the minute.", examples=["2026-03-01T10:00:00Z"])

    @classmethod
    def of(cls, view: KeyView) -> "KeyOut":
        """
        The key as it is shown.
        """
        return cls(**_key_fields(view))


class FreshKeyOut(KeyOut):
    """
    An API key with its text, shown this once.
    """

    key: str | None = Field(
        description="Send it as `Authorization: Bearer …`. It cannot be had again: null in a repeated answer.",
        examples=["cpk_tn_…"],
    )

    @classmethod
    def fresh(cls, made: FreshKey, *, shown: bool = True) -> "FreshKeyOut":
        """
        The new key, with its text unless it is hidden.
        """
        return cls(**_key_fields(made.view), key=made.text if shown else None)


class WhoAmI(Out):
    """
    What the caller's key is and may do, at this moment.
    """

    principal_id: str = Field(description="Who acts.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    key_id: str = Field(description="With which key.", examples=["key_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    scope_kind: str = Field(description="platform, reseller, tenant or project.", examples=["tenant"])
    scope_id: str = Field(description="Where the key stands.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    tenant_id: str | None = Field(description="The key's tenant.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    project_id: str | None = Field(description="The key's project.", examples=[None])
    permissions: list[str] = Field(description="What it may do.", examples=[["clusters:read"]])
    suspended: bool = Field(description="Whether what it has can only be read, stopped and deleted.", examples=[False])


def described(row: Any) -> dict[str, Any]:
    """
    What all parts of the tree show alike.
    """
    return {name: getattr(row, name) for name in ("id", "name", "labels", "created_at", "updated_at", "version")}


def tenant_status(row: Any) -> TreeStatus:
    """
    Where the tenant stands, without saying who above it decided.
    """
    return TreeStatus(state=row.state, reason="Suspended by your provider." if row.state == "suspended" else "")


def _key_fields(view: KeyView) -> dict[str, Any]:
    names = ("id", "name", "principal_id", "scope_kind", "scope_id", "permissions", "networks", "created_by")
    moments = ("created_at", "expires_at", "revoked_at", "last_used_at")
    return {name: getattr(view.row, name) for name in names + moments} | {"status": TreeStatus(state=view.state)}
