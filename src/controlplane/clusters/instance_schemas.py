"""
Single nodes of clusters on the wire.
"""

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from controlplane.web.schemas import Moment, Out

BootId = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=40,
        description="One of the boots; the last one when left out.",
        examples=["bot_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    ),
]
After = Annotated[int, Query(ge=0, le=2**53, description="Only output from this byte on; 0 for all that is kept.", examples=[0])]


ReinstallImage = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=40,
        description="A ready image that is written to the disk instead of the one that was.",
        examples=["img_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    ),
]


class InstanceOut(Out):
    """
    One node of a cluster as its tenant knows it.
    """

    id: str = Field(description="Its id while it is part of the cluster.", examples=["ins_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    node_set: str = Field(description="The node set's id.", examples=["nds_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    instance_type: str = Field(description="What it is.", examples=["hgx-h100-8"])
    gpus: int = Field(description="Its GPUs.", examples=[8])
    state: str = Field(description="held, active or releasing.", examples=["active"])
    machine: str = Field(
        description="What the machine is at: reserved, deploying, active, restarting, stopping, stopped, starting, reinstalling, "
        "rescuing, rescued, releasing or cleaning. It is billed until it is given back, also while it is stopped.",
        examples=["active"],
    )
    leaving: bool = Field(description="Whether an update takes it out.", examples=[False])
    address: str | None = Field(
        description="Where it is reached once it is active; null where nodes are not the tenant's to log in to.",
        examples=["10.1.7.41"],
    )
    image: str | None = Field(
        description="The image that is, or is being, installed on its disk; null where none is.",
        examples=["img_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )
    operation: str | None = Field(description="The action under way on it, if any.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"])


class InstancesOut(Out):
    """
    All nodes of a cluster.
    """

    items: list[InstanceOut] = Field(description="Oldest first.")


class InstanceActionsOut(Out):
    """
    What may be done with a node now.
    """

    actions: dict[str, str] = Field(
        description="Verb to the reason why it is not allowed now; empty where it is.",
        examples=[{"reboot": "", "start": "An instance that is active cannot be asked to start."}],
    )


class InstanceStageOut(Out):
    """
    What one part of a boot came to.
    """

    name: str = Field(description="A stage of cloud-init, or `script:<name>`.", examples=["modules-final"])
    ok: bool = Field(description="Whether it went well.", examples=[True])
    detail: str = Field(description="What went wrong, in the machine's words.", examples=[""])
    at: Moment = Field(description="When it was reported.", examples=["2026-03-01T10:00:00Z"])


class InstanceBootOut(Out):
    """
    One boot of a node for its present owner.
    """

    id: str = Field(description="`bot_…`.", examples=["bot_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    purpose: str = Field(description="What for: install (an image), deploy or rescue.", examples=["deploy"])
    state: str = Field(description="made, fetched, reporting, ready, failed or ended.", examples=["ready"])
    failure_code: str = Field(description="Why it failed, by a stable code; empty while it has not.", examples=[""])
    failure: str = Field(description="The same in words.", examples=[""])
    stages: list[InstanceStageOut] = Field(description="What was reported so far, in order.")
    made_at: Moment = Field(description="When it was begun.", examples=["2026-03-01T10:00:00Z"])
    ready_at: Moment | None = Field(description="When its own report said that all is well.", examples=["2026-03-01T10:05:00Z"])


class InstanceConsoleOut(Out):
    """
    What a node wrote while it booted, and the boots there were.
    """

    boots: list[InstanceBootOut] = Field(description="The boots of this node for its present owner, oldest first, 200 at most.")
    boot: str = Field(description="The boot whose output this is.", examples=["bot_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    offset: int = Field(description="Where the text begins; later than asked where older output was dropped.", examples=[0])
    next_offset: int = Field(description="Send it as `after` to go on.", examples=[17])
    size: int = Field(description="Bytes written in all.", examples=[17])
    text: str = Field(description="The output; bytes that are no UTF-8 are replaced.", examples=["Cloud-init v. 22\n"])


def instance_out(view: Any) -> InstanceOut:
    """
    One node as its tenant sees it: no machine names.
    """
    allocation = view.row[0]
    return InstanceOut(
        id=allocation.instance_id,
        node_set=allocation.node_set_id,
        instance_type=allocation.instance_type,
        gpus=allocation.gpus,
        state=allocation.state,
        machine=view.row.node_state,
        leaving=allocation.leaving,
        address=view.row.address if allocation.state == "active" and allocation.blueprint_id is not None else None,
        image=allocation.image_id,
        operation=view.operation_id,
    )


def console_out(view: Any) -> InstanceConsoleOut:
    """
    The output as text, with the boots.
    """
    console = view.console
    return InstanceConsoleOut(
        boots=[InstanceBootOut.model_validate(one, from_attributes=True) for one in view.boots],
        boot=view.boot_id,
        offset=console.offset,
        next_offset=console.offset + len(console.data),
        size=console.size,
        text=console.data.decode("utf-8", "replace"),
    )
