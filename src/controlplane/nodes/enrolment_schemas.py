"""
Enrolment from files and from discovery on the wire. All of it is for operators.
"""


from pydantic import Field

from controlplane.nodes.enlisting import Enlisted, Enrolment
from controlplane.web.schemas import Out

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
