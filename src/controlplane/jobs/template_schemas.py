"""
Templates of jobs on the wire.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from controlplane.jobs.array_schemas import ArrayCreate, ArrayRange
from controlplane.jobs.errors import TemplateOfArrays
from controlplane.jobs.filling import fill, fits, in_shell, places_of, sample_of
from controlplane.jobs.schemas import JobCreate, JobName, JobSpec
from controlplane.jobs.templates import Template
from controlplane.jobs.templating import Filled
from controlplane.kit.errors import FieldError, Invalid
from controlplane.web.schemas import Body, Labels, Moment, Out, check_text

MAX_SPEC_BYTES = 128 * 1024
SPEC = {
    "cluster_id": "clu_01k5x7p3r8w2v6t9q4n0m1c2d3",
    "nodes": "{{ nodes }}",
    "gpus_per_node": 8,
    "script": '#!/bin/bash\nsrun python train.py --lr "$LR"\n',
    "env": {"LR": "{{ rate }}"},
}
ARRAY = {"first": 0, "last": "{{ last }}", "max_parallel": 8}
PARAMETERS = [{"name": "nodes", "kind": "integer", "default": 4}, {"name": "rate", "kind": "text"}]
Made = TypeVar("Made")
Said = Annotated[str, StringConstraints(max_length=4096), AfterValidator(check_text)]
Given = Said | Annotated[int, Field(ge=-(2**53), le=2**53)] | bool


class Parameter(Body):
    """
    A value that is given when a job is submitted.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")] = Field(
        description="As it stands in the places: `{{ name }}`.", examples=["nodes"]
    )
    kind: Literal["text", "integer", "boolean"] = Field(default="text", description="What its values are.", examples=["integer"])
    description: Said = Field(default="", description="For people.", examples=["How many nodes."])
    default: Given | None = Field(default=None, description="Where none is given; without one it must be given.", examples=[4])
    choices: list[Given] = Field(
        default=[], max_length=64, description="All that it may be; empty: anything.", examples=[[1, 2, 4]]
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        plain = {"name": self.name, "kind": self.kind, "choices": []}
        wrong = next((why for one in self.choices if (why := fits(plain, one))), "")
        if not wrong and self.default is not None:
            wrong = fits({**plain, "choices": self.choices}, self.default)
        if wrong:
            raise ValueError(wrong)
        return self


class TemplatePut(Body):
    """
    A job with places for values.
    """

    description: Said = Field(default="", description="For people.", examples=["Training of the 7B model."])
    parameters: list[Parameter] = Field(
        default=[], max_length=64, description="What is given at submission.", examples=[PARAMETERS]
    )
    labels: Labels = Field(default_factory=dict)
    spec: dict[str, Any] = Field(
        max_length=64,
        description="As the `spec` of a job, with places `{{ name }}` in its texts; a text that is one place becomes the value itself."
        " `script` and `launch.setup` have no places, for a shell reads them: give values to them as `env`. `cluster_id` may be left"
        " out, and named at submission.",
        examples=[SPEC],
    )
    array: dict[str, Any] | None = Field(
        default=None,
        max_length=4,
        description="As the `array` of an array of jobs, with places for integers: such a template makes arrays, at `…/job-arrays`. Left"
        " out: it makes single jobs.",
        examples=[ARRAY],
    )

    @model_validator(mode="after")
    def _makes_a_job(self) -> Self:
        names = [one.name for one in self.parameters]
        if len(set(names)) < len(names):
            raise ValueError("a parameter is named twice")
        shell = in_shell(self.spec)
        if shell is not None:
            raise ValueError(f"{shell} stands where a shell reads; give it to the script by env")
        unknown = [one for one in {**places_of(self.spec), **places_of(self.array)} if one not in names]
        if unknown:
            raise ValueError(f"{unknown[0][:80]} is no parameter of the template")
        if len(json.dumps(self.spec)) > MAX_SPEC_BYTES:
            raise ValueError(f"a spec has at most {MAX_SPEC_BYTES} bytes")
        sample = sample_of([one.model_dump() for one in self.parameters])
        _must_do("spec", lambda: _spec({"cluster_id": "clu_any", **fill(self.spec, sample)}))
        if self.array is not None:
            # samples of first and last stand in no order, so a range that is wrong as a whole is told when it has its values
            _must_do("array", lambda: ArrayRange.model_validate(fill(self.array, sample)), fields_only=bool(places_of(self.array)))
        return self

    def document(self) -> dict[str, Any]:
        """
        The template as it is kept.
        """
        return self.model_dump(exclude={"array"} if self.array is None else None)


class TemplateJob(Body):
    """
    A job to be made from a template.
    """

    name: JobName | None = Field(default=None, description="Of the job; left out: the template's.", examples=["train-7b-run-3"])
    labels: Labels = Field(default_factory=dict)
    version: int | None = Field(default=None, ge=1, le=10**9, description="Of the template; left out: its newest.", examples=[None])
    parameters: dict[Annotated[str, StringConstraints(max_length=63)], Given] = Field(
        default={}, max_length=64, description="Values by name.", examples=[{"rate": "3e-4"}]
    )
    overrides: dict[Annotated[str, StringConstraints(max_length=63)], Any] = Field(
        default={},
        max_length=64,
        description="Fields of the job's `spec` that replace those of the template, each as a whole.",
        examples=[{"time_limit_s": 7200}],
    )

    def job(self, template: Template, filled: Filled) -> JobCreate:
        """
        The job as if it had been sent like this. Raises Invalid where the filled-in spec is no job's, TemplateOfArrays.
        """
        if filled.array is not None:
            hint = f"Order its array: POST …/job-templates/{template.name}/job-arrays; an `array` of your own may name one index."
            raise TemplateOfArrays(f"Jobs of {template.name} are tasks of an array. {hint}", hint=hint)
        labels = {**template.document["labels"], **self.labels}
        return _told(lambda: JobCreate(name=self.name or template.name, labels=labels, spec=_spec(filled.spec)), "spec")


class TemplateArray(TemplateJob):
    """
    An array to be made from a template.
    """

    array: ArrayRange | None = Field(
        default=None,
        description="In the place of the template's, whole; left out: the template's.",
        examples=[{"first": 7, "last": 7}],
    )

    def tasks(self, template: Template, filled: Filled) -> ArrayCreate:
        """
        The array as if it had been sent like this. Raises Invalid where the filled-in spec or range is none, or nobody names a range.
        """
        labels = {**template.document["labels"], **self.labels}
        given = self.array
        if given is None and filled.array is None:
            raise Invalid(
                "The template has no array: say which tasks there are.",
                errors=[FieldError("body.array", "missing", "The template makes single jobs: name the indexes.")],
            )
        wanted = given or _told(lambda: ArrayRange.model_validate(filled.array), "array")
        spec = _told(lambda: _spec(filled.spec), "spec")
        return _told(lambda: ArrayCreate(name=self.name or template.name, labels=labels, spec=spec, array=wanted), "spec")


class TemplateOut(Out):
    """
    A version of a template.
    """

    name: str = Field(description="Unique in the project.", examples=["train-7b"])
    version: int = Field(description="Which version this is.", examples=[3])
    latest_version: int = Field(description="The newest one; all from 1 on can be read.", examples=[3])
    description: str = Field(description="For people.", examples=["Training of the 7B model."])
    parameters: list[dict[str, Any]] = Field(description="What is given at submission.", examples=[PARAMETERS])
    labels: dict[str, str] = Field(description="Jobs made from it get these.", examples=[{"team": "vision"}])
    spec: dict[str, Any] = Field(description="The job's spec with places for values.", examples=[SPEC])
    array: dict[str, Any] | None = Field(
        default=None, description="Which tasks its arrays have; null: it makes single jobs.", examples=[ARRAY]
    )
    created_at: Moment = Field(description="When the template was first written.", examples=["2026-03-01T09:59:00Z"])
    updated_at: Moment = Field(description="When this version was written.", examples=["2026-03-01T10:00:00Z"])

    @classmethod
    def of(cls, one: Template) -> Self:
        """
        The version as its project sees it.
        """
        return cls(
            name=one.name,
            version=one.version,
            latest_version=one.latest,
            **one.document,
            created_at=one.created_at,
            updated_at=one.updated_at,
        )


def _must_do(part: str, make: Callable[[], object], *, fields_only: bool = False) -> None:
    try:
        make()
    except ValidationError as error:
        wrong = [one for one in error.errors(include_url=False) if one["loc"] or not fields_only]
        if wrong:
            where = ".".join(map(str, (part, *wrong[0]["loc"])))[:200]
            raise ValueError(f"{where} of what is made from it: {wrong[0]['msg'][:300]}") from None


def _told(make: Callable[[], Made], part: str) -> Made:
    try:
        return make()
    except ValidationError as error:
        told = [
            FieldError(".".join(map(str, (part, *one["loc"])))[:300], one["type"], one["msg"][:300])
            for one in error.errors(include_url=False)
        ]
        raise Invalid(f"{told[0].field}: {told[0].message}", errors=told[:50]) from None


def _spec(document: Mapping[str, Any]) -> JobSpec:
    return JobSpec.model_validate_json(json.dumps(document))
