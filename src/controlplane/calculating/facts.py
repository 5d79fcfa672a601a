"""
What is known of models and GPUs: published configurations from the file beside this module, GPUs and shapes from the catalog.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, StringConstraints, model_validator

from controlplane.calculating.answers import Ask, Precision, Source
from controlplane.calculating.errors import refused, unknown

FactsName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
Known = TypeVar("Known")


class ModelFacts(Ask):
    """
    The numbers of a decoder model that its memory and time depend on, as in its published configuration.
    """

    parameters: int = Field(ge=1, le=10**14, description="All parameters.", examples=[70_553_706_496])
    active_parameters: int | None = Field(
        default=None, ge=1, le=10**14, description="Parameters that one token uses; null: all of them.", examples=[70_553_706_496]
    )
    layers: int = Field(ge=1, le=10_000, description="Transformer layers.", examples=[80])
    hidden_size: int = Field(ge=1, le=1_000_000, description="Width of a token between layers.", examples=[8192])
    attention_heads: int = Field(ge=1, le=10_000, description="Query heads.", examples=[64])
    kv_heads: int = Field(
        ge=1, le=10_000, description="Key and value heads: as many as query heads, fewer (GQA) or one (MQA).", examples=[8]
    )
    head_dim: int = Field(ge=1, le=100_000, description="Width of a head.", examples=[128])
    latent_dim: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Multi-head latent attention only: values kept per token and layer (compressed KV and rotary key).",
        examples=[576],
    )
    experts: int = Field(default=0, ge=0, le=100_000, description="Routed experts per layer; 0: a dense model.", examples=[0])
    context_tokens: int | None = Field(
        default=None, ge=1, le=10**9, description="Longest context; null: not told.", examples=[131072]
    )

    @model_validator(mode="after")
    def _fits(self) -> "ModelFacts":
        if self.attention_heads % self.kv_heads:
            raise ValueError("attention_heads is a multiple of kv_heads")
        if self.active_parameters is not None and self.active_parameters > self.parameters:
            raise ValueError("active_parameters is at most parameters")
        return self

    @property
    def used_parameters(self) -> int:
        """
        Parameters that one token uses.
        """
        return self.parameters if self.active_parameters is None else self.active_parameters


class KnownModel(ModelFacts):
    """
    A model whose published configuration is known here.
    """

    name: str = Field(description="Its name here.", examples=["llama-3.1-70b"])
    repository: str = Field(
        description="Where its weights are published; empty: nowhere.", examples=["meta-llama/Llama-3.1-70B-Instruct"]
    )
    stored_as: Precision = Field(description="Precision of the published weights.", examples=["bf16"])
    source: Source = Field(description="Where the configuration stands.")


class GpuFacts(Ask):
    """
    The numbers of a GPU; null: not known.
    """

    memory_bytes: int | None = Field(default=None, ge=1, le=10**15, description="Memory.", examples=[85_899_345_920])
    tflops: dict[Precision, Annotated[float, Field(ge=1e-3, le=1e9)]] = Field(
        default={},
        max_length=9,
        description="Dense peak by precision in 10^12 operations per second.",
        examples=[{"bf16": 989.0, "fp8": 1979.0}],
    )
    tdp_w: int | None = Field(default=None, ge=1, le=100_000, description="Thermal design power in watts.", examples=[700])


@dataclass(frozen=True, slots=True)
class Shape:
    """
    What a sellable node is made of.
    """

    gpu_model: str
    """Its GPU."""
    gpus: int
    """GPUs per node."""
    power_w: int
    """Planned power of a node."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """
    What can be bought, as far as calculators need it.
    """

    gpus: Mapping[str, GpuFacts] = field(default_factory=dict)
    """By name."""
    gpu_sources: Mapping[str, str] = field(default_factory=dict)
    """By name: the document that a GPU's figures come from."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Instance types by name."""


class ModelAsk(Ask):
    """
    What calculators need of a model: its name, or its numbers.
    """

    model: FactsName | None = Field(
        default=None,
        description="A model of `GET /v1/calculators/models`; leave it out and give `facts` for any other.",
        examples=["llama-3.1-70b"],
    )
    facts: ModelFacts | None = Field(default=None, description="The numbers of a model that is not listed.", examples=[None])


class GpuAsk(Ask):
    """
    What calculators need of a GPU: its name in the catalog, or its numbers.
    """

    gpu_model: FactsName | None = Field(
        default=None,
        description="A GPU of `GET /v1/gpu-models`; leave it out and give `gpu` for any other.",
        examples=["H100-SXM5-80GB"],
    )
    gpu: GpuFacts | None = Field(default=None, description="The numbers of a GPU that is not in the catalog.", examples=[None])


@cache
def known_models() -> Mapping[str, KnownModel]:
    """
    The models of our file by name, in its order.
    """
    rows: list[dict[str, Any]] = yaml.safe_load(files("controlplane.calculating").joinpath("models.yaml").read_text("utf-8"))[
        "models"
    ]
    return {one["name"]: KnownModel.model_validate(one | {"source": Source(**one["source"])}) for one in rows}


def model_of(ask: ModelAsk) -> ModelFacts:
    """
    The facts of the model that is asked about. Raises CannotCalculate, UnknownFacts.
    """
    if (ask.model is None) == (ask.facts is None):
        raise refused("model", "Give either the name of a model in `model` or its numbers in `facts`.")
    return ask.facts if ask.facts is not None else _known("model", str(ask.model), known_models(), "`facts`")


def gpu_of(catalog: Catalog, ask: GpuAsk) -> GpuFacts | None:
    """
    The facts of the GPU that is asked about; None where none is. Raises CannotCalculate, UnknownFacts.
    """
    if ask.gpu_model is not None and ask.gpu is not None:
        raise refused("gpu_model", "Give either the name of a GPU in `gpu_model` or its numbers in `gpu`.")
    return ask.gpu if ask.gpu_model is None else _known("gpu_model", ask.gpu_model, catalog.gpus, "`gpu`")


def shape_of(catalog: Catalog, name: str) -> Shape:
    """
    The instance type. Raises UnknownFacts.
    """
    return _known("instance_type", name, catalog.shapes, "`node_w`")


def _known(field: str, name: str, all_of_them: Mapping[str, Known], instead: str) -> Known:
    found = all_of_them.get(name)
    if found is None:
        raise unknown(field, f"Nothing is known of this name; give its numbers in {instead}, or one of: {', '.join(all_of_them)}.")
    return found


def model_sources(ask: ModelAsk) -> list[Source]:
    """
    Where the facts of a named model stand.
    """
    return [] if ask.model is None else [known_models()[ask.model].source]


def gpu_sources(catalog: Catalog, ask: GpuAsk) -> list[Source]:
    """
    Where the facts of a named GPU stand.
    """
    told = catalog.gpu_sources.get(ask.gpu_model or "")
    return [] if told is None else [Source(title=told, url="", section=f"catalog entry {ask.gpu_model}")]


def inputs_of(ask: Ask, model: ModelFacts | None = None, gpu: GpuFacts | None = None) -> dict[str, Any]:
    """
    The inputs as they were used: defaults, and the facts behind names.
    """
    facts = {"facts": model, "gpu": gpu}
    return ask.model_dump(mode="json") | {name: one.model_dump(mode="json") for name, one in facts.items() if one is not None}
