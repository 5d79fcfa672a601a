"""
Arrays of jobs on the wire.
"""

import json
from typing import Self

from pydantic import Field, model_validator

from controlplane.jobs.arraying import Array, Range
from controlplane.jobs.schemas import JobCreate, JobSpecOut, TemplateUse
from controlplane.web.schemas import Body, Moment, Out

MAX_TASKS = 1000
MAX_BYTES = 16 * 1024 * 1024
"""What the specs of all tasks may come to."""


class ArrayRange(Body):
    """
    Which tasks there are, and how many may be under way at once.
    """

    first: int = Field(default=0, ge=0, le=10**9, description="The first index.", examples=[0])
    last: int = Field(ge=0, le=10**9, description="No index is larger.", examples=[99])
    step: int = Field(default=1, ge=1, le=10**9, description="From one index to the next.", examples=[1])
    max_parallel: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TASKS,
        description="So many are under way at once; left out: as many as the cluster has room for.",
        examples=[8],
    )

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.first <= self.last:
            raise ValueError("last is smaller than first")
        if len(self.wanted().indexes) > MAX_TASKS:
            raise ValueError(f"an array has at most {MAX_TASKS} tasks")
        return self

    def wanted(self) -> Range:
        """
        The same as the room takes it.
        """
        return Range(self.first, self.last, self.step, self.max_parallel)


class ArrayCreate(JobCreate):
    """
    A job to run for each of many indexes.
    """

    array: ArrayRange = Field(description="Which indexes.")

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if len(self.array.wanted().indexes) * len(json.dumps(self.spec.model_dump())) > MAX_BYTES:
            raise ValueError("so many tasks with so long a spec are too much; put the program into a file or an image")
        return self


class ArrayRangeOut(Out):
    """
    Which tasks there are, and how many may be under way at once.
    """

    first: int = Field(description="The first index.", examples=[0])
    last: int = Field(description="No index is larger.", examples=[99])
    step: int = Field(description="From one index to the next.", examples=[1])
    max_parallel: int | None = Field(description="So many are under way at once; null: any number.", examples=[8])


class ArrayStatus(Out):
    """
    Where the tasks of an array stand.
    """

    state: str = Field(
        description="queued until a task is under way, running until all have ended; then failed if one did, else cancelled if one was,"
        " else succeeded.",
        examples=["running"],
    )
    tasks: dict[str, int] = Field(description="How many tasks are in each state.", examples=[{"succeeded": 40, "running": 8}])
    total: int = Field(description="How many tasks there are.", examples=[100])
    cancel_requested_at: Moment | None = Field(description="When somebody asked to stop it.", examples=[None])


class ArrayOut(Out):
    """
    The same job for many indexes; each task is a job of its own.
    """

    id: str = Field(description="Never changes.", examples=["jar_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Its tasks share it.", examples=["sweep-7b"])
    labels: dict[str, str] = Field(description="Its tasks share them.", examples=[{"team": "vision"}])
    created_at: Moment = Field(description="When it was accepted.", examples=["2026-03-01T09:59:00Z"])
    array: ArrayRangeOut = Field(description="Which indexes.")
    template: TemplateUse | None = Field(default=None, description="What it was made from; null where it was sent whole.")
    spec: JobSpecOut = Field(description="What each task runs.")
    status: ArrayStatus = Field(description="Where the tasks stand.")

    @classmethod
    def of(cls, one: Array) -> Self:
        """
        The array as its owner sees it.
        """
        row = one.row
        return cls(
            id=row.id,
            name=row.name,
            labels=row.labels,
            created_at=row.created_at,
            array=ArrayRangeOut.model_validate(row),
            template=None if row.template is None else TemplateUse(**row.template),
            spec=JobSpecOut.model_validate(row.spec),
            status=ArrayStatus(
                state=one.state,
                tasks=dict(one.tasks),
                total=sum(one.tasks.values()),
                cancel_requested_at=row.cancel_requested_at,
            ),
        )
