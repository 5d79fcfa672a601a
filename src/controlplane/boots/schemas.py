"""
Boots on the wire: what operators are shown, and what machines report.
"""

from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator, Field, StringConstraints

from controlplane.boots.service import Console
from controlplane.boots.states import BOOT_STATES, CLOUD_INIT_STAGES, PURPOSES, BootView, Outcome, Report
from controlplane.web.schemas import Body, Condition, Moment, Out, check_text

PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["b3NsMQ"])
]
After = Annotated[int, Query(ge=0, le=2**53, description="Only output from this byte on; 0 for all that is kept.", examples=[0])]
Words = Annotated[str, StringConstraints(max_length=4000), AfterValidator(check_text)]
ShortName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")]


class StageOut(Out):
    """
    What one part of a boot came to.
    """

    name: str = Field(description="A stage of cloud-init, or `script:<name>`.", examples=["script:munge"])
    ok: bool = Field(description="Whether it went well.", examples=[False])
    detail: str = Field(description="What went wrong, in the machine's words.", examples=["line 3, exit code 1: no such unit"])
    at: Moment = Field(description="When it was reported.", examples=["2026-03-01T10:00:00Z"])


class CheckOutputOut(Out):
    """
    What became of one output that a check sent.
    """

    name: str = Field(description="The test, with its part where it has several.", examples=["rdma_loopback.mlx5_0"])
    figures: int = Field(description="How many figures of it are in the ledger, under the boot's id as the run.", examples=[33])
    failure: str = Field(description="Why it could not be read; empty when it was.", examples=[""])
    at: Moment = Field(description="When it came.", examples=["2026-03-01T10:20:00Z"])


class BootOut(Out):
    """
    One boot of a node.
    """

    id: str = Field(description="`bot_…`.", examples=["bot_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    node_id: str = Field(description="Which node.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    purpose: str = Field(description=f"What for: {', '.join(PURPOSES)}.", examples=["deploy"])
    state: str = Field(description=f"Where it stands: {', '.join(BOOT_STATES)}.", examples=["failed"])
    failure_code: str = Field(description="Why it failed, by a stable code; empty while it has not.", examples=["script_failed"])
    failure: str = Field(description="The same in words.", examples=["The script munge failed at line 3."])
    stages: list[StageOut] = Field(description="What was reported so far, in order.")
    checks: list[Condition] = Field(description="What a wipe or check found.")
    outputs: list[CheckOutputOut] = Field(description="What tools printed in a check, as far as it came.")
    version: int = Field(description="Version of the files that it should have; 0 where there are none.", examples=[2])
    applied_version: int = Field(description="Version of the files that it reported; 0 before.", examples=[2])
    apply_failure: str = Field(description="What of that version could not be written.", examples=[""])
    made_at: Moment = Field(description="When it was begun.", examples=["2026-03-01T10:00:00Z"])
    expires_at: Moment = Field(description="When it must have reported.", examples=["2026-03-01T10:30:00Z"])
    fetched_at: Moment | None = Field(description="When its user-data was first taken.", examples=["2026-03-01T10:02:00Z"])
    phoned_at: Moment | None = Field(description="When it first phoned home.", examples=["2026-03-01T10:03:00Z"])
    ready_at: Moment | None = Field(description="When its own report said that all is well.", examples=[None])

    @classmethod
    def of(cls, view: BootView) -> "BootOut":
        """
        The boot as operators see it.
        """
        return cls.model_validate(view, from_attributes=True)


class ConsoleOut(Out):
    """
    Some of what a machine wrote while it booted.
    """

    offset: int = Field(description="Where it begins; later than asked where older output was dropped.", examples=[0])
    next_offset: int = Field(description="Send it as `after` to go on.", examples=[17])
    size: int = Field(description="Bytes written in all.", examples=[17])
    text: str = Field(description="The output; bytes that are no UTF-8 are replaced.", examples=["Cloud-init v. 22\n"])

    @classmethod
    def of(cls, console: Console) -> "ConsoleOut":
        """
        The output as text.
        """
        end = console.offset + len(console.data)
        return cls(offset=console.offset, next_offset=end, size=console.size, text=console.data.decode("utf-8", "replace"))


class StageIn(Body):
    """
    A stage of cloud-init that is over.
    """

    name: Annotated[str, StringConstraints(pattern=rf"^({'|'.join(CLOUD_INIT_STAGES)})$")]
    errors: Words


class OutcomeIn(Body):
    """
    What a script came to.
    """

    name: ShortName
    ok: bool
    exit_code: int | None = Field(ge=-255, le=255)
    line: int | None = Field(ge=0, le=10**6)
    output: Words


class CheckIn(Body):
    """
    What a script found.
    """

    name: ShortName
    result: Annotated[str, StringConstraints(pattern=r"^(passed|failed|not_measured)$")]
    detail: Words


class ReportIn(Body):
    """
    A machine's report of itself.
    """

    boot_id: Annotated[str, StringConstraints(max_length=40)]
    final: bool
    stages: list[StageIn] = Field(max_length=8)
    scripts: list[OutcomeIn] = Field(max_length=64)
    checks: list[CheckIn] = Field(max_length=500)

    def report(self) -> Report:
        """
        The report as the room knows it.
        """
        return Report(
            self.final,
            {one.name: one.errors for one in self.stages},
            tuple(Outcome(one.name, one.ok, one.exit_code, one.line, one.output) for one in self.scripts),
            tuple(one.model_dump() for one in self.checks),
        )


class FailedFile(Body):
    """
    A file that could not be written, or whose command failed.
    """

    path: Annotated[str, StringConstraints(max_length=1001), AfterValidator(check_text)]
    detail: Words


class AppliedIn(Body):
    """
    Which version of the files a machine has.
    """

    version: int = Field(ge=0, le=2**31)
    failed: list[FailedFile] = Field(max_length=100)
