"""
Enrolment on the wire: machines as an operator names them.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from controlplane.nodes.registering import NewController, NewNode, NewPort
from controlplane.nodes.schemas import Place, SecretValue, ShortText
from controlplane.web.schemas import Body, Out, check_text

ControllerUrl = Annotated[
    str,
    StringConstraints(max_length=500, pattern=r"^https?://[A-Za-z0-9.\[\]:_-]+/?$"),
    AfterValidator(check_text),
    Field(description="Root of the management controller: scheme, host and port.", examples=["https://10.0.7.41"]),
]


class ControllerIn(Body):
    """
    How a machine that the control plane drives itself is reached.
    """

    url: ControllerUrl
    system: ShortText | None = Field(
        default=None,
        description="The machine among the controller's systems; null where there is one.",
        examples=["System.Embedded.1"],
    )
    username: ShortText | None = Field(default=None, description="Account; null: the provider's.", examples=["controlplane"])
    password: SecretValue | None = Field(
        default=None, description="Sealed at once and never shown again; null: the provider's.", examples=["correct horse battery"]
    )


class PortIn(Body):
    """
    Where one network port of a machine ends.
    """

    name: Place = Field(description="The machine's name of it.", examples=["rail0"])
    fabric_id: ShortText = Field(description="The provider that is the fabric.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    switch: Place = Field(description="The switch by the fabric's name.", examples=["leaf1"])
    port: Place = Field(description="The port by the switch's name.", examples=["swp7"])


class NodeEnroll(Body):
    """
    A machine to be taken into the fleet.
    """

    ref: Place = Field(description="Its name at the provider.", examples=["gpu-0041"])
    block: Place = Field(description="Spine group.", examples=["b1"])
    leaf: Place = Field(description="Where its rails meet.", examples=["b1-l2"])
    rack: Place = Field(description="Which rack.", examples=["b1-r07"])
    nvlink_domain: Place | None = Field(
        default=None, description="The rack-wide NVLink domain; null where the node is its own.", examples=[None]
    )
    instance_type: Place = Field(description="What it is sold as.", examples=["hgx-h100-8"])
    gpus: int | None = Field(default=None, ge=1, le=1024, description="How many GPUs were bought; null: as many as the type has.")

    controller: ControllerIn | None = Field(
        default=None, description="For providers that drive bare machines: the machine's management controller."
    )
    address: Place | None = Field(default=None, description="The machine's own address.", examples=["10.1.7.41"])
    ports: list[PortIn] = Field(default=[], max_length=32, description="How its network ports are wired, where that is known.")
    in_use: bool = Field(
        default=False,
        description="Whether something runs on it that is to go on, for example a cluster that is to be taken over: it is in maintenance "
        "at once, and is not inspected, checked or wiped.",
        examples=[False],
    )

    def new(self) -> NewNode:
        """
        As the service takes it.
        """
        door = self.controller
        controller = None
        if door is not None:
            password = door.password.get_secret_value() if door.password is not None else ""
            controller = NewController(door.url, door.system or "", door.username or "", password)
        return NewNode(
            ref=self.ref,
            block=self.block,
            leaf=self.leaf,
            rack=self.rack,
            nvlink_domain=self.nvlink_domain,
            instance_type=self.instance_type,
            gpus=self.gpus or 0,
            controller=controller,
            address=self.address,
            ports=tuple(NewPort(one.name, one.fabric_id, one.switch, one.port) for one in self.ports),
            in_use=self.in_use,
        )


class EnrollBody(Body):
    """
    Machines of one provider.
    """

    provider_id: ShortText = Field(description="Who drives them.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    nodes: list[NodeEnroll] = Field(min_length=1, max_length=1000, description="The machines; known ones are left alone.")


class Enrolled(Out):
    """
    What came of it.
    """

    enrolled: list[str] = Field(description="Ids of the new nodes.", examples=[["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"]])
    known: int = Field(description="How many were enrolled already, or named twice.", examples=[0])
