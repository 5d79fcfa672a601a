"""
The calculators over the catalog of the database, and over the catalog's file where there is no database.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from controlplane.calculating.answers import GIB, Answer, Ask
from controlplane.calculating.facts import Catalog, GpuFacts, KnownModel, Shape, known_models
from controlplane.calculating.registry import CALCULATORS, Calculator
from controlplane.calculators.errors import UnknownCalculator
from controlplane.catalog import service as catalog
from controlplane.kit.errors import FieldError, Invalid

PRECISIONS = frozenset({"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"})


def calculate(session: Session, name: str, ask: Ask) -> Any:
    """
    The calculator's answer with the GPUs and instance types that are sold here. Raises what the calculator refuses.
    """
    known = known_catalog(catalog.gpu_facts(session).values(), catalog.instance_facts(session).values())
    return CALCULATORS[name].answer(ask, known)


def calculate_offline(name: str, inputs: Mapping[str, Any]) -> Answer:
    """
    The calculator's answer with the GPUs and instance types of the catalog's file. Raises UnknownCalculator, Invalid.
    """
    found = CALCULATORS.get(name)
    if found is None:
        raise UnknownCalculator(f"There is no calculator {name!r}, but {', '.join(CALCULATORS)}.")
    try:
        ask = found.ask.model_validate_json(json.dumps(dict(inputs)))  # as strict as a request is
    except ValidationError as error:
        told = [FieldError(".".join(map(str, one["loc"])), one["type"], one["msg"]) for one in error.errors(include_url=False)]
        raise Invalid("\n".join(f"{one.field}: {one.message}" for one in told), errors=told) from error
    return found.answer(ask, known_catalog(*catalog.read_catalog()))


def list_calculators() -> tuple[Calculator, ...]:
    """
    All calculators.
    """
    return tuple(CALCULATORS.values())


def list_models() -> tuple[KnownModel, ...]:
    """
    All models whose configuration is known.
    """
    return tuple(known_models().values())


def known_catalog(models: Iterable[catalog.GpuModel], types: Iterable[catalog.InstanceType]) -> Catalog:
    """
    The catalog as calculators take it. A figure that the catalog has not is not made up.
    """
    gpus = list(models)
    return Catalog(
        gpus={one.name: _gpu(one) for one in gpus},
        gpu_sources={one.name: one.source for one in gpus},
        shapes={one.name: Shape(one.gpu_model, one.gpus, int(one.power_kw * 1000)) for one in types},
    )


def _gpu(one: catalog.GpuModel) -> GpuFacts:
    peaks: Any = {precision: float(tflops) for precision, tflops in one.tflops.items() if precision in PRECISIONS}
    return GpuFacts(memory_bytes=one.memory_gib * GIB, tflops=peaks, tdp_w=one.tdp_w)
