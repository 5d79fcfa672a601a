"""
Benchmarks compare like with like, without being run: the baseline of the API's benchmark tells every field that the product tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from controlplane.clusters.schemas import ClusterOut


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from _models(inner)


def fields(model: type[BaseModel], prefix: str = "") -> set[str]:
    """
    Dotted names of all fields of the answer, with those of the objects in it.
    """
    found: set[str] = set()
    for name, field in model.model_fields.items():
        told = f"{prefix}{field.serialization_alias or name}"
        found.add(told)
        for inner in _models(field.annotation):
            found |= fields(inner, f"{told}.")
    return found


# the bare application does not model them: they are null in what the benchmark reads
OPAQUE = ("spec.slurm.", "spec.kubernetes.", "spec.login.", "status.upgrade.")


def test_the_baseline_tells_what_the_product_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that the product's clusters gain is missing from the baseline's until somebody adds it there."""
    monkeypatch.setenv("BASELINE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")  # never connected to
    theirs = import_module("benchmarks.api.baseline").ClusterOut
    mine = {name for name in fields(ClusterOut) if not name.startswith(OPAQUE)}
    assert fields(theirs) == mine
