"""
Checkpoints on the wire.
"""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints

from controlplane.jobs.checkpointing import Kept
from controlplane.jobs.states import CheckpointKind, Keeping, NewCheckpoint, Retention, Tier
from controlplane.web.schemas import Body, GivenMoment, Moment, Out, Status, check_text

PLACE = r"^(/|[a-z][a-z0-9+.-]{0,31}://)[!-~]+$"
SECRET = re.compile(r"://[^/@]*:[^/@]*@|[?&](x-amz-signature|signature|sig|token|password)=", re.IGNORECASE)
LONGEST_STEP = 2**53 - 1
LARGEST_BYTES = 2**53 - 1
EXAMPLE = "s3://runs/train-7b/step-12000"


def _check_place(place: str) -> str:
    if SECRET.search(place):
        raise ValueError("a location holds no passwords and no signatures: it is shown to everybody who may read the job")
    return place


Place = Annotated[str, StringConstraints(min_length=2, max_length=1024, pattern=PLACE), AfterValidator(_check_place)]
Bytes = Annotated[int, Field(ge=0, le=LARGEST_BYTES)]


class CheckpointCreate(Body):
    """
    A checkpoint that the job has taken, or begins to write.
    """

    step: int = Field(ge=0, le=LONGEST_STEP, description="The training step it was taken at.", examples=[12_000])
    kind: CheckpointKind = Field(
        default="full",
        description=(
            "full: one file or folder; sharded: a part per rank under one location; incremental: needs those before it; "
            "weights: of the model alone, nothing to go on from."
        ),
        examples=["sharded"],
    )
    location: Place = Field(description="Where its data lies: an absolute path or a URL, without blanks.", examples=[EXAMPLE])
    size_bytes: Bytes | None = Field(
        default=None, description="Its size, when it is complete; left out, it is being written.", examples=[98_784_247_808]
    )
    tier: Tier = Field(default="hot", description="Where it lies now.", examples=["hot"])
    taken_at: GivenMoment | None = Field(default=None, description="When it was taken; now when left out.")
    attempt: int | None = Field(
        default=None, ge=1, le=10**6, description="Which try saved it; the present one when left out.", examples=[1]
    )

    def plain(self) -> NewCheckpoint:
        """
        The checkpoint as the room knows it.
        """
        return NewCheckpoint(
            self.step, self.kind, self.location, self.size_bytes, tier=self.tier, taken_at=self.taken_at, attempt=self.attempt
        )


class CheckpointComplete(Body):
    """
    What is known of a checkpoint when it is written.
    """

    size_bytes: Bytes = Field(description="Its size.", examples=[98_784_247_808])


class CheckpointReject(Body):
    """
    Why a checkpoint cannot be used.
    """

    reason: Annotated[str, AfterValidator(check_text)] = Field(
        min_length=1, max_length=500, description="Why, in words.", examples=["Shard 17 does not match its digest."]
    )


class CheckpointRelocate(Body):
    """
    Where a checkpoint lies now.
    """

    tier: Tier = Field(description="In which tier.", examples=["cold"])
    location: Place | None = Field(
        default=None, description="At which place; where it was when left out.", examples=["s3://archive/train-7b/step-12000"]
    )


class CheckpointStatus(Status):
    """
    Where a checkpoint stands.
    """

    tier: Tier = Field(description="Where it lies, as was told.", examples=["hot"])
    wanted: Keeping | None = Field(
        description="Where the project's policy wants it; drop: it can go; null while it is being written, and when it is gone.",
        examples=["warm"],
    )


class CheckpointSpecOut(Out):
    """
    A checkpoint as it was registered.
    """

    step: int = Field(description="The training step it was taken at.", examples=[12_000])
    kind: CheckpointKind = Field(description="What it holds.", examples=["sharded"])
    location: str = Field(description="Where its data lies.", examples=[EXAMPLE])
    size_bytes: int | None = Field(description="Its size; null while it is being written.", examples=[98_784_247_808])
    taken_at: Moment = Field(description="When it was taken.", examples=["2026-03-01T12:00:00Z"])
    attempt: int = Field(description="Which try saved it.", examples=[1])


class CheckpointOut(Out):
    """
    What a job has saved of its work.
    """

    id: str = Field(description="Its id.", examples=["ckp_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    job_id: str = Field(description="Whose work it is.", examples=["job_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    created_at: Moment = Field(description="When it was registered.", examples=["2026-03-01T12:00:03Z"])
    updated_at: Moment = Field(description="When it last changed.", examples=["2026-03-01T12:00:03Z"])
    spec: CheckpointSpecOut = Field(description="The checkpoint as registered.")
    status: CheckpointStatus = Field(description="Where it stands.")
    version: int = Field(description="Rises with every change.", examples=[1])

    @classmethod
    def of(cls, kept: Kept) -> Self:
        """
        The checkpoint as its tenant sees it.
        """
        row = kept.row
        status = CheckpointStatus(
            state=row.state,
            reason=row.reason,
            since=row.state_since,
            deadline=None,
            tier=row.tier,  # type: ignore[arg-type]
            wanted=kept.wanted,  # type: ignore[arg-type]
        )
        return cls(
            id=row.id,
            job_id=row.job_id,
            created_at=row.created_at,
            updated_at=row.updated_at,
            spec=CheckpointSpecOut.model_validate(row),
            status=status,
            version=row.version,
        )


class CheckpointPolicy(Body):
    """
    How long a project's checkpoints are kept, and where. The last good one of a job is always hot, and nothing is removed by the policy
    alone: `GET …/checkpoints?due=true` lists what it wants done.
    """

    hot_last: int = Field(default=3, ge=1, le=10_000, description="So many of a job's last good ones are hot.", examples=[3])
    warm_last: int = Field(default=5, ge=0, le=10_000, description="So many before these are warm.", examples=[5])
    cold_every_steps: int | None = Field(
        default=None,
        ge=1,
        le=LONGEST_STEP,
        description="Of older ones, those whose step is a multiple of this are cold, the others can go; null: all are kept.",
        examples=[10_000],
    )
    cold_days: int | None = Field(
        default=None, ge=1, le=36_500, description="Older ones can go after so many days; null: never.", examples=[90]
    )

    def plain(self) -> Retention:
        """
        The policy as the room knows it.
        """
        return Retention(self.hot_last, self.warm_last, self.cold_every_steps, self.cold_days)


class CheckpointPolicyOut(Out):
    """
    How long a project's checkpoints are kept, and where.
    """

    hot_last: int = Field(description="So many of a job's last good ones are hot.", examples=[3])
    warm_last: int = Field(description="So many before these are warm.", examples=[5])
    cold_every_steps: int | None = Field(
        description="Of older ones, those whose step is a multiple of this are cold, the others can go; null: all are kept.",
        examples=[10_000],
    )
    cold_days: int | None = Field(description="Older ones can go after so many days; null: never.", examples=[90])
    version: int = Field(description="Rises with every change; 0 where no policy was set.", examples=[1])

    @classmethod
    def of(cls, told: tuple[Retention, int]) -> Self:
        """
        The policy with its version.
        """
        kept, version = told
        return cls(
            hot_last=kept.hot_last,
            warm_last=kept.warm_last,
            cold_every_steps=kept.cold_every_steps,
            cold_days=kept.cold_days,
            version=version,
        )
