"""
What every calculator takes and answers with.
"""

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Precision: TypeAlias = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"]
BITS: dict[Precision, int] = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "fp4": 4,
    "int4": 4,
}
"""Bits that one value takes in memory; scales of quantized formats are not counted."""
GIB = 2**30


class Ask(BaseModel):
    """
    What a caller gives: unknown fields are refused, types are not converted.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Told(BaseModel):
    """
    A part of an answer.
    """

    model_config = ConfigDict(frozen=True)


class Source(Told):
    """
    Where a formula or a figure stands.
    """

    title: str = Field(
        description="Name of the document.", examples=["ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"]
    )
    url: str = Field(description="Where to read it.", examples=["https://arxiv.org/abs/1910.02054"])
    section: str = Field(description="The place in it.", examples=["section 3 and figure 1"])


class Assumption(Told):
    """
    Something that the answer rests on and that nobody said.
    """

    name: str = Field(description="The input that was left out, or what was supposed.", examples=["optimizer_bytes_per_parameter"])
    value: str = Field(description="What was taken.", examples=["12"])
    why: str = Field(description="What it means.", examples=["Adam in fp32: master copy, momentum and variance, 4 bytes each."])


class Answer(Told):
    """
    A result with all that is needed to check it by hand.
    """

    calculator: str = Field(description="Which calculator.", examples=["kv-cache"])
    formulas: list[str] = Field(
        description="The formulas as text.", examples=[["bytes_per_token = 2 * layers * kv_heads * head_dim * bits / 8"]]
    )
    inputs: dict[str, Any] = Field(
        description="All inputs as they were used: defaults, and the facts of the model and the GPU.",
        examples=[{"context_tokens": 8192}],
    )
    assumptions: list[Assumption] = Field(description="What was supposed; every default that was used is here.")
    sources: list[Source] = Field(description="Where formulas and figures come from.")
    unknown: list[str] = Field(
        description="What could not be told, and why; those results are null.",
        examples=[["A100-SXM4-80GB has no fp8 peak in the catalog."]],
    )


def defaults_of(ask: Ask) -> list[Assumption]:
    """
    Every default that the answer rests on, in the order of the inputs.
    """
    fields = type(ask).model_fields
    return [
        Assumption(name=name, value=str(value), why=fields[name].description or "")
        for name in fields
        if name not in ask.model_fields_set and (value := getattr(ask, name)) is not None
    ]


def ceil_div(amount: int, parts: int) -> int:
    """
    The largest share when the amount is cut into equal parts, whole units.
    """
    return -(-amount // parts)


def bytes_of(values: int, precision: Precision) -> int:
    """
    Bytes that so many values take, rounded up.
    """
    return ceil_div(values * BITS[precision], 8)
