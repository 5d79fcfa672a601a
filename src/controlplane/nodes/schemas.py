"""
Nodes, providers and availability on the wire. All but availability is for operators.
"""

from collections.abc import Mapping
from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime, Field, JsonValue, SecretStr, StringConstraints

from controlplane.kit.events import HistoryRow
from controlplane.nodes.models import AllocationRow, NodeRow, ProviderRow, WipeRow
from controlplane.nodes.service import ACTIONS, Availability, NodeView, allowed_actions
from controlplane.nodes.states import DOORS, NOTEWORTHY, ROTATIONS
from controlplane.web.schemas import Body, Condition, Moment, Name, Out, Status, check_text

LONGEST_REASON = 500
DEEPEST_CONFIG = 8
MOST_CONFIG_PARTS = 1000
LARGEST_NUMBER = 2**63
LAST_YEAR = 9000

PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["bm9kXzAx"])
]


def check_config(config: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """
    The settings, when they can be stored. Raises ValueError for too many, too deep and for what JSON cannot hold.
    """
    ahead: list[tuple[JsonValue, int]] = [(config, 0)]
    parts = 0
    while ahead:
        value, depth = ahead.pop()
        parts += 1
        if parts > MOST_CONFIG_PARTS or depth > DEEPEST_CONFIG:
            raise ValueError(f"at most {MOST_CONFIG_PARTS} values, {DEEPEST_CONFIG} deep")
        if isinstance(value, dict):
            ahead += [(one, depth + 1) for one in value.values()] + [(name, depth + 1) for name in value]
        elif isinstance(value, list):
            ahead += [(one, depth + 1) for one in value]
        elif isinstance(value, str):
            check_text(value)
        elif isinstance(value, (int, float)) and not (isfinite(value) and abs(value) < LARGEST_NUMBER):
            raise ValueError("numbers must be finite and fit 64 bits")
    return config


def check_year(moment: datetime) -> datetime:
    """
    The moment, when every time zone can write it. Raises ValueError.
    """
    if moment.year > LAST_YEAR:
        raise ValueError(f"the year {LAST_YEAR} is the last one")
    return moment


Until = Annotated[AwareDatetime, AfterValidator(check_year)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(check_text)]
Reason = Annotated[
    str,
    StringConstraints(min_length=1, max_length=LONGEST_REASON),
    AfterValidator(check_text),
    Field(description="Why; shown to whoever looks at the node and kept in the audit.", examples=["Fan 3 is loud."]),
]
Place = Annotated[
    str,
    StringConstraints(min_length=1, max_length=120),
    AfterValidator(check_text),
]
SecretName = Annotated[str, StringConstraints(min_length=1, max_length=60, pattern=r"^[a-z][a-z0-9_]*$")]
SecretValue = Annotated[SecretStr, Field(min_length=1, max_length=16384)]
Config = Annotated[dict[str, JsonValue], AfterValidator(check_config)]


class ProviderRegister(Body):
    """
    A system below us, to be driven from now on.
    """

    name: Name
    adapter: Name = Field(description="Which adapter speaks to it.", examples=["slurm"])
    site: Name = Field(description="The site its machines stand in.", examples=["osl1"])
    config: Config = Field(
        default={},
        description="The adapter's plain settings; what is wrong with them shows as the provider's `problem` once it was asked.",
        examples=[{"url": "http://slurm.osl1.example:6820"}],
    )
    secrets: dict[SecretName, SecretValue] = Field(
        default={}, max_length=20, description="Credentials by name. Sealed at once and never shown again.", examples=[{}]
    )
    shared: bool = Field(
        default=True,
        description="Whether several tenants may hold its nodes at once; not believed of a provider that cannot wipe them.",
        examples=[True],
    )


class ProviderUpdate(Body):
    """
    New settings of a provider. What is left out stays as it is; what is sent replaces all of its kind.
    """

    config: Config | None = Field(
        default=None,
        description="All plain settings, in place of the present ones.",
        examples=[{"url": "http://slurm.osl1.example:6820"}],
    )
    secrets: dict[SecretName, SecretValue] | None = Field(
        default=None,
        max_length=20,
        description="All credentials by name, in place of the present ones; `{}` forgets them. Sealed at once and never shown again.",
        examples=[{}],
    )


class Finding(Out):
    """
    A difference between what we know and what was found.
    """

    code: str = Field(description="Stable code.", examples=["not_enrolled"])
    ref: str = Field(description="The machine's name at the provider.", examples=["gpu-0041"])
    message: str = Field(description="In words.", examples=["The provider has this machine; it is not enrolled."])


class ProviderOut(Out):
    """
    A system below us. Its secrets are never shown.
    """

    id: str = Field(description="Opaque id.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="For operators.", examples=["slurm-osl1"])
    adapter: str = Field(description="Which adapter speaks to it.", examples=["slurm"])
    site: str = Field(description="Where its machines stand.", examples=["osl1"])
    state: str = Field(description="active or disabled.", examples=["active"])
    config: dict[str, Any] = Field(description="Plain settings.", examples=[{"url": "http://slurm.osl1.example:6820"}])
    has_secrets: bool = Field(description="Whether credentials are stored.", examples=[True])
    capabilities: dict[str, Any] = Field(
        description="What it said it can do; empty until it has answered: until then it takes no orders.",
        examples=[{"version": "slurm 22.05.8", "products": ["slurm"]}],
    )
    shared: bool = Field(description="Whether several tenants may hold its nodes at once.", examples=[True])
    seen_at: Moment | None = Field(description="When it last answered; null: never.", examples=["2026-03-01T10:00:00Z"])
    problem: str = Field(description="Why the last question got no answer; empty when it did.", examples=[""])
    findings: list[Finding] = Field(description="Where its machines differ from the enrolled ones.")
    created_at: Moment = Field(description="When it was registered.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it last changed.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Its ETag.", examples=[1])

    @classmethod
    def of(cls, row: ProviderRow) -> "ProviderOut":
        """
        The provider as operators see it.
        """
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "has_secrets"}
        return cls.model_validate({**fields, "has_secrets": row.sealed is not None})


class TenancyOut(Out):
    """
    Who holds a node.
    """

    allocation_id: str = Field(description="The allocation.", examples=["alc_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    instance_id: str = Field(description="The tenant's name of the node.", examples=["ins_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    tenant_id: str = Field(description="Whose.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    project_id: str = Field(description="For which project.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    cluster_id: str = Field(description="For which cluster.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    state: str = Field(description="held, active or releasing.", examples=["active"])
    since: Moment = Field(description="When the node was chosen.", examples=["2026-03-01T10:00:00Z"])
    release_accepted_at: Moment | None = Field(description="When giving it back was accepted.", examples=[None])

    @classmethod
    def of(cls, row: AllocationRow) -> "TenancyOut":
        """
        The allocation as operators see it.
        """
        return cls(
            allocation_id=row.id,
            instance_id=row.instance_id,
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            cluster_id=row.cluster_id,
            state=row.state,
            since=_start(row),
            release_accepted_at=row.release_accepted_at,
        )


class HoldOut(Out):
    """
    What keeps a node out of placement.
    """

    id: str = Field(description="Opaque id.", examples=["hld_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    reason: str = Field(description="Why.", examples=["Kept for the acceptance run."])
    created_by: str = Field(description="Who.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    created_at: Moment = Field(description="Since when.", examples=["2026-03-01T10:00:00Z"])
    until: Moment | None = Field(description="When it ends by itself; null: never.", examples=[None])
    lifted_at: Moment | None = Field(description="When it was lifted.", examples=[None])


class HoldPlace(Body):
    """
    A hold to be placed.
    """

    reason: Reason
    until: Until | None = Field(
        default=None,
        strict=False,
        description="When it ends by itself; null: when it is lifted.",
        examples=["2026-03-08T10:00:00Z"],
    )


class HealthReport(Body):
    """
    What one source says of one thing about a node; its latest word counts.
    """

    source: Literal["bmc", "scheduler", "agent", "test", "person"] = Field(description="Who says it.", examples=["bmc"])
    check: ShortText = Field(description="What was looked at.", examples=["ecc"])
    health: Literal["ok", "info", "block_allocation", "drain", "quarantine"] = Field(
        alias="class", description="What shall follow from it.", examples=["block_allocation"]
    )
    message: Annotated[str, StringConstraints(max_length=LONGEST_REASON), AfterValidator(check_text)] = Field(
        default="", description="In words.", examples=["Row remap pending on GPU 3."]
    )


class NodeAct(Body):
    """
    Why an operator does it.
    """

    reason: Reason


class RotateAsk(NodeAct):
    """
    Why, and what is known of the present password.
    """

    password: SecretValue | None = Field(
        default=None,
        description="What the controller's password is now, where somebody changed it there; null: as we know it. Sealed at once.",
        examples=[None],
    )


class ControllerOut(Out):
    """
    How the control plane stands with a node's management controller.
    """

    rotation: str = Field(description="How far its password is on its way to another.", examples=["rotated"])
    rotated_at: Moment | None = Field(description="When it last became another; null: never.", examples=["2026-03-01T10:00:00Z"])
    refusals: int = Field(description="How often in a row it let us in with neither password.", examples=[0])
    door: str = Field(description="The way from the host to its controller.", examples=["locked"])
    restarted_at: Moment | None = Field(description="When it was last restarted; null: never.", examples=["2026-03-01T10:00:00Z"])
    findings: list[Finding] = Field(description="What it cannot do or would not do, in words.")

    @classmethod
    def of(cls, row: NodeRow) -> "ControllerOut | None":
        """
        The controller as operators see it; None where we drive none.
        """
        if not row.access:
            return None
        said = [("controller_rotation", row.rotation, ROTATIONS), ("controller_lock", row.door, DOORS)]
        found = [Finding(code=code, ref=row.ref, message=words[state]) for code, state, words in said if state in NOTEWORTHY]
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "findings"}
        return cls(**fields, findings=found)


class NodeOut(Out):
    """
    One machine as operators see it.
    """

    id: str = Field(description="Opaque id; never shown to tenants.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    provider_id: str = Field(description="Who drives it.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    ref: str = Field(description="Its name there.", examples=["gpu-0041"])
    site: str = Field(description="Where it stands.", examples=["osl1"])
    block: str = Field(description="Spine group.", examples=["b1"])
    leaf: str = Field(description="Where its rails meet.", examples=["b1-l2"])
    rack: str = Field(description="Which rack.", examples=["b1-r07"])
    unit: int | None = Field(description="Lowest rack unit; null where nobody said.", examples=[12])
    serial: str | None = Field(description="The serial number that is expected; null where nobody said.", examples=["0047A"])
    nvlink_domain: str | None = Field(description="The rack-wide NVLink domain.", examples=[None])
    instance_type: str = Field(description="What it is sold as.", examples=["hgx-h100-8"])
    gpus: int = Field(description="How many it should have.", examples=[8])
    status: Status = Field(description="Where it stands.")
    step: str = Field(description="The part of the state that was reached.", examples=["asked"])
    detail: str = Field(description="The provider's own words.", examples=[""])
    attention: str = Field(description="Why a person is needed; empty when none is.", examples=[""])
    overstays: bool = Field(description="Whether it is longer in its state than it should be.", examples=[False])
    health: str = Field(description="Worst class of its open reports.", examples=["ok"])
    power: str = Field(description="What it last said of its power: on, off; unknown until it has.", examples=["on"])
    power_at: Moment | None = Field(description="When it began to say so.", examples=["2026-03-01T10:00:00Z"])
    tenancy: TenancyOut | None = Field(description="Who holds it; null when nobody does.")
    holds: list[HoldOut] = Field(description="What keeps it out of placement.")
    inventory: dict[str, Any] = Field(
        description="What inspection found, with `findings` where it differs from what was bought.",
        examples=[{"gpus": 8, "findings": []}],
    )
    controller: ControllerOut | None = Field(description="Its management controller; null where its provider drives it.")
    operation_id: str | None = Field(
        default=None, description="The operation that this request started.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    labels: dict[str, Any] = Field(description="Free key-value pairs.", examples=[{}])
    created_at: Moment = Field(description="When it was enrolled.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it last changed.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Its ETag.", examples=[7])

    @classmethod
    def of(cls, view: NodeView, operation_id: str | None = None) -> "NodeOut":
        """
        The node as operators see it.
        """
        row = view.row
        beside = {"status", "overstays", "tenancy", "holds", "controller", "operation_id"}
        return cls(
            **{name: getattr(row, name) for name in cls.model_fields if name not in beside},
            status=Status(state=row.state, reason=row.reason, since=row.state_since, deadline=row.deadline_at),
            overstays=view.overstays,
            tenancy=TenancyOut.of(view.tenancy) if view.tenancy else None,
            holds=[HoldOut.model_validate(one) for one in view.holds],
            controller=ControllerOut.of(row),
            operation_id=operation_id,
        )


class MoveOut(Out):
    """
    One move between two states.
    """

    before: str = Field(description="State before; empty for the first.", examples=["cleaning"])
    after: str = Field(description="State after.", examples=["available"])
    reason: str = Field(description="Why.", examples=["Wiped and verified."])
    at: Moment = Field(description="When.", examples=["2026-03-01T10:00:00Z"])

    @classmethod
    def of(cls, row: HistoryRow) -> "MoveOut":
        """
        The move as shown.
        """
        return cls.model_validate(row)


class WipeOut(Out):
    """
    One wipe.
    """

    id: str = Field(description="Its token at the provider.", examples=["wip_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    requested_at: Moment = Field(description="When it was asked for.", examples=["2026-03-01T10:00:00Z"])
    finished_at: Moment | None = Field(description="When the provider finished it.", examples=["2026-03-01T10:20:00Z"])
    verified: bool = Field(description="Whether it counts.", examples=[True])
    checks: list[Condition] = Field(description="What was wiped.")

    @classmethod
    def of(cls, row: WipeRow) -> "WipeOut":
        """
        The wipe as shown.
        """
        return cls.model_validate(row)


class ActionOut(Out):
    """
    A verb, and whether it is allowed now.
    """

    name: str = Field(description="The verb.", examples=["requalify"])
    allowed: bool = Field(description="Now.", examples=[True])
    reason: str = Field(description="Why not; empty when allowed.", examples=[""])
    says: str = Field(description="What is true after it.", examples=["The node is out of use until somebody decides."])


class ActionsOut(Out):
    """
    All verbs of a node.
    """

    items: list[ActionOut] = Field(description="Every verb.")

    @classmethod
    def of(cls, view: NodeView) -> "ActionsOut":
        """
        The verbs of this node now.
        """
        refusals: Mapping[str, str] = allowed_actions(view.row)
        return cls(
            items=[
                ActionOut(name=name, allowed=not refusal, reason=refusal, says=ACTIONS[name].says)
                for name, refusal in refusals.items()
            ]
        )


class AvailabilityOut(Out):
    """
    How much of one type is free in one site.
    """

    site: str = Field(description="Where.", examples=["osl1"])
    instance_type: str = Field(description="What.", examples=["hgx-h100-8"])
    level: Literal["none", "low", "medium", "high"] = Field(description="How much.", examples=["medium"])
    as_of: Moment = Field(description="How fresh this is: when the systems below last answered.", examples=["2026-03-01T10:00:00Z"])
    age_s: float = Field(description="Its age in seconds.", examples=[12.5])
    free: int | None = Field(description="Free nodes; for operators only, else null.", examples=[None])

    @classmethod
    def of(cls, one: Availability, *, counts: bool) -> "AvailabilityOut":
        """
        As the caller may see it.
        """
        fields = {name: getattr(one, name) for name in cls.model_fields if name != "free"}
        return cls(**fields, free=one.free if counts else None)


class AvailabilityList(Out):
    """
    What is free.
    """

    items: list[AvailabilityOut] = Field(description="By site and type.")


def _start(row: AllocationRow) -> datetime:
    assert row.during.lower is not None  # a constraint of the table
    return row.during.lower
