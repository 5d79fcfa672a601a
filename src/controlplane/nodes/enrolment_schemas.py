"""
Enrolment from files and from discovery on the wire. All of it is for operators.
"""

from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from controlplane.nodes.discovering import Adoption
from controlplane.nodes.enlisting import Enlisted, Enrolment
from controlplane.nodes.finding import CODES
from controlplane.nodes.schemas import Place, SecretValue, ShortText
from controlplane.nodes.wire import ControllerUrl
from controlplane.web.schemas import Body, Moment, Out

MOST_SHOWN = 1000


class DifferenceOut(Out):
    """
    One value that a file changes.
    """

    column: str = Field(description="Which column of the file.", examples=["rack"])
    before: str = Field(description="As it was; empty for none. A password is never shown.", examples=["b1-r07"])
    after: str = Field(description="As it is.", examples=["b1-r08"])


class EnlistedOut(Out):
    """
    What became of one line of a file.
    """

    line: int = Field(description="Counted from 1.", examples=[2])
    name: str = Field(description="The machine's name at its provider.", examples=["gpu-0041"])
    node_id: str = Field(description="The node.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    differences: list[DifferenceOut] = Field(default=[], description="What changed; empty for a new machine.")

    @classmethod
    def of(cls, one: Enlisted) -> "EnlistedOut":
        """
        As shown.
        """
        return cls.model_validate(one)


class EnrolmentOut(Out):
    """
    What became of a file.
    """

    created: int = Field(description="Machines that were not known.", examples=[1])
    changed: int = Field(description="Known machines that were changed.", examples=[0])
    unchanged: int = Field(description="Known machines that were as the file says.", examples=[0])
    new: list[EnlistedOut] = Field(description=f"The new ones; the first {MOST_SHOWN}.")
    changes: list[EnlistedOut] = Field(description=f"The changed ones with what changed; the first {MOST_SHOWN}.")

    @classmethod
    def of(cls, done: Enrolment) -> "EnrolmentOut":
        """
        As shown.
        """
        return cls(
            created=len(done.created),
            changed=len(done.changed),
            unchanged=done.unchanged,
            new=[EnlistedOut.of(one) for one in done.created[:MOST_SHOWN]],
            changes=[EnlistedOut.of(one) for one in done.changed[:MOST_SHOWN]],
        )


def check_network(text: str) -> str:
    """
    The network, when it is one. Raises ValueError.
    """
    ip_network(text)
    return text


class Range(Body):
    """
    Addresses at each of which a controller may answer.
    """

    network: Annotated[str, StringConstraints(max_length=60), AfterValidator(check_network)] = Field(
        description="In CIDR form.", examples=["10.0.7.0/26"]
    )
    port: int = Field(default=443, ge=1, le=65535, description="Where controllers listen.", examples=[443])


class TargetsPut(Body):
    """
    Controllers that shall be looked at, in place of those that were named before.
    """

    controllers: list[ControllerUrl] = Field(
        default=[], max_length=8192, description="Named one by one.", examples=[["https://10.0.7.41"]]
    )
    ranges: list[Range] = Field(
        default=[], max_length=64, description="Named by network, without its own and its broadcast address."
    )


class CoverageOut(Out):
    """
    How far discovery at one provider has come.
    """

    provider_id: str = Field(description="Which provider.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    discovered_at: Moment | None = Field(
        description="When it was last asked for its machines; null: it is due.", examples=["2026-03-01T10:00:00Z"]
    )
    listed_at: Moment | None = Field(
        description="When it last gave a whole list; null: never, so that nothing is known to be missing.",
        examples=["2026-03-01T10:00:00Z"],
    )
    targets: int = Field(description="Controllers that are looked at.", examples=[62])
    answered: int = Field(description="Those that told their machine the last time.", examples=[60])
    silent: int = Field(description="Those that did not.", examples=[2])


class TargetOut(Out):
    """
    A controller that is looked at.
    """

    id: str = Field(description="Opaque id.", examples=["dtg_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    url: str = Field(description="Its root.", examples=["https://10.0.7.41"])
    asked_at: Moment | None = Field(description="When it was last asked; null: it is due.", examples=["2026-03-01T10:00:00Z"])
    seen_at: Moment | None = Field(description="When it last answered; null: never.", examples=["2026-03-01T10:00:00Z"])
    problem: str = Field(description="Why it did not answer the last time; empty when it did.", examples=[""])


class DiscoveredOut(Out):
    """
    A machine that was found, enrolled or not.
    """

    id: str = Field(description="Opaque id.", examples=["dsc_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    provider_id: str = Field(description="Where it was found.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    ref: str = Field(description="Its name there; for a controller that was looked at, its address.", examples=["gpu-0041"])
    serial: str = Field(description="Serial number; empty: not told.", examples=["0047A"])
    controller_url: str = Field(description="Its controller; empty where the provider drives it.", examples=["https://10.0.7.41"])
    controller_system: str = Field(description="The machine among the controller's systems.", examples=[""])
    place: dict[str, Any] = Field(description="Where it stands, as far as the provider knows.", examples=[{"rack": "b1-r07"}])
    inventory: dict[str, Any] = Field(
        description="What was told; what is missing is unknown.", examples=[{"gpus": 8, "gpu_model": "H100-SXM5-80GB"}]
    )
    first_seen_at: Moment = Field(description="When it was first seen.", examples=["2026-03-01T10:00:00Z"])
    seen_at: Moment = Field(description="When it was last seen.", examples=["2026-03-01T10:00:00Z"])
    gone_at: Moment | None = Field(description="When a whole list first did not name it; null while it is there.", examples=[None])


FindingCode = Literal[CODES]  # type: ignore[valid-type]


class MismatchOut(Out):
    """
    A difference between what is enrolled and what was found.
    """

    code: str = Field(description=f"One of {', '.join(CODES)}.", examples=["other_serial"])
    severity: str = Field(description="`warning`: somebody should look; `info`: unknown, or to be decided.", examples=["warning"])
    provider_id: str = Field(description="Where.", examples=["prv_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    ref: str = Field(description="The machine's name there.", examples=["gpu-0041"])
    node_id: str | None = Field(description="The node; null where none is enrolled.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    discovered_id: str | None = Field(
        description="What was found; null where nothing was.", examples=["dsc_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    expected: str = Field(description="In short; empty where nothing was.", examples=["0047A"])
    seen: str = Field(description="In short; empty where nothing was.", examples=["0052C"])
    message: str = Field(description="In words.", examples=["Another machine stands where this one is expected."])


class Adopt(Body):
    """
    What is to be known of a machine that was found; null: as its provider knows it.
    """

    name: Place | None = Field(
        default=None, description="What a machine with a controller is called; null: its serial number.", examples=["gpu-0041"]
    )
    block: Place | None = Field(default=None, description="Spine group.", examples=["b1"])
    leaf: Place | None = Field(default=None, description="Where its rails meet.", examples=["b1-l2"])
    rack: Place | None = Field(default=None, description="Which rack.", examples=["b1-r07"])
    unit: int | None = Field(default=None, ge=1, le=100, description="Lowest rack unit.", examples=[12])
    instance_type: Place | None = Field(default=None, description="What it is sold as.", examples=["hgx-h100-8"])
    gpus: int | None = Field(default=None, ge=1, le=1024, description="How many were bought; null: as many as the type has.")
    username: ShortText | None = Field(
        default=None, description="Account of its controller; null: the provider's.", examples=["root"]
    )
    password: SecretValue | None = Field(
        default=None, description="Sealed at once and never shown again; null: the provider's.", examples=["correct horse battery"]
    )
    address: Place | None = Field(default=None, description="The machine's own address.", examples=["10.1.7.41"])
    in_use: bool = Field(
        default=False,
        description="Whether something runs on it that is to go on: it is in maintenance at once, and its disks are left alone.",
        examples=[False],
    )

    def plain(self) -> Adoption:
        """
        As the service takes it.
        """
        password = None if self.password is None else self.password.get_secret_value()
        return Adoption(**self.model_dump(exclude={"password"}), password=password)


class Adopted(Out):
    """
    The node that a machine has become.
    """

    node_id: str = Field(description="The node.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
