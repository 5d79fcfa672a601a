"""
What a need is and which levels a chain has.
"""

from __future__ import annotations

import pytest

from controlplane.quotas.states import Chain, Need, merged


def test_a_chain_runs_from_the_root_down() -> None:
    """Levels come in lock order and carry what the wall needs."""
    levels = Chain("rsl_a", "ten_b", "prj_c").scopes()
    assert [one.kind for one in levels] == ["platform", "reseller", "tenant", "project"]
    assert [(one.reseller_id, one.tenant_id) for one in levels] == [
        (None, None),
        ("rsl_a", None),
        ("rsl_a", "ten_b"),
        ("rsl_a", "ten_b"),
    ]


def test_levels_left_empty_take_no_part() -> None:
    """A reseller's own key counts at platform and reseller only."""
    assert [one.kind for one in Chain("rsl_a", "", None).scopes()] == ["platform", "reseller"]


def test_needs_of_one_kind_are_one_need() -> None:
    """Amounts add up and nothing asks for nothing."""
    needs = [Need("gpus", 8, "H100", "osl1"), Need("clusters", 0), Need("gpus", 8, "H100", "osl1"), Need("gpus", 4, "A100", "osl1")]
    assert merged(needs) == (Need("gpus", 4, "A100", "osl1"), Need("gpus", 16, "H100", "osl1"))


@pytest.mark.parametrize(
    ("resource", "amount", "gpu_model", "site"),
    [("gpus", -1, "", ""), ("cows", 1, "", ""), ("gpus", 1, "H100", ""), ("gpus", 1, "", "osl1"), ("keys", 1, "H100", "")],
)
def test_a_need_that_cannot_be_counted_is_refused(resource: str, amount: int, gpu_model: str, site: str) -> None:
    """Negative amounts, unknown resources and half-named places never reach the counters."""
    with pytest.raises(ValueError, match=r"."):
        Need(resource, amount, gpu_model, site)  # type: ignore[arg-type]
