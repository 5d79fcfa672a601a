"""
What travels to and from those who sell: tenants as their seller sees them, resellers, brands.
"""

from typing import Any, Literal

from pydantic import Field

from controlplane.identity.schemas import FreshKeyOut, TenantOut, TreeStatus, described, tenant_status
from controlplane.identity.service import FreshKey, ResellerView, Verb
from controlplane.identity.wire import Amount, Email, HostName
from controlplane.web.schemas import Body, Labels, Moment, Name, Out, Title


class SoldTenantOut(TenantOut):
    """
    A tenant as its seller sees it.
    """

    reseller_id: str = Field(description="Who sells to it.", examples=["rsl_01k5x7p3r8w2v6t9q4n0m1c2d3"])

    @classmethod
    def of(cls, row: Any) -> "SoldTenantOut":
        """
        The tenant as it is shown to its seller.
        """
        return cls(**described(row), status=tenant_status(row), reseller_id=row.reseller_id)


class OwnerCreate(Body):
    """
    A person who shall own the tenant, or lead the reseller.
    """

    name: Title = Field(description="For people.", examples=["Ada Lovelace"])
    email: Email


class OwnerOut(Out):
    """
    A person with a fresh key.
    """

    principal_id: str = Field(description="Who.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    email: str = Field(description="Address.", examples=["ada@example.com"])
    key: FreshKeyOut = Field(description="The key, shown this once.")

    @classmethod
    def of(cls, row: Any, made: FreshKey, *, shown: bool = True) -> "OwnerOut":
        """
        The person and the key, with its text unless it is hidden.
        """
        return cls(principal_id=row.id, email=row.email, key=FreshKeyOut.fresh(made, shown=shown))


class FirstLimits(Body):
    """
    The most that may be held at once. Null: no limit at this level.
    """

    gpus: Amount | None = Field(default=None, description="GPUs.", examples=[64])
    clusters: Amount | None = Field(default=None, description="Clusters.", examples=[20])
    keys: Amount | None = Field(default=None, description="API keys.", examples=[100])
    operations: Amount | None = Field(default=None, description="Open operations.", examples=[100])

    def given(self) -> dict[str, int | None]:
        """
        What was named, null or not.
        """
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}


class TenantCreate(Body):
    """
    A tenant to be created.
    """

    name: Name
    labels: Labels = Field(default_factory=dict)
    limits: FirstLimits = Field(default=FirstLimits(), description="Quota; what is left out has the platform's default.")
    owner: OwnerCreate | None = Field(default=None, description="Its first owner, with a key.")


class AnyTenantCreate(TenantCreate):
    """
    A tenant to be created by an operator.
    """

    reseller_id: str | None = Field(
        default=None,
        max_length=40,
        description="Who sells to it; left out: the platform.",
        examples=["rsl_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )


class TenantCreated(SoldTenantOut):
    """
    A new tenant, with its first owner's key if one was asked for.
    """

    owner: OwnerOut | None = Field(default=None, description="The first owner.")

    @classmethod
    def made(cls, row: Any, owner: OwnerOut | None) -> "TenantCreated":
        """
        The new tenant as it is shown.
        """
        return cls(**described(row), status=tenant_status(row), reseller_id=row.reseller_id, owner=owner)


class Brand(Body):
    """
    What the reseller's customers see instead of the platform.
    """

    name: Title = Field(description="For people.", examples=["Fjord Compute"])
    logo_url: str = Field(
        default="",
        max_length=500,
        pattern=r"^(https://[!-~]+)?$",
        description="Where its logo is.",
        examples=["https://fjord.example/logo.svg"],
    )
    colour: str = Field(default="", pattern=r"^(#[0-9a-fA-F]{6})?$", description="Main colour.", examples=["#0a7cff"])
    support_email: Email | Literal[""] = Field(default="", description="Where customers turn to.", examples=["help@fjord.example"])


class BrandOut(Out):
    """
    What the reseller's customers see instead of the platform.
    """

    name: str = Field(default="", description="For people.", examples=["Fjord Compute"])
    logo_url: str = Field(default="", description="Where its logo is.", examples=["https://fjord.example/logo.svg"])
    colour: str = Field(default="", description="Main colour.", examples=["#0a7cff"])
    support_email: str = Field(default="", description="Where customers turn to.", examples=["help@fjord.example"])


class ResellerCreate(Body):
    """
    A reseller to be created.
    """

    name: Name
    labels: Labels = Field(default_factory=dict)
    brand: Brand
    domains: list[HostName] = Field(
        default=[], max_length=20, description="Host names that show only its brand.", examples=[["cloud.fjord.example"]]
    )
    ceilings: FirstLimits = Field(default=FirstLimits(), description="The most its tenants may hold together; left out: no limit.")
    admin: OwnerCreate | None = Field(default=None, description="Its first administrator, with a key.")


class ResellerChange(Body):
    """
    A change of a reseller; what is left out stays as it is.
    """

    name: Name | None = Field(default=None, description="The new name.", examples=["fjord"])
    labels: Labels | None = Field(default=None, description="The new labels, all of them.", examples=[{"tier": "gold"}])
    brand: Brand | None = Field(default=None, description="The new brand, all of it.")
    domains: list[HostName] | None = Field(
        default=None, max_length=20, description="The new host names, all of them.", examples=[["cloud.fjord.example"]]
    )


class OwnBrandChange(Body):
    """
    A change of the reseller's own brand.
    """

    brand: Brand = Field(description="The new brand, all of it.")


class ResellerOut(Out):
    """
    A seller under its own brand.
    """

    id: str = Field(description="Never changes.", examples=["rsl_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Unique among resellers.", examples=["fjord"])
    labels: dict[str, str] = Field(description="Free key-value pairs.", examples=[{"tier": "gold"}])
    brand: BrandOut = Field(description="What its customers see.")
    domains: list[str] = Field(description="Host names that show only its brand.", examples=[["cloud.fjord.example"]])
    status: TreeStatus = Field(description="Where it stands.")
    created_at: Moment = Field(description="When it was created.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it was last changed.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Rises with every change; shown as ETag.", examples=[1])

    @classmethod
    def of(cls, view: ResellerView) -> "ResellerOut":
        """
        The reseller as it is shown.
        """
        return cls(**_reseller_fields(view))


class ResellerCreated(ResellerOut):
    """
    A new reseller, with its first administrator's key if one was asked for.
    """

    admin: OwnerOut | None = Field(default=None, description="The first administrator.")

    @classmethod
    def made(cls, view: ResellerView, admin: OwnerOut | None) -> "ResellerCreated":
        """
        The new reseller as it is shown.
        """
        return cls(**_reseller_fields(view), admin=admin)


class VerbOut(Out):
    """
    Whether a verb is allowed now.
    """

    name: str = Field(description="The verb.", examples=["resume"])
    allowed: bool = Field(description="Now, for this caller.", examples=[False])
    reason: str = Field(description="Why not; empty when it is allowed.", examples=["The tenant is active."])


class VerbsOut(Out):
    """
    The verbs of a resource.
    """

    items: list[VerbOut] = Field(description="Every verb there is.")

    @classmethod
    def of(cls, verbs: tuple[Verb, ...]) -> "VerbsOut":
        """
        The verbs as they are shown.
        """
        return cls(items=[VerbOut.model_validate(one) for one in verbs])


def _reseller_fields(view: ResellerView) -> dict[str, Any]:
    row = view.row
    return {
        **described(row),
        "brand": BrandOut(**row.brand),
        "domains": list(view.domains),
        "status": TreeStatus(state=row.state),
    }
