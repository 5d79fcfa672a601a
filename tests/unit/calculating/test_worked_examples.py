"""
What others published, and the guide's table of it.
"""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.unit.calculating.worked import EXAMPLES, Worked, table, told


@pytest.mark.parametrize("one", EXAMPLES, ids=lambda one: f"{one.what}: {one.source}")
def test_a_published_figure_comes_out(one: Worked) -> None:
    """The calculator gives the printed figure, within its printed digits or what its row explains."""
    assert one.ours() == pytest.approx(one.published, rel=one.within or 1e-12)


def test_the_guide_shows_the_table() -> None:
    """The guide's table is the one that these tests check."""
    assert table() in (ROOT / "docs" / "guides" / "calculators.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("how", "of_t"),
    [
        ({"recompute": "none"}, lambda t, ratio: 10 + 24 / t + 5 * ratio / t),
        ({"recompute": "none", "sequence_parallel": True}, lambda t, ratio: 34 / t + 5 * ratio / t),
        ({"recompute": "selective"}, lambda t, _: 10 + 24 / t),
        ({"recompute": "selective", "sequence_parallel": True}, lambda t, _: 34 / t),
        ({"recompute": "full"}, lambda _t, _: 2),
    ],
)
@pytest.mark.parametrize("t", [1, 8])
def test_activations_follow_the_published_rows(how: dict[str, object], of_t: object, t: int) -> None:
    """Each row of table 2 of arXiv 2205.05198, for GPT-3: in units of s b h, times the layers."""
    s, b, h, a, layers = 2048, 1, 12288, 96, 96
    got = told("training-memory", model="gpt-3-175b", sequence_tokens=s, micro_batch=b, tensor_parallel=t, **how).activations_bytes
    assert got == pytest.approx(layers * s * b * h * of_t(t, a * s / h), rel=1e-12)  # type: ignore[operator]
