"""
The catalog's figures hold together.
"""

from __future__ import annotations

import re

import pytest

from controlplane.catalog.errors import CatalogBroken
from controlplane.catalog.service import GpuModel, InstanceType, read_catalog

MODELS, TYPES = read_catalog()
DENSE_BF16 = {
    "A100-SXM4-80GB": 312,
    "H100-SXM5-80GB": 989,
    "H200-SXM5-141GB": 989,
    "B200-SXM-180GB": 2250,
    "GB200-NVL72-186GB": 2500,
    "GB300-NVL72-279GB": 2500,
    "L40S": 362.05,
    "MI300X": 1307.4,
}


def test_peaks_are_dense() -> None:
    """Sparse figures, twice as high, are what material in the field mixes up with these."""
    assert {one.name: one.tflops["bf16"] for one in MODELS} == DENSE_BF16


@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.name)
def test_precisions_stand_in_their_ratios(model: GpuModel) -> None:
    """Halving the width doubles the peak: a figure taken from the sparse column breaks the chain. FP4 of Blackwell Ultra is tripled."""
    peaks = model.tflops
    assert peaks["bf16"] == peaks["fp16"]
    assert peaks["bf16"] / peaks["tf32"] == pytest.approx(2, rel=0.03)
    if "fp8" in peaks:
        assert peaks["fp8"] / peaks["bf16"] == pytest.approx(2, rel=0.03)
    if "fp4" in peaks:
        assert peaks["fp4"] / peaks["fp8"] == pytest.approx(3 if model.name.startswith("GB300") else 2, rel=0.03)


@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.name)
def test_every_model_names_its_source_and_its_partitions_fit(model: GpuModel) -> None:
    """A document of the maker, and MIG profiles whose largest is the whole memory."""
    assert model.vendor in model.source
    assert re.search(r"data sheet", model.source)
    named = re.search(r"(\d+)GB$", model.name)
    assert named is None or int(named[1]) == model.memory_gib
    if model.mig_profiles:
        assert model.mig_profiles[-1] == f"7g.{model.memory_gib}gb"
        assert all(int(one.split(".")[1].removesuffix("+me").removesuffix("gb")) <= model.memory_gib for one in model.mig_profiles)


@pytest.mark.parametrize("one", TYPES, ids=lambda one: one.name)
def test_a_node_draws_at_least_what_its_gpus_draw(one: InstanceType) -> None:
    """Planned power covers the GPUs and leaves something for the rest; the name tells the GPUs."""
    tdp_w = next(model.tdp_w for model in MODELS if model.name == one.gpu_model)
    assert one.power_kw * 1000 > one.gpus * tdp_w
    assert one.name.endswith(f"-{one.gpus}")


@pytest.mark.parametrize("text", ["[]", "{", "gpu_models: []", "gpu_models: []\ninstance_types: [{name: a}]"])
def test_a_broken_file_is_told(text: str) -> None:
    """The fault names itself instead of loading half."""
    with pytest.raises(CatalogBroken):
        read_catalog(text)
