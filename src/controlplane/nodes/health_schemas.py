"""
Health, freezes and repairs on the wire; for operators and for what reports on their behalf.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from controlplane.health.xid import find_xid
from controlplane.nodes.models import FreezeRow, HealthReportRow, TicketRow
from controlplane.nodes.reporting import Report
from controlplane.nodes.schemas import LONGEST_REASON, Place, Reason, ShortText
from controlplane.web.schemas import Body, Moment, Out, check_text

Source = Literal["bmc", "scheduler", "agent", "test", "person"]
HealthClass = Literal["ok", "info", "block_allocation", "drain", "quarantine"]
Words = Annotated[str, StringConstraints(max_length=LONGEST_REASON), AfterValidator(check_text)]


class NodeReport(Body):
    """
    What one source says of one thing about one node.
    """

    node_id: ShortText | None = Field(
        default=None, description="The node; or its name at its provider, below.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    provider_id: ShortText | None = Field(default=None, description="With `ref`: the provider.", examples=[None])
    ref: Place | None = Field(default=None, description="With `provider_id`: the node's name there.", examples=[None])
    source: Source = Field(description="Who says it.", examples=["agent"])
    check: ShortText | None = Field(default=None, description="What was looked at; an Xid names itself.", examples=["nvlink"])
    health: HealthClass | None = Field(
        default=None,
        alias="class",
        description="What shall follow from it; null with `xid`: as our table says.",
        examples=["drain"],
    )
    xid: int | None = Field(default=None, ge=1, le=99999, description="An Xid of NVIDIA's driver.", examples=[79])
    device: Annotated[str, StringConstraints(max_length=60), AfterValidator(check_text)] = Field(
        default="", description="With `xid`: the GPU, as the log names it.", examples=["PCI:0000:3b:00"]
    )
    message: Words = Field(default="", description="In words.", examples=["GPU 3 does not answer."])

    @model_validator(mode="after")
    def name_one_thing(self) -> "NodeReport":
        """
        Raises ValueError unless it says which node, what was looked at and what shall follow.
        """
        if (self.node_id is None) == (self.provider_id is None or self.ref is None):
            raise ValueError("name the node by node_id, or by provider_id and ref")
        if self.xid is None and (self.check is None or self.health is None):
            raise ValueError("name the check and its class, or an xid")
        return self

    def report(self, node_id: str) -> Report:
        """
        As the service takes it.
        """
        if self.xid is None:
            assert self.check is not None
            assert self.health is not None
            return Report(node_id, self.source, self.check, self.health, self.message)
        known = find_xid(self.xid)
        words = self.message or f"Xid {known.code}: {known.name}. {known.action}"
        check = self.check or f"xid_{known.code}" + (f":{self.device}" if self.device else "")
        return Report(node_id, self.source, check, self.health or known.health, words[:LONGEST_REASON])


class ReportBatch(Body):
    """
    Reports of many nodes at once.
    """

    reports: list[NodeReport] = Field(min_length=1, max_length=1000, description="The latest word on each check counts.")


class Reported(Out):
    """
    What came of it.
    """

    changed: list[str] = Field(description="Nodes whose health is another now.", examples=[["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"]])
    unknown: list[int] = Field(description="Places of reports whose node is not known; the others counted.", examples=[[]])


class HealthReportOut(Out):
    """
    The latest word of one source on one check.
    """

    source: str = Field(description="Who said it.", examples=["bmc"])
    check: str = Field(description="What was looked at.", examples=["ecc"])
    health: str = Field(alias="class", serialization_alias="class", description="What follows from it.", examples=["info"])
    message: str = Field(description="In words.", examples=[""])
    at: Moment = Field(description="When.", examples=["2026-03-01T10:00:00Z"])

    @classmethod
    def of(cls, row: HealthReportRow) -> "HealthReportOut":
        """
        The report as operators see it.
        """
        return cls.model_validate(
            {"source": row.source, "check": row.check_name, "class": row.class_, "message": row.message, "at": row.at}
        )


class HealthReports(Out):
    """
    All that is said of one node.
    """

    items: list[HealthReportOut] = Field(description="By source and check.")


class FreezeIn(Body):
    """
    A block where nothing shall follow by itself.
    """

    site: Place = Field(description="Where.", examples=["osl1"])
    block: Place = Field(description="Spine group.", examples=["b1"])
    reason: Reason


class FreezeOut(Out):
    """
    A block where nothing follows from nodes' health by itself.
    """

    id: str = Field(description="Opaque id.", examples=["frz_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    site: str = Field(description="Where.", examples=["osl1"])
    block: str = Field(description="Spine group.", examples=["b1"])
    reason: str = Field(description="Why.", examples=["12 of 32 nodes fell ill within 60 s."])
    made_by: str = Field(description="Who; `system` when many nodes fell ill at once.", examples=["system"])
    made_at: Moment = Field(description="Since when.", examples=["2026-03-01T10:00:00Z"])
    lifted_at: Moment | None = Field(description="When it was lifted; null while it is in force.", examples=[None])
    lifted_by: str | None = Field(description="Who lifted it.", examples=[None])

    @classmethod
    def of(cls, row: FreezeRow) -> "FreezeOut":
        """
        The freeze as operators see it.
        """
        return cls.model_validate({name: getattr(row, name) for name in cls.model_fields})


class TicketOut(Out):
    """
    A repair that is asked for.
    """

    id: str = Field(description="Opaque id.", examples=["tkt_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    node_id: str = Field(description="Which node.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    opened_at: Moment = Field(description="When.", examples=["2026-03-01T10:00:00Z"])
    reports: list[dict[str, Any]] = Field(
        description="What was said of the node.",
        examples=[[{"source": "agent", "check": "xid_79", "class": "quarantine", "message": "GPU has fallen off the bus."}]],
    )
    attempts: int = Field(description="How often the operator's webhook was told.", examples=[1])
    delivered_at: Moment | None = Field(description="When it took note; null: not yet.", examples=["2026-03-01T10:00:01Z"])
    closed_at: Moment | None = Field(description="When the node was in use again or gone.", examples=[None])

    @classmethod
    def of(cls, row: TicketRow) -> "TicketOut":
        """
        The ticket as operators see it.
        """
        return cls.model_validate({name: getattr(row, name) for name in cls.model_fields})
